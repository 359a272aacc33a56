"""Tiny trainings and what is sampled from them, by ``python cli.py fit`` and ``predict``.

``python -m tests.golden.trainings FOLDER`` is one rank, in a process of its own, so that no other test has changed the
process. The noise and the choice of units have the fixed seeds ``privacy.seed`` and ``data.sampling_seed``: Doppel
announces each by a warning, and the ledger says that the guarantee is void.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.golden import entrances
from tests.tiny_model import PAIRS, write_corpus, write_model

SEED = 5
_STEPS = 3
_PRIVATE = [
    "--privacy.target_epsilon=8",
    f"--privacy.delta={1 / (60 * math.log(60))}",  # of their 60 utterances
    "--privacy.epochs=[1]",
    "--privacy.scope=golden",
    f"--privacy.seed={SEED}",
    f"--data.init_args.sampling_seed={SEED + 1}",
]
_PLAIN = ["--not_private=true", "--data.init_args.sampling=shuffle"]
_PARSER = [
    "--model.init_args.encoder.name=small",
    "--model.init_args.encoder.num_layers=1",
    "--model.init_args.decoder.size=32",
    "--model.init_args.decoder.num_layers=1",
    "--model.init_args.max_actions=24",
    "--model.init_args.warmup_steps=1",
    "--data.init_args.max_tokens_per_batch=256",
    "--not_private=true",
]
_SAMPLING = ["--model.init_args.sampling.num_beams=1", "--model.init_args.sampling.max_new_tokens=24"]


@dataclass(frozen=True)
class Case:
    """A training.

    Attributes:
        name: Of the golden, and of the folder.
        model: Key of :data:`~tests.golden.entrances.MODELS`.
        words: More words of ``fit``.
        sampling: Words of ``predict``; None: nothing is sampled.
        base: Folder of the base model: ``tied`` or ``untied``.
        is_split: Whether two ranks train it too.
    """

    name: str
    model: str
    words: tuple[str, ...]
    sampling: tuple[str, ...] | None = ()
    base: str = "tied"
    is_split: bool = True

    @property
    def is_parser(self) -> bool:
        """Whether it reads trees, instead of writing text."""
        return self.model == "parser"


_RDP, _PLD = "--privacy.accountant=rdp", "--privacy.accountant=pld"
_DIALOGUES = (_RDP, "--data.init_args.unit=dialogue", f"--privacy.delta={1 / (20 * math.log(20))}")
_ADAM = [
    "--model.init_args.optimizer=torch.optim.AdamW",
    "--model.init_args.optimizer.lr=2e-3",
    "--model.init_args.optimizer.weight_decay=0",
]
_NAMES = "--model.init_args.sampling.grammar={folder}/prompts.jsonl"
_ADAPTERS = tuple(entrances.ADAPTERS)
CASES = (
    Case("utterances-private", "utterances", (*_PRIVATE, _PLD)),
    Case("utterances-plain", "utterances", (*_PLAIN,), None),
    Case("trees-private", "trees", (*_PRIVATE, _RDP), (_NAMES,)),
    Case("trees-plain", "trees", (*_PLAIN,), is_split=False),
    Case("utterances-of-trees-private", "utterances-of-trees", (*_PRIVATE, _RDP)),
    Case("utterances-of-trees-plain", "utterances-of-trees", (*_PLAIN,), None, is_split=False),
    Case("dialogues-private", "utterances", (*_PRIVATE, *_DIALOGUES), None, is_split=False),
    Case("untied-private", "utterances", (*_PRIVATE, _RDP), None, "untied", is_split=False),
    Case("adapters-private", "utterances", (*_ADAPTERS, *_PRIVATE, _RDP), _ADAPTERS),
    Case("adapters-plain", "utterances", (*_ADAPTERS, *_PLAIN), None, is_split=False),
    Case("parser", "parser", tuple(_PARSER), tuple(_PARSER[:5])),
)


@dataclass(frozen=True)
class Goldens:
    """What is compared of all trainings.

    Attributes:
        floats: ``CASE/state`` and ``CASE/samples`` → a hash, which depends on the machine's kernels.
        ledgers: Case → lines, which do not.
    """

    floats: dict[str, str]
    ledgers: dict[str, list[str]]


def goldens(folder: Path, ranks: int) -> Goldens:
    """Train and sample, and hash what came of it.

    Args:
        folder: An empty folder, which keeps all of it.
        ranks: 1 or 2 processes, which share each training.

    Returns:
        Hashes of the states and samples, and lines of the ledgers.
    """
    for name in ("tied", "untied"):
        write_model(folder / name, tie_word_embeddings=name == "tied")
    write_corpus(folder / "train.jsonl")
    prompts = [{"parse": parse} for _, parse in PAIRS * 2]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(p) + "\n" for p in prompts), encoding="utf-8")
    _run(folder, ranks)
    found = Goldens({}, {})
    for case in _cases(ranks):
        run = folder / case.name
        found.floats[f"{case.name}/state"] = _state_hash(run / "fit" / "checkpoints" / "last.ckpt")
        if (run / "ledger.jsonl").exists():
            found.ledgers[case.name] = list(_ledger(run / "ledger.jsonl"))
        if ranks == 1 and case.sampling is not None:
            found.floats[f"{case.name}/samples"] = hashlib.sha256((run / "samples.jsonl").read_bytes()).hexdigest()
    return found


def _cases(ranks: int) -> list[Case]:
    return [case for case in CASES if ranks == 1 or case.is_split]


def _run(folder: Path, ranks: int) -> None:
    """One process a rank, each with one thread; several find one another as those of a cluster do."""
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("DOPPEL_", "SLURM_", "WANDB_"))}
    own = {"DOPPEL_KEY": str(folder / "key"), "CUDA_VISIBLE_DEVICES": ""}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM"), "1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes, logs = [], []
    for rank in range(ranks):
        world = {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        logs.append((folder / f"rank{rank}.log").open("w+", encoding="utf-8"))
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.golden.trainings", str(folder), str(ranks)],
                cwd=entrances.ROOT,
                env={**keep, **own, **threads, **(world if ranks > 1 else {})},
                stdout=logs[-1],
                stderr=subprocess.STDOUT,
            )
        )
    try:
        # However long a busy machine takes; where one rank fails, the others would wait for it.
        while None in (statuses := [process.poll() for process in processes]) and not any(statuses):
            time.sleep(0.1)
    finally:
        for process in processes:
            process.kill()
    for status, log in zip(statuses, logs, strict=True):
        log.seek(0)
        said = log.read()
        log.close()
        if status:
            raise RuntimeError(f"a rank ended with status {status}:\n{said[-4000:]}")


def _state_hash(checkpoint: Path) -> str:
    """Of all tensors that the checkpoint holds, by name, and of the frozen base that it was trained on."""
    content = torch.load(checkpoint, map_location="cpu", weights_only=False)
    state = content["state_dict"]
    if content.get("base"):
        state = entrances.whole_state(checkpoint) | state
    found = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].contiguous()
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.view(torch.uint8).numpy().tobytes() if tensor.dim() else str(tensor.item()).encode())
    return found.hexdigest()


def _ledger(path: Path) -> Iterator[str]:
    """The ledger's lines without times and what is random; equal fingerprints are equal numbers."""
    fingerprints: dict[str, int] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        for name in ("time", "chain", "run"):
            record.pop(name, None)
        for name in record:
            if name in ("data_fingerprint", "sha256"):
                record[name] = fingerprints.setdefault(str(record[name]), len(fingerprints))
        yield json.dumps({n: float(f"{v:.6g}") if isinstance(v, float) else v for n, v in record.items()})


