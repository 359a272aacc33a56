"""What an audit hides canaries in, and how it reads them off a model: a text model's turns, or rows of one's own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from torch import Tensor
from tqdm import tqdm

from commands.privacy.extraction import extraction_report
from datamodules.batches.cut import cut, micro_batch
from datamodules.batches.encoded import encode_examples
from datamodules.dialogue_data_module import DialogueDataModule
from datamodules.guards.canaries import Canary, audit_turns, make_examples, read_canary_examples
from datamodules.guards.selection import Selection
from datamodules.reading.columns import Columns
from datamodules.reading.example import Example
from datamodules.training_rows import first_units
from datamodules.unit_data_module import UnitBatch, UnitDataModule
from doppel.decoding.sampling import sample_texts
from doppel.errors import UserError
from doppel.files import read_json_lines, write_json_lines
from lightning_modules.causal_lm import CausalLM
from lightning_modules.training.logical_batch_module import LogicalBatchModule

_SAMPLING_BATCH = 64


class Subject(Protocol):
    """A model and its data.

    Attributes:
        name: Of the data, for the report.
    """

    name: str

    def make(self, num: int, path: str | None, rng: random.Random) -> list[Example]:
        """Make up canaries, or read those of a file."""

    def losses(self, turns: Sequence[Example], device: torch.device) -> Tensor:
        """Return the loss of each canary as training sees it, float32 [turns]."""

    def hide(self, canaries: Sequence[Canary], folder: Path) -> None:
        """Put those whose coin says so into the data, as a unit each; the others as units that contribute zero."""

    def extraction(
        self, canaries: Sequence[Canary], num: int, folder: Path, device: torch.device
    ) -> dict[str, Any] | None:
        """Search samples for copies; None for a model that writes no text."""


class TextSubject:
    """A language model and its turns."""

    def __init__(self, model: CausalLM, data: DialogueDataModule) -> None:
        self.model, self.data, self.name = model, data, data.rows.path
        self._turns = first_units(data.rows.read(), data.limit_train_units)

    def make(self, num: int, path: str | None, rng: random.Random) -> list[Example]:
        """Make up turns of random words, or read the user's."""
        return make_examples(num, self._turns, rng) if path is None else read_canary_examples(path, self._format)

    def losses(self, turns: Sequence[Example], device: torch.device) -> Tensor:
        """Return the loss of each turn's target."""
        return losses(self.model, turns, device)

    def hide(self, canaries: Sequence[Canary], folder: Path) -> None:
        """Write a copy of the data with them, and take it.

        The copy has the rows that the run selects, so that no canary is left out, or masked, by chance; and none is cut
        (``truncate``): a row that is too long contributes zero, as one without a canary must.
        """
        path = folder / "train.jsonl"
        write_json_lines(path, map(asdict, audit_turns(self._turns, canaries, self._format)))
        self.data.rows = replace(self.data.rows, path=str(path), columns=Columns(), selection=Selection())
        self.data.limit_train_units, self.data.truncate = None, False

    def extraction(self, canaries: Sequence[Canary], num: int, folder: Path, device: torch.device) -> dict[str, Any]:
        """Count copies of canaries and of training text among samples, which are kept in the folder."""
        return extraction_report(
            self._samples(folder / "samples.jsonl", canaries, num, device), canaries, self._turns, self._format
        )

    @property
    def _format(self) -> Any:
        return self.model.text_format

    def _samples(self, path: Path, canaries: Sequence[Canary], num: int, device: torch.device) -> list[dict[str, Any]]:
        """Sampled texts with the canary that prompted each, if any."""
        if path.is_file():
            samples = [sample for _, sample in read_json_lines(path)]
            if len(samples) == num:
                return samples
        model, source = self.model, self._format.source
        prompts: list[tuple[int | None, list[int]]] = [(None, self._format.encode_prompt(None))] * num
        if source is not None:
            rng = random.Random(0)
            own = [(i, c.turn) for i, c in enumerate(canaries)]
            rng.shuffle(own)
            asked: list[tuple[int | None, Example]] = list(own[: (num + 1) // 2])
            asked += [(None, turn) for turn in rng.choices(self._turns, k=num - len(asked))]
            ids = self._format.encode_prompts([getattr(turn, source) for _, turn in asked])
            prompts = [(i, ids_of) for (i, _), ids_of in zip(asked, ids, strict=True)]
            prompts.sort(key=lambda prompt: len(prompt[1]))
        samples = []
        model.to(device)
        with torch.no_grad(), tqdm(total=num, desc="sampling", unit="text") as progress:
            for start in range(0, num, _SAMPLING_BATCH):
                part = prompts[start : start + _SAMPLING_BATCH]
                stream = range(start, start + len(part))
                texts = sample_texts(model.model, self._format, [ids for _, ids in part], model.sampling, stream=stream)
                samples += [{"canary": i, "text": text.text} for (i, _), text in zip(part, texts, strict=True)]
                progress.update(len(part))
        model.cpu()
        write_json_lines(path, samples)
        return samples


class RowSubject:
    """A module of one's own that makes up canaries, and the rows of its dataset; it writes no text."""

    def __init__(self, model: LogicalBatchModule, data: UnitDataModule) -> None:
        self.model, self.data, self.name = model, data, type(data.dataset).__name__

    def make(self, num: int, path: str | None, rng: random.Random) -> list[Example]:
        """Return a name for each: its row is the module's."""
        if path is not None:
            raise UserError("canaries is a file of texts, and this module makes up its own rows: leave it out")
        return [Example(f"canary {number}", None, "") for number in range(num)]

    def losses(self, turns: Sequence[Example], device: torch.device) -> Tensor:
        """Return the loss of each canary's row alone."""
        was_training = self.model.training
        self.model.to(device).eval()
        found = []
        with torch.no_grad():
            for number in range(len(turns)):
                batch = UnitBatch(self.data.collate([self.model.canary(number)]), 1, 1)
                found.append(self.model.row_losses(move_data_to_device(batch, device)).float().cpu())
        self.model.train(was_training).cpu()
        return torch.cat(found)

    def hide(self, canaries: Sequence[Canary], folder: Path) -> None:
        """Add them to the dataset."""
        included = [self.model.canary(number) for number, canary in enumerate(canaries) if canary.included]
        self.data.hide(included, len(canaries) - len(included))

    def extraction(self, canaries: Sequence[Canary], num: int, folder: Path, device: torch.device) -> None:
        """Return None."""


def subject_of(model: object, data: object) -> Subject:
    """Return what is audited.

    Raises:
        UserError: It cannot be, and what would be needed.
    """
    if isinstance(model, CausalLM) and isinstance(data, DialogueDataModule):
        return TextSubject(model, data)
    if isinstance(model, LogicalBatchModule) and isinstance(data, UnitDataModule) and model.canary(0) is not None:
        return RowSubject(model, data)
    raise UserError(
        f"{type(model).__name__} on {type(data).__name__} cannot be audited: give a CausalLM on a DialogueDataModule; "
        "or a module of your own that defines canary(self, number), a made-up row as its dataset gives one, on a "
        "UnitDataModule"
    )


def losses(model: CausalLM, turns: Sequence[Example], device: torch.device) -> Tensor:
    """Return the loss of each turn's target as training sees it, float32 [turns]."""
    encoded = encode_examples(turns, model.text_format)
    result = torch.zeros(len(encoded))
    was_training = model.training
    model.to(device).eval()
    with torch.no_grad():
        for part in cut(encoded, [[row] for row in range(len(encoded))], max_tokens=4096):
            batch = micro_batch(encoded, part)
            for name in ("input_ids", "labels"):
                setattr(batch, name, getattr(batch, name).to(device))
            result[[row for (row,) in part]] = model.losses(batch).float().cpu()
    model.train(was_training).cpu()
    return result
