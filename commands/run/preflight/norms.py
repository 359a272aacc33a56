"""Which clipping norm to take: gradient norms of public units, before anything is spent."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from commands.run.experiment.experiment import load
from commands.run.experiment.settings import Experiment
from commands.run.experiment.values import read_values
from commands.run.steps.recipes import steps_of
from commands.run_folder.private_files import of_experiment
from commands.run_folder.steps import PUBLIC_TREES
from datamodules.guards.overlap import refuse_private
from datamodules.reading.columns import ReferenceColumns
from doppel.console.table import Table
from doppel.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from datamodules.batches.batch import MicroBatch
    from lightning_modules.causal_lm import CausalLM

#: What each third of the units, by length, keeps of its gradients at least, on average, at the C that is recommended.
KEPT = 0.75
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_THIRDS = ("shortest third", "middle third", "longest third")
_NOT_PRIVATE = "NOT PRIVATE: these are norms of private units, without noise; neither they nor a C chosen by them"


def norms(
    experiment: Path,
    *,
    public: str | None = None,
    run_dir: Path | None = None,
    num_units: int = 1000,
    set: Annotated[list[str] | None, Experiment] = None,
    not_private: bool = False,
) -> None:
    """Recommend a clipping norm C from gradient norms of public units, before anything is spent.

    Prints, for each private training of an experiment, quantiles of the gradient norms of short, medium and long units,
    the share that a C would clip and how much of their gradients they would keep. Recommended is the least C at which
    each length keeps three quarters on average. A loss is a sum over tokens, so norms grow with length: with a small C
    long rows are clipped most, and samples get shorter than the data. Noise grows with C. Only public units are read
    (--public, or the experiment's reference), so nothing is spent; a file that the experiment protects is refused.

    Example:
        python cli.py norms configs/experiments/own-data.yaml --public public.txt --set 'systems=[one_stage]'

    Args:
        experiment: File of configs/experiments, or experiment.yaml of a run.
        public: Public turns that are like the private ones: a file, or embedded:…; default: the experiment's reference.
        run_dir: Run of the experiment; its trained weights are taken in place of those that training starts from.
        num_units: Units to look at, the first ones of the file, at most.
        set: Any field of the experiment, as NAME=VALUE, as for `run`.
        not_private: Take any file, also one that the experiment protects. The figures then say that they are not
            private.

    Raises:
        UserError: The file is one that the experiment protects, or there is nothing to clip.
    """
    if num_units < 3:
        raise UserError(f"--num-units is {num_units}: give at least 3, better a thousand")
    given = load(experiment, read_values(set))
    trainings = [stage for stage in steps_of(given, Path("RUN")) if stage.config.get("privacy")]
    if not trainings:
        raise UserError(f"{experiment} trains nothing privately, so nothing is clipped: give one with a finite epsilon")
    path = public or given.reference
    if path is None:
        raise UserError(f"{experiment} names no reference: give a file of public requests as --public")
    if not not_private:
        columns = ReferenceColumns.from_config(given.data)
        name = "reference" if public is None else "--public"
        refuse_private([(name, path, columns)], of_experiment(given.as_dict()))
    for stage in trainings:
        config = stage.config
        if run_dir is not None:
            config["model"]["init_args"]["init_weights"] = str(run_dir / str(stage.folder))
        data, model = config["data"]["init_args"], build(config["model"])
        sizes, lengths = measure(model, micro_batches(model, data, path, num_units))
        where = f"the weights in {run_dir}" if run_dir else "the weights that training starts from"
        text = [f"{stage.name}: {len(sizes)} units of {path}, at {where}", "", quantiles(sizes, lengths)]
        now, advised = config["privacy"].get("max_grad_norm"), recommend(sizes, lengths)
        text += ["", choices(sizes, lengths, advised, now), ""]
        text += [
            f"{_NOT_PRIVATE} may be released" if not_private else f"recommended: privacy.max_grad_norm {advised:g}"
        ]
        sys.stdout.write("\n".join([*text, "", ""]))


def build(config: Mapping[str, Any], is_shell: bool = False) -> CausalLM:
    """Build the model of a training's configuration, on a GPU if there is one, without the run's public trees.

    A run writes that file as its first step, and nothing that is measured depends on it but the pace of samples.

    Args:
        config: The key ``model``.
        is_shell: On the device ``meta``: no weight is read or held.
    """
    import torch
    from jsonargparse import ArgumentParser

    from lightning_modules.causal_lm import CausalLM

    arguments = dict(config.get("init_args") or {})
    sampling = dict(arguments.get("sampling") or {})
    if any(str(name).endswith(PUBLIC_TREES) for name in sampling.get("grammar") or ()):
        arguments["sampling"] = {**sampling, "grammar": None}
    if is_shell:
        arguments |= {"init": "random", "init_weights": None}
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--model", type=CausalLM)
    with torch.device("meta") if is_shell else nullcontext():
        model: CausalLM = parser.instantiate(parser.parse_object({"model": {**config, "init_args": arguments}})).model
    if is_shell:
        return model
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def micro_batches(model: CausalLM, data: Mapping[str, Any], path: str, num_units: int) -> list[MicroBatch]:
    """Read the first units of a file, as a training with these arguments of the data module would see them."""
    from datamodules.batches.cut import LogicalBatches
    from datamodules.batches.encoded import encode_examples
    from datamodules.dialogue_data_module import DialogueDataModule
    from datamodules.guards.selection import Selection
    from datamodules.training_rows import TrainingRows, first_units

    module = DialogueDataModule(**{**data, "train_path": path, "val_path": None})
    selection = Selection(redact=module.rows.selection.redact)
    rows = TrainingRows(
        module.rows.path, module.unit, ReferenceColumns.from_config(data), selection, module.rows.unit_names
    )
    read = first_units(rows.read(model.text_format.needs), num_units)
    turns = encode_examples(read, model.text_format, module.truncate)
    bounds = module.max_tokens_per_micro_batch, module.max_rows_per_unit, None, module.max_units_per_micro_batch
    batches = LogicalBatches(turns, *bounds)
    return batches.make(0, range(turns.num_units), turns.num_units).micro_batches


def measure(model: CausalLM, batches: Iterable[MicroBatch]) -> tuple[Tensor, Tensor]:
    """Compute each unit's gradient norm, of the loss that is clipped in training, and its number of target tokens.

    Units without any (too long for the model) are left out; they contribute zero whatever C is.

    Returns:
        Norms and lengths, [num_units] each, the shortest unit first.
    """
    import torch

    from datamodules.batches.batch import IGNORE_INDEX
    from doppel.privacy.clipping import PerSampleClipper

    clipper, found, lengths = PerSampleClipper(model, max_grad_norm=1.0), [], []
    for batch in batches:
        batch.input_ids, batch.labels = batch.input_ids.to(model.device), batch.labels.to(model.device)
        with clipper.capture(batch.num_units, batch.rows_per_unit):
            (model.losses(batch) / batch.rows_per_unit).sum().backward()  # as LogicalBatchModule's training_step
        found.append(clipper.accumulate().cpu())
        lengths.append((batch.labels[:, 1:] != IGNORE_INDEX).sum(1).view(batch.num_units, -1).sum(1).cpu())
    clipper.close()
    length, size = torch.cat(lengths), torch.cat(found).double()
    usable = (length > 0) & size.isfinite() & (size > 0)
    if usable.sum() < 3:
        raise UserError("fewer than 3 units of the public file have a gradient: give a longer file")
    order = length[usable].argsort(stable=True)
    return size[usable][order], length[usable][order]


def kept(sizes: Tensor, max_grad_norm: float) -> float:
    """Return what units keep of their gradients on average: the mean of min(1, C / norm)."""
    return float((max_grad_norm / sizes).clamp(max=1.0).mean())


def recommend(sizes: Tensor, lengths: Tensor) -> float:
    """Return the least C at which each third of the units keeps :data:`KEPT` of its gradients, to two digits."""
    low, high = 0.0, float(sizes.max())
    for _ in range(50):
        middle = (low + high) / 2
        enough = all(kept(part, middle) >= KEPT for _, part, _ in _thirds(sizes, lengths))
        low, high = (low, middle) if enough else (middle, high)
    return float(f"{high:.2g}")


def quantiles(sizes: Tensor, lengths: Tensor) -> str:
    """Render a table of the norms, of all units and by length."""
    rows = Table(["norms of", "tokens", *(f"{q:.0%}" for q in _QUANTILES)])
    for name, part, tokens in [("all units", sizes, lengths), *_thirds(sizes, lengths)]:
        found = [f"{float(part.quantile(q)):.3g}" for q in _QUANTILES]
        rows.rows.append([name, f"{int(tokens[0])}–{int(tokens[-1])}", *found])
    return rows.text()


def choices(sizes: Tensor, lengths: Tensor, advised: float, now: float | None) -> str:
    """Render what some C do to the units: the recommended one, its multiples, and the one that is set."""
    rows = Table(["C", "clipped", *(f"{name} keeps" for name in _THIRDS), ""])
    notes = {advised / 4: "", advised / 2: "", advised: "recommended", advised * 2: "", advised * 4: ""}
    if now is not None:
        notes[now] = f"{notes.get(now, '')} now".strip()
    for c, note in sorted(notes.items()):
        shares = [float((sizes > c).double().mean()), *(kept(part, c) for _, part, _ in _thirds(sizes, lengths))]
        rows.rows.append([f"{c:.3g}", *(f"{share:.0%}" for share in shares), note])
    return rows.text()


def _thirds(sizes: Tensor, lengths: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    yield from zip(_THIRDS, sizes.tensor_split(3), lengths.tensor_split(3), strict=True)
