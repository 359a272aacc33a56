"""What a private run would need and promise, before anything is spent."""

from __future__ import annotations

import csv
import math
import re
import struct
import sys
import warnings
from dataclasses import asdict
from json import dumps as to_json
from json import loads
from pathlib import Path
from typing import Any, Literal

from doppel.errors import UserError
from doppel.models.lora_folder import base_of
from doppel.models.made import how_to_make
from doppel.privacy.accounting import (
    MAX_GRID_STEPS,
    Accountant,
    CalibrationError,
    compute_epsilon,
)
from doppel.privacy.spec import DPPlan, note_on_delta, usual_batch_size
from doppel.privacy.spec import plan as make_plan

#: Measured runs of the shipped base, of one-stage and two-stage: N, B, steps, noise of all steps over the largest
#: possible signal, MAUVE, machine, commit and command. The pages of docs read it too.
MEASURED = Path(__file__).with_name("measured.csv")


def measured_runs() -> list[dict[str, str]]:
    """Return the rows of :data:`MEASURED`."""
    with MEASURED.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


_RUNS = [row for row in measured_runs() if row["system"] == "one_stage"]
#: The least and the most noise of a measured run.
_LEAST, HOPELESS = (bound(float(row["noise_over_training"]) for row in _RUNS) for bound in (min, max))
_LESS = "More units, a larger epsilon or batch, or fewer trained parameters (lora)"
_NEXT = "next: `run EXPERIMENT RUN_DIR --check` plans the same for your files, and estimates the time"
_BASE = Path("models/base")
#: Matrices that get no adapters.
_NO_BLOCK = re.compile(r"embed|lm_head|\bw[tp]e\b")


def plan(
    *,
    num_units: int | None = None,
    batch_size: int | None = None,
    epochs: list[float] | None = None,
    target_epsilon: float | None = None,
    delta: float | None = None,
    accountant: Accountant = "pld",
    bands: int | Literal["auto"] = 1,
    unit: str = "utterance",
    base: Path | None = None,
    num_parameters: int | None = None,
    lora: int | None = None,
    gpu: str | None = None,
    num_gpus: int = 1,
    quantization: Literal["nf4"] | None = None,
    json: bool = False,
) -> None:
    """Print what a private run needs and guarantees, before anything is spent.

    With --gpu also what it holds in the memory of each GPU, and which micro-batch to take, from the configuration of
    the base alone; of a base that has no units yet, this alone.

    Noise multiplier, sample rate, steps and delta, the noise that training will feel, and the nearest measured run.
    Nothing is spent and no data are read. noise-to-signal = sigma * sqrt(d) / B for d trained parameters: the norm of
    one step's noise, sigma*C*sqrt(d)/B, over C, the largest norm that the averaged gradient can have (reached when all
    clipped gradients agree, so it is a lower bound on the true ratio). Compare plans by it.

    Example:
        python cli.py plan --num-units 10000 --epochs 3 --target-epsilon 8
        python cli.py plan --base meta-llama/Llama-3.1-8B --lora 16 --gpu h100-80 --num-gpus 8

    Args:
        num_units: Units N in the private data.
        batch_size: Expected units B per step; a twentieth of the units, times an experiment's effort, if left out.
        epochs: Epochs per stage; several stages share one sigma and one budget (two-stage: --epochs 2 8).
        target_epsilon: Budget of all stages together.
        delta: Failure probability; min(1/(N ln N), 1e-5) if left out.
        accountant: Which bound to calibrate with; pld if left out.
        bands: Steps over which noise is correlated, or auto; 1 if left out. More need the optimiser DPAdam.
        unit: What one neighbour adds or removes; an utterance if left out.
        base: Folder of the base model, whose weights are counted: all of them are trained; with --gpu also a hub name.
            By default models/base; where it is not there, the size of the noise is left out.
        num_parameters: Trained parameters d in place of those of the base.
        lora: Rank of LoRA on the linear layers of the base's blocks, which are then all that is trained.
        gpu: Kind of GPU and its gigabytes, such as h100-80: tell what a step holds there.
        num_gpus: How many of them; each holds the whole model.
        quantization: How the base below LoRA is packed: nf4 is 4 bits a weight.
        json: Print one JSON object instead of a table.

    Raises:
        CalibrationError: The plan makes no sense or cannot be met.
        UserError: It lacks units, epochs or ε; or the memory of the base cannot be told.
    """
    if batch_size is None and num_units is not None:
        batch_size = usual_batch_size(num_units)
    memory, spec = None, None
    if num_units is not None and batch_size is not None and epochs is not None and target_epsilon is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said in the report instead
            terms: dict[str, Any] = {"delta": delta, "accountant": accountant, "unit": unit, "bands": bands}
            spec = make_plan(num_units, batch_size, epochs, target_epsilon, **terms)
    if gpu is not None:
        from doppel.console.plan_memory import Gpu, memory_of, memory_table

        held = 1 if bands == "auto" else bands
        held = held if spec is None else spec.bands
        memory = memory_of(str(base or _BASE), Gpu.of(gpu), num_gpus, lora, quantization, batch_size, held)
        if spec is None:
            sys.stdout.write((to_json(memory, indent=2) if json else memory_table(memory)) + "\n")
            return
        num_parameters = num_parameters or memory["num_trained"]
    if spec is None:
        wanted = {"--num-units": num_units, "--epochs": epochs, "--target-epsilon": target_epsilon}
        lacking = ", ".join(name for name, value in wanted.items() if value is None)
        raise UserError(f"give {lacking}; or --gpu, such as h100-80, for memory alone")
    if num_parameters is None and (base is not None or _BASE.is_dir()):
        num_parameters = num_parameters_of(base or _BASE, lora)
    result = report(spec, num_parameters) | ({} if memory is None else {"memory": memory})
    text = to_json(result, indent=2) if json else table(result)
    sys.stdout.write(text + ("" if json or memory is None else "\n" + memory_table(memory)) + "\n")


