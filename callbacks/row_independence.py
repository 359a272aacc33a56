"""Whether each row is clipped by its own gradient, which depends on that row alone: tried before anything is spent."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn

from callbacks.made_up_rows import LONG, NAN, SHORT, Kind, MadeUpRows
from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.private_step import PrivateTrainingError
from lightning_modules.training.logical_batch_module import LogicalBatchModule

#: Norm that rows are clipped to, so small that all are.
_BOUND = 1e-3
#: One for each order of two rows; under either ``torch.randperm(2)`` gives them another one.
_SEEDS = (1, 5)
#: What weights, losses and the room for rounding are multiplied by: a limit that no gradient reaches yet shows under a
#: large loss, and weights that nobody has trained may magnify rounding.
_SCALES = ((1.0, 1.0, 1.0), (1.0, 2.0**12, 1.0), (2.0, 1.0, 10.0))


class _Rounding(NamedTuple):
    """Relative changes that rounding explains: of a loss, and of a gradient beside a longer row, for sums of float32 in
    another order differ by some 1e-6; of a gradient as the clipper sees it, by the room that it leaves; of either, at
    least.
    """

    loss: float = 1e-4
    beside: float = 1e-4
    gradient: float = 5e-3
    least: float = 0.0


#: Under autocast, by its dtype: products are rounded to 8 or 11 bits, so sums in another order differ by some 1e-3.
_OF_HALF = {torch.bfloat16: _Rounding(2e-2, 5e-2, 5e-2), torch.float16: _Rounding(2e-3, 1e-2, 2e-2)}
#: Whether all is computed in the weights' own precision, whatever that of the training is.
_is_full: ContextVar[bool] = ContextVar("_is_full", default=False)
#: What a CPU's kernels do that take some numbers at a time: past the end of a row they read the next one.
_HALF_ON_CPU = (
    "On a CPU, products in half precision over some sizes, such as a vocabulary of 50,257, let a nan pass to the row "
    "before: set trainer.precision to auto, which knows, or to 32-true. "
)


def check_row_independence(module: LogicalBatchModule) -> str | None:
    """Compare made-up rows alone with the same ones in batches of 16 and 32, and the clipper with autograd.

    Formal guarantees:
        The sensitivity C of a clipped sum holds only if one unit more leaves the gradients of the others as they are,
        and if the clipper gives each unit its own. This tries rows of no data set
        (:meth:`LogicalBatchModule.probe`), so what it tells is public, and what they do not show stays unproved;
        ``docs/own-model.md`` lists it. Without dropout a row has the same loss alone and among others (beside the
        longest too), and the clipper's norms and clipped sums are those of autograd on each row alone, so rows that
        change places within the model are found. Batches of 16 hold one long or one short row, those of 32 all kinds,
        one of them a row whose loss is nan; weights and losses are as they are, then larger. Called again under the
        same seed, and after all others, a row gives what it gave. Layers without a rule are refused under dropout as
        well. Weights, gradients and generators are left as they were. All is computed in the training's precision,
        where there is a trainer; what half precision rounds away (a change of a loss below 2 %) shows in 32-true alone.
        Where terms of a gradient cancel, as in a base that public text has taught, half precision moves that of a row
        alone by a fifth of its norm and more: then everything is compared in the weights' own precision, too, where
        rounding explains nothing, and in half precision as much is explained as rounding moved this row.

    Args:
        module: On its device, before the first step.

    Returns:
        What was not compared, in words that end a sentence; None if all was.

    Raises:
        PrivateTrainingError: One row changes what another one gives, or is clipped as another one; nothing was spent.
        UserError: The losses are not one for each row, or a layer has no exact clipping rule; nothing was spent.
    """
    name = type(module).__name__
    probe = module.probe()
    if probe is None:
        return f"{name} has no probe()"
    try:
        with isolate_rng():
            reason = _try(module, MadeUpRows(name, *probe[:2]), probe[2:])
    except torch.OutOfMemoryError:
        return f"there was no memory for made-up rows of {name}"
    is_own = type(module).training_step is not LogicalBatchModule.training_step
    return f"{name} has a training_step of its own" if is_own and reason is None else reason


def _try(module: LogicalBatchModule, rows: MadeUpRows, longer: Sequence[Any]) -> str | None:
    with _own_gradients(module):
        _clip(module, rows.batch([LONG, SHORT]), math.inf)
    first, again = (_losses(module, rows.alone, seed=0) for _ in range(2))
    tolerance = _rounding(module)
    if _change(first, again) > tolerance.loss:
        raise PrivateTrainingError(
            "gives the same row another loss when it comes again under the same seed, so that what is kept of some "
            "rows moves the gradients of later ones: let losses() read no buffer and no attribute that it writes",
            about=type(module).__name__,
        )
    with _without_dropout(module):
        before = _losses(module, rows.alone, seed=0)
        if _change(before, _losses(module, rows.alone, seed=1)) > tolerance.loss:
            for kinds, seed in zip(([LONG, SHORT], [SHORT, LONG]), _SEEDS, strict=True):
                _compare(module, rows, [kinds], tolerance, seed=seed, is_alone=False)
            return f"{type(module).__name__} draws at random beside dropout"
        rounded = 0.0 if tolerance == _Rounding() else _rounded(module, rows.alone)
        if rounded > tolerance.beside:
            with _in_full():
                _compare_all(module, rows, longer, _Rounding())
            tolerance = tolerance._replace(least=rounded)
        _compare_all(module, rows, longer, tolerance)
    return None


def _compare_all(module: LogicalBatchModule, rows: MadeUpRows, longer: Sequence[Any], tolerance: _Rounding) -> None:
    """Compare rows in batches, beside longer ones and after others with what they are alone."""
    before = _losses(module, rows.alone)
    others = [kind for kind in rows.others if kind.length != 0 or _takes(module, rows, kind)]
    for (weights, losses, room), mixes in zip(_SCALES, _mixes(others), strict=True):
        with _scaled(module, weights):
            _compare(module, rows, mixes, tolerance, losses, room)
    for batch in longer[:1]:
        what = "the gradient of a made-up row beside a longer one"
        _refuse_change(module, what, *_gradients(module, rows.alone, batch), max(tolerance.beside, tolerance.least))
    for place, batch in (*(("beside a longer one", batch) for batch in longer), ("after others", rows.alone)):
        found = _losses(module, batch)[-1:]
        _refuse_change(module, f"the loss of a made-up row {place}", before, found, tolerance.loss)


def _rounded(module: LogicalBatchModule, alone: Any) -> float:
    """How far the training's precision moves the gradient of a row alone, by its norm; 0 where there is no other."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]

    def gradient() -> Sequence[Tensor | None]:
        return torch.autograd.grad(_unit_losses(module, alone)[-1], parameters, allow_unused=True)

    half = gradient()
    try:
        with _in_full():
            full = gradient()
    except RuntimeError as error:  # of weights in half precision that only autocast makes agree
        if isinstance(error, torch.OutOfMemoryError):
            raise
        return 0.0
    pairs = [(own, exact) for own, exact in zip(half, full, strict=True) if own is not None and exact is not None]
    size = _norm(half)
    return min(1.0, _norm([own - exact for own, exact in pairs]) / size) if 0 < size < math.inf else 0.0


