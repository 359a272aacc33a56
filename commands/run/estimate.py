"""How long trainings take on this machine, as a range: their operations over the rate of a product that is timed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice

import torch
from torch.utils.benchmark import Timer

from commands.lightning.hardware import training_precision
from commands.run.lengths import USUAL_LENGTH
from commands.run.norms import build
from commands.run.settings import Experiment
from commands.runs.steps import Step
from datamodules.codec import Codec
from datamodules.columns import Columns, reference_columns
from datamodules.encoded_turns import encode_turns
from datamodules.sources import expand_path
from datamodules.tables import place_turns
from doppel.errors import DataError

#: Rows of the product, and the most and the least of its rate that steps reach, private or not: .45 to .6 on a CPU.
_DEVICES = {"cpu": (1024, 0.65, 0.25), "cuda": (8192, 0.3, 0.05)}
_TURNS, _EMBEDDED = 500, "embedded:train?num=200&seed=1"


def forecast(num_units: int, trainings: Iterable[Step], experiment: Experiment) -> tuple[float, float, int]:
    """Least and most seconds of trainings, for one row a unit, and the weights that the largest model trains."""
    shortest, longest, largest = 0.0, 0.0, 0
    for config in (step.config or {} for step in trainings):
        model, trainer = build(config["model"]), config.get("trainer") or {}
        trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
        size = sum(weight.numel() for weight in model.parameters())
        work = (4 * size + 2 * trained) * num_units * float(trainer.get("max_epochs", 1))
        rows, most, least = _DEVICES[model.device.type]
        left = torch.randn(rows, model.model.config.hidden_size, device=model.device)
        seconds = work * _tokens(model.codec, experiment) / _rate(left, str(trainer.get("precision") or "32-true"))
        shortest, longest, largest = shortest + seconds / most, longest + seconds / least, max(largest, trained)
    return shortest, longest, largest


def _tokens(codec: Codec, experiment: Experiment) -> float:
    """Tokens of a public row, of the reference or else of the embedded grammar: no private row says how long it is."""
    columns = reference_columns(Columns.from_config(experiment.data))
    for path in filter(None, (experiment.reference, _EMBEDDED)):
        with suppress(DataError):  # a column that the model needs is not there
            places = islice(place_turns(expand_path(path), "utterance", needs=codec.needs, columns=columns), _TURNS)
            if turns := [at.turn for at in places if at.turn and all(getattr(at.turn, name) for name in codec.needs)]:
                return float(encode_turns(turns, codec, truncate=True).lengths.mean())
    return USUAL_LENGTH


def _rate(left: torch.Tensor, precision: str) -> float:
    """Operations a second of a product as wide as the model, in the precision of its training."""
    right = torch.randn(left.shape[1], 4 * left.shape[1], device=left.device, requires_grad=True)
    with training_precision(precision)():  # which casts a weight once
        timer = Timer("left @ right", globals={"left": left, "right": right}, num_threads=torch.get_num_threads())
        return 2 * left.numel() * right.shape[1] / timer.blocked_autorange(min_run_time=1.0).median
