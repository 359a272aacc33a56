"""Whether each row is clipped by its own gradient, which depends on that row alone: tried before anything is spent."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.private_step import PrivateTrainingError
from lightning_modules.training.logical_batch_module import LogicalBatchModule

#: Largest relative change that rounding explains: sums of float32 in another order differ by some 1e-6.
_TOLERANCE = 1e-4
#: Norm that two rows are clipped to, so small that both are; relative difference that room for rounding explains.
_BOUND, _ROOM = 1e-3, 5e-3
#: One for each order of the rows; under either ``torch.randperm(2)`` gives them another one.
_SEEDS = (1, 5)


def check_row_independence(module: LogicalBatchModule) -> str | None:
    """Compare made-up rows alone with the same ones side by side, and the clipper with autograd on each of them.

    Formal guarantees:
        The sensitivity C of a clipped sum holds only if one unit more leaves the gradients of the others as they are,
        and if the clipper gives each unit its own. This tries one pair of rows of no data set
        (:meth:`LogicalBatchModule.probe`), so what it tells is public, and what the pair does not show stays unproved.
        *Independence*, without dropout: the short row has the same loss and gradient alone, beside the long one and
        after it (beside the longest, the same loss). *Exactness*, in both orders: norms and clipped sum are those of
        autograd on each row's loss, so rows that change places within the model are found too. Layers without a rule
        are refused under dropout as well. Weights, gradients and generators are left as they were.

    Args:
        module: On its device, before the first step.

    Returns:
        Why the independence was not compared, in words that end a sentence; None if it was.

    Raises:
        PrivateTrainingError: One row changes what another one gives, or is clipped as another one; nothing was spent.
        UserError: The losses are not one for each row, or a layer has no exact clipping rule; nothing was spent.
    """
    name = type(module).__name__
    rows = module.probe()
    if rows is None:
        return f"{name} has no probe()"
    try:
        with isolate_rng():
            reason = _compare(module, *rows)
            with _own_gradients(module):
                _clip(module, rows[1], math.inf)
            for batch, seed in zip((rows[1], _reversed(rows[1])), _SEEDS, strict=True):
                with _without_dropout(module), _own_gradients(module):
                    _compare_clipping(module, batch, seed)
        return reason
    except torch.OutOfMemoryError:
        return f"there was no memory for two rows of {name} of the longest length"


def _compare(module: LogicalBatchModule, alone: Any, beside: Any, longest: Any = None) -> str | None:
    name = type(module).__name__
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with _without_dropout(module):
        torch.manual_seed(0)
        before = _unit_losses(module, alone)[-1]
        own = torch.autograd.grad(before, parameters, allow_unused=True)
        torch.manual_seed(1)
        if _change([before], [_unit_losses(module, alone)[-1]]) > _TOLERANCE:
            return f"{name} draws at random beside dropout"
        with_other = _unit_losses(module, beside)
        gradient = torch.autograd.grad(with_other[-1], parameters, allow_unused=True)
        with torch.no_grad():
            changes = {
                "loss": _change([before], [with_other[-1]]),
                "gradient": _change(own, gradient),
                "losses in the other order": _change([with_other.flip(0)], [_unit_losses(module, _reversed(beside))]),
                "loss beside the longest": 0.0
                if longest is None
                else _change([before], [_unit_losses(module, longest)[-1]]),
                "loss after it": _change([before], [_unit_losses(module, alone)[-1]]),
            }
    found = [f"the {what} by {change:.2%}" for what, change in changes.items() if not change <= _TOLERANCE]
    if found:
        raise PrivateTrainingError(
            f"{name} cannot be trained privately: beside a long row, a short one changes ({', '.join(found)}), so that "
            "one unit would move the gradients of others. Look for a mean over the batch, a division by its longest "
            "row, padding that is not masked, losses that are sorted, a tensor of the batch whose first dimension is "
            "not the rows, or a base model whose rope_scaling is longrope. No step was spent"
        )
    return None


def _clip(module: LogicalBatchModule, batch: Any, bound: float) -> Tensor:
    """Clip rows as the first step would, into ``.grad``: a layer without an exact rule for them is refused by name."""
    clipper = PerSampleClipper(module, bound)
    try:
        with clipper.capture(batch.num_units, batch.rows_per_unit):
            module.row_losses(batch).sum().backward()
        return clipper.accumulate()
    finally:
        clipper.close()


def _compare_clipping(module: LogicalBatchModule, batch: Any, seed: int) -> None:
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    torch.manual_seed(seed)
    found = _clip(module, batch, _BOUND).double().tolist()
    norms = []
    for unit in range(batch.num_units):  # one at a time: gradients of large models take much memory
        torch.manual_seed(seed)
        gradients = torch.autograd.grad(_unit_losses(module, batch)[unit], parameters, allow_unused=True)
        norms.append(_norm(gradients))
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                rest = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = rest.sub_(gradient, alpha=min(1.0, _BOUND / norms[-1]) if norms[-1] else 1.0)
    listed = [" and ".join(f"{norm:.4g}" for norm in own) for own in (found, norms)]
    wrong = [abs(one - other) / max(other, 1e-4 * max(norms)) for one, other in zip(found, norms, strict=True) if other]
    rest = _norm([parameter.grad for parameter in parameters])
    expected = sum(min(norm, _BOUND) for norm in norms)
    if max(wrong, default=0.0) <= _ROOM and rest <= _ROOM * expected:
        return
    raise PrivateTrainingError(
        f"{type(module).__name__} cannot be trained privately: of two made-up rows the clipper finds gradients of norm "
        f"{listed[0]}, and autograd on each row alone {listed[1]}; the clipped sums differ by "
        f"{rest / expected if expected else rest:.1%}. Row i of what each layer takes and gives must be row i of the "
        "batch: sort, permute or regroup no rows in losses() (pack_padded_sequence does; mask the padding instead). No "
        "step was spent"
    )


def _reversed(batch: Any) -> Any:
    """The units in the opposite order, in each tensor whose first dimension is the rows, and in lists of values."""
    num_units, num_rows = batch.num_units, batch.num_units * batch.rows_per_unit

    def turn(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim() and len(value) == num_rows:
            return value.unflatten(0, (num_units, -1)).flip(0).flatten(0, 1)
        if _is_list_of_values(value) and len(value) == num_rows:
            return [value[i] for i in torch.arange(num_rows).view(num_units, -1).flip(0).flatten().tolist()]
        return value

    other = copy.copy(batch)
    vars(other).update({key: tree_map(turn, value, is_leaf=_is_list_of_values) for key, value in vars(batch).items()})
    return other


def _is_list_of_values(value: Any) -> bool:
    return type(value) is list and all(isinstance(item, str | int | float) for item in value)


def _unit_losses(module: LogicalBatchModule, batch: Any) -> Tensor:
    return module.row_losses(batch).view(batch.num_units, -1).sum(1)


def _change(before: Sequence[Tensor | None], after: Sequence[Tensor | None]) -> float:
    """‖after − before‖ / ‖before‖, where what is missing is zero."""
    pairs = zip(before, after, strict=True)
    moved = _norm([new if old is None else old if new is None else new.double() - old for old, new in pairs])
    size = _norm(before)
    return moved / size if size else float(moved > 0)


@torch.no_grad()
def _norm(tensors: Sequence[Tensor | None]) -> float:
    return math.sqrt(sum(float(x.double().square().sum()) for x in tensors if x is not None))


def _own_gradients(module: nn.Module) -> AbstractContextManager[None]:
    """A block with gradients of its own, which begin at none."""
    return _set((parameter, "grad", None) for parameter in module.parameters())


def _without_dropout(module: nn.Module) -> AbstractContextManager[None]:
    """Probabilities of dropout as zero: those of PyTorch's layers, and numbers that a Hugging Face model names so."""
    return _set(
        (part, key, 0.0)
        for part in module.modules()
        for key, value in vars(part).items()
        if type(value) is float and ("drop" in key or (key == "p" and isinstance(part, nn.modules.dropout._DropoutNd)))
    )


@contextmanager
def _set(changes: Iterable[tuple[object, str, object]]) -> Iterator[None]:
    """A block with other values of some attributes."""
    changes = list(changes)
    before = [(part, key, getattr(part, key)) for part, key, _ in changes]
    try:
        for part, key, value in changes:
            setattr(part, key, value)
        yield
    finally:
        for part, key, value in before:
            setattr(part, key, value)