def _takes(module: LogicalBatchModule, rows: MadeUpRows, kind: Kind) -> bool:
    """Whether the module has a loss for such a row; one that has none for an empty text stops where it comes."""
    try:
        _losses(module, rows.batch([kind]))
    except (ArithmeticError, LookupError, RuntimeError, ValueError):
        return False
    return True


def _mixes(others: list[Kind]) -> list[list[list[Kind]]]:
    """For each scale what is tried: a single long row and one whose loss is nan, a single short row, all kinds."""
    drawn = torch.randperm(32, generator=torch.Generator().manual_seed(0)).tolist()
    few, many = [SHORT, *others] * 15, [LONG, LONG, SHORT, *others] * 11
    mixed = [many[i] for i in drawn]
    with_nan = [*mixed[:20], NAN, *mixed[21:]]
    return [[[*few[:5], LONG, *few[5:15]], with_nan], [[*[LONG] * 9, SHORT, *[LONG] * 6]], [mixed]]


def _compare(
    module: LogicalBatchModule,
    rows: MadeUpRows,
    mixes: list[list[Kind]],
    tolerance: _Rounding,
    scale: float = 1.0,
    room: float = 1.0,
    seed: int = 0,
    is_alone: bool = True,
) -> None:
    """Compare losses, norms and the clipped sum of batches with autograd on each row, alone or in the only batch.

    The gradients of one row at a time are held: those of large models take much memory.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    allowed = max(room * tolerance.gradient, tolerance.least)
    losses: dict[Kind, float] = {}
    norms: dict[Kind, float] = {}
    sizes = [0.0] * len(parameters)
    with _own_gradients(module):
        for kind, count in Counter(kind for kinds in mixes for kind in kinds).items():
            kinds = [kind] if is_alone else mixes[0]
            batch = rows.alone if kinds == [SHORT] else rows.batch(kinds)
            with _nan_rows(module, kinds, batch.rows_per_unit):
                _seed(seed)
                loss = _unit_losses(module, batch)[kinds.index(kind)]
                gradients = torch.autograd.grad(loss * scale, parameters, allow_unused=True)
            parts = [_norm([gradient]) for gradient in gradients]
            losses[kind], norms[kind] = float(loss.detach()), math.hypot(*parts)
            share = count * min(1.0, _BOUND / norms[kind]) if 0 < norms[kind] < math.inf else 0.0
            for i in range(len(parameters) if share else 0):
                sizes[i] += share * parts[i]
                if gradients[i] is not None:
                    rest = parameters[i].grad
                    rest = torch.zeros_like(parameters[i]) if rest is None else rest
                    parameters[i].grad = rest.sub_(gradients[i], alpha=share)
        for kinds in mixes:
            of = f"of a made-up row in a batch of {len(kinds)}{' with one whose loss is nan' if NAN in kinds else ''}"
            own = [torch.tensor([values[kind] for kind in kinds]) for values in (losses, norms)]
            refuse = partial(_refuse_change, module, f"the loss {of}", own[0], room=room * tolerance.loss, floor=0.1)
            with _nan_rows(module, kinds, rows.alone.rows_per_unit):
                _seed(seed)
                found = _clip(module, rows.batch(kinds), _BOUND, scale, refuse)
            _refuse_change(module, f"the gradient {of}", own[1], found, allowed, 1e-4)
        total, rests = torch.tensor(sizes), torch.tensor([_norm([parameter.grad]) for parameter in parameters])
        _refuse_change(module, "the clipped sum of made-up rows", total, total + rests, allowed, 0.01)


def _refuse_change(
    module: LogicalBatchModule, what: str, own: Tensor, found: Tensor, room: float, floor: float = 0.0
) -> None:
    change = _change(own, found, floor)
    if change <= room:
        return
    where = _HALF_ON_CPU if module.device.type == "cpu" and _rounding(module) != _Rounding() else ""
    raise PrivateTrainingError(
        f"{type(module).__name__} cannot be trained privately: {what} changes "
        f"{f'by {change:.2%}' if math.isfinite(change) else 'from or to nan'} against autograd on the row alone, so "
        f"that one unit would move the gradients of others. {where}Look for a mean, a maximum or a choice over the "
        "batch, a division by its longest row, padding that is not masked (noise moves the row of a padding_idx, too: "
        "multiply by a mask), rows that are skipped, a limit on the gradient, a buffer that losses() writes, a tensor "
        "whose first dimension is not the rows, or a base model "
        "whose rope_scaling is longrope; and sort, permute or regroup no rows (pack_padded_sequence does; mask the "
        "padding instead). No step was spent"
    )


def _clip(
    module: LogicalBatchModule,
    batch: Any,
    bound: float,
    scale: float = 1.0,
    refuse: Callable[[Tensor], None] = lambda losses: None,
) -> Tensor:
    """Clip rows as the first step would, into ``.grad``: a layer without an exact rule for them is refused by name."""
    clipper = PerSampleClipper(module, bound)
    try:
        with clipper.capture(batch.num_units, batch.rows_per_unit):
            losses = _unit_losses(module, batch)
            refuse(losses.detach())
            (losses.sum() * scale).backward()
        return clipper.accumulate()
    finally:
        clipper.close()


def _unit_losses(module: LogicalBatchModule, batch: Any) -> Tensor:
    with _precision(module):
        return module.row_losses(batch).view(batch.num_units, -1).sum(1)


def _precision(module: LogicalBatchModule) -> AbstractContextManager[None]:
    """That of the training, where there is one, or of the weights themselves."""
    trainer = module._trainer
    return nullcontext() if trainer is None or _is_full.get() else trainer.precision_plugin.train_step_context()


@contextmanager
def _in_full() -> Iterator[None]:
    """A block whose computations are in the weights' own precision."""
    token = _is_full.set(True)
    try:
        yield
    finally:
        _is_full.reset(token)


