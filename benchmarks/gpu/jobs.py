"""What is run in which part, most wanted first, and what each job leaves.

The arithmetic of the minutes stands in README.md.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

Settings = dict[str, object]
#: Files of a run that are brought back: samples and prompts, its ledger, and how it was made.
SAMPLES = ("*/samples.jsonl", "*/trees.jsonl", "ledger.jsonl", "experiment.yaml", ".done/*", "configs/*.yaml")
_TOY_STEP = ["--sizes", "tiny", "--lengths", "8", "--micro-batch", "2", "--repeats", "1", "--seconds", "0.1"]

#: What ``norms`` recommends for the mean over a row's tokens on the shipped base.
MEAN_LOSS_NORMS = {"one_stage": 14.0, "parse_tree": 8.0, "parse2utterance": 18.0}


@dataclass(frozen=True)
class Job:
    """One command with a time limit.

    Attributes:
        part: L, A to H.
        name: Of its folder and its log.
        command: Words.
        minutes: After which it is ended.
        keeps: Patterns of files in its folder that are brought back.
    """

    part: str
    name: str
    command: tuple[str, ...]
    minutes: float
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
    def precision(self) -> str:
        """Of the trainings: half precision is slow in a rehearsal on a CPU that emulates it."""
        return "auto" if self.device == "cuda" else "32-true"

    def base(self, name: str) -> str:
        """The base model."""
        return "models/base" if self.is_rehearsal else f"models/{name}"


def jobs(place: Place) -> list[Job]:
    """All jobs, in the order in which they begin."""
    return [
        _large_bases(place),
        *_steps(place),
        _graphs(place),
        *_samples(place),
        _adaptation(place),
        *_small_base(place),
        *_users(place),
    ]


def _large_bases(place: Place) -> Job:
    """L: private LoRA on fresh bases of 1 and 8 B: peak memory beside the planner's, tokens a second, a checkpoint."""
    sizes = ["tiny-llama", "--tokens", "64", "--units", "4", "--seconds", "0.1"]
    sizes = sizes if place.is_rehearsal else ["llama-3.2-1b", "llama-3.1-8b"]
    words = [sys.executable, "-m", "benchmarks.large_base", "--device", place.device, "--ways", "bfloat16"]
    words += ["--sizes", *sizes]
    return Job("L", "large-base", (*words, "--out", str(place.out / "large-base.md")), 4.0)


def _steps(place: Place) -> list[Job]:
    """A: a private training step against an ordinary one, throughput and peak memory, and Opacus on one micro-batch."""
    common = ["--lengths", "64", "--micro-batches", "2", "--repeats", "3", "--seconds", "1", "--warmup", "2"]
    both = [*common, "--micro-batch", "256", "--sizes", "smollm2-135m", "gpt2", "--adapters", "0", "16"]
    both += ["--rows", "Doppel", "--skip", "Doppel, HeadLoss"]
    opacus = [*common, "--sizes", "gpt2", "--micro-batch", "32", "--rows", "Opacus hooks", "Opacus ghost"]
    toy = _TOY_STEP if place.is_rehearsal else []

    def job(name: str, precision: str, options: list[str], minutes: float) -> Job:
        words = [sys.executable, "-m", "benchmarks.clipping", "--device", place.device, "--precision", precision]
        words += [*options, *toy, "--out", str(place.out / f"{name}.md")]
        return Job("A", name, tuple(words), minutes)

    found = [job("clipping-bf16", "bf16", both, 1.4), job("clipping-opacus", "bf16", opacus, 0.6)]
    return [*found, job("clipping-fp16", "fp16", both, 1.4)]


def _graphs(place: Place) -> Job:
    """H: a whole step of 2,048 requests with LoRA 16, noise and optimiser in, with and without CUDA graphs."""
    public = place.data / "smcalflow" / "train.dataflow_dialogues.jsonl.zip"
    size = ["--batch-size", "20", "--turns", "1"] if place.is_rehearsal else ["--batch-size", "2048", "--turns", "12"]
    words = [sys.executable, "-m", "benchmarks.step", place.base("smollm2-135m"), "--public", str(public), *size]
    words += ["--tokens", "131072", "--device", place.device]
    words += ["--precision", "bf16-mixed" if place.device == "cuda" else "32-true"]
    return Job("H", "step-graphs", (*words, "--out", str(place.out / "step-graphs.md")), 3.0)


