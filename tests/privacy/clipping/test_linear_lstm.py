"""An LSTM of linear layers: the function that torch and Opacus compute, and gradients that are clipped exactly."""

from __future__ import annotations

import math

import pytest
import torch
from clipping_reference import (
    VOCAB,
    Batch,
    assert_close,
    assert_equal_to_naive,
    clipped,
    grads_of,
    make_batch,
    median_bound,
    naive,
    norm_of,
    relative_error,
    rows_of,
    trained,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from doppel.privacy import check
from doppel.privacy.clipping import PerSampleClipper, UnsupportedLayerError
from doppel.privacy.clipping.head import HeadLoss
from lightning_modules.linear_lstm import LinearLSTM


class NextWord(nn.Module):
    """Embedding, LSTM, head: the weights of torch's own LSTM, or ours."""

    def __init__(self, lstm: nn.Module, size: int = 12, hidden: int = 10) -> None:
        super().__init__()
        self.encoder, self.lstm, self.decoder = nn.Embedding(VOCAB, size), lstm, nn.Linear(hidden, VOCAB)

    def states(self, ids: Tensor) -> Tensor:
        found = self.lstm(self.encoder(ids))
        return found[0] if isinstance(found, tuple) else found


def plain_losses(model: nn.Module, batch: Batch) -> Tensor:
    logits = model.decoder(model.states(batch["input_ids"][:, :-1]))
    labels = batch["labels"][:, 1:]
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="none")
    return losses.view(labels.shape).sum(1) / 16


def fused_losses(model: nn.Module, batch: Batch) -> Tensor:
    states = model.states(batch["input_ids"][:, :-1])
    return HeadLoss(model.decoder, divisor=16.0)(states, batch["labels"][:, 1:])


def ours(dtype: torch.dtype = torch.float64, dropout: float = 0.0, layers: int = 2, scale: float = 3.0) -> NextWord:
    torch.manual_seed(0)
    model = NextWord(LinearLSTM(12, 10, layers, dropout))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model.to(dtype).train()


def give_weights(source: LinearLSTM, target: nn.LSTM) -> None:
    """Copy them to torch's LSTM, which Opacus' takes its names from."""
    state = {}
    for number, layer in enumerate(source.layers):
        for part, linear in (("ih", layer.from_input), ("hh", layer.from_state)):
            state[f"weight_{part}_l{number}"], state[f"bias_{part}_l{number}"] = linear.weight, linear.bias
    target.load_state_dict({name: value.detach().clone() for name, value in state.items()})


def theirs(model: NextWord, kind: type[nn.Module]) -> NextWord:
    """The same model around another LSTM."""
    lstm = kind(12, 10, num_layers=len(model.lstm.layers), batch_first=True).double()
    give_weights(model.lstm, lstm)
    other = NextWord(lstm).double().train()
    other.encoder.load_state_dict(model.encoder.state_dict())
    other.decoder.load_state_dict(model.decoder.state_dict())
    return other


def in_order(model: NextWord) -> list[Tensor]:
    """Gradients by the roles of the weights, whatever an implementation calls them."""
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    if isinstance(model.lstm, LinearLSTM):
        own = [p.grad for layer in model.lstm.layers for p in layer.parameters()]
    else:
        own = [p.grad for name, p in sorted(model.lstm.named_parameters(), key=_role)]
    return [g for g in (grads["encoder.weight"], *own, grads["decoder.weight"], grads["decoder.bias"]) if g is not None]


def _role(item: tuple[str, Tensor]) -> tuple[bool, bool, bool]:
    """By layer, input before state, weight before bias; of ``weight_ih_l0`` and of ``l0.ih.weight``."""
    name = item[0]
    return "l1" in name, "hh" in name, "bias" in name


@pytest.mark.parametrize("layers", [1, 2])
def test_states_and_gradients_are_those_of_torchs_lstm(layers: int) -> None:
    model, batch = ours(layers=layers), make_batch(6)
    other = theirs(model, nn.LSTM)
    ids = batch["input_ids"]
    assert torch.allclose(model.states(ids), other.states(ids), rtol=0, atol=1e-13)
    with torch.no_grad():
        assert torch.allclose(model.states(ids), other.states(ids), rtol=0, atol=1e-13)
    for each in (model, other):
        plain_losses(each, batch).sum().backward()
    assert relative_error(in_order(model), in_order(other)) < 1e-12


