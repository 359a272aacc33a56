"""Weights of units: factors of the clipped gradients, which never raise the sensitivity."""

from __future__ import annotations

import pytest
import torch
from clipping_reference import (
    Losses,
    assert_close,
    build,
    clipped,
    grads_of,
    head_losses,
    make_batch,
    mean_losses,
    median_bound,
    naive,
    norm_of,
    rows_of,
)
from torch import Tensor

from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.clipping.head import HeadLoss

WAYS: dict[str, Losses] = {
    "plain": mean_losses,
    "fused head": head_losses(25),
    "recomputed head": head_losses(25, recompute=True),
}


def some_weights(num: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Both ends of [0, 1], and numbers between."""
    values = torch.rand(num, dtype=dtype, generator=torch.Generator().manual_seed(3))
    values[0], values[-1] = 0.0, 1.0
    return values


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("name", ["gpt2-tied", "gpt2-untied"])
@pytest.mark.parametrize("rows_per_unit", [1, 3])
def test_weighted_sum_equals_naive_loop_in_every_way(name: str, rows_per_unit: int, is_checkpointed: bool) -> None:
    model, batch = build(name), make_batch(6)
    weights = some_weights(6 // rows_per_unit)
    bound, _ = median_bound(model, batch, rows_per_unit)
    expected = naive(model, batch, bound, rows_per_unit, weights=weights)
    if is_checkpointed:
        model.activation_checkpointing_enable({"use_reentrant": False})
    for losses in WAYS.values():
        for scale in (1.0, 64.0):
            found = clipped(model, batch, bound, rows_per_unit, (1,), losses, scale, weights)
            assert_close(found, expected)


def test_compiled_weighted_sum_equals_naive_loop() -> None:
    model, batch = build("gpt2-tied"), make_batch(6)
    batch["attention_mask"][:] = 1  # padding is on the right; the trunk below takes ids alone
    weights = some_weights(6)
    bound, _ = median_bound(model, batch)
    expected = naive(model, batch, bound, weights=weights)
    clipper = PerSampleClipper(model, bound)
    trunk = clipper.compile(
        lambda ids: model.transformer(input_ids=ids, use_cache=False).last_hidden_state, backend="aot_eager"
    )
    labels = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)
    for _ in range(2):  # the first capture runs without the compiler
        model.zero_grad()
        with clipper.capture(6):
            HeadLoss(model.get_output_embeddings(), 25)(trunk(batch["input_ids"]), labels).sum().backward()  # type: ignore[arg-type]
        norms = clipper.accumulate(weights=weights)
        assert_close((grads_of(model), norms), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_unit_contributes_at_most_its_weight_times_the_bound(dtype: torch.dtype) -> None:
    model, batch, bound = build("gpt2-tied", dtype), make_batch(6), 0.05
    weights = some_weights(6, torch.float32)
    for losses in WAYS.values():
        for unit in range(6):
            one = slice(unit, unit + 1)
            found, norm = clipped(model, rows_of(batch, one), bound, losses=losses, weights=weights[one])
            limit = weights[unit].item() * bound
            assert norm_of(found) <= limit
            if norm.item() > bound:
                assert norm_of(found) == pytest.approx(limit, rel=1e-4)


def test_weights_of_one_change_no_bit_and_the_norms_are_those_before_weighing() -> None:
    model, batch = build("gpt2-tied", torch.float32), make_batch(5)
    plain, plain_norms = clipped(model, batch, 0.5)
    ones, norms = clipped(model, batch, 0.5, weights=torch.ones(5))
    assert torch.equal(plain_norms, norms)
    assert all(torch.equal(a, b) for a, b in zip(plain, ones, strict=True))
    nothing, norms = clipped(model, batch, 0.5, weights=torch.zeros(5))
    assert torch.equal(plain_norms, norms)
    assert norm_of(nothing) == 0


def test_a_nonfinite_unit_contributes_zero_whatever_its_weight() -> None:
    model, batch, weights = build("gpt2-tied"), make_batch(4), some_weights(4)
    kept = [0, 1, 3]
    expected = naive(model, rows_of(batch, kept), 1.0, weights=weights[kept])
    spoilt = torch.tensor([1.0, 1.0, torch.nan, 1.0], dtype=torch.float64)
    found, norms = clipped(model, batch, 1.0, losses=lambda m, b: spoilt * mean_losses(m, b), weights=weights)
    assert_close((found, norms[kept]), expected)


@pytest.mark.parametrize(
    "weights", [[0.5, 1.01], [-0.1, 1.0], [float("nan"), 1.0], [float("inf"), 1.0], [0.5], [0.5, 0.5, 0.5]]
)
def test_other_weights_are_refused_before_anything_is_added(weights: list[float]) -> None:
    model, batch = build("gpt2-tied"), make_batch(2)
    clipper = PerSampleClipper(model, 1.0)
    for given in (torch.tensor(weights), None):
        model.zero_grad()
        with clipper.capture(2):
            mean_losses(model, batch).sum().backward()
        if given is None:
            clipper.accumulate()
            assert norm_of(grads_of(model)) > 0
            continue
        with pytest.raises(ValueError, match=r"2 finite numbers in \[0, 1\]"):
            clipper.accumulate(weights=given)
        assert all(p.grad is None for p in model.parameters())
