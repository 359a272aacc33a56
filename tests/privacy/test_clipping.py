"""The clipping engine equals the naive loop, bounds every unit, and refuses what it cannot do exactly."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from doppel.privacy.clipping import PerSampleClipper, UnsupportedLayerError

VOCAB = 97
Losses = Callable[[nn.Module, dict[str, Tensor]], Tensor]
Batch = dict[str, Tensor]


# ------------------------------------------------------------------------------ models and batches
def gpt2(tied: bool) -> nn.Module:
    config = GPT2Config(
        vocab_size=VOCAB, n_layer=2, n_embd=32, n_head=4, n_positions=64, tie_word_embeddings=tied,
        use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def llama(tied: bool) -> nn.Module:
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=tied,
        use_cache=False, attention_bias=True,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def qwen3(tied: bool) -> nn.Module:
    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=4, head_dim=8, num_key_value_heads=2,
        max_position_embeddings=64, tie_word_embeddings=tied, use_cache=False,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


MODELS = {
    "gpt2-tied": lambda: gpt2(True),
    "gpt2-untied": lambda: gpt2(False),
    "llama-untied": lambda: llama(False),
    "llama-tied": lambda: llama(True),
    "qwen3-tied": lambda: qwen3(True),
}


def build(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A small model with random weights, whose vectors (biases, norm weights) are moved off 0 and 1."""
    torch.manual_seed(0)
    model = MODELS[name]()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.add_(0.1 * torch.randn_like(parameter))
        else:
            parameter.data.mul_(4.0)
    return model.to(dtype).train()


def make_batch(num_rows: int, length: int = 12, seed: int = 1) -> Batch:
    """Rows with repeated tokens, right padding and masked prompts of all lengths; row 1 has no loss."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCAB, (num_rows, length), generator=generator)
    ids[:, ::3] = ids[:, :1] % 7
    lengths = torch.randint(length // 2, length + 1, (num_rows, 1), generator=generator)
    prompts = torch.randint(1, length // 3, (num_rows, 1), generator=generator)
    position = torch.arange(length)[None]
    mask = (position < lengths).long()
    labels = ids.masked_fill((mask == 0) | (position < prompts), -100)
    if num_rows > 2:
        labels[1] = -100
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask, "labels": labels}


def rows_of(batch: Batch, rows: slice) -> Batch:
    return {key: value[rows] for key, value in batch.items()}


def mean_losses(model: nn.Module, batch: Batch) -> Tensor:
    """Mean token loss of each row over its labelled positions; zero where there are none."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    labels = batch["labels"][:, 1:]
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="none")
    return losses.view(labels.shape).sum(1) / (labels != -100).sum(1).clamp(min=1)


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def naive(
    model: nn.Module, batch: Batch, bound: float, rows_per_unit: int = 1, losses: Losses = mean_losses
) -> tuple[list[Tensor], Tensor]:
    """Σ clip(gᵢ) and the norms by one autograd call a unit."""
    parameters = trained(model)
    totals, norms = [torch.zeros_like(p) for p in parameters], []
    num_rows = len(next(iter(batch.values())))
    for start in range(0, num_rows, rows_per_unit):
        loss = losses(model, rows_of(batch, slice(start, start + rows_per_unit))).sum()
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        filled = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]
        norm = math.sqrt(sum(g.square().sum().item() for g in filled))
        norms.append(norm)
        for total, grad in zip(totals, filled, strict=True):
            total.add_(grad, alpha=min(1.0, bound / norm) if norm else 1.0)
    return totals, torch.tensor(norms, dtype=torch.float64)