def num_parameters_of(base: Path, lora: int | None = None) -> int:
    """Count the trained weights of a model in a folder, from the heads of its safetensors files alone.

    Args:
        base: The folder; of LoRA weights, their base is counted.
        lora: Rank of adapters on its linear layers, in place of its own weights: rank (n + m) for n x m weights that
            are neither an embedding nor the output head.

    Raises:
        UserError: There are none, or one cannot be read.
    """
    base = Path(base_of(base) or base)
    files = sorted(base.glob("*.safetensors"))
    if not files:
        raise UserError(
            how_to_make(base)
            or f"{base} holds no .safetensors file, so its size is unknown: give the folder of a model as --base, or "
            "--num-parameters (124439808 for GPT-2 small)"
        )
    total = 0
    for file in files:
        with file.open("rb") as stream:
            try:
                (size,) = struct.unpack("<Q", stream.read(8))
                head = loads(stream.read(min(size, file.stat().st_size)))
                shapes = {name: tensor["shape"] for name, tensor in head.items() if name != "__metadata__"}
                total += sum(_trained(name, shape, lora) for name, shape in shapes.items())
            except (struct.error, ValueError, KeyError, TypeError, OverflowError):
                raise UserError("no readable safetensors file: copy the model again", about=file) from None
    return total


def _trained(name: str, shape: list[int], lora: int | None) -> int:
    if lora is None:
        return math.prod(shape)
    return lora * sum(shape) if len(shape) == 2 and not _NO_BLOCK.search(name) else 0


def in_words(noise_over_training: float) -> str:
    """Compare a plan with the nearest measured run of each data set, and say what lowers the noise.

    Args:
        noise_over_training: Norm of the noise of all steps over the largest possible signal.
    """
    nearest: dict[str, dict[str, str]] = {}
    for row in sorted(_RUNS, key=lambda row: -abs(math.log(noise_over_training / float(row["noise_over_training"])))):
        nearest[row["data"]] = row
    told = "The nearest measured runs, one-stage at ε = 3, by MAUVE (MiniLM): " + ", ".join(
        f"{int(row['num_units']):,} requests of {data} ({float(row['noise_over_training']):.2g} times) "
        f"{float(row['mauve_minilm']):.2f}, real ones {float(row['human_mauve_minilm']):.2f}"
        for data, row in nearest.items()
    )
    size = f"{noise_over_training:.2g} times the largest possible signal"
    if noise_over_training > HOPELESS:
        size = f"hopeless: {size}, more than in any measured run"
    elif noise_over_training < _LEAST:
        told += "; what less noise gives is not measured"
    return f"The noise is {size}. {told}. {_LESS} lower it."


def in_bands(spec: DPPlan) -> str | None:
    """Tell what bands are worth, and what a restart costs; None without."""
    if spec.bands == 1:
        return None
    felt, reserve = spec.equivalent, sum(map(spec.reserve, spec.stage_steps))
    ratio = felt.noise_multiplier / spec.independent.noise_multiplier
    restart = f"rounds of {spec.bands} steps in reserve for restarts: {reserve}"
    if not reserve:
        restart = f"a restart within a round ends the training up to {spec.bands - 1} steps early"
    return (
        f"bands {spec.bands}: the weights get {ratio:.2f} times the noise of independent steps, which would need "
        f"ε = {felt.budget.epsilon(felt.mechanisms()):.3g} for it; {restart}"
    )