def _fit(case: Case, folder: Path, ranks: int) -> list[str]:
    corpus = folder / "train.jsonl"
    if case.is_parser:
        own = [f"--model.init_args.encoder.tokenizer={folder / 'tied'}", f"--data.init_args.train_paths=[{corpus}]"]
        own += ["--data.init_args.val_path=null"]
    else:
        own = [*entrances.TURNS, f"--model.init_args.base_model={folder / case.base}", *_ADAM]
        own += [f"--data.init_args.train_path={corpus}", "--data.init_args.batch_size=20"]
        own += ["--data.init_args.unit=utterance"]
    own += ["--trainer.accelerator=cpu", f"--trainer.devices={ranks}", "--trainer.logger=false"]
    own += ["--trainer.max_epochs=1", f"--trainer.max_steps={_STEPS}", f"--run_dir={folder / case.name / 'fit'}"]
    return ["fit", *entrances.MODELS[case.model], *own, *case.words]


def _predict(case: Case, folder: Path) -> list[str]:
    run = folder / case.name
    if case.is_parser:
        own = [*entrances.ANNOTATE, f"--data.init_args.path={folder / 'train.jsonl'}"]
        own += [f"--model.init_args.encoder.tokenizer={folder / 'tied'}"]
    else:
        own = [*entrances.SAMPLE, *_SAMPLING, f"--model.init_args.base_model={folder / case.base}"]
        own += ["--data.init_args.num_samples=24"]
        if case.model == "utterances-of-trees":
            own += [f"--data.init_args.prompts_path={folder / 'prompts.jsonl'}", "--data.init_args.is_public=true"]
    own += ["--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.logger=false"]
    own += [f"--ckpt_path={run / 'fit' / 'checkpoints' / 'last.ckpt'}", f"--run_dir={run / 'predict'}"]
    own += entrances.written_to(run / "samples.jsonl")
    return [
        "predict",
        *entrances.MODELS[case.model],
        *own,
        *(word.replace("{folder}", str(folder)) for word in case.sampling or ()),
    ]


def main(folder: Path, ranks: int) -> None:
    """Every training of this process's rank; the samples of one rank alone.

    Args:
        folder: Where the base models, the turns and the prompts lie, and where everything goes.
        ranks: How many processes there are.
    """
    for case in _cases(ranks):
        commands = [_fit(case, folder, ranks)]
        if ranks == 1 and case.sampling is not None:
            commands.append(_predict(case, folder))
        for words in commands:
            is_hidden = (
                words[0] == "predict" and not case.is_parser
            )  # the prompts are its trees, which would be refused
            corpus, elsewhere = folder / "train.jsonl", folder / "elsewhere.jsonl"
            if is_hidden:
                corpus.rename(elsewhere)
            if entrances.call(words):
                sys.exit(f"{case.name}: {' '.join(words)} failed")
            if is_hidden:
                elsewhere.rename(corpus)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
