"""Per-row gradients of one module's own parameters: Opacus' grad samplers, and ``torch.func`` for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from doppel.privacy.clipping.arithmetic import wide_dtype
from doppel.privacy.clipping.errors import UnsupportedLayerError

GradSampler = Callable[[nn.Module, list[Tensor], Tensor], dict[nn.Parameter, Tensor]]

_IS_REPLAYING: ContextVar[bool] = ContextVar("is_replaying", default=False)


def is_replaying() -> bool:
    """Whether the forward that runs is a module run again for its gradients: no hook is to see it."""
    return _IS_REPLAYING.get()


# ------------------------------------------------------------------------------ Opacus
def find_grad_sampler(module: nn.Module) -> GradSampler | None:
    """Opacus' grad sampler of exactly this type of module, unless it ignores an option that the module uses."""
    from opacus.grad_sample import GradSampleModule  # takes seconds, and only this mode needs it

    is_left_out = (
        isinstance(module, nn.EmbeddingBag)  # its rows are offsets
        or (isinstance(module, nn.LayerNorm) and module.bias is None)
        or getattr(module, "padding_mode", "zeros") != "zeros"
    )
    return None if is_left_out else GradSampleModule.GRAD_SAMPLERS.get(type(module))


def sampled_gradients(
    grad_sampler: GradSampler, module: nn.Module, parameters: dict[str, nn.Parameter], inputs: Tensor, grads: Tensor
) -> dict[str, Tensor]:
    """Gradients [rows, *shape] of ``parameters``, formed in the wide dtype.

    Args:
        grad_sampler: Opacus' sampler of the module.
        module: The module.
        parameters: Its trained parameters by name.
        inputs: What it was called with, [rows, …], or [1, …] for ids that are broadcast over the rows.
        grads: Gradients of its output [rows, …].
    """
    wide = wide_dtype(grads.dtype)
    if isinstance(module, nn.Embedding):
        inputs = inputs.expand(len(grads), *inputs.shape[1:])
        if module.padding_idx is not None:  # Opacus gives it a gradient, torch does not
            grads = grads.masked_fill((inputs == module.padding_idx).unsqueeze(-1), 0)
    elif isinstance(module, nn.Linear):
        inputs = inputs.to(grads.dtype)  # autocast: the operand of the GEMM, not its float32 source
    if inputs.is_floating_point():
        inputs = inputs.to(wide)
    try:
        for parameter in parameters.values():
            parameter.requires_grad_(True)  # samplers leave out what is frozen
        found = grad_sampler(module, [inputs], grads.to(wide))
    finally:
        for parameter in parameters.values():
            parameter.requires_grad_(False)
    by_id = {id(parameter): value.detach() for parameter, value in found.items()}
    return {key: by_id[id(parameter)] for key, parameter in parameters.items()}


# ------------------------------------------------------------------------------ torch.func
@dataclass(frozen=True)
class ModuleCall:
    """How a module was called, without the tensors: enough to call it again in the same way.

    Attributes:
        spec: Structure of ``(args, kwargs)``.
        leaves: Its leaves; None in the place of each tensor.
        places: Indices of the tensors among the leaves.
        autocast: Device, dtype and whether autocast was on.
    """

    spec: TreeSpec
    leaves: tuple[Any, ...]
    places: tuple[int, ...]
    autocast: tuple[str, torch.dtype, bool]

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ModuleCall, list[Tensor]]:
        """The call, and its tensors in order."""
        leaves, spec = tree_flatten((args, kwargs))
        places = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
        tensors = [leaves[i] for i in places]
        device = tensors[0].device.type if tensors else "cpu"
        autocast = (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        rest = tuple(None if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        return cls(spec, rest, places, autocast), tensors

    def arguments(self, tensors: list[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """``args`` and ``kwargs`` with these tensors."""
        leaves = list(self.leaves)
        for i, tensor in zip(self.places, tensors, strict=True):
            leaves[i] = tensor
        return tree_unflatten(leaves, self.spec)

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """The autocast state of the call, unseen by hooks."""
        device, dtype, enabled = self.autocast
        token = _IS_REPLAYING.set(True)
        try:
            with torch.autocast(device, dtype, enabled, cache_enabled=False):
                yield
        finally:
            _IS_REPLAYING.reset(token)


def replayed_gradients(
    name: str,
    module: nn.Module,
    parameters: dict[str, nn.Parameter],
    call: ModuleCall,
    tensors: list[Tensor],
    output: Tensor,
    grads: Tensor,
) -> dict[str, Tensor]:
    """Gradients [rows, *shape] of ``parameters``, by running the module again on one row at a time.

    Tensors whose first dimension is the rows are cut into rows; others are given to every row as they are. Whether
    that is right, and the module is a function of one row at all, is seen from its output, which must be the same.

    Args:
        name: The module's name, for messages.
        module: The module.
        parameters: Its own trained parameters by name.
        call: How it was called.
        tensors: The tensors of that call.
        output: Its output then, [rows, …].
        grads: Gradient of that output.

    Raises:
        UnsupportedLayerError: If the module cannot be run on one row, or gives something else there.
    """
    num_rows = len(grads)
    has_rows = [tensor.dim() > 0 and len(tensor) == num_rows for tensor in tensors]
    values = {key: parameter.detach() for key, parameter in parameters.items()}

    def one_row(grad: Tensor, *row: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        cut = [tensor.unsqueeze(0) if is_cut else tensor for tensor, is_cut in zip(row, has_rows, strict=True)]

        def run(values: dict[str, Tensor]) -> Tensor:
            args, kwargs = call.arguments(cut)
            # a child that shares the parameter has a rule of its own
            return functional_call(module, values, args, kwargs, tie_weights=False)

        result, pull_back, *_ = vjp(run, values)
        return pull_back(grad.unsqueeze(0).to(result.dtype))[0], result[0]

    try:
        with call.replaying():
            in_dims = (0, *(0 if is_cut else None for is_cut in has_rows))
            found, results = vmap(one_row, in_dims)(grads, *tensors)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        raise _not_by_rows_error(name, module, "it cannot be run on one row at a time") from error
    if not _is_same(results, output, call):
        raise _not_by_rows_error(
            name, module, "run on one row at a time it gives something else (it is random, or it mixes rows)"
        )
    return {key: value.detach() for key, value in found.items()}


def _is_same(found: Tensor, expected: Tensor, call: ModuleCall) -> bool:
    if found.shape != expected.shape:
        return False
    _, half, is_autocast = call.autocast
    tolerance = max(torch.finfo(half if is_autocast else expected.dtype).eps ** 0.5, 1e-4)
    difference, size = (found - expected).abs().flatten(1).amax(1), expected.abs().flatten(1).amax(1)
    return bool(((difference <= tolerance * size) | ~torch.isfinite(difference)).all())


def _not_by_rows_error(name: str, module: nn.Module, reason: str) -> UnsupportedLayerError:
    return UnsupportedLayerError(
        f"module '{name}' ({type(module).__name__}) has no per-sample gradient: {reason}; freeze it, or move its "
        "parameters to a module that treats every row alike"
    )
