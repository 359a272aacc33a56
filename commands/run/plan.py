"""``python cli.py plan``: the library's plan, of numbers or of what an experiment says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from commands.run.experiment.experiment import load
from commands.run.experiment.settings import Experiment, systems_of
from commands.run_folder.systems import BASE_MODEL, System
from datamodules.reading.columns import Columns, unit_of
from datamodules.reading.example import Unit
from doppel.console import plan as library
from doppel.errors import UserError
from doppel.privacy.accounting import Accountant
from doppel.privacy.spec import usual_batch_size
from doppel.settings.yaml_files import merge


def plan(
    experiment: Path | None = None,
    *,
    num_units: int | None = None,
    batch_size: int | None = None,
    epochs: list[float] | None = None,
    target_epsilon: float | None = None,
    delta: float | None = None,
    accountant: Accountant | None = None,
    bands: int | Literal["auto"] | None = None,
    unit: Unit | None = None,
    base: Path | None = None,
    num_parameters: int | None = None,
    lora: int | None = None,
    gpu: str | None = None,
    num_gpus: int = 1,
    quantization: Literal["nf4"] | None = None,
    json: bool = False,
) -> None:
    """Print what a private run needs and guarantees, before anything is spent."""
    given = dict(locals())
    told = {} if given.pop("experiment") is None else _of_experiment(load(Path(str(experiment))), num_units)
    told |= {name: value for name, value in given.items() if value is not None}
    library.plan(**{name: value for name, value in told.items() if value is not None})


_EXAMPLE = "python cli.py plan configs/experiments/own-data-small.yaml --num-units 10000"
_FILE = "experiment: File of configs/experiments, whose first system that trains says what no option does."
plan.__doc__ = str(library.plan.__doc__)  # of which this has one argument and one example more
for _section_name, _line in (("Example", _EXAMPLE), ("Args", _FILE)):
    plan.__doc__ = plan.__doc__.replace(f"    {_section_name}:\n", f"    {_section_name}:\n        {_line}\n")


def _of_experiment(experiment: Experiment, num_units: int | None) -> dict[str, Any]:
    """What an experiment says of the plan of its first system that trains."""
    system = next((own for own in systems_of(experiment) if own.stages and own.learns), None)
    if system is None:
        raise UserError(
            f"{experiment.name} trains nothing on private requests: give --num-units, --epochs and the like"
        )
    data, model, privacy = (_section(experiment, system, name) for name in ("data", "model", "privacy"))
    batch_size = data.get("batch_size") or (None if num_units is None else usual_batch_size(num_units))
    return {
        "unit": unit_of(data.get("unit"), Columns.from_config(data)),
        "target_epsilon": experiment.epsilon,
        "epochs": [experiment.epochs_of(stage) * experiment.effort for stage in system.stages],
        "batch_size": None if batch_size is None else batch_size * experiment.effort,
        **{name: privacy.get(name) for name in ("delta", "accountant", "bands")},
        "base": Path(model.get("base_model") or BASE_MODEL),
        "lora": (model.get("lora") or {}).get("rank"),
    }


def _section(experiment: Experiment, system: System, name: str) -> dict[str, Any]:
    """A section as the last stage of a system has it."""
    own = experiment.of(system.name)
    return merge(getattr(own, name), own.stages.get(system.stages[-1], {}).get(name) or {})
