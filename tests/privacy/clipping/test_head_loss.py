"""The fused head is the ordinary head and cross-entropy: same losses, same gradients, in ordinary training."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from clipping_reference import build, head_losses, make_batch, mean_losses, relative_error, trained
from torch import Tensor, nn
from torch.nn import functional as F

from doppel.privacy.clipping.head import HeadLoss

RECOMPUTE = pytest.mark.parametrize("recompute", [False, True])


def plain(head: nn.Linear, hidden: Tensor, labels: Tensor) -> Tensor:
    losses = F.cross_entropy(head(hidden).transpose(1, 2), labels, ignore_index=-100, reduction="none")
    return losses.sum(1) / (labels != -100).sum(1).clamp(min=1)


@pytest.fixture
def case() -> tuple[nn.Linear, Tensor, Tensor]:
    """A head with a bias, hidden states and labels; one row has none."""
    torch.manual_seed(0)
    labels = torch.randint(0, 13, (5, 7))
    labels[:, :2] = labels[0, 3:] = labels[2] = -100
    return nn.Linear(4, 13).double(), torch.randn(5, 7, 4, dtype=torch.float64), labels


@RECOMPUTE
@pytest.mark.parametrize("chunk_tokens", [1, 12, 1000])
@pytest.mark.parametrize("frozen", [(), ("weight",), ("bias",), ("hidden",)])
def test_losses_and_gradients_are_those_of_cross_entropy(
    case: tuple[nn.Linear, Tensor, Tensor], chunk_tokens: int, recompute: bool, frozen: tuple[str, ...]
) -> None:
    head, hidden, labels = case
    leaves = {"weight": head.weight, "bias": head.bias, "hidden": hidden}
    inputs = [leaf.requires_grad_(key not in frozen) for key, leaf in leaves.items()]
    inputs = [leaf for leaf in inputs if leaf.requires_grad]
    upstream = torch.arange(1.0, 6.0, dtype=torch.float64)
    losses = HeadLoss(head, chunk_tokens, recompute)(hidden, labels)
    expected = plain(head, hidden, labels)
    assert torch.allclose(losses, expected, rtol=1e-12, atol=1e-15)
    assert losses[2] == 0.0
    found = torch.autograd.grad((losses * upstream).sum(), inputs)
    assert relative_error(list(found), list(torch.autograd.grad((expected * upstream).sum(), inputs))) <= 1e-12
    with torch.no_grad():
        assert torch.equal(HeadLoss(head, chunk_tokens, recompute)(hidden, labels), losses)


@RECOMPUTE
def test_a_divisor_takes_the_place_of_the_number_of_labels(
    case: tuple[nn.Linear, Tensor, Tensor], recompute: bool
) -> None:
    head, hidden, labels = case
    hidden.requires_grad_(True)
    numbers = (labels != -100).sum(1)
    losses = HeadLoss(head, 12, recompute, divisor=16.0)(hidden, labels)
    expected = plain(head, hidden, labels) * numbers / 16
    assert torch.allclose(losses, expected, rtol=1e-12, atol=1e-15)
    inputs = [hidden, head.weight, head.bias]
    found = torch.autograd.grad(losses.sum(), inputs)
    assert relative_error(list(found), list(torch.autograd.grad(expected.sum(), inputs))) <= 1e-12


@RECOMPUTE
@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied"])
def test_gradients_of_a_whole_model_are_those_of_cross_entropy(name: str, recompute: bool) -> None:
    model, batch = build(name), make_batch(5)
    found = torch.autograd.grad(head_losses(30, recompute)(model, batch).sum(), trained(model))
    expected = torch.autograd.grad(mean_losses(model, batch).sum(), trained(model))
    assert relative_error(list(found), list(expected)) <= 1e-12


@RECOMPUTE
def test_extreme_logits_stay_finite(case: tuple[nn.Linear, Tensor, Tensor], recompute: bool) -> None:
    head, hidden, labels = case
    head.float()
    hidden = (1e4 * hidden.float()).requires_grad_(True)
    losses = HeadLoss(head, 12, recompute)(hidden, labels)
    assert torch.allclose(losses, plain(head, hidden, labels), rtol=1e-5)
    assert all(torch.isfinite(grad).all() for grad in torch.autograd.grad(losses.sum(), [hidden, head.weight]))


def test_losses_that_live_at_the_same_time_do_not_share_memory(case: tuple[nn.Linear, Tensor, Tensor]) -> None:
    """One buffer is used again and again, but never by two losses at once, nor for another dtype."""
    head, hidden, labels = case
    loss = HeadLoss(head)
    first, second = loss(hidden, labels).sum(), loss(2 * hidden, labels.flip(0)).sum()
    for found, scale, order in (
        (second, 2, labels.flip(0)),
        (first, 1, labels),
        (loss(hidden, labels).sum(), 1, labels),
    ):
        (grad,) = torch.autograd.grad(found, head.weight)
        (expected,) = torch.autograd.grad(plain(head, scale * hidden, order).sum(), head.weight)
        assert torch.allclose(grad, expected, rtol=1e-12, atol=1e-14)
    head.float()
    (grad,) = torch.autograd.grad(loss(hidden.float(), labels).sum(), head.weight)
    assert grad.dtype is torch.float32 and torch.allclose(grad.double(), expected, rtol=1e-4, atol=1e-6)


def test_a_loss_can_be_pickled_and_copied(case: tuple[nn.Linear, Tensor, Tensor]) -> None:
    """Ranks that are spawned get the model, with its loss, by pickle."""
    head, hidden, labels = case
    loss = HeadLoss(head)
    expected = loss(hidden, labels)
    for other in (pickle.loads(pickle.dumps(loss)), copy.deepcopy(loss)):
        assert torch.equal(other(hidden, labels), expected)
        assert other.head is not head


def test_a_second_backward_pass_is_refused(case: tuple[nn.Linear, Tensor, Tensor]) -> None:
    """Its buffers are freed: it would leave the head's gradient out in silence."""
    head, hidden, labels = case
    total = HeadLoss(head)(hidden, labels).sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="twice"):
        total.backward()


def test_only_a_linear_can_be_fused() -> None:
    with pytest.raises(TypeError, match="Identity"):
        HeadLoss(nn.Identity())  # type: ignore[arg-type]
