"""A frozen base of 1.2 B weights through a run on a CPU: killed, resumed, sampled from, exported, loaded by peft."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

ROOT = Path(__file__).resolve().parents[2]
#: Sixteen layers of 2,048 and 32,000 rows: 1,204 million weights.
SIZES = {"num_hidden_layers": 16, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32}
NUM_UNITS, BATCH = 512, 256


def make_base(folder: Path) -> None:
    """Fresh weights in bfloat16, under the shipped tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "models" / "base")
    special = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = LlamaConfig(vocab_size=32_000, max_position_embeddings=2048, **SIZES, **special)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    assert sum(p.numel() for p in model.parameters()) > 1.2e9
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def resident(session: int) -> int:
    """Bytes that the processes of a session hold."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) == session:
                total += int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            continue  # it has ended
    return total


def called(folder: Path, *words: str, kill_after: int | None = None) -> int:
    """Run a command, or kill it after a number of paid steps whose checkpoint is there; the most bytes that it held."""
    ledger, most = folder / "run" / "ledger.jsonl", 0
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "cli.py", *words], cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )
    while process.poll() is None:
        most = max(most, resident(process.pid))
        paid = ledger.read_bytes().count(b'"type": "spend"') if ledger.exists() else 0
        if kill_after is not None and paid > kill_after and list(folder.rglob("last.ckpt")):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return most
        time.sleep(0.1)
    assert kill_after is None and process.returncode == 0, (folder / "log.txt").read_text()[-4000:]
    return most


@pytest.mark.slow
@pytest.mark.hours
def test_a_base_of_a_billion_weights_trains_and_is_released(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from doppel.grammar import generate

    base, run, begin = tmp_path / "base", tmp_path / "run", time.monotonic()
    subprocess.run([sys.executable, __file__, str(base)], cwd=ROOT, check=True, env={**os.environ, "PYTHONPATH": "."})
    rows = [{"utterance": turn.utterance} for turn in generate(NUM_UNITS, 1)]
    (tmp_path / "private.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    experiment = {
        "systems": ["one_stage"],
        "num_samples": 4,
        "epochs": {"one_stage": 1},
        "data": {"train_path": str(tmp_path / "private.jsonl"), "unit": "utterance", "batch_size": BATCH},
        "model": {"base_model": str(base), "lora": {"rank": 8, "alpha": 16.0}, "max_length": 128},
        "sampling": {"max_new_tokens": 8, "redraws": None},
        "trainer": {"accelerator": "cpu", "precision": "bf16-mixed", "logger": False},
        "privacy": {"accountant": "rdp"},
    }
    experiment["data"] |= {"max_tokens_per_micro_batch": 1024, "max_units_per_micro_batch": 32}  # type: ignore[operator]
    (tmp_path / "large.yaml").write_text(yaml.safe_dump(experiment))
    words = ["run", str(tmp_path / "large.yaml"), str(run), "--local"]
    most = called(tmp_path, *words, kill_after=1)
    assert not (run / "one_stage" / "samples.jsonl").exists(), "it was killed before its end"
    most = max(most, called(tmp_path, *words))
    assert len((run / "one_stage" / "samples.jsonl").read_bytes().splitlines()) == 4
    (checkpoint,) = {path.resolve() for path in run.rglob("last.ckpt")}
    size = checkpoint.stat().st_size
    exported = tmp_path / "released"
    called(tmp_path, "export", str(checkpoint.parent.parent), str(exported))
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16), exported)
    with torch.no_grad():
        assert model(input_ids=torch.tensor([[3, 4, 5]])).logits.isfinite().all()
    with capsys.disabled():
        took = time.monotonic() - begin
        print(f"most {most / 1e9:.1f} GB, checkpoint {size / 1e6:.1f} MB, {took:.0f} s")  # noqa: T201
    assert most < 24e9 and size < 100e6


if __name__ == "__main__":
    make_base(Path(sys.argv[1]))
