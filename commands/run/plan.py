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
    """Print what a private run needs and guarantees, of an experiment or of numbers alone.

    Noise multiplier, sample rate, steps and delta, the noise that training will feel, and the nearest measured run.
    Nothing is spent and no data are read. noise-to-signal = sigma * sqrt(d) / B for d trained parameters: the norm of
    one step's noise, sigma*C*sqrt(d)/B, over C, the largest norm that the averaged gradient can have (reached when all
    clipped gradients agree, so it is a lower bound on the true ratio). Compare plans by it. With --gpu also what a run
    holds in the memory of each GPU, and which micro-batch to take; of a base that has no units yet, this alone.

    Example:
        python cli.py plan configs/experiments/own-data-small.yaml --num-units 10000
        python cli.py plan --num-units 10000 --epochs 3 --target-epsilon 8
        python cli.py plan --base meta-llama/Llama-3.1-8B --lora 16 --gpu h100-80 --num-gpus 8

    Args:
        experiment: File of configs/experiments, whose first system that trains says what no option does.
        num_units: Units N in the private data.
        batch_size: Expected units B per step; a twentieth of the units, times the experiment's effort, if left out.
        epochs: Epochs per stage; several stages share one sigma and one budget (two-stage: --epochs 2 8).
        target_epsilon: Budget of all stages together.
        delta: Failure probability; min(1/(N ln N), 1e-5) if left out.
        accountant: Which bound to calibrate with; pld if left out.
        bands: Steps over which noise is correlated, or auto; 1 if left out. More need the optimiser DPAdam.
        unit: What one neighbour adds or removes; an utterance if left out.
        base: Folder of the base model, whose weights are counted: all of them are trained; with --gpu also a hub name.
            By default models/base; where it is not there, the size of the noise is left out.
        num_parameters: Trained parameters d in place of those of the base.
        lora: Rank of LoRA on the linear layers of the base's blocks, which is then all that is trained.
        gpu: Kind of GPU and its gigabytes, such as h100-80: tell what a step holds there.
        num_gpus: How many of them; each holds the whole model.
        quantization: How the base below LoRA is packed: nf4 is 4 bits a weight.
        json: Print one JSON object instead of a table.

    Raises:
        CalibrationError: The plan makes no sense or cannot be met.
        UserError: It lacks units, epochs or ε; or the memory of the base cannot be told.
    """
    given = dict(locals())
    told = {} if given.pop("experiment") is None else _of_experiment(load(Path(str(experiment))), num_units)
    told |= {name: value for name, value in given.items() if value is not None}
    library.plan(**{name: value for name, value in told.items() if value is not None})


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
