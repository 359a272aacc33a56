"""Gradient norms of public units, and what a clipping norm would leave of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from commands.run_folder.steps import PUBLIC_TREES
from datamodules.reading.columns import ReferenceColumns
from doppel.console.table import Table
from doppel.errors import DataError, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from datamodules.batches.batch import MicroBatch
    from lightning_modules.causal_lm import CausalLM

#: What each third of the units, by length, keeps of its gradients at least, on average, at the C that is recommended.
KEPT = 0.75
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_THIRDS = ("shortest third", "middle third", "longest third")


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
    """Read the first units of a public file, as a training with these arguments of the data module would see them.

    Where the file names no unit, each row is one: a unit of several has the mean of their gradients, whose norm is that
    of the largest at most.
    """
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
    try:
        turns = rows.read(model.text_format.needs)
    except DataError:
        if module.unit == "utterance":
            raise
        turns = replace(rows, unit="utterance").read(model.text_format.needs)
    read = first_units(turns, num_units)
    encoded = encode_examples(read, model.text_format, module.truncate)
    bounds = module.max_tokens_per_micro_batch, module.max_rows_per_unit, None, module.max_units_per_micro_batch
    batches = LogicalBatches(encoded, *bounds)
    return batches.make(0, range(encoded.num_units), encoded.num_units).micro_batches


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
