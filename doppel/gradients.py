"""Sum gradients over ranks, without a DDP reducer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

#: Large enough for the bandwidth of the links, small enough that the first bucket leaves early; DDP's default too.
BUCKET_MEGABYTES = 25.0


@dataclass
class _Bucket:
    flat: Tensor
    views: dict[int, tuple[Parameter, Tensor]]  # by id of the parameter
    waiting: set[int] = field(default_factory=set)
    work: dist.Work | None = None


class GradientReducer:
    """Holds the gradients of a model in a few flat buffers, and sums each over ranks as soon as it is complete.

    A rank knows which of its micro-batches is the last, and that each gradient is final once this one has been added.
    From then on the sum over ranks of one buffer runs while the gradients of the next are still being formed. Buffers
    leave in one fixed order on every rank, whatever their ranks' numbers of micro-batches; what never became ready (an
    empty Poisson sample has no micro-batch at all) leaves in :meth:`sum`, so the result is the same function of the
    gradients as one all-reduce at the end of the step. Gradients are views of the buffers, so
    nothing is copied.

    Args:
        parameters: Trainable parameters, in the same order on every rank.
        bucket_megabytes: Size from which a buffer is closed.

    Attributes:
        num_launched: Buffers of this step whose sum over ranks has begun.
    """

    def __init__(self, parameters: Iterable[Parameter], bucket_megabytes: float = BUCKET_MEGABYTES) -> None:
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[int, _Bucket] = {}
        self.num_launched = 0
        open_groups: dict[tuple[torch.dtype, torch.device], list[Parameter]] = {}
        for parameter in reversed(list({id(p): p for p in parameters}.values())):  # about the order of completion
            group = open_groups.setdefault((parameter.dtype, parameter.device), [])
            group.append(parameter)
            if sum(p.numel() * p.element_size() for p in group) >= bucket_megabytes * 2**20:
                self._close(open_groups.pop((parameter.dtype, parameter.device)))
        for group in open_groups.values():
            self._close(group)

    def _close(self, group: list[Parameter]) -> None:
        flat = torch.zeros(sum(p.numel() for p in group), dtype=group[0].dtype, device=group[0].device)
        parts = flat.split([p.numel() for p in group])
        views = {id(p): (p, part.view(p.shape)) for p, part in zip(group, parts, strict=True)}
        bucket = _Bucket(flat, views)
        self._buckets.append(bucket)
        self._bucket_of.update(dict.fromkeys(views, bucket))

    def zero(self) -> None:
        """Start a step: every gradient is zero."""
        self.num_launched = 0
        for bucket in self._buckets:
            bucket.flat.zero_()
            bucket.waiting = set(bucket.views)
            for parameter, view in bucket.views.values():
                parameter.grad = view

    def ready(self, parameter: Parameter) -> None:
        """Take note that this rank's gradient of ``parameter`` is final for this step."""
        bucket = self._bucket_of.get(id(parameter))
        if bucket is None or not _several_ranks():
            return
        bucket.waiting.discard(id(parameter))
        while self.num_launched < len(self._buckets) and not self._buckets[self.num_launched].waiting:
            self._launch()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the last backward pass of the step on this rank, within this block: it makes gradients ready."""
        handles = []
        if _several_ranks():
            parameters = [parameter for bucket in self._buckets for parameter, _ in bucket.views.values()]
            handles = [p.register_post_accumulate_grad_hook(self.ready) for p in parameters]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def sum(self) -> None:
        """End a step: replace every gradient by its sum over all ranks."""
        for bucket in self._buckets[self.num_launched :]:
            for parameter, view in bucket.views.values():  # whoever replaced a gradient is followed
                if parameter.grad is not None and parameter.grad is not view:
                    view.copy_(parameter.grad)
                parameter.grad = view
        while _several_ranks() and self.num_launched < len(self._buckets):
            self._launch()
        for bucket in self._buckets:
            if bucket.work is not None:
                bucket.work.wait()
                bucket.work = None

    def divide(self, divisor: float) -> None:
        """Divide every gradient.

        Args:
            divisor: Expected size of the logical batch over all ranks.
        """
        for bucket in self._buckets:
            bucket.flat.div_(divisor)

    def _launch(self) -> None:
        bucket = self._buckets[self.num_launched]
        bucket.work = dist.all_reduce(bucket.flat, async_op=True)
        self.num_launched += 1


def _several_ranks() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
