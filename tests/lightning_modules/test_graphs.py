"""Recordings of micro-batches: which shape has one, when it is made anew, and what goes on without."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from datamodules.batches.batch import MicroBatch
from doppel.privacy.clipping import PerSampleClipper
from lightning_modules.causal_lm import UtteranceLM
from lightning_modules.training.graphs import CudaRecorder, MicroBatchGraphs, why_not
from tests.private_training import data_module, fit, privacy, sgd, weights

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Operations(TorchDispatchMode):
    """Keeps the operations of a block with their tensors, as a graph keeps kernels with addresses, and does them again.

    Nothing else of the host's is done again; to ask for a number of a tensor is not permitted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[Any, Any, Any, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        given = kwargs or {}
        found = func(*args, **given)
        self.kept.append((func, args, given, tree_leaves(found)))
        return found

    def again(self) -> None:
        """Do all of them, each into the tensors that it made."""
        with torch.no_grad(), torch.autocast("cpu", enabled=False):  # an operation has its types already
            for func, args, kwargs, made in self.kept:
                for old, new in zip(made, tree_leaves(func(*args, **kwargs)), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


class Player:
    """Records operations of a CPU.

    Args:
        refuses: Whether nothing can be recorded.
    """

    def __init__(self, refuses: bool = False) -> None:
        self.refuses, self.num_records, self.num_again = refuses, 0, 0

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.num_records += 1
        with torch.random.fork_rng(devices=[]):
            work()
            with Operations() as operations:
                if self.refuses:
                    torch.ones(()).item()
                result = work()

        def again() -> Tensor:
            self.num_again += 1
            operations.again()
            return result

        return again


class Played(UtteranceLM):
    """A language model whose steps are recorded by another recorder than CUDA's."""

    def __init__(self, player: Player | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.player = player

    def recorder(self) -> Player | None:
        return self.player


class Rows(nn.Module):
    """Sums of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(30, 4), nn.Linear(4, 2)
        self.clipper = PerSampleClipper(self, 0.1)
        for parameter in self.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.computed: list[MicroBatch] = []

    def compute(self, batch: MicroBatch) -> Tensor:
        self.computed.append(batch)
        with self.clipper.capture(batch.num_units, batch.rows_per_unit):
            losses = self.head(self.embedding(batch.input_ids)).square().sum((1, 2)) * batch.weights
            losses.sum().backward()
        self.clipper.accumulate()
        return losses.detach().sum()

    def gradients(self) -> Tensor:
        return torch.cat([p.grad.flatten() for p in self.parameters() if p.grad is not None])


def batch(seed: int, num_units: int = 3, length: int = 5, **changes: Any) -> MicroBatch:
    ids = torch.randint(30, (num_units, length), generator=torch.Generator().manual_seed(seed))
    row_weights = torch.ones(num_units)
    row_weights[-1] = 0.0
    return replace(MicroBatch(ids, ids, num_units, 1, row_weights, length - 1), **changes)


def test_what_is_recorded_gives_what_the_host_gives_and_warming_up_adds_nothing() -> None:
    own, expected, player = Rows(), Rows(), Player()
    graphs = MicroBatchGraphs(own, player)
    graphs.begin_step()
    for seed in range(6):
        found = graphs.run(batch(seed), own.compute)
        assert torch.equal(found, expected.compute(batch(seed)))
        torch.testing.assert_close(own.gradients(), expected.gradients(), rtol=0, atol=0)
    assert (player.num_records, player.num_again) == (1, 5)


@pytest.mark.parametrize("wrong_from", [1, 2])
def test_a_recording_that_adds_something_else_is_not_used(wrong_from: int, caplog: pytest.LogCaptureFixture) -> None:
    """As one would that reads memory which others have: at once, or in a later step."""
    own, expected, player = Rows(), Rows(), Player()
    again = Operations.again
    graphs = MicroBatchGraphs(own, player)
    steps = []

    def other(operations: Operations) -> None:
        again(operations)
        if len(steps) >= wrong_from:
            own.head.weight.grad.mul_(1.1)  # type: ignore[union-attr]

    with pytest.MonkeyPatch.context() as patch, caplog.at_level("INFO"):
        patch.setattr(Operations, "again", other)
        for step in range(3):
            steps.append(step)
            graphs.begin_step()
            for seed in range(3):
                graphs.run(batch(3 * step + seed), own.compute)
                expected.compute(batch(3 * step + seed))
                torch.testing.assert_close(own.gradients(), expected.gradients(), rtol=0, atol=0)
    assert graphs.num_recorded == 0 and player.num_again == (1 if wrong_from == 1 else 3)
    assert caplog.text.count("what a recording adds is not what the host adds") == 1


def test_a_shapes_first_micro_batch_is_computed_as_ever() -> None:
    own, player = Rows(), Player()
    graphs, first = MicroBatchGraphs(own, player), batch(0)
    graphs.begin_step()
    graphs.run(first, own.compute)
    assert own.computed == [first] and own.computed[0] is first and player.num_records == 0


def test_each_shape_and_number_has_a_recording_of_its_own() -> None:
    own, player = Rows(), Player()
    graphs = MicroBatchGraphs(own, player)
    graphs.begin_step()
    alike = batch(0, 4)
    others = [batch(0), alike, replace(alike, num_units=2, rows_per_unit=2), replace(alike, num_labels=2)]
    for other in [*others, batch(0, length=6)] * 2:
        graphs.run(other, own.compute)
    assert graphs.num_recorded == player.num_records == 5
    own.eval()
    graphs.run(alike, own.compute)
    assert player.num_records == 5, "another mode is another shape, whose first one is computed as ever"


def test_what_moves_is_recorded_anew() -> None:
    own, player = Rows(), Player()
    graphs = MicroBatchGraphs(own, player)

    def step() -> int:
        graphs.begin_step()
        before = own.gradients()
        graphs.run(batch(1), own.compute)
        assert not torch.equal(own.gradients(), before)
        return player.num_records

    assert [step(), step(), step()] == [0, 1, 1]
    own.head.weight.data.add_(1.0)
    assert step() == 1, "an optimiser's step moves nothing"
    own.head.weight.data = own.head.weight.data.clone()
    assert [step(), step()] == [2, 2]
    own.head.bias.grad = torch.zeros(2)
    assert [step(), step()] == [3, 3]


def test_what_cannot_be_recorded_goes_on_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    own, expected, player = Rows(), Rows(), Player(refuses=True)
    graphs = MicroBatchGraphs(own, player)
    graphs.begin_step()
    with caplog.at_level("INFO"):
        for seed in range(8):
            graphs.run(batch(seed, 3 + seed % 2), own.compute)
            expected.compute(batch(seed, 3 + seed % 2))
    torch.testing.assert_close(own.gradients(), expected.gradients(), rtol=0, atol=0)
    assert player.num_records == 1
    assert sum("Rows cannot be recorded (RuntimeError)" in record.message for record in caplog.records) == 1


def test_a_batch_that_nothing_can_be_weighed_in_is_computed_as_ever() -> None:
    own, player = Rows(), Player()
    graphs = MicroBatchGraphs(own, player)
    for _ in range(3):
        graphs.run(batch(0), lambda given: torch.ones(()))
    assert player.num_records == 1
    for _ in range(3):
        graphs.run(replace(batch(0), weights=None), lambda given: torch.ones(()))
    assert player.num_records == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unit", "is_private", "precision"),
    [
        ("utterance", False, "32-true"),
        ("dialogue", False, "32-true"),
        ("utterance", True, "32-true"),
        ("dialogue", True, "32-true"),
        ("utterance", True, "bf16-mixed"),
        ("utterance", False, "bf16-mixed"),
    ],
)
def test_a_training_has_the_weights_that_it_has_without(
    unit: str, is_private: bool, precision: str, tmp_path: Path, tiny_model: str, corpus: str
) -> None:
    found, player = [], Player()
    for number, given in enumerate((None, player)):
        torch.manual_seed(0)
        model = Played(given, base_model=tiny_model, optimizer=sgd, dropout=0.1 if not is_private else 0.0)
        folder = tmp_path / str(number)
        data = data_module(corpus, unit=unit, batch_size=6, sampling="poisson" if is_private else "shuffle")
        fit(folder, model, data, [privacy(folder)] if is_private else [], precision=precision)
        found.append(weights(model))
        assert model._graphs is None, "a fit's end frees them"
    assert player.num_again > 0
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def test_who_looks_at_gradients_within_a_step_has_no_graphs(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    class Looks(Callback):
        def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
            pass

    reasons = []

    class Asks(UtteranceLM):
        def on_fit_start(self) -> None:
            super().on_fit_start()
            reasons.append(why_not(self))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for callbacks in ([], [Looks()]):
            fit(tmp_path, Asks(base_model=tiny_model), data_module(corpus, sampling="shuffle"), callbacks, max_epochs=1)
    assert reasons == [None, "Looks has on_after_backward, which a graph does not call"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("adapters", [0, 16])
@pytest.mark.parametrize("is_private", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_graph_gives_what_the_host_gives_on_a_gpu(
    adapters: int, is_private: bool, dropout: float, tiny_model: str
) -> None:
    from doppel.models.adapters import LoraArguments

    lora = LoraArguments(adapters, 2.0 * adapters) if adapters else None
    model = UtteranceLM(base_model=tiny_model, lora=lora, dropout=dropout).to("cuda")
    parameters = [p for p in model.parameters() if p.requires_grad]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    clipper, graphs = PerSampleClipper(model, 0.1), MicroBatchGraphs(model, CudaRecorder(torch.device("cuda")))

    def compute(given: MicroBatch) -> Tensor:
        if is_private:
            with clipper.capture(given.num_units):
                losses = model.weighted_losses(given)
                losses.sum().backward()
            clipper.accumulate()
        else:
            losses = model.weighted_losses(given)
            losses.sum().backward()
        return losses.detach().sum()

    def result(run: Callable[[MicroBatch], Tensor], seed: int) -> Tensor:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.zero_()
        graphs.begin_step()
        torch.manual_seed(seed)
        ids = torch.randint(3, 200, (16, 17), generator=torch.Generator().manual_seed(seed))
        given = MicroBatch(ids.cuda(), ids.cuda(), 16, 1, torch.ones(16, device="cuda"), 16)
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(given)
        return torch.cat([loss[None].float(), *(p.grad.flatten() for p in parameters if p.grad is not None)])

    for seed in range(4):
        expected = result(compute, seed)
        found = result(lambda given: graphs.run(given, compute), seed)
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2 * float(expected[1:].abs().max()))
    assert graphs.num_recorded == 1