def _samples(place: Place) -> list[Job]:
    """C: p(x); D: two-stage; E: p(x) of Schema-Guided Dialogue; all from SmolLM2 with the adapter, at ε = 3."""
    common: Settings = {
        "epsilon": 3,
        "seed": 1,
        "effort": 1,
        "model.base_model": place.base("smollm2-135m-requests"),
        "model.slots": "shipped",
        "data.max_tokens_per_micro_batch": 131072,  # 3 micro-batches a step: launching kernels is what takes time
        "stages.parse_tree.data.max_tokens_per_micro_batch": 32768,  # long rows fill them
        "stages.parse2utterance.data.max_tokens_per_micro_batch": 32768,
        "sampling.max_rows": 512,
        "stages.one_stage.privacy.max_grad_norm": 1.3,  # as `norms` says of adapters on this base
        "stages.parse_tree.privacy.max_grad_norm": 2.2,
        "stages.parse2utterance.privacy.max_grad_norm": 1.6,
    }
    sgd: Settings = {
        "data.train_path": place.data / "sgd" / "train.dataflow_dialogues.jsonl.zip",
        "data.val_path": place.data / "sgd" / "valid.dataflow_dialogues.jsonl.zip",
        "data.limit_val_turns": 1000,
        "data.batch_size": 4096,
        "epochs.one_stage": 3,
        "model.slots": "null",
    }
    one: Settings = {"data.batch_size": 2048, "epochs.one_stage": 12}  # 59 steps
    few: Settings = {"data.keep_share": 0.2982}  # 3,000 units
    few_one: Settings = {**few, "data.batch_size": 2048, "epochs.one_stage": 24}  # 36 steps
    trees: Settings = {"data.batch_size": 2048, "epochs.parse_tree": 2, "epochs.parse2utterance": 8}
    few_trees: Settings = {**few, "data.batch_size": 2048, "epochs.parse_tree": 4, "epochs.parse2utterance": 16}
    return [
        _synthesis(place, "C", "lora16", common | one),
        _synthesis(place, "C", "lora16-3000", common | few_one),
        _synthesis(place, "D", "two-stage", common | trees, "two_stage"),
        _synthesis(place, "D", "two-stage-3000", common | few_trees, "two_stage"),
        _synthesis(place, "E", "sgd", common | sgd),
    ]


def _small_base(place: Place) -> list[Job]:
    """F: the shipped base at B = 2,048: compute for noise, ε, beams and losses, and further seeds.

    A batch of 2,048 of 10,060 units is 5 steps an epoch, so 12 epochs are 59 steps and 24 are 118.
    """
    common: Settings = {"epsilon": 3, "seed": 1, "effort": 1, "data.batch_size": 2048, "epochs.one_stage": 12}
    common |= {"epochs.parse_tree": 4, "epochs.parse2utterance": 8}
    common |= {"data.max_tokens_per_micro_batch": 16384, "sampling.max_rows": 512}
    twice: Settings = {"epochs.one_stage": 24}
    mean: Settings = {"model.loss_divisor": "null"}  # and C as `norms` says
    mean |= {f"stages.{stage}.privacy.max_grad_norm": norm for stage, norm in MEAN_LOSS_NORMS.items()}
    beams: Settings = {f"stages.{stage}.sampling.num_beams": 5 for stage in ("one_stage", "parse2utterance")}

    def lr(rate: float) -> Settings:
        return {"model.optimizer.lr": rate}

    def decay(num_steps: int) -> Settings:
        linear = f"{{start_factor: 1.0, end_factor: 0.02, total_iters: {num_steps}}}"
        return {"model.lr_scheduler": f"{{class_path: torch.optim.lr_scheduler.LinearLR, init_args: {linear}}}"}

    def job(name: str, settings: Settings, system: str = "one_stage") -> Job:
        return _synthesis(place, "F", name, common | settings, system, "smcalflow-best-small")

    def noise(epsilon: float | str, seed: int = 1) -> Job:
        return job(f"eps{epsilon}-s{seed}", {"epsilon": epsilon, "seed": seed})

    two = [
        job("two-59", {}, "two_stage"),
        job("two-118", {"epochs.parse_tree": 8, "epochs.parse2utterance": 16}, "two_stage"),
        job("two-beams", beams, "two_stage"),
        job("two-mean", mean, "two_stage"),
        job("two-mean-beams", mean | beams, "two_stage"),
        job("two-2-8", {"epochs.parse_tree": 2}, "two_stage"),
    ]
    one = [
        job("one-59", {}),
        job("one-59-lr1", lr(1e-3)),
        job("one-59-lr4", lr(4e-3)),
        job("one-118", twice),
        job("one-118-lr1", twice | lr(1e-3)),
        job("one-118-decay", twice | decay(118)),
        job("one-59-decay", decay(59)),
        job("one-mean", mean),
        job("one-mean-beams", mean | beams),
        job("one-beams", beams),
        job("one-3000", {**twice, "data.keep_share": 0.2982}),
    ]
    epsilons = [noise(epsilon, seed) for seed in (1, 2) for epsilon in (8, 1, 32, 10000, "inf")]
    seeds = [noise(3, 2), noise(3, 3)]
    seeds += [job(f"two-59-s{seed}", {"seed": seed}, "two_stage") for seed in (2, 3)]
    return [*two, *one, *epsilons[:5], *seeds, *epsilons[5:]]