def clipped(
    model: nn.Module,
    batch: Batch,
    bound: float,
    rows_per_unit: int = 1,
    cuts: tuple[int, ...] = (),
    losses: Losses = mean_losses,
) -> tuple[list[Tensor], Tensor]:
    """The same by the engine, with the batch cut into micro-batches at the unit numbers ``cuts``."""
    clipper = PerSampleClipper(model, bound)
    num_units = len(next(iter(batch.values()))) // rows_per_unit
    norms = []
    for parameter in model.parameters():
        parameter.grad = None
    for start, stop in zip((0, *cuts), (*cuts, num_units), strict=True):
        part = rows_of(batch, slice(start * rows_per_unit, stop * rows_per_unit))
        with clipper.capture(stop - start, rows_per_unit):
            losses(model, part).sum().backward()
        norms.append(clipper.accumulate())
    clipper.close()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in trained(model)]
    return grads, torch.cat(norms)


def relative_error(found: list[Tensor], expected: list[Tensor]) -> float:
    difference = sum((f - e).double().square().sum() for f, e in zip(found, expected, strict=True))
    return float((difference / sum(e.double().square().sum() for e in expected)) ** 0.5)  # type: ignore[operator]


def assert_equal_to_naive(
    model: nn.Module,
    batch: Batch,
    rows_per_unit: int = 1,
    cuts: tuple[int, ...] = (),
    losses: Losses = mean_losses,
    tolerance: float = 1e-9,
) -> None:
    _, norms = naive(model, batch, math.inf, rows_per_unit, losses)
    bound = norms[norms > 0].median().item()  # some units are clipped, some are not
    expected, norms = naive(model, batch, bound, rows_per_unit, losses)
    found, found_norms = clipped(model, batch, bound, rows_per_unit, cuts, losses)
    assert torch.allclose(found_norms.double(), norms, rtol=tolerance, atol=tolerance)
    for (name, _), f, e in zip(
        ((n, p) for n, p in model.named_parameters() if p.requires_grad), found, expected, strict=True
    ):
        assert torch.allclose(f, e, rtol=1e3 * tolerance, atol=1e3 * tolerance), name
    assert relative_error(found, expected) <= tolerance


# ------------------------------------------------------------------------------ equal to the loop
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("rows_per_unit", "cuts"), [(1, ()), (1, (2,)), (3, ()), (3, (1,))])
def test_clipped_sum_equals_naive_loop(name: str, rows_per_unit: int, cuts: tuple[int, ...]) -> None:
    assert_equal_to_naive(build(name), make_batch(6 if rows_per_unit == 3 else 5), rows_per_unit, cuts)


@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied"])
def test_long_rows_form_small_gradients_and_are_still_exact(name: str) -> None:
    """At 48 positions, 2n² exceeds d·p for the layers of width 32: both branches of the Linear rule run."""
    assert_equal_to_naive(build(name), make_batch(4, length=48), cuts=(3,))


