"""A CUDA graph for each shape of a micro-batch: forward, backward and clipping without the host."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import Any, Literal, Protocol

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from datamodules.batches.batch import MicroBatch

#: Steps in which the sum of a recording is held against the host's, and how far they may lie apart, of its length.
_NUM_CHECKS, _ROUNDING = 2, 0.02
#: Whether a training takes CUDA graphs: where it can, or never.
CudaGraphs = Literal["auto", "off"]
#: Computes a micro-batch: adds to gradients, and returns the sum of its losses.
Compute = Callable[[MicroBatch], Tensor]


class Recorder(Protocol):
    """Records what is done on a device, to be done again without the host."""

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Do the work some times for warming up, record it, and return what does it again.

        Returns:
            A function that returns the work's result, which holds until anything recorded is done again.

        Raises:
            RuntimeError: It cannot be recorded.
        """


class CudaRecorder:
    """Records CUDA graphs, all in one pool of memory, for they never run at the same time."""

    #: Runs before a recording, in which libraries choose kernels and allocate.
    num_warm_ups = 2

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Warm up on a side stream, and capture there; generators stay where they were."""
        graph, state = torch.cuda.CUDAGraph(), torch.cuda.get_rng_state(self._device)
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(self.num_warm_ups):
                work()
        current.wait_stream(self._stream)
        gc.collect()  # what is freed during a capture would be freed by the graph
        try:
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                result = work()
        except RuntimeError:  # the stream is still the capture's, and the generator takes itself for captured
            torch.cuda.set_stream(current)
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())
            raise
        finally:
            torch.cuda.set_rng_state(state, self._device)

        def again() -> Tensor:
            graph.replay()
            return result

        return again


class MicroBatchGraphs:
    """Computes micro-batches, each shape first as ever and then as a recording of its second one.

    Formal guarantees:
        A recording is the same operations on the same tensors, for a batch that is copied into the place of the
        recorded one: losses, norms and clipping are formed as by the host, in the sum of the same micro-batch. Which
        shapes are recorded follows the public set of shapes and which of them have come, and decides no value but by
        rounding, as far as a library takes other kernels under capture. A shape's first micro-batch is computed by the
        host, so that every audit and refusal of the clipper comes first. Warming up runs on the micro-batch with all
        weights 0, whose part in every sum is exactly 0: nothing of a unit is added twice.

        *Not taken on trust.* The first time that a recording is used, and the first time in a later step, when memory
        that it may wrongly read has others' content, the host computes the same micro-batch, too. Where the sums differ
        by more than rounding, the host's is taken, and no recording is used any more.

        What a recording reads and writes it does at fixed addresses. Those of parameters, gradients and buffers are
        compared at the start of each step, and where one has moved, all is recorded anew. Noise, reduction over ranks
        and optimiser stay outside.

    Args:
        model: Whose parameters, gradients and buffers are read and written.
        recorder: Records on the model's device.

    Attributes:
        num_recorded: Shapes that have a recording.
    """

    def __init__(self, model: nn.Module, recorder: Recorder) -> None:
        self._model, self._recorder = model, recorder
        self._seen: set[tuple[Any, ...]] = set()
        self._recorded: dict[tuple[Any, ...], tuple[MicroBatch, Callable[[], Tensor]]] = {}
        self._addresses: tuple[int, ...] = ()
        self._is_off = False
        self._step = 0
        self._checked_in: dict[tuple[Any, ...], list[int]] = {}  # steps

    @property
    def num_recorded(self) -> int:
        """Shapes that have a recording."""
        return len(self._recorded)

    def begin_step(self) -> None:
        """Forget recordings of what lies elsewhere now; gradients are there and zero."""
        self._step += 1
        found = tuple(_addresses(self._model))
        if found != self._addresses:
            self._recorded.clear()
            self._checked_in.clear()
            self._addresses = found

    def run(self, batch: MicroBatch, compute: Compute) -> Tensor:
        """Compute a micro-batch.

        Args:
            batch: On the device of the model. One without weights is computed by the host.
            compute: Computes it, on the host's behalf; what it does on the host is not done again.

        Returns:
            What ``compute`` gives, in memory of its own.
        """
        if not isinstance(batch, MicroBatch) or batch.weights is None:
            return compute(batch)
        key = _key(batch, self._model.training)
        is_new = key not in self._seen
        self._seen.add(key)
        if is_new or self._is_off or (key not in self._recorded and not self._record(key, batch, compute)):
            return compute(batch)
        place, again = self._recorded[key]

        def replay() -> Tensor:
            _fill(place, batch)
            return again().clone()

        checked_in = self._checked_in.setdefault(key, [])
        if self._step in checked_in or len(checked_in) == _NUM_CHECKS:
            return replay()
        checked_in.append(self._step)
        return self._checked(replay, lambda: compute(batch))

    def _checked(self, replay: Callable[[], Tensor], by_host: Callable[[], Tensor]) -> Tensor:
        """Do both from the same gradients and generators; what the host adds is kept."""
        gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
        before = [gradient.clone() for gradient in gradients]
        devices = [gradients[0].device] if gradients[0].is_cuda else []
        with torch.random.fork_rng(devices):
            replay()
        found = [gradient.clone() for gradient in gradients]
        torch._foreach_copy_(gradients, before)
        result = by_host()
        wanted, differs = _length(gradients, before), _length(gradients, found)
        if bool(differs <= _ROUNDING * wanted):
            return result
        self._stop("what a recording adds is not what the host adds")
        return result

    def _stop(self, why: str) -> None:
        self._is_off = True
        self._recorded.clear()
        rank_zero_info(
            f"model.cuda_graphs: steps go on without CUDA graphs, for {why}; model.cuda_graphs=off says nothing"
        )

    def _record(self, key: tuple[Any, ...], batch: MicroBatch, compute: Compute) -> bool:
        place = _copy(batch)
        assert place.weights is not None
        place.weights.zero_()

        def work() -> Tensor:
            with _without_cast_cache(batch.input_ids.device.type):
                return compute(copy.copy(place))  # another object, for a step takes each micro-batch once

        try:
            self._recorded[key] = place, self._recorder.record(work)
        except RuntimeError as error:
            self._stop(
                f"{type(self._model).__name__} cannot be recorded ({type(error).__name__}): a loss must not ask for a "
                "number of a tensor, nor choose by one"
            )
        return not self._is_off


def why_not(module: Any) -> str | None:
    """Return why a training cannot take CUDA graphs, in words that end a sentence; None if it may try.

    Args:
        module: A :class:`~lightning_modules.training.logical_batch_module.LogicalBatchModule` in a fit.
    """
    if module.trainer.scaler is not None:
        return "a gradient scaler looks at the gradients of each step"
    if torch.is_anomaly_enabled():
        return "detect_anomaly looks at every operation"
    for part in (module, *module.trainer.callbacks):
        for hook in ("on_before_backward", "on_after_backward"):
            if getattr(getattr(type(part), hook, None), "__module__", "").partition(".")[0] != "lightning":
                return f"{type(part).__name__} has {hook}, which a graph does not call"
    return None


def _length(tensors: Iterable[Tensor], others: Iterable[Tensor]) -> Tensor:
    """Of their difference, all of them as one vector; nan where one has a nan."""
    pairs = zip(tensors, others, strict=True)
    return torch.stack([torch.linalg.vector_norm(a - b, dtype=torch.float64) for a, b in pairs]).square().sum().sqrt()


def _addresses(model: nn.Module) -> Iterable[int]:
    for parameter in model.parameters():
        yield parameter.requires_grad
        yield parameter.data_ptr()
        yield 0 if parameter.grad is None else parameter.grad.data_ptr()
    for buffer in model.buffers():
        yield buffer.data_ptr()


def _key(batch: MicroBatch, is_training: bool) -> tuple[Any, ...]:
    """All that is fixed in a recording of a batch: shapes of tensors, and other values."""
    device = batch.input_ids.device.type
    half = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    values = (getattr(batch, field.name) for field in fields(batch))
    own = ((value.shape, value.dtype) if isinstance(value, Tensor) else value for value in values)
    return (*own, half, is_training)


def _copy(batch: MicroBatch) -> MicroBatch:
    copied = copy.copy(batch)
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, Tensor):
            setattr(copied, field.name, value.clone())
    return copied


def _fill(place: MicroBatch, batch: MicroBatch) -> None:
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, Tensor):
            getattr(place, field.name).copy_(value)


def _without_cast_cache(device: str) -> AbstractContextManager[Any]:
    """Autocast as it is, but for copies of weights: those that the host's passes keep are gone when a graph runs."""
    if not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, torch.get_autocast_dtype(device), cache_enabled=False)