def test_outputs_and_clipped_sums_are_those_of_opacus() -> None:
    """``DPLSTM`` with the same weights: its outputs, and Σ clip(gᵢ) by a loop over rows of different lengths."""
    from opacus.layers import DPLSTM

    model, batch = ours(), make_batch(7)
    other = theirs(model, DPLSTM)
    assert torch.allclose(model.states(batch["input_ids"]), other.states(batch["input_ids"]), rtol=0, atol=1e-12)
    bound, (expected, norms) = median_bound(other, batch, losses=plain_losses)
    assert (norms > bound).any() and (norms[norms > 0] < bound).any()
    found, found_norms = clipped(model, batch, bound, losses=fused_losses)
    for parameters, grads in ((trained(model), found), (trained(other), expected)):
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
    assert relative_error(in_order(model), in_order(other)) < 1e-6
    assert torch.allclose(found_norms.double(), norms, rtol=1e-6, atol=0)


@pytest.mark.parametrize("losses", [plain_losses, fused_losses])
@pytest.mark.parametrize(("rows_per_unit", "cuts"), [(1, ()), (1, (2, 3)), (3, ())])
def test_clipped_sum_equals_naive_loop(losses: object, rows_per_unit: int, cuts: tuple[int, ...]) -> None:
    assert_equal_to_naive(ours(), make_batch(6), rows_per_unit, cuts, losses)  # type: ignore[arg-type]


def test_long_rows_and_single_positions() -> None:
    """Where gradients are formed rather than their grams, and where there is one position alone."""
    for length in (2, 60):
        batch = make_batch(3, max(length, 6))
        if length == 2:
            batch = {"input_ids": batch["input_ids"][:, :2], "labels": batch["input_ids"][:, :2]}
        assert_equal_to_naive(ours(), batch, losses=fused_losses)


@pytest.mark.parametrize("frozen", ["encoder", "from_state", "from_input", "from_state.bias", "layers.0", "decoder"])
def test_parts_may_be_frozen(frozen: str) -> None:
    model, batch = ours(), make_batch(5)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(frozen not in name)
    assert_equal_to_naive(model, batch, losses=fused_losses)


def test_padding_changes_nothing() -> None:
    """A unit gives the same beside a longer one, and alone."""
    model, batch = ours(), make_batch(4, 10)
    longer = {name: F.pad(value, (0, 7), value=-100 if name == "labels" else 0) for name, value in batch.items()}
    for row in range(4):
        alone = clipped(model, rows_of(batch, [row]), 0.05, losses=fused_losses)
        beside = clipped(model, rows_of(longer, [row]), 0.05, losses=fused_losses)
        assert torch.allclose(alone[1], beside[1], rtol=1e-12)
        if alone[1].item():
            assert relative_error(beside[0], alone[0]) < 1e-12


def test_dropout_between_layers_is_clipped_as_drawn() -> None:
    model, batch = ours(dropout=0.5), make_batch(1)
    torch.manual_seed(5)
    expected = naive(model, batch, math.inf, losses=fused_losses)
    torch.manual_seed(5)
    assert_close(clipped(model, batch, math.inf, losses=fused_losses), expected)


@settings(max_examples=25)
@given(
    scale=st.sampled_from([1e-3, 1.0, 20.0]),
    bound=st.sampled_from([1e-6, 0.1, 1.5, 1e4]),
    length=st.integers(3, 40),
    seed=st.integers(0, 999),
)
def test_one_unit_more_moves_the_sum_by_at_most_the_bound(scale: float, bound: float, length: int, seed: int) -> None:
    """Whatever the weights, in float32, where gradients vanish or explode through time."""
    model, batch = ours(torch.float32, scale=scale), make_batch(3, max(length, 6), seed)
    for units in ([0], [2]):
        total, _ = clipped(model, rows_of(batch, units), bound, losses=fused_losses)
        assert norm_of(total) <= bound * (1 + 1e-6)


def test_half_precision_keeps_the_bound() -> None:
    model, batch = ours(torch.float32), make_batch(4)
    for row in range(4):
        clipper = PerSampleClipper(model, 0.01)
        model.zero_grad()
        with clipper.capture(1), torch.autocast("cpu", torch.bfloat16):
            fused_losses(model, rows_of(batch, [row])).sum().backward()
        clipper.accumulate()
        clipper.close()
        assert norm_of(grads_of(model)) <= 0.01 * (1 + 1e-6)


def test_every_layer_has_a_fast_rule() -> None:
    assert {layer.rule for layer in check(ours()).layers} == {"formula"}


def test_a_parameter_without_a_rule_stays_an_error() -> None:
    """A use of the recurrent weight that is not the layer's own is no part of the two calls, so it is refused."""

    class Penalised(NextWord):
        def states(self, ids: Tensor) -> Tensor:
            return super().states(ids) * self.lstm.layers[0].from_state.weight.square().mean()

    model = Penalised(LinearLSTM(12, 10))
    with pytest.raises(UnsupportedLayerError, match="from_state.weight"):
        clipped(model, make_batch(2), 1.0, losses=plain_losses)
    with pytest.raises(UnsupportedLayerError, match="lstm.*LinearLSTM"):
        PerSampleClipper(NextWord(nn.LSTM(12, 10, batch_first=True)), 1.0)