def _users(place: Place) -> list[Job]:
    """G: the shipped base on 2,506 to 111,878 requests of Schema-Guided Dialogue, ε = 3: how many users are needed."""
    common: Settings = {
        "epsilon": 3,
        "effort": 1,
        "num_samples": 1711,
        "data.train_path": place.data / "sgd" / "train.dataflow_dialogues.jsonl.zip",
        "data.val_path": place.data / "sgd" / "valid.dataflow_dialogues.jsonl.zip",
        "reference": place.data / "sgd" / "valid.dataflow_dialogues.jsonl.zip",
        "data.max_tokens_per_micro_batch": 32768,
        "sampling.max_rows": 512,
    }

    def job(system: str, num_turns: int, batch_size: int, epochs: int, seed: int) -> Job:
        """Epochs are those of utterances; half as many of trees."""
        stages = ("parse_tree", "parse2utterance") if system == "two_stage" else (system,)
        lengths = {f"epochs.{stage}": max(epochs // 2, 1) if stage == "parse_tree" else epochs for stage in stages}
        size: Settings = {"data.keep_share": round(num_turns / 111_878, 4), "data.batch_size": batch_size}
        name = f"sgd-{system}-{num_turns}-s{seed}"
        return _synthesis(place, "G", name, {**common, "seed": seed, **size, **lengths}, system, "sgd-small")

    few, some, many, all_ = (2506, 512, 12), (10_002, 2048, 12), (39_996, 2048, 6), (111_878, 2048, 6)
    two = [job("two_stage", *size, 1) for size in (some, many, few)]
    again = [job("one_stage", *size, 2) for size in (some, few, many, all_)]
    return [job("one_stage", *all_, 1), *two, *again, job("two_stage", *all_, 1)]


def _synthesis(
    place: Place,
    part: str,
    name: str,
    settings: Settings,
    system: str = "one_stage",
    experiment: str = "smcalflow-135m",
) -> Job:
    """Trainings and samplings of a system of an experiment."""
    settings = {"trainer.logger": "false", "trainer.precision": place.precision, **settings}
    if place.is_rehearsal:
        stages = ("parse_tree", "parse2utterance") if system == "two_stage" else (system,)
        settings |= {"data.keep_share": 0.002 if name.startswith("sgd") else 0.02}
        settings |= {"data.batch_size": 100, "num_samples": 6}
        settings |= {"data.limit_val_turns": 20, "sampling.max_new_tokens": 12, "sampling.redraws": "null"}
        settings |= {f"epochs.{stage}": 1 for stage in stages}
        settings |= {"stages.parse_tree.sampling.max_new_tokens": 24} if len(stages) == 2 else {}
    words = [sys.executable, "-m", "benchmarks.gpu.synthesize", f"configs/experiments/{experiment}.yaml"]
    words += [str(place.work / name), "--system", system, "--set"]
    return Job(part, name, (*words, *(f"{key}={value}" for key, value in settings.items())), 9.0, SAMPLES)


def _adaptation(place: Place) -> Job:
    """B: SmolLM2-135M reads public requests, trees and slots; its adapters come back."""
    num_steps, num_blocks = (3, 4) if place.is_rehearsal else (1220, 64)
    settings: Settings = {
        "model.init_args.base_model": place.base("smollm2-135m"),
        "model.init_args.lora.rank": 64,
        "model.init_args.lora.alpha": 128.0,
        "model.init_args.lr_scheduler.init_args.total_steps": num_steps,
        "data.init_args.utterances_path": place.data / "public" / "utterances.txt.gz",
        "data.init_args.batch_size": num_blocks,
        "trainer.max_steps": num_steps,
        "trainer.max_epochs": 10,
        "trainer.val_check_interval": max(num_steps // 10, 1),
        "trainer.logger": "false",
        "trainer.precision": place.precision,
    }
    if place.is_rehearsal:
        settings |= {"data.init_args.max_utterances": 500, "data.init_args.grammar_turns": 300}
        settings |= {"data.init_args.num_val_utterances": 20, "data.init_args.num_val_pairs": 8}
    words = [sys.executable, "cli.py", "fit", "--config", "configs/pretrain.yaml"]
    words += ["--config", "configs/pretrain_135m.yaml", "--run_dir", str(place.work / "adapted")]
    words += [f"--{key}={value}" for key, value in settings.items()]
    return Job("B", "adapted", tuple(words), 5.0, ("loss/version_0/metrics.csv", "config.yaml"))
