"""Every name of the project that the goldens use: where code moves, this file alone is edited."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

#: Words of ``python cli.py fit`` that choose a model.
MODELS = {
    "utterances": ["--config", "configs/utterance_lm.yaml"],
    "trees": ["--config", "configs/parse_tree_lm.yaml"],
    "utterances-of-trees": ["--config", "configs/parse2utterance.yaml"],
    "parser": ["--config", "configs/semantic_parser.yaml"],
}
TURNS = ["--data=datamodules.dialogue_data_module.DialogueDataModule"]
ADAPTERS = ["--config", "configs/overlays/lora.yaml"]
SAMPLE = ["--config", "configs/overlays/sample.yaml"]
ANNOTATE = ["--config", "configs/overlays/annotate.yaml"]


def written_to(path: Path) -> list[str]:
    """Words of ``python cli.py predict`` that say where its lines go."""
    writer = "callbacks.synthetic_writer.SyntheticWriter"
    arguments = f"{{output_path: {path}, stage: golden}}"
    return ["--trainer.callbacks", f"[{{class_path: {writer}, init_args: {arguments}}}]"]


def call(words: list[str]) -> int:
    """``python cli.py WORDS``, in this process."""
    import cli

    return cli.main(words)


def generated(num_turns: int, seed: int, skew: float) -> Iterator[tuple[str, ...]]:
    """Turns of the embedded grammar."""
    from doppel.grammar import generate

    for turn in generate(num_turns, seed, skew):
        yield turn.utterance, turn.parse, turn.unit, turn.domain


def noise_multiplier(units: int, batch: int, epochs: float, delta: float, epsilon: float, accountant: Any) -> float:
    """σ of a training."""
    from doppel.privacy.accounting import Mechanism, calibrate_noise_multiplier

    rate, steps = batch / units, math.ceil(epochs * units / batch)
    return calibrate_noise_multiplier(lambda sigma: [Mechanism(rate, sigma, steps)], epsilon, delta, accountant)


def epsilon_of(units: int, batch: int, epochs: float, delta: float, sigma: float, accountant: Any) -> float:
    """ε of a training and a histogram whose noise multiplier is 10."""
    from doppel.privacy.accounting import Mechanism, compute_epsilon

    training = Mechanism(batch / units, sigma, math.ceil(epochs * units / batch))
    return compute_epsilon([training, Mechanism(1.0, 10.0, 1)], delta, accountant)


def shipped() -> list[str]:
    """Names of the shipped experiments."""
    return sorted(path.stem for path in (ROOT / "configs" / "experiments").glob("*.yaml"))


def stages(name: str, changes: Mapping[str, Any], run: Path) -> Iterator[dict[str, Any]]:
    """Each step of an experiment, in order, by the names of its fields."""
    from commands.run.experiment import load, shipped
    from commands.run.recipes import steps_of

    for step in steps_of(load(shipped(name), changes), run):
        yield {
            "name": step.name,
            "kind": step.kind,
            "needs": list(step.needs),
            "argv": list(step.words(run)),
            "config": step.config,
            "reads": list(step.reads),
            "writes": [vars(file) for file in step.writes],
            "protected": list(step.protected),
            "mechanisms": list(step.mechanisms),
        }