@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied"])
def test_micro_batch_size_does_not_change_the_sum(name: str) -> None:
    model, batch = build(name), make_batch(6)
    whole, norms = clipped(model, batch, 1.0)
    for cuts in [(1, 2, 3, 4, 5), (4,)]:
        parts, part_norms = clipped(model, batch, 1.0, cuts=cuts)
        assert relative_error(parts, whole) <= 1e-12
        assert torch.allclose(part_norms, norms, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied"])
def test_infinite_bound_gives_the_plain_gradient(name: str) -> None:
    model, batch = build(name), make_batch(5)
    found, _ = clipped(model, batch, math.inf)
    expected = torch.autograd.grad(mean_losses(model, batch).sum(), trained(model))
    assert relative_error(found, list(expected)) <= 1e-12


def test_both_branches_of_the_linear_rule_are_taken() -> None:
    model = build("gpt2-tied")
    clipper = PerSampleClipper(model, 1.0)
    with clipper.capture(2):
        mean_losses(model, make_batch(2, length=48)).sum().backward()
    layers = [rule for rule in clipper._rules if getattr(rule, "is_transposed", False)]
    formed = {rule.name for rule in layers if "weight_grads" in rule.kept}
    clipper.accumulate()
    with clipper.capture(2):
        mean_losses(model, make_batch(2, length=12)).sum().backward()
    kept = {rule.name for rule in layers if "grads" in rule.kept}
    assert formed == kept and len(kept) == 8


def test_position_ids_of_every_row_give_the_same_as_broadcast_ones() -> None:
    model, batch = build("gpt2-tied"), make_batch(5)
    position = torch.arange(12).expand(5, -1)

    def losses(model: nn.Module, batch: Batch) -> Tensor:
        ids, labels = batch["input_ids"], batch["labels"]
        given = {"position_ids": position[: len(ids)]} if given_ids else {}
        logits = model(input_ids=ids, attention_mask=batch["attention_mask"], **given).logits
        return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none").sum(1)

    given_ids = False
    broadcast, _ = clipped(model, batch, 1.0, losses=losses)
    given_ids = True
    explicit, _ = clipped(model, batch, 1.0, losses=losses)
    assert relative_error(explicit, broadcast) <= 1e-12


def test_head_on_the_last_positions_only_keeps_the_cross_term_exact() -> None:
    def losses(model: nn.Module, batch: Batch) -> Tensor:
        logits = model(input_ids=batch["input_ids"], logits_to_keep=4).logits
        return F.cross_entropy(logits.transpose(1, 2), batch["input_ids"][:, -4:], reduction="none").sum(1)

    assert_equal_to_naive(build("gpt2-tied"), make_batch(4), rows_per_unit=2, losses=losses)


@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied"])
def test_float32_agrees_with_float64(name: str) -> None:
    batch = make_batch(5)
    exact, norms = clipped(build(name), batch, 1.0)
    single, single_norms = clipped(build(name, torch.float32), batch, 1.0)
    assert single_norms.dtype is torch.float32
    assert torch.allclose(single_norms.double(), norms, rtol=1e-4, atol=1e-6)
    assert relative_error(single, exact) <= 1e-4


@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied"])
def test_bfloat16_autocast_keeps_norms_in_float32(name: str) -> None:
    batch = make_batch(5)
    exact, norms = clipped(build(name), batch, 1.0)
    model = build(name, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found, found_norms = clipped(model, batch, 1.0)
    assert found_norms.dtype is torch.float32
    assert torch.allclose(found_norms.double(), norms, rtol=0.1, atol=1e-3)
    assert relative_error(found, exact) <= 0.2


# ------------------------------------------------------------------------------ partly frozen models
@pytest.mark.parametrize(
    "trainable",
    [
        "h.1.",
        "attn",
        "c_attn.bias",
        "ln_",
        "wpe",
        "ln_f.weight",
        "mlp.c_fc.weight",
        "bias",
        "wte",
        "h.0.ln_1.bias",
    ],
)
def test_partly_frozen_gpt2_is_exact(trainable: str) -> None:
    """Only the last block, only attention, only biases, …: the norm covers just what is trained."""
    model = build("gpt2-tied")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trainable in name)
    assert_equal_to_naive(model, make_batch(5), cuts=(2,))
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)


def test_frozen_embedding_of_an_untied_llama_is_exact() -> None:
    model = build("llama-untied")
    model.get_input_embeddings().weight.requires_grad_(False)
    assert_equal_to_naive(model, make_batch(4), rows_per_unit=2)


