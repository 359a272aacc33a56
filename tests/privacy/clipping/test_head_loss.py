"""A HeadLoss is the ordinary head and cross-entropy, in one buffer: same losses, same gradients."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from clipping_reference import build, head_losses, make_batch, mean_losses, relative_error, trained
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.clipping import head as head_module
from doppel.privacy.clipping.head import HeadLoss, ScaledLogits


class TensorsOf(TorchDispatchMode):
    """The storages of all tensors of at least ``size`` numbers that any operation made."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.storages = size, set[int]()

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().nbytes() >= self.size * leaf.element_size():
                self.storages.add(leaf.untyped_storage().data_ptr())
        return result


def plain(
    head: nn.Linear, hidden: Tensor, labels: Tensor, function: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    logits = head(hidden) if function is None else function(head(hidden))
    losses = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none")
    return losses.sum(1) / (labels != -100).sum(1).clamp(min=1)


@pytest.fixture
def case() -> tuple[nn.Linear, Tensor, Tensor]:
    """A head with a bias, hidden states and labels; one row has none."""
    torch.manual_seed(0)
    labels = torch.randint(0, 13, (5, 7))
    labels[:, :2] = labels[0, 3:] = labels[2] = -100
    return nn.Linear(4, 13).double(), torch.randn(5, 7, 4, dtype=torch.float64), labels


@pytest.mark.parametrize("num_logits", [1, 4 * 13, 1000])
@pytest.mark.parametrize("frozen", [(), ("weight",), ("bias",), ("hidden",)])
@pytest.mark.parametrize("function", [None, ScaledLogits(0.5), ScaledLogits(3.0, 0.5), torch.sinh])
def test_losses_and_gradients_are_those_of_cross_entropy(
    case: tuple[nn.Linear, Tensor, Tensor],
    num_logits: int,
    frozen: tuple[str, ...],
    function: Callable[[Tensor], Tensor] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Formed position by position, some at a time, and all at once; of logits as they are, scaled, capped."""
    monkeypatch.setattr(head_module, "LOGITS_CPU", num_logits)
    head, hidden, labels = case
    leaves = {"weight": head.weight, "bias": head.bias, "hidden": hidden}
    inputs = [leaf.requires_grad_(key not in frozen) for key, leaf in leaves.items()]
    inputs = [leaf for leaf in inputs if leaf.requires_grad]
    upstream = torch.arange(1.0, 6.0, dtype=torch.float64)
    losses = HeadLoss(head, function=function)(hidden, labels)
    expected = plain(head, hidden, labels, function)
    assert torch.allclose(losses, expected, rtol=1e-12, atol=1e-15)
    assert losses[2] == 0.0
    found = torch.autograd.grad((losses * upstream).sum(), inputs)
    assert relative_error(list(found), list(torch.autograd.grad((expected * upstream).sum(), inputs))) <= 1e-12
    with torch.no_grad():
        assert torch.equal(HeadLoss(head, function=function)(hidden, labels), losses)


def test_a_divisor_takes_the_place_of_the_number_of_labels(
    case: tuple[nn.Linear, Tensor, Tensor],
) -> None:
    head, hidden, labels = case
    hidden.requires_grad_(True)
    numbers = (labels != -100).sum(1)
    losses = HeadLoss(head, divisor=16.0)(hidden, labels)
    expected = plain(head, hidden, labels) * numbers / 16
    assert torch.allclose(losses, expected, rtol=1e-12, atol=1e-15)
    inputs = [hidden, head.weight, head.bias]
    found = torch.autograd.grad(losses.sum(), inputs)
    assert relative_error(list(found), list(torch.autograd.grad(expected.sum(), inputs))) <= 1e-12


@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied", "llama-capped"])
def test_gradients_of_a_whole_model_are_those_of_cross_entropy(name: str) -> None:
    model, batch = build(name), make_batch(5)
    found = torch.autograd.grad(head_losses()(model, batch).sum(), trained(model))
    expected = torch.autograd.grad(mean_losses(model, batch).sum(), trained(model))
    assert relative_error(list(found), list(expected)) <= 1e-12


def test_extreme_logits_stay_finite(case: tuple[nn.Linear, Tensor, Tensor]) -> None:
    head, hidden, labels = case
    head.float()
    hidden = (1e4 * hidden.float()).requires_grad_(True)
    losses = HeadLoss(head)(hidden, labels)
    assert torch.allclose(losses, plain(head, hidden, labels), rtol=1e-5)
    assert all(torch.isfinite(grad).all() for grad in torch.autograd.grad(losses.sum(), [hidden, head.weight]))


def test_the_gradient_takes_the_place_of_the_logits() -> None:
    """Beside them, neither pass makes a tensor of more than a part of the logits, nor does the clipped sum."""
    head, hidden = nn.Linear(8, 300, bias=False), torch.randn(16, 10, 8, requires_grad=True)
    labels = torch.randint(0, 300, (16, 10))
    for is_private, function in ((False, None), (True, None), (False, ScaledLogits(0.5, 3.0)), (True, torch.tanh)):
        clipper = PerSampleClipper(head, 0.01)
        with TensorsOf(16 * 10 * 300) as made, pytest.MonkeyPatch.context() as patch:
            patch.setattr(head_module, "LOGITS_CPU", 20 * 300)
            with clipper.capture(16) if is_private else nullcontext():
                HeadLoss(head, function=function)(hidden, labels).sum().backward()
            if is_private:
                clipper.accumulate()
        assert len(made.storages) == 1


def test_a_loss_can_be_pickled_and_copied(case: tuple[nn.Linear, Tensor, Tensor]) -> None:
    """Ranks that are spawned get the model, with its loss, by pickle."""
    head, hidden, labels = case
    loss = HeadLoss(head, function=ScaledLogits(0.25, 30.0))
    expected = loss(hidden, labels)
    for other in (pickle.loads(pickle.dumps(loss)), copy.deepcopy(loss)):
        assert torch.equal(other(hidden, labels), expected)
        assert other.head is not head


def test_a_second_backward_pass_is_refused(case: tuple[nn.Linear, Tensor, Tensor]) -> None:
    """The gradient lies where the logits were."""
    head, hidden, labels = case
    total = HeadLoss(head)(hidden, labels).sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        total.backward()


def test_only_the_logits_of_a_linear_are_overwritten() -> None:
    with pytest.raises(TypeError, match="Identity"):
        HeadLoss(nn.Identity())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "error", "says"),
    [
        (lambda logits: logits - logits.amax(-1, keepdim=True), ValueError, "not elementwise"),
        (lambda logits: logits * torch.arange(logits.shape[-1]), ValueError, "not elementwise"),
        (lambda logits: logits / logits.norm(), ValueError, "not elementwise"),
        (nn.PReLU(), TypeError, "PReLU, whose weights nothing clips"),
    ],
)
def test_a_function_that_mixes_logits_or_is_trained_is_refused(
    function: Callable[[Tensor], Tensor], error: type[Exception], says: str
) -> None:
    """It would let one row into another's loss, or train weights that nothing clips."""
    with pytest.raises(error, match=says):
        HeadLoss(nn.Linear(4, 13), function=function)
