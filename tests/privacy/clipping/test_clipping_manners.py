"""The clipper leaves the model as it was, frees what it held, and insists on its protocol."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from clipping_reference import Losses, build, head_losses, make_batch, mean_losses, rows_of, trained
from torch import Tensor, nn

from doppel.privacy.clipping import PerSampleClipper


def test_capture_leaves_no_hook_and_restores_parameters() -> None:
    model, batch = build("gpt2-tied"), make_batch(4)
    frozen = model.get_parameter("transformer.wpe.weight").requires_grad_(False)
    before = [p.requires_grad for p in model.parameters()]
    clipper = PerSampleClipper(model, 1.0)
    with pytest.raises(KeyError, match="mine"), clipper.capture(4):
        mean_losses(model, batch)
        raise KeyError("mine")
    assert [p.requires_grad for p in model.parameters()] == before and not frozen.requires_grad
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    with clipper.capture(4):  # the failed capture left nothing behind
        mean_losses(model, batch).sum().backward()
    clipper.accumulate()
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    clipper.close()
    with pytest.raises(RuntimeError, match="closed"), clipper.capture(4):
        pass


def test_forward_outside_a_capture_is_untouched() -> None:
    model, batch = build("gpt2-tied"), make_batch(4)
    expected = mean_losses(model, batch)
    clipper = PerSampleClipper(model, 1.0)
    with clipper.capture(4):
        mean_losses(model, batch).sum().backward()
    with torch.no_grad():
        model.eval()
        assert torch.equal(mean_losses(model, rows_of(batch, slice(0, 3))), expected[:3])
    clipper.accumulate()
    grads = torch.autograd.grad(mean_losses(model, batch).sum(), trained(model))
    assert all(g.abs().sum() > 0 for g in grads)


@pytest.fixture
def new_tensors() -> Iterator[Callable[[], list[Tensor]]]:
    """Gives the tensors that were made since the first call and are alive."""

    def find() -> list[Tensor]:
        if gc.get_freeze_count() == 0:
            gc.collect()
            gc.freeze()
        gc.collect()
        return [value for value in gc.get_objects() if isinstance(value, Tensor)]

    gc.unfreeze()
    yield find
    gc.unfreeze()


@pytest.mark.parametrize(
    ("losses", "is_checkpointed"),
    [
        (mean_losses, False),
        (head_losses(), True),
        (head_losses(), False),
    ],
)
def test_everything_is_freed_after_accumulate(
    losses: Losses, is_checkpointed: bool, new_tensors: Callable[[], list[Tensor]]
) -> None:
    model, batch = build("gpt2-tied"), make_batch(4)
    if is_checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    clipper = PerSampleClipper(model, 1.0)
    with clipper.capture(4):  # leaves views of the weights, small public numbers and a counter
        losses(model, batch).sum().backward()
    clipper.accumulate()
    assert not new_tensors()
    with clipper.capture(4):
        losses(model, batch).sum().backward()
    assert new_tensors()
    clipper.accumulate()
    assert not new_tensors()
    with pytest.raises(RuntimeError, match="nothing was captured"):
        clipper.accumulate()


def test_everything_is_freed_after_a_capture_that_fails(new_tensors: Callable[[], list[Tensor]]) -> None:
    model, batch = build("gpt2-tied"), make_batch(4)
    clipper = PerSampleClipper(model, 1.0)
    for is_first in (True, False):
        with contextlib.suppress(KeyError), clipper.capture(4):
            head_losses()(model, batch).sum().backward()
            raise KeyError
        assert is_first or not new_tensors()
        new_tensors()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_two_captures_without_accumulate_are_refused() -> None:
    model, batch = build("gpt2-tied"), make_batch(3)
    clipper = PerSampleClipper(model, 1.0)
    with clipper.capture(3):
        mean_losses(model, batch).sum().backward()
    with pytest.raises(RuntimeError, match="accumulate"), clipper.capture(3):
        pass


@pytest.mark.parametrize("losses", [mean_losses, head_losses()])
def test_the_backward_pass_of_a_capture_that_was_given_up_is_not_heard_in_the_next(losses: Losses) -> None:
    found = []
    for gives_up in (True, False):
        model, batch = build("gpt2-tied"), make_batch(3)
        clipper = PerSampleClipper(model, 0.1)
        abandoned: list[Tensor] = []
        if gives_up:
            with pytest.raises(KeyError), clipper.capture(3):
                abandoned.append(losses(model, make_batch(3, seed=7)).sum())
                raise KeyError
        with clipper.capture(3):
            total = losses(model, batch).sum()
            for loss in abandoned:
                loss.backward()
            total.backward()
        found.append(clipper.accumulate())
        found += [parameter.grad for parameter in trained(model)]
    half = len(found) // 2
    assert all(torch.equal(first, second) for first, second in zip(found[:half], found[half:], strict=True))


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.transformer.wpe.weight.requires_grad_(True),
        lambda model: model.transformer.wte.weight.requires_grad_(False),
        lambda model: setattr(model.transformer.ln_f, "weight", nn.Parameter(torch.ones(32))),
        lambda model: setattr(model.transformer, "ln_f", nn.LayerNorm(32)),
        lambda model: model.transformer.drop.add_module("more", nn.Linear(2, 2)),
        lambda model: model.transformer.drop.register_parameter("more", nn.Parameter(torch.ones(2))),
    ],
)
def test_a_model_that_changed_after_construction_is_refused(change: Callable[[nn.Module], object]) -> None:
    model = build("gpt2-tied")
    model.get_parameter("transformer.wpe.weight").requires_grad_(False)
    clipper = PerSampleClipper(model, 1.0)
    change(model)
    with pytest.raises(RuntimeError, match="parameters"), clipper.capture(3):
        pass