class Toy(nn.Module):
    """Embedding (with padding) → LayerNorm without bias → RMSNorm → Linear → tied head with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6, padding_idx=0)
        self.layer_norm = nn.LayerNorm(6, bias=False)
        self.rms_norm = nn.RMSNorm(6)
        self.hidden = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11)
        self.head.weight = self.embedding.weight
        for parameter in self.parameters():
            parameter.data.normal_(generator=torch.Generator().manual_seed(parameter.numel()))
        self.double()

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.hidden(self.rms_norm(self.layer_norm(self.embedding(ids))))))


def toy_losses(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["ids"])
    return F.cross_entropy(logits.transpose(1, 2), batch["ids"].roll(-1, 1), reduction="none").mean(1)


def toy_batch() -> Batch:
    return {"ids": torch.tensor([[1, 2, 2, 0], [3, 0, 0, 0], [5, 6, 5, 6], [0, 0, 0, 0], [7, 8, 9, 10], [1, 1, 1, 1]])}


@pytest.mark.parametrize("rows_per_unit", [1, 2, 3])
def test_padding_idx_head_bias_and_torch_norms_are_exact(rows_per_unit: int) -> None:
    torch.manual_seed(0)
    assert_equal_to_naive(Toy(), toy_batch(), rows_per_unit, losses=toy_losses)


def test_linear_without_a_sequence_dimension_is_exact() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3, bias=False)).double()
    batch = {"x": torch.randn(6, 5, dtype=torch.float64)}
    assert_equal_to_naive(model, batch, 2, losses=lambda model, batch: model(batch["x"]).square().sum(1))


# ------------------------------------------------------------------------------ the bound
@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_unit_alone_is_within_the_bound_strictly(name: str, dtype: torch.dtype) -> None:
    model, batch, bound = build(name, dtype), make_batch(6), 0.05
    clipper = PerSampleClipper(model, bound)
    for unit in range(6):
        model.zero_grad()
        with clipper.capture(1):
            mean_losses(model, rows_of(batch, slice(unit, unit + 1))).sum().backward()
        norm = clipper.accumulate()
        found = math.sqrt(sum(p.grad.double().square().sum().item() for p in trained(model) if p.grad is not None))
        assert found <= bound
        assert found == pytest.approx(bound if norm.item() > bound else norm.item(), rel=1e-5)


def test_adding_a_unit_moves_the_sum_by_at_most_the_bound() -> None:
    model, batch, bound = build("gpt2-tied"), make_batch(6), 0.1
    with_unit, _ = clipped(model, batch, bound)
    without, _ = clipped(model, rows_of(batch, slice(0, 5)), bound)
    moved = math.sqrt(sum((a - b).square().sum().item() for a, b in zip(with_unit, without, strict=True)))
    assert 0.9 * bound <= moved <= bound * (1 + 1e-12)


def test_leaving_out_the_cross_term_would_be_noticed() -> None:
    """Tied and untied copies of the same weights have clearly different norms: equality tests can fail."""
    tied, batch = build("gpt2-tied"), make_batch(5)
    untied = copy.deepcopy(tied)
    untied.lm_head.weight = nn.Parameter(untied.lm_head.weight.detach().clone())
    _, tied_norms = clipped(tied, batch, math.inf)
    _, untied_norms = clipped(untied, batch, math.inf)
    assert ((tied_norms - untied_norms).abs() / tied_norms.clamp(min=1e-9)).max() > 1e-3


# ------------------------------------------------------------------------------ scale, inf and nan
def test_loss_scale_is_taken_out_again() -> None:
    model, batch = build("gpt2-tied"), make_batch(5)
    expected, expected_norms = clipped(model, batch, 0.5)
    clipper = PerSampleClipper(model, 0.5)
    for scale in (1024.0, 1 / 7):
        model.zero_grad()
        with clipper.capture(5):
            (scale * mean_losses(model, batch)).sum().backward()
        norms = clipper.accumulate(loss_scale=scale)
        assert torch.allclose(norms, expected_norms, rtol=1e-12, atol=1e-12)
        assert relative_error([p.grad for p in trained(model)], expected) <= 1e-12


@pytest.mark.parametrize("length", [12, 48])
@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied"])
@pytest.mark.parametrize("factor", [math.inf, math.nan])
def test_nonfinite_unit_contributes_zero_and_is_counted(name: str, length: int, factor: float) -> None:
    model, batch = build(name), make_batch(4, length)
    expected, _ = naive(model, {key: value[[0, 1, 3]] for key, value in batch.items()}, 1.0)
    clipper = PerSampleClipper(model, 1.0)
    weights = torch.tensor([1.0, 1.0, factor, 1.0], dtype=torch.float64)
    with clipper.capture(4):
        (weights * mean_losses(model, batch)).sum().backward()
    norms = clipper.accumulate()
    assert torch.isfinite(norms).tolist() == [True, True, False, True]
    assert clipper.num_nonfinite == 1
    assert relative_error([p.grad for p in trained(model)], expected) <= 1e-9


def test_nonfinite_activations_of_one_row_do_not_reach_the_sum() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)).double()
    x = torch.randn(3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    bad = x.clone()
    bad[1, 0, 0] = math.nan
    losses: Losses = lambda model, batch: model(batch["x"]).square().sum((1, 2))  # noqa: E731
    found, norms = clipped(model, {"x": bad}, 1.0, losses=losses)
    expected, _ = naive(model, {"x": x[[0, 2]]}, 1.0, losses=losses)
    assert torch.isfinite(norms).tolist() == [True, False, True]
    assert relative_error(found, expected) <= 1e-12


# ------------------------------------------------------------------------------ manners
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


def test_dropout_gives_the_gradient_of_the_same_masks() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 2)).double().train()
    batch = {"x": torch.randn(3, 5, 4, dtype=torch.float64)}
    losses: Losses = lambda model, batch: model(batch["x"]).square().sum((1, 2))  # noqa: E731
    torch.manual_seed(5)
    found, _ = clipped(model, batch, math.inf, losses=losses)
    torch.manual_seed(5)
    expected = torch.autograd.grad(losses(model, batch).sum(), trained(model))
    assert relative_error(found, list(expected)) <= 1e-12


@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied"])
def test_gradient_checkpointing_is_exact(name: str) -> None:
    model, batch = build(name), make_batch(5)
    expected, expected_norms = naive(model, batch, 1.0)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    found, norms = clipped(model, batch, 1.0, cuts=(2,))
    assert torch.allclose(norms, expected_norms, rtol=1e-9, atol=1e-12)
    assert relative_error(found, expected) <= 1e-9


@pytest.mark.parametrize("frozen_embeddings", [False, True])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_reentrant_checkpointing_is_refused(frozen_embeddings: bool) -> None:
    model, batch = build("gpt2-untied"), make_batch(3)
    if frozen_embeddings:
        for name in ("wte", "wpe"):
            model.get_parameter(f"transformer.{name}.weight").requires_grad_(False)
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(UnsupportedLayerError, match="use_reentrant=False"):
        clipped(model, batch, 1.0)
    assert all(p.requires_grad for n, p in model.named_parameters() if "transformer.w" not in n)


def test_buffers_are_freed_after_accumulate() -> None:
    model, batch = build("gpt2-tied"), make_batch(4)
    clipper = PerSampleClipper(model, 1.0)
    with clipper.capture(4):
        mean_losses(model, batch).sum().backward()
    clipper.accumulate()
    held = [value for rule in clipper._rules for value in vars(rule).values() if isinstance(value, Tensor)]
    assert all(isinstance(value, nn.Parameter) for value in held)
    assert not any(rule.kept for rule in clipper._rules)
    with pytest.raises(RuntimeError, match="nothing was captured"):
        clipper.accumulate()


def test_two_captures_without_accumulate_are_refused() -> None:
    model, batch = build("gpt2-tied"), make_batch(3)
    clipper = PerSampleClipper(model, 1.0)
    with clipper.capture(3):
        mean_losses(model, batch).sum().backward()
    with pytest.raises(RuntimeError, match="accumulate"), clipper.capture(3):
        pass


def test_unfreezing_after_construction_is_refused() -> None:
    model = build("gpt2-tied")
    weight = model.get_parameter("transformer.wpe.weight").requires_grad_(False)
    clipper = PerSampleClipper(model, 1.0)
    weight.requires_grad_(True)
    with pytest.raises(RuntimeError, match="unfrozen"), clipper.capture(3):
        pass


# ------------------------------------------------------------------------------ refusals
class Scaled(nn.Module):
    """A layer of one's own with a parameter that no rule knows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.inner(x)


