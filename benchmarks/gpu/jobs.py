"""What a GPU is asked for, most wanted first, and what each job leaves.

Each job fits into three minutes, or saves and goes on in the next call: README.md says how the minutes were reckoned.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

Settings = dict[str, object]
#: Files of a run that are brought back: samples and prompts, its ledger, how it was made, and what taught its base.
SAMPLES = ("*/samples.jsonl", "*/trees.jsonl", "ledger.jsonl", "experiment.yaml", ".done/*", "public/config.yaml")
_TOY_STEP = ["--sizes", "tiny", "--lengths", "8", "--micro-batch", "2", "--repeats", "1", "--seconds", "0.1"]


@dataclass(frozen=True)
class Job:
    """One command.

    Attributes:
        part: a, b or c.
        name: Of its folder and its log.
        command: Words.
        minutes: That it takes, as reckoned: what is measured begins where so many are left.
        goes_on: That it saves where it is told to end, and the same command goes on.
        keeps: Patterns of files in its folder that are brought back.
    """

    part: str
    name: str
    command: tuple[str, ...]
    minutes: float
    goes_on: bool = False
    keeps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where the jobs run.

    Attributes:
        work: Folder of the runs.
        out: Folder of what is brought back.
        data: Folder of the data sets.
        device: ``cuda`` or ``cpu``.
        is_rehearsal: Whether everything is of toy size, on the shipped small base.
    """

    work: Path
    out: Path
    data: Path
    device: str
    is_rehearsal: bool

    @property
    def is_gpu(self) -> bool:
        """Whether half precision is fast."""
        return self.device == "cuda"

    @property
    def base(self) -> str:
        """The base model."""
        return "models/base" if self.is_rehearsal else "models/smollm2-135m-requests"


def jobs(place: Place) -> list[Job]:
    """All jobs, in the order in which they begin."""
    return [*_engine(place), _large_bases(place), *_requests(place), *_services(place)]


def _engine(place: Place) -> list[Job]:
    """a: time, peak memory and operations of a private micro-batch beside an ordinary one; whole steps with graphs."""
    precision = ["--precision", "bf16" if place.is_gpu else "32"]
    common = ["--device", place.device, *precision, "--repeats", "3", "--seconds", "1", "--skip", "Doppel, HeadLoss"]

    def clipping(name: str, minutes: float, *options: str) -> Job:
        words = [sys.executable, "-m", "benchmarks.clipping", *common, *options]
        words += _TOY_STEP if place.is_rehearsal and "--operations" not in options else []
        return Job("a", name, (*words, "--out", str(place.out / f"{name}.md")), minutes)

    sizes = ["--rows", "Doppel", "--sizes", "smollm2-135m", "gpt2", "--adapters", "0", "16"]
    step = ["--batch-size", "20", "--turns", "1"] if place.is_rehearsal else ["--batch-size", "2048", "--turns", "5"]
    public = place.data / "smcalflow" / "train.dataflow_dialogues.jsonl.zip"
    words = [sys.executable, "-m", "benchmarks.step", place.base if place.is_rehearsal else "smollm2-135m", *step]
    words += ["--public", str(public), "--tokens", "131072", "--device", place.device]
    words += ["--precision", "bf16-mixed" if place.is_gpu else "32-true"]
    return [
        clipping("clipping-64-tokens", 1.4, *sizes, "--micro-batch", "256", "--lengths", "64"),
        clipping("clipping-16-tokens", 1.0, *sizes, "--micro-batch", "64", "--lengths", "16"),
        Job("a", "step-graphs", (*words, "--out", str(place.out / "step-graphs.md")), 2.5),
        clipping("clipping-operations", 0.5, "--operations"),
    ]


def _large_bases(place: Place) -> Job:
    """b: private LoRA on fresh bases of 1 and 8 B: peak memory beside the planner's, tokens a second, a checkpoint."""
    sizes = ["tiny-llama", "--tokens", "64", "--units", "4", "--seconds", "0.1"]
    sizes = sizes if place.is_rehearsal else ["llama-3.2-1b", "llama-3.1-8b"]
    words = [sys.executable, "-m", "benchmarks.large_base", "--device", place.device, "--ways", "bfloat16"]
    words += ["--sizes", *sizes]
    return Job("b", "large-base", (*words, "--out", str(place.out / "large-base.md")), 2.5)