def over_training(spec: DPPlan, num_parameters: int) -> float:
    """Return the norm of the noise of all steps over the largest signal; with bands, of what the weights get of it."""
    return (
        spec.equivalent.noise_multiplier * math.sqrt(num_parameters) / spec.expected_batch_size / math.sqrt(spec.steps)
    )


def report(spec: DPPlan, num_parameters: int | None = None) -> dict[str, Any]:
    """Return the plan as a JSON-ready dictionary.

    Args:
        spec: The plan.
        num_parameters: Trained parameters; None: unknown, so that no size of the noise is told.

    Returns:
        The plan's numbers, `epsilon` (achieved, by its accountant), `epsilon_by` (others, by name),
        `noise_per_coordinate` (sigma / B, in units of the clipping norm), `noise_to_signal` (sigma sqrt(d) / B),
        `noise_over_training` (that over sqrt(steps)), `verdict` (in words) and `warnings`; without parameters no
        `noise_to_signal`. With bands also `bands`, `rounds` (the reserve among them) and `gain` (in words), and sizes
        of noise are those of independent noise that is as large in the weights.

    Raises:
        CalibrationError: If `num_parameters` is below 1.
    """
    if num_parameters is not None and num_parameters < 1:
        raise CalibrationError(f"num_parameters is {num_parameters}: give the number of trained parameters.")
    budget, steps, felt = spec.budget, spec.steps, spec.equivalent.noise_multiplier
    notes = [note] if (note := note_on_delta(budget.delta, spec.num_units, budget.unit)) is not None else []
    noise: dict[str, Any] = {"verdict": "How large the noise is depends on the model: give --base or --num-parameters."}
    if num_parameters is not None:
        noise_to_signal = felt * math.sqrt(num_parameters) / spec.expected_batch_size
        noise = {"noise_to_signal": noise_to_signal, "noise_over_training": over_training(spec, num_parameters)}
        noise["verdict"] = in_words(noise["noise_over_training"])
    rounds = sum(own.steps for own in spec.stages())
    others: list[Accountant] = [name for name in ("pld", "rdp") if name != budget.accountant]  # prv needs PyTorch
    if budget.accountant != "rdp" and rounds > MAX_GRID_STEPS[budget.accountant]:
        notes.append(
            f"of more than {MAX_GRID_STEPS[budget.accountant]:,} steps epsilon by {budget.accountant} is a Rényi "
            "bound, which holds but is looser"
        )
    return {
        **asdict(budget),
        "num_units": spec.num_units,
        "batch_size": spec.expected_batch_size,
        "sample_rate": spec.sample_rate,
        "noise_multiplier": spec.noise_multiplier,
        **({"bands": spec.bands, "rounds": rounds, "gain": in_bands(spec)} if spec.bands > 1 else {}),
        "steps": steps,
        "stage_steps": list(spec.stage_steps),
        "epsilon": budget.epsilon(spec.mechanisms()),
        "epsilon_by": {name: compute_epsilon(spec.mechanisms(), budget.delta, name) for name in others},
        "num_parameters": num_parameters,
        "noise_per_coordinate": felt / spec.expected_batch_size,
        **noise,
        "warnings": notes,
    }


def table(result: dict[str, Any]) -> str:
    """Render the plan for people, with the epsilon of the accountants of dp-accounting at the chosen sigma."""
    steps = f"{result['steps']:,}"
    if len(result["stage_steps"]) > 1:
        steps += f"  ({' + '.join(format(n, ',') for n in result['stage_steps'])})"
    rows = [
        ("unit", result["unit"]),
        ("units N", f"{result['num_units']:,}"),
        ("expected batch size B", f"{result['batch_size']:,}"),
        ("sample rate q = B/N", f"{result['sample_rate']:.6g}"),
        ("steps", steps),
        ("delta", f"{result['delta']:.4g}"),
        ("target epsilon", f"{result['target_epsilon']:g}"),
        ("noise multiplier sigma", f"{result['noise_multiplier']:.4f}"),
        ("noise per coordinate", f"{result['noise_per_coordinate']:.3g} x C"),
    ]
    if result["num_parameters"] is not None:
        rows += [
            ("noise-to-signal", f"{result['noise_to_signal']:.3g}  ({result['num_parameters']:,} parameters)"),
            ("… of all steps", f"{result['noise_over_training']:.3g}"),
        ]
    rows.append((f"epsilon by {result['accountant']}", f"{result['epsilon']:.3f}  (calibrated with this)"))
    rows += [(f"epsilon by {accountant}", f"{epsilon:.3f}") for accountant, epsilon in result["epsilon_by"].items()]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    gain = [result["gain"]] if "gain" in result else []
    lines += [*gain, *(f"warning: {note}" for note in result["warnings"]), result["verdict"], _NEXT]
    return "\n".join(lines)
