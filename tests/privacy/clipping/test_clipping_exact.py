"""The clipped sum and the norms equal those of the naive loop to 1e-12 in float64."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from clipping_reference import (
    MODELS,
    Losses,
    assert_close,
    assert_equal_to_naive,
    build,
    clipped,
    head_losses,
    make_batch,
    mean_losses,
    median_bound,
    rows_of,
    summed_losses,
    trained,
)
from torch import nn

from doppel.privacy.clipping import PerSampleClipper

NAMES = [name for name in MODELS if "dropout" not in name]
WAYS: list[Losses] = [mean_losses, head_losses()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows_per_unit", [1, 3])
def test_clipped_sum_equals_naive_loop(name: str, rows_per_unit: int) -> None:
    """For every way to form it, in one micro-batch and in two; padding, repeated tokens, masked prompts."""
    model, batch = build(name), make_batch(6)
    bound, expected = median_bound(model, batch, rows_per_unit)
    for losses in WAYS:
        for cuts in [(), (1,)]:
            assert_close(clipped(model, batch, bound, rows_per_unit, cuts, losses), expected)


def test_clipped_sum_of_row_likelihoods_equals_naive_loop() -> None:
    """Under a divisor, where long rows have long gradients."""
    model, batch = build("gpt2-tied"), make_batch(6)
    bound, expected = median_bound(model, batch, losses=summed_losses)
    assert_close(clipped(model, batch, bound, losses=head_losses(divisor=16.0)), expected)


@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied"])
def test_long_rows_are_exact(name: str) -> None:
    assert_equal_to_naive(build(name), make_batch(4, length=48), cuts=(3,))


@pytest.mark.parametrize("length", [12, 48])
def test_the_widths_of_a_layer_decide_whether_gradients_are_formed(length: int) -> None:
    """And not the longest unit, for the room for rounding is another one."""
    model = build("gpt2-tied")
    clipper = PerSampleClipper(model, 1.0)
    weights = {id(rule.weight): rule.weight for rule in clipper.rules if getattr(rule, "is_transposed", False)}
    with clipper.capture(2):
        mean_losses(model, make_batch(2, length)).sum().backward()
    formed = {id(p) for part in clipper._formed.parts for p in part.reached}
    products = {id(weight) for shared in clipper._capture.inputs for weight, *_ in shared.readers}
    assert len(weights) == 8
    for own, weight in weights.items():
        assert own in (formed if weight.numel() <= 2048 else products)


@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied"])
@pytest.mark.parametrize("losses", [mean_losses, head_losses()])
def test_micro_batch_size_does_not_change_the_sum(name: str, losses: Losses) -> None:
    model, batch = build(name), make_batch(6)
    whole = clipped(model, batch, 1.0, losses=losses)
    for cuts in [(1, 2, 3, 4, 5), (4,)]:
        assert_close(clipped(model, batch, 1.0, cuts=cuts, losses=losses), whole)


@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied"])
def test_infinite_bound_gives_the_plain_gradient(name: str) -> None:
    model, batch = build(name), make_batch(5)
    expected = list(torch.autograd.grad(mean_losses(model, batch).sum(), trained(model)))
    for losses in (mean_losses, head_losses()):
        found, norms = clipped(model, batch, math.inf, losses=losses)
        assert_close((found, norms), (expected, norms))


@pytest.mark.parametrize("losses", [mean_losses, head_losses()])
def test_units_without_any_label_have_norm_zero(losses: Losses) -> None:
    model, batch = build("gpt2-tied"), make_batch(3)
    batch["labels"][:] = -100
    found, norms = clipped(model, batch, 1.0, losses=losses)
    assert norms.tolist() == [0.0] * 3
    assert all(not grad.any() for grad in found)


@pytest.mark.parametrize("losses", [mean_losses, head_losses()])
def test_a_loss_of_some_rows_only_is_exact(losses: Losses) -> None:
    """The others have norm 0; a single unit works as well."""
    model, batch = build("gpt2-tied"), make_batch(4)

    def some(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return losses(model, batch)[2:] if len(batch["labels"]) == 4 else losses(model, batch)

    bound, expected = median_bound(model, rows_of(batch, slice(2, 4)), losses=losses)
    found, norms = clipped(model, batch, bound, losses=some)
    assert norms[:2].tolist() == [0.0, 0.0]
    assert_close((found, norms[2:]), expected)
    for unit in (2, 3):
        _, norm = clipped(model, rows_of(batch, slice(unit, unit + 1)), bound, losses=some)
        assert torch.allclose(norm.double(), expected[1][unit - 2], rtol=1e-12)


@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied"])
def test_float32_agrees_with_float64(name: str) -> None:
    batch = make_batch(5)
    exact, norms = clipped(build(name), batch, 1.0)
    for losses in WAYS:
        single, single_norms = clipped(build(name, torch.float32), batch, 1.0, losses=losses)
        assert single_norms.dtype is torch.float32
        assert_close((single, single_norms), (exact, norms), 1e-4)


def test_leaving_out_the_cross_term_would_be_noticed() -> None:
    """Tied and untied copies of the same weights have clearly different norms: equality tests can fail."""
    tied, batch = build("gpt2-tied"), make_batch(5)
    untied = copy.deepcopy(tied)
    untied.lm_head.weight = nn.Parameter(untied.lm_head.weight.detach().clone())
    _, tied_norms = clipped(tied, batch, math.inf)
    _, untied_norms = clipped(untied, batch, math.inf)
    assert ((tied_norms - untied_norms).abs() / tied_norms.clamp(min=1e-9)).max() > 1e-3