class FakeRMSNorm(nn.Module):
    """Has the name and the attributes of an RMSNorm, but squares its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(2 * torch.ones(4)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return self.weight**2 * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


def shared_linears() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 4), Scaled()), "'1.scale' of a Scaled"),
        (lambda: nn.Sequential(nn.Conv1d(4, 4, 1)), "'0.weight' of a Conv1d"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "'1' \\(BatchNorm1d\\)"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)), "'1' \\(BatchNorm1d\\)"),
        (lambda: nn.Sequential(nn.Linear(4, 4), FakeRMSNorm()), "'1' \\(FakeRMSNorm\\)"),
        (lambda: nn.MultiheadAttention(4, 2), "'in_proj_weight' of a MultiheadAttention"),
        (lambda: nn.Sequential(nn.Embedding(4, 4, max_norm=1.0)), "'0' has max_norm"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), "has no per-sample clipping rule"),
        (shared_linears, "'0', '1' share a parameter"),
    ],
)
def test_unsupported_layer_is_refused_by_name_in_one_line(make: Callable[[], nn.Module], named: str) -> None:
    with pytest.raises(UnsupportedLayerError, match=named) as caught:
        PerSampleClipper(make(), 1.0)
    assert "\n" not in str(caught.value)


def test_frozen_unsupported_layer_is_skipped() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Scaled(), nn.Linear(4, 2)).double()
    model[1].scale.requires_grad_(False)
    batch = {"x": torch.randn(3, 2, 4, dtype=torch.float64)}
    assert_equal_to_naive(model, batch, losses=lambda model, batch: model(batch["x"]).square().sum((1, 2)))


@pytest.fixture
def x() -> Iterator[Tensor]:
    yield torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))


def test_module_called_twice_is_refused(x: Tensor) -> None:
    model = nn.Linear(4, 4)
    with pytest.raises(UnsupportedLayerError, match="called twice"), PerSampleClipper(model, 1.0).capture(3):
        model(model(x))
    assert model.weight.requires_grad


def test_weight_used_outside_its_module_is_refused(x: Tensor) -> None:
    model = nn.Linear(4, 4)
    with (
        pytest.raises(UnsupportedLayerError, match="'weight' is used outside"),
        PerSampleClipper(model, 1.0).capture(3),
    ):
        F.linear(model(x), model.weight)
    with (
        pytest.raises(UnsupportedLayerError, match="'weight' is used outside"),
        PerSampleClipper(model, 1.0).capture(3),
    ):
        model(x) @ model.weight.T


def test_input_changed_in_place_is_refused(x: Tensor) -> None:
    model = nn.Linear(4, 4)
    with (
        pytest.raises(UnsupportedLayerError, match="changed in place"),
        PerSampleClipper(model, 1.0).capture(3),
    ):
        out = model(x)
        x.add_(1.0)
        out.sum().backward()


@pytest.mark.parametrize("position", [1, 3])
def test_output_changed_in_place_is_refused(position: int) -> None:
    """Autograd would rebuild the graph without the place where the gradient is observed."""
    layers = [nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)]
    layers[position] = nn.ReLU(inplace=True)
    batch = {"x": torch.randn(4, 3, 4)}
    with pytest.raises(UnsupportedLayerError, match="changed in place"):
        clipped(nn.Sequential(*layers), batch, 1.0, losses=lambda model, batch: model(batch["x"]).sum((1, 2)))


def test_rows_not_first_is_refused(x: Tensor) -> None:
    model = nn.Linear(4, 4)
    with (
        pytest.raises(UnsupportedLayerError, match="first dimension"),
        PerSampleClipper(model, 1.0).capture(3),
    ):
        model(x.flatten(0, 1))
    embedding = nn.Embedding(4, 4)
    with (
        pytest.raises(UnsupportedLayerError, match="one dimension"),
        PerSampleClipper(embedding, 1.0).capture(3),
    ):
        embedding(torch.tensor([0, 1, 2]))


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan])
def test_bound_must_be_positive(bound: float) -> None:
    with pytest.raises(ValueError, match="max_grad_norm"):
        PerSampleClipper(nn.Linear(2, 2), bound)
