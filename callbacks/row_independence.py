"""Whether the loss of a row depends on that row alone: tried before anything is spent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn

from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.private_step import PrivateTrainingError
from lightning_modules.training.logical_batch_module import LogicalBatchModule

#: Largest relative change that rounding explains: sums of float32 in another order differ by some 1e-6.
_TOLERANCE = 1e-4


def check_row_independence(module: LogicalBatchModule) -> str | None:
    """Compare the loss and the gradient of a made-up row alone with those of the same row after a long one.

    Formal guarantees:
        The sensitivity C of a clipped sum holds only if one unit more leaves the gradients of the others as they are.
        This tries one pair of batches, through the module's own losses without a compiler and without dropout: it finds
        means over the batch, lengths or frequencies that the longest row decides, and a state that one row leaves
        behind for the next. Then both rows are clipped, with dropout: a layer whose rule is refused on what it is given
        (it mixes rows, branches on data, keeps a state) is refused here, and not in a step. It proves nothing of a
        dependence that this pair does not show. Its rows come from no data set (:meth:`LogicalBatchModule.probe`), so
        what it tells is public; weights, gradients and generators are left as they were. Beside the longest row of a
        model that gives three batches the loss alone is compared: there a gradient that changes while the loss does not
        is not seen.

    Args:
        module: On its device, before the first step.

    Returns:
        Why nothing was compared, in words that end a sentence; None if it was.

    Raises:
        PrivateTrainingError: One row changes what another one gives; nothing was spent.
        UserError: The losses are not one for each row, or a layer has no exact clipping rule; nothing was spent.
    """
    name = type(module).__name__
    rows = module.probe()
    if rows is None:
        return f"{name} has no probe()"
    try:
        with isolate_rng():
            reason = _compare(module, *rows)
            with torch.compiler.set_stance("force_eager"):
                _try_clipping(module, rows[1])
        return reason
    except torch.OutOfMemoryError:
        return f"there was no memory for two rows of {name} of the longest length"


def _compare(module: LogicalBatchModule, alone: Any, beside: Any, longest: Any = None) -> str | None:
    name = type(module).__name__
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with _without_dropout(module), torch.compiler.set_stance("force_eager"):
        torch.manual_seed(0)
        before = _last_loss(module, alone)
        own = torch.autograd.grad(before, parameters, allow_unused=True)
        torch.manual_seed(1)
        if _change([before], [_last_loss(module, alone)]) > _TOLERANCE:
            return f"{name} draws at random beside dropout"
        with_other = _last_loss(module, beside)
        changes = {
            "loss": _change([before], [with_other]),
            "gradient": _change(own, torch.autograd.grad(with_other, parameters, allow_unused=True)),
            "loss beside the longest": 0.0 if longest is None else _change([before], [_loss_alone(module, longest)]),
            "loss after it": _change([before], [_last_loss(module, alone)]),
        }
    found = [f"the {what} by {change:.2%}" for what, change in changes.items() if not change <= _TOLERANCE]
    if found:
        raise PrivateTrainingError(
            f"{name} cannot be trained privately: beside a long row, a short one changes ({', '.join(found)}), so that "
            "one unit would move the gradients of others. Look for a mean over the batch, a division by its longest "
            "row, padding that is not masked, or a base model whose rope_scaling is longrope. No step was spent"
        )
    return None


def _try_clipping(module: LogicalBatchModule, batch: Any) -> None:
    """Clip two rows, as the first step would: a layer without an exact rule for what it is given is refused by name."""
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    clipper = PerSampleClipper(module, 1.0)
    try:
        with clipper.capture(batch.num_units, batch.rows_per_unit):
            module.row_losses(batch).sum().backward()
        clipper.accumulate()
    finally:
        clipper.close()
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _last_loss(module: LogicalBatchModule, batch: object) -> Tensor:
    return module.row_losses(batch)[-1]


@torch.no_grad()
def _loss_alone(module: LogicalBatchModule, batch: object) -> Tensor:
    return _last_loss(module, batch)


def _change(before: tuple[Tensor | None, ...] | list[Tensor], after: tuple[Tensor | None, ...] | list[Tensor]) -> float:
    """‖after − before‖ / ‖before‖, where what is missing is zero."""
    squares = moved = 0.0
    for old, new in zip(before, after, strict=True):
        old, new = (None if x is None else x.detach().double() for x in (old, new))
        squares += 0.0 if old is None else float(old.square().sum())
        difference = new if old is None else old if new is None else new - old
        moved += 0.0 if difference is None else float(difference.square().sum())
    return (moved / squares) ** 0.5 if squares else float(moved > 0)


@contextmanager
def _without_dropout(module: nn.Module) -> Iterator[None]:
    """Probabilities of dropout as zero: those of PyTorch's layers, and numbers that a Hugging Face model names so."""
    changed = []
    for part in module.modules():
        for key, value in vars(part).items():
            is_layer = key == "p" and isinstance(part, nn.modules.dropout._DropoutNd)
            if type(value) is float and (is_layer or key.endswith(("dropout", "pdrop"))):
                changed.append((part, key, value))
    try:
        for part, key, _ in changed:
            setattr(part, key, 0.0)
        yield
    finally:
        for part, key, value in changed:
            setattr(part, key, value)
