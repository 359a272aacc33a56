"""Sum gradients over ranks and divide them, without a DDP reducer."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.nn import Parameter


def sum_over_ranks(parameters: Iterable[Parameter], divisor: float) -> None:
    """Replace every ``.grad`` by its sum over all ranks, divided by ``divisor``.

    A parameter without a gradient on this rank (an empty Poisson sample, say) takes part with zeros, so that every
    rank joins the same collective. One flat buffer per dtype makes it one all-reduce.

    Args:
        parameters: Trainable parameters, in the same order on every rank.
        divisor: Expected number of units of the logical batch over all ranks.
    """
    by_dtype: dict[torch.dtype, list[Parameter]] = {}
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        by_dtype.setdefault(parameter.grad.dtype, []).append(parameter)
    reduce = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    for group in by_dtype.values():
        gradients = [p.grad for p in group if p.grad is not None]
        if reduce:
            flat = torch.cat([g.reshape(-1) for g in gradients])
            dist.all_reduce(flat)
            offset = 0
            for gradient in gradients:
                gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
                offset += gradient.numel()
        torch._foreach_div_(gradients, divisor)
