"""Every name of the project that the goldens use: where code moves, this file alone is edited."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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


def whole_state(checkpoint: Path) -> dict[str, Tensor]:
    """State of a language model of a run: what its checkpoint holds, and what it leaves to the folder of its base."""
    from commands.lightning.trained_model import trained_model
    from commands.run_folder.stage_config import StageConfig

    model = trained_model(checkpoint, StageConfig.read(checkpoint.parents[1])).model
    return {f"model.{name}": value for name, value in model.state_dict().items()}


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


def stages(name: str, changes: Mapping[str, Any], run: Path) -> Iterator[dict[str, Any]]:
    """Each step of an experiment, in order, by the names of its fields."""
    from commands.run.experiment.experiment import load, shipped
    from commands.run.steps.recipes import steps_of

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


def read(path: Path, unit: Any, columns: Mapping[str, Any] | None = None) -> Iterator[list[str | None]]:
    """The turns of a file."""
    from datamodules.reading.columns import Columns
    from datamodules.reading.examples import read_examples

    for turn in read_examples(str(path), unit, columns=None if columns is None else Columns(**columns)):
        yield [turn.utterance, turn.parse, turn.unit, turn.label]


def batches(
    path: Path, model: Path, text_format: tuple[Any, Any, bool, bool], unit: Any, seed: int, rank: int, world_size: int
) -> Iterator[list[Any]]:
    """The batches of a rank: of an epoch by Poisson samples, of one that is shuffled, and of a validation."""
    from types import SimpleNamespace

    from transformers import AutoTokenizer

    from datamodules.dialogue_data_module import DialogueDataModule
    from datamodules.text_format import TextFormat

    source, target, names_target, has_slots = text_format
    slots = "shipped" if has_slots else None
    for sampling in ("poisson", "shuffle"):
        given = {"unit": unit, "batch_size": 9, "sampling_seed": seed, "limit_val_turns": 50}
        data = DialogueDataModule(str(path), str(path), max_tokens_per_micro_batch=400, sampling=sampling, **given)
        tokenizer = AutoTokenizer.from_pretrained(model)
        data.text_format = TextFormat(tokenizer, source, target, 90, "spaced", task_prefix=names_target, slots=slots)
        data.trainer = SimpleNamespace(  # type: ignore[assignment]
            state=SimpleNamespace(fn=None),
            global_rank=rank,
            world_size=world_size,
            global_step=0,
            strategy=SimpleNamespace(broadcast=lambda secret: secret),
        )
        data.setup("fit")
        for batch in [*data.train_dataloader(), *data.val_dataloader()]:
            yield [batch.num_units, batch.expected_num_units, batch.is_public]
            for part in batch.micro_batches:
                yield [part.num_units, part.rows_per_unit, part.input_ids.tolist(), part.labels.tolist()]


def last_states(model: str, texts: Sequence[str]) -> Tensor:
    """The last layer's state of each text's last token."""
    from doppel.models.encoders import TextFeaturizer

    return TextFeaturizer(model)(texts)


def mean_states(model: str, texts: Sequence[str]) -> Tensor:
    """The mean over each text's tokens, of length 1."""
    from doppel.models.encoders import TextFeaturizer

    return TextFeaturizer(model, pooling="mean")(texts)


def judge_states(model: str, texts: Sequence[str]) -> Tensor:
    """As :func:`last_states`, behind the token that begins a text."""
    from doppel.metrics.fluency import LanguageModel

    return LanguageModel(model)(texts)


def minilm() -> str:
    """Folder of MiniLM."""
    from doppel.models.encoders import minilm

    return minilm()


def embedded(texts: Sequence[str], alone: bool) -> Tensor:
    """What topics and votes compare."""
    from commands.privacy.feature_extractors import embed

    return torch.as_tensor(embed(texts, "minilm", alone))


def nats(model: str, texts: Sequence[str]) -> list[float]:
    """Loss of each text."""
    from doppel.metrics.fluency import LanguageModel

    return LanguageModel(model).nats(texts)


def next_token(model: str, taught: Sequence[str], judged: Sequence[str], epochs: int) -> float:
    """Share of next tokens that are the likeliest."""
    from doppel.metrics.next_token import next_token_accuracy

    return next_token_accuracy(taught, judged, model, epochs) or 0.0


def value_scores(model: str, text: str, values: Sequence[str]) -> list[float]:
    """log p(value | text)."""
    from doppel.models.load import load_with_tokenizer
    from doppel.tables.asked import ValueChooser

    chooser = ValueChooser(*load_with_tokenizer(model))
    return chooser._scores(text, values, "Request: {text}\nKind:").tolist()


def written(model: str, begins: Sequence[str], streams: Sequence[str], top_p: float = 1.0) -> list[str]:
    """What a generator in a folder goes on with."""
    from doppel.evolution.generators.answers import Answers
    from doppel.evolution.generators.hugging_face import FolderModel
    from doppel.evolution.generators.wording import Question

    questions = [Question(words, "", stream) for words, stream in zip(begins, streams, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        answers = Answers(Path(folder) / "answers.jsonl", "golden")
        FolderModel(model, top_p=top_p, max_new_tokens=24, batch_size=3).answer(questions, answers)
        return [str(answers.find(question)) for question in questions]


def guessed(model: str, before: Sequence[str], behind: Sequence[str]) -> list[str]:
    """Words in place of a mask."""
    from doppel.redaction.reconstruction import Reconstructor

    return Reconstructor(model).guesses(before, behind)