def _requests(place: Place) -> list[Job]:
    """c: SmolLM2-135M adapted, LoRA 16, B = 2,048, on SMCalFlow: seeds, ε, fewer requests, taught first, two-stage."""
    taught: Settings = {"epochs.public": 3, "stages.public.model.optimizer.lr": 1e-3, "sampling.top_p": 0.9}
    fewer: Settings = {"data.keep_share": 0.3025, "data.batch_size": 152}  # 3,043 requests, as many steps
    two: Settings = {"epochs.parse_tree": 1, "epochs.parse2utterance": 2, "model.slots": "shipped"}
    two |= {"stages.parse_tree.privacy.max_grad_norm": 2.2, "stages.parse2utterance.privacy.max_grad_norm": 1.6}

    def one_stage(name: str, settings: Settings) -> Job:
        return _synthesis(place, name, "one_stage", 2.5, {"effort": 4, **settings})

    def two_stage(name: str, settings: Settings) -> Job:
        return _synthesis(place, name, "two_stage", 5.0, {"effort": 4, **two, **settings})

    first = [one_stage("taught-s1", taught), one_stage("one-s1", {}), two_stage("two-s1", {})]
    more = [
        one_stage("one-eps8", {"epsilon": 8}),
        one_stage("one-3043", fewer),
        one_stage("taught-3043", taught | fewer),
    ]
    seeds = [
        job
        for seed in (2, 3)
        for job in (
            one_stage(f"taught-s{seed}", {**taught, "seed": seed}),
            one_stage(f"one-s{seed}", {"seed": seed}),
            two_stage(f"two-s{seed}", {"seed": seed}),
        )
    ]
    return [*first, *more, *seeds, two_stage("two-eps8", {"epsilon": 8})]


def _services(place: Place) -> list[Job]:
    """c: the same base on all 111,878 requests of Schema-Guided Dialogue, B = 4,096."""
    files = {name: place.data / "sgd" / f"{name}.dataflow_dialogues.jsonl.zip" for name in ("train", "valid")}
    common: Settings = {"data.train_path": files["train"], "data.val_path": files["valid"], "reference": files["valid"]}
    common |= {"data.limit_val_turns": 1000, "data.batch_size": 4096, "stages.parse_tree.sampling.grammar": "reference"}
    common |= {"epochs.one_stage": 10, "epochs.parse_tree": 1, "epochs.parse2utterance": 2}

    def job(system: str, seed: int, minutes: float) -> Job:
        return _synthesis(place, f"sgd-{system}-s{seed}", system, minutes, {**common, "seed": seed})

    return [job("one_stage", 1, 7.0), job("two_stage", 1, 10.0), job("one_stage", 2, 7.0), job("two_stage", 2, 10.0)]


def _synthesis(place: Place, name: str, system: str, minutes: float, settings: Settings) -> Job:
    """Trainings and samplings of a system."""
    stages = ("parse_tree", "parse2utterance") if system == "two_stage" else (system,)
    common: Settings = {
        "epsilon": 3,
        "seed": 1,
        "model.base_model": place.base,
        "data.max_tokens_per_micro_batch": 131072,  # 3 micro-batches a step: launching kernels is what takes time
        "stages.parse_tree.data.max_tokens_per_micro_batch": 32768,  # long rows fill them
        "stages.parse2utterance.data.max_tokens_per_micro_batch": 32768,
        "sampling.max_rows": 512,
        "trainer.logger": "false",
        "trainer.precision": "auto" if place.is_gpu else "32-true",  # a CPU may emulate half precision
    }
    settings = {**common, **settings}
    if place.is_rehearsal:
        settings |= {"data.keep_share": 0.002 if name.startswith("sgd") else 0.02, "data.batch_size": 100, "effort": 1}
        settings |= {"num_samples": 6, "data.limit_val_turns": 20, "sampling.max_new_tokens": 12}
        settings |= {"sampling.redraws": "null", "stages.parse_tree.sampling.max_new_tokens": 24}
        settings |= {f"epochs.{stage}": 1 for stage in (*stages, *(["public"] if "epochs.public" in settings else []))}
    words = [sys.executable, "-m", "benchmarks.gpu.synthesize", "configs/experiments/smcalflow-135m.yaml"]
    words += [str(place.work / name), "--system", system, "--set"]
    words += [f"{key}={value}" for key, value in settings.items()]
    return Job("c", name, tuple(words), minutes, True, SAMPLES)