def _rounding(module: LogicalBatchModule) -> _Rounding:
    """What the training's precision explains."""
    device = module.device.type
    with _precision(module):
        is_half = torch.is_autocast_enabled(device)
        return _OF_HALF[torch.get_autocast_dtype(device)] if is_half else _Rounding()


@torch.no_grad()
def _losses(module: LogicalBatchModule, batch: Any, seed: int = 0) -> Tensor:
    _seed(seed)
    return _unit_losses(module, batch)


def _gradients(module: LogicalBatchModule, *batches: Any) -> tuple[Tensor, Tensor]:
    """Norm of the gradient of a batch's last row, and the same plus the norm of what changes in another batch."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    own, found = (
        torch.autograd.grad(_unit_losses(module, batch)[-1], parameters, allow_unused=True) for batch in batches
    )
    moved = [new if old is None else old if new is None else new - old for old, new in zip(own, found, strict=True)]
    norm = torch.tensor([_norm(own)])
    return norm, norm + _norm(moved)


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def _change(own: Tensor, found: Tensor, floor: float = 0.0) -> float:
    """The largest change of a value, relative to it or to ``floor`` times the largest; inf where one is not finite."""
    own, found = own.detach().double().cpu(), found.detach().double().cpu()
    is_finite = own.isfinite()
    if not torch.equal(is_finite, found.isfinite()):
        return math.inf
    own, found = own[is_finite], found[is_finite]
    if not len(own):
        return 0.0
    size = own.abs().clamp(min=floor * float(own.abs().max()))
    return float(torch.where(own == found, 0.0, (found - own).abs() / size).max())


@torch.no_grad()
def _norm(tensors: Sequence[Tensor | None]) -> float:
    return math.sqrt(sum(float(torch.linalg.vector_norm(x)) ** 2 for x in tensors if x is not None))


@contextmanager
def _nan_rows(module: nn.Module, kinds: Sequence[Kind], rows_per_unit: int) -> Iterator[None]:
    """A block in which the first trained layer that gives rows gives nan for those that have no finite loss."""
    if all(kind.is_finite for kind in kinds):
        yield
        return
    factors = torch.tensor([1.0 if kind.is_finite else math.nan for kind in kinds]).repeat_interleave(rows_per_unit)
    chosen: list[nn.Module] = []

    def spoil(layer: nn.Module, args: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        if not isinstance(first, Tensor) or first.shape[:1] != factors.shape or (chosen and chosen[0] is not layer):
            return None
        chosen.append(layer)
        first = first * factors.to(first).view(-1, *[1] * (first.dim() - 1))
        return (first, *output[1:]) if isinstance(output, tuple) else first

    trained = [x for x in module.modules() if any(p.requires_grad for p in x.parameters(recurse=False))]
    hooks = [layer.register_forward_hook(spoil) for layer in trained]
    try:
        yield
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, ValueError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise PrivateTrainingError(
            f"losses() raises {type(error).__name__} where the loss of a row is nan, so that one row would end the "
            "training of all: leave that test out, for a row whose gradient is not finite contributes zero",
            about=type(module).__name__,
        ) from error
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _scaled(module: nn.Module, factor: float) -> Iterator[None]:
    """A block with larger trained weights; zeros are drawn at random, for the noise of the first step moves them: half
    of an adapter, or the row of a padding index."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad and factor != 1]
    before = [parameter.detach().clone() for parameter in parameters]
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for parameter in parameters:
                drawn = torch.randn(parameter.shape, generator=generator).to(parameter) / 32
                parameter.copy_(torch.where(parameter == 0, drawn, parameter * factor))
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)


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
