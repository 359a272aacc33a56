"""Sum gradients over ranks, without a DDP reducer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

#: Large enough for the bandwidth of the links, small enough that the first bucket leaves early; DDP's default too.
BUCKET_MEGABYTES = 25.0
#: Buffers and the shards of ranks begin at multiples of so many coordinates: the noise's stream is read in such parts.
SHARD_MULTIPLE = 64

#: What PyTorch calls them from 2.13 on, and before.
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or getattr(dist, "reduce_scatter_tensor", None)
_all_gather: Any = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor", None)


@dataclass
class _Bucket:
    """One buffer.

    Attributes:
        flat: Gradients one after the other, and zeros behind them so that all ranks have equal shards.
        size: Entries that are gradients.
        place: Number of the first one among the coordinates of all buffers.
        views: By id of the parameter.
        waiting: Ids of parameters that are not final.
        work: The sum over ranks, or the gathering of shards, that runs.
    """

    flat: Tensor
    size: int
    place: int
    views: dict[int, tuple[Parameter, Tensor]]
    waiting: set[int] = field(default_factory=set)
    work: dist.Work | None = None

    def wait(self) -> None:
        if self.work is not None:
            self.work.wait()
            self.work = None


class GradientReducer:
    """Holds the gradients of a model in a few flat buffers, and sums each over ranks as soon as it is complete.

    A rank knows which of its micro-batches is the last, and that each gradient is final once this one has been added.
    From then on the sum over ranks of one buffer runs while the gradients of the next are still being formed. Buffers
    leave in one fixed order on every rank, whatever their ranks' numbers of micro-batches; what never became ready (an
    empty Poisson sample has no micro-batch at all) leaves in :meth:`sum`, so the result is the same function of the
    gradients as one all-reduce at the end of the step. Gradients are views of the buffers, so nothing is copied.

    What must change the sum before anybody reads it, as noise does, is given to :meth:`sum`: each rank then has the sum
    of its own shard alone (a reduce-scatter), changes that, and sends it to the others (an all-gather): the bytes of an
    all-reduce, and each rank does its part of the work.

    Formal guarantees:
        Places number the coordinates of all buffers, each once: a buffer begins behind the last one's end, whatever the
        number of ranks. The shards of a buffer are disjoint and cover it (:func:`shard_of`), and each is changed once,
        by one rank, after the sum. After :meth:`sum` every parameter's ``.grad`` is its view, so nobody reads a
        gradient that was not changed, and all ranks have the same bits.

    Args:
        parameters: Trainable parameters, in the same order on every rank.
        bucket_megabytes: Size from which a buffer is closed.

    Attributes:
        num_ranks: Of the processes that sum.
        num_launched: Buffers of this step whose sum over ranks has begun.
    """

    def __init__(self, parameters: Iterable[Parameter], bucket_megabytes: float = BUCKET_MEGABYTES) -> None:
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[int, _Bucket] = {}
        self.num_launched = 0
        self._num_coordinates = 0
        self._rank, self.num_ranks = _rank_of()
        open_groups: dict[tuple[torch.dtype, torch.device], list[Parameter]] = {}
        for parameter in reversed(list({id(p): p for p in parameters}.values())):  # about the order of completion
            group = open_groups.setdefault((parameter.dtype, parameter.device), [])
            group.append(parameter)
            if sum(p.numel() * p.element_size() for p in group) >= bucket_megabytes * 2**20:
                self._close(open_groups.pop((parameter.dtype, parameter.device)))
        for group in open_groups.values():
            self._close(group)

    def _close(self, group: list[Parameter]) -> None:
        size = sum(p.numel() for p in group)
        num_entries = _multiple_of(SHARD_MULTIPLE * self.num_ranks, size)
        flat = torch.zeros(num_entries, dtype=group[0].dtype, device=group[0].device)
        parts = flat[:size].split([p.numel() for p in group])
        views = {id(p): (p, part.view(p.shape)) for p, part in zip(group, parts, strict=True)}
        bucket = _Bucket(flat, size, self._num_coordinates, views)
        self._num_coordinates += _multiple_of(SHARD_MULTIPLE, size)
        self._buckets.append(bucket)
        self._bucket_of.update(dict.fromkeys(views, bucket))

    def missing(self, parameters: Iterable[Parameter]) -> list[Parameter]:
        """Return those whose gradients are not held."""
        return [parameter for parameter in parameters if id(parameter) not in self._bucket_of]

    def zero(self) -> None:
        """Start a step: every gradient is zero."""
        self.num_launched = 0
        for bucket in self._buckets:
            bucket.flat.zero_()
            bucket.waiting = set(bucket.views)
            for parameter, view in bucket.views.values():
                parameter.grad = view

    def ready(self, parameter: Parameter, by_shards: bool = False) -> None:
        """Take note that this rank's gradient of ``parameter`` is final for this step.

        Args:
            parameter: Any; one that is not held is passed over.
            by_shards: Whether :meth:`sum` will be given a change, so that a rank needs the sum of its shard alone.
        """
        bucket = self._bucket_of.get(id(parameter))
        if bucket is None or not self._has_several_ranks():
            return
        bucket.waiting.discard(id(parameter))
        while self.num_launched < len(self._buckets) and not self._buckets[self.num_launched].waiting:
            self._launch(by_shards)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the last backward pass of the step on this rank, within this block: it makes gradients ready."""
        handles = []
        if self._has_several_ranks():
            parameters = [parameter for bucket in self._buckets for parameter, _ in bucket.views.values()]
            handles = [p.register_post_accumulate_grad_hook(self.ready) for p in parameters]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def sum(self, change: Callable[[Tensor, int], None] | None = None) -> None:
        """End a step: replace every gradient by its sum over all ranks.

        Args:
            change: Takes a flat part of the sum, which it changes in place, and the place of its first entry.
        """
        is_several = self._has_several_ranks()
        for number, bucket in enumerate(self._buckets):
            for parameter, view in bucket.views.values():  # whoever replaced a gradient is followed, until it has left
                if number >= self.num_launched and parameter.grad is not None and parameter.grad is not view:
                    view.copy_(parameter.grad)
                parameter.grad = view
        while is_several and self.num_launched < len(self._buckets):
            self._launch(by_shards=change is not None)
        for bucket in self._buckets:
            bucket.wait()
            if change is not None:
                start, stop = shard_of(self._rank, self.num_ranks, bucket.size)
                if start < stop:
                    change(bucket.flat[start:stop], bucket.place + start)
                if is_several:
                    bucket.work = _all_gather(bucket.flat, self._shard(bucket), async_op=True)
        for bucket in self._buckets:
            bucket.wait()

    def divide(self, divisor: float) -> None:
        """Divide every gradient.

        Args:
            divisor: Expected size of the logical batch over all ranks.
        """
        for bucket in self._buckets:
            bucket.flat.div_(divisor)

    def _launch(self, by_shards: bool) -> None:
        bucket = self._buckets[self.num_launched]
        if by_shards:
            bucket.work = _reduce_scatter(self._shard(bucket), bucket.flat, async_op=True)
        else:
            bucket.work = dist.all_reduce(bucket.flat, async_op=True)
        self.num_launched += 1

    def _shard(self, bucket: _Bucket) -> Tensor:
        """This rank's, with the zeros behind the gradients."""
        length = len(bucket.flat) // self.num_ranks
        return bucket.flat[self._rank * length : (self._rank + 1) * length]

    def _has_several_ranks(self) -> bool:
        if _rank_of() != (self._rank, self.num_ranks):
            raise RuntimeError(
                f"the gradients' buffers were made for {self.num_ranks} ranks: make the GradientReducer after "
                "torch.distributed.init_process_group"
            )
        return self.num_ranks > 1


def shard_of(rank: int, num_ranks: int, size: int) -> tuple[int, int]:
    """Return where a rank's shard of a buffer with ``size`` gradients begins and ends; it may be empty."""
    length = _multiple_of(SHARD_MULTIPLE * num_ranks, size) // num_ranks
    return min(rank * length, size), min((rank + 1) * length, size)


def _multiple_of(unit: int, number: int) -> int:
    return -(-number // unit) * unit


def _rank_of() -> tuple[int, int]:
    """This process's rank, and their number."""
    is_one_of_several = dist.is_available() and dist.is_initialized()
    return (dist.get_rank(), dist.get_world_size()) if is_one_of_several else (0, 1)
