"""Book-keeping inside a compiled graph gives what the eager engine gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from doppel.privacy.clipping import PerSampleClipper, UnsupportedLayerError
from doppel.privacy.clipping.head import HeadLoss

VOCAB = 61
Trunk = Callable[[Tensor], Tensor]

pytestmark = pytest.mark.filterwarnings("ignore")


def gpt2(tied: bool = True) -> Any:
    config = GPT2Config(
        vocab_size=VOCAB, n_layer=1, n_embd=16, n_head=2, n_positions=64, tie_word_embeddings=tied, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def llama() -> Any:
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def with_adapters() -> Any:
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(r=2, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, init_lora_weights=False)
    return inject_adapter_in_model(config, gpt2())


def build(make: Callable[[], Any], dtype: torch.dtype = torch.float64) -> tuple[Any, Trunk]:
    """A model whose weights are large enough for gradients to differ, and what computes its hidden states."""
    torch.manual_seed(0)
    model = make()
    for parameter in model.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    model = model.to(dtype).train()

    def trunk(input_ids: Tensor) -> Tensor:
        hidden: Tensor = model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
        return hidden

    return model, trunk


def make_batch(num_rows: int, length: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Ids with repetitions, and labels with prompts and padding; row 1 has none."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCAB, (num_rows, length), generator=generator)
    ids[:, ::3] = ids[:, :1] % 7
    labels = ids.roll(-1, dims=1)
    labels[:, :2] = -100
    labels[0, length // 2 :] = labels[1] = -100
    return ids, labels


def step(
    clipper: PerSampleClipper,
    model: Any,
    trunk: Trunk,
    batch: tuple[Tensor, Tensor],
    rows_per_unit: int = 1,
    autocast: bool = False,
) -> tuple[list[Tensor], Tensor]:
    """Σ clip(gᵢ) of every trained parameter, and the norms."""
    model.zero_grad()
    with (
        clipper.capture(len(batch[0]) // rows_per_unit, rows_per_unit),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        HeadLoss(model.lm_head, chunk_tokens=16)(trunk(batch[0]), batch[1]).sum().backward()
    norms = clipper.accumulate()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None], norms


def assert_equal_to_eager(
    make: Callable[[], Any],
    shapes: list[tuple[int, int, int]],
    backend: str = "aot_eager",
    dtype: torch.dtype = torch.float64,
    tolerance: float = 1e-12,
    autocast: bool = False,
) -> None:
    """Two batches of each shape (units, rows of each, length), with some units clipped and some not."""
    model, trunk = build(make, dtype)
    clipper = PerSampleClipper(model, 1.0)
    _, norms = step(clipper, model, trunk, make_batch(6, 12), autocast=autocast)  # the audited first capture
    clipper.max_grad_norm = float(norms[norms > 0].median())
    compiled = clipper.compile(trunk, backend=backend)
    counters.clear()
    for num_units, rows_per_unit, length in shapes:
        for seed in (1, 2):
            batch = make_batch(num_units * rows_per_unit, length, seed)
            expected, expected_norms = step(clipper, model, trunk, batch, rows_per_unit, autocast)
            found, norms = step(clipper, model, compiled, batch, rows_per_unit, autocast)
            assert torch.allclose(norms, expected_norms, rtol=tolerance, atol=tolerance)
            assert len(found) == len(expected) > 0
            for f, e in zip(found, expected, strict=True):
                assert torch.linalg.vector_norm(f - e) <= tolerance * torch.linalg.vector_norm(e)
    assert counters["stats"]["unique_graphs"] == len(shapes), "a graph for each shape, and none for a shape seen before"
    assert not counters["graph_break"]


@pytest.mark.parametrize("make", [gpt2, llama, with_adapters])
def test_compiled_sum_equals_eager_sum(make: Callable[[], Any]) -> None:
    assert_equal_to_eager(make, [(6, 1, 12)] if make is not gpt2 else [(6, 1, 12), (2, 3, 30)])


def test_untied_weights() -> None:
    assert_equal_to_eager(lambda: gpt2(tied=False), [(2, 3, 12)])


def test_bf16_autocast() -> None:
    assert_equal_to_eager(gpt2, [(4, 1, 12)], dtype=torch.float32, tolerance=1e-6, autocast=True)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "tolerance"), [(gpt2, 1e-12), (llama, 2e-6)])
def test_compiled_to_machine_code(make: Callable[[], Any], tolerance: float) -> None:
    """Llama computes its norms and rotations in float32 whatever its dtype, where fused code rounds differently."""
    assert_equal_to_eager(make, [(4, 1, 12), (2, 2, 32)], backend="inductor", tolerance=tolerance)


class Trunks(nn.Module):
    """An embedding, a layer that may be left out or called twice, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 8)
        self.layer = nn.Linear(8, 8)
        self.lm_head = nn.Linear(8, VOCAB, bias=False)

    def once(self, ids: Tensor) -> Tensor:
        return self.layer(self.embedding(ids))

    def twice_if_long(self, ids: Tensor) -> Tensor:
        hidden = self.once(ids)
        return self.layer(hidden) if ids.shape[1] > 8 else hidden

    def once_with_gradients(self, ids: Tensor) -> Tensor:
        return self.once(ids) if torch.is_grad_enabled() else self.embedding(ids)

    def broken(self, ids: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return self.once(ids)


def small(name: str) -> tuple[PerSampleClipper, Trunks, Trunk]:
    torch.manual_seed(0)
    model = Trunks().double()
    clipper = PerSampleClipper(model, 0.1)
    return clipper, model, clipper.compile(getattr(model, name), backend="aot_eager")


def test_the_first_capture_is_audited_and_not_compiled() -> None:
    clipper, model, _ = small("once")
    misuse = clipper.compile(lambda ids: model.once(ids) @ model.layer.weight, backend="aot_eager")
    with pytest.raises(UnsupportedLayerError, match="layer.weight"):
        step(clipper, model, misuse, make_batch(3, 6))


@pytest.mark.parametrize(
    ("name", "message"), [("twice_if_long", "called twice"), ("once_with_gradients", "calls other layers")]
)
def test_a_layer_that_would_be_missed_is_refused(name: str, message: str) -> None:
    clipper, model, compiled = small(name)
    step(clipper, model, compiled, make_batch(3, 6))
    with pytest.raises(UnsupportedLayerError, match=message):
        step(clipper, model, compiled, make_batch(3, 12))
    assert "forward" not in model.layer.__dict__ and not model.layer._forward_hooks


def test_a_graph_break_is_an_error() -> None:
    clipper, model, compiled = small("broken")
    step(clipper, model, compiled, make_batch(3, 6))
    with pytest.raises(torch._dynamo.exc.Unsupported):
        step(clipper, model, compiled, make_batch(3, 6))


def test_units_without_loss_and_units_that_are_not_finite_contribute_zero() -> None:
    clipper, model, compiled = small("once")
    ids, labels = make_batch(4, 6)
    ids = ids.clamp(max=VOCAB - 2)
    step(clipper, model, compiled, (ids, labels))
    expected, norms = step(clipper, model, compiled, (ids[:2], labels[:2]))
    filled = labels.clone()
    filled[2:] = -100
    found, filled_norms = step(clipper, model, compiled, (ids, filled))
    assert torch.equal(filled_norms[2:], torch.zeros(2, dtype=torch.float64))
    assert torch.allclose(filled_norms[:2], norms, rtol=1e-12)
    assert all(torch.allclose(f, e, rtol=1e-12, atol=1e-15) for f, e in zip(found, expected, strict=True))

    with torch.no_grad():
        model.embedding.weight[VOCAB - 1] = torch.inf
    ids[2:] = VOCAB - 1
    found, norms = step(clipper, model, compiled, (ids, labels))
    assert clipper.num_nonfinite == 2 and not norms[2:].isfinite().any()
    assert all(torch.allclose(f, e, rtol=1e-12, atol=1e-15) for f, e in zip(found, expected, strict=True))


def test_outside_of_a_capture_the_function_trains_as_ever() -> None:
    _, model, compiled = small("once")
    ids, labels = make_batch(3, 6)
    expected = torch.autograd.grad(HeadLoss(model.lm_head)(model.once(ids), labels).sum(), list(model.parameters()))
    found = torch.autograd.grad(HeadLoss(model.lm_head)(compiled(ids), labels).sum(), list(model.parameters()))
    assert all(torch.allclose(f, e, rtol=1e-12, atol=1e-15) for f, e in zip(found, expected, strict=True))
    with torch.no_grad():
        assert torch.equal(compiled(ids), model.once(ids))


def test_a_layer_called_in_the_graph_and_outside_of_it_is_refused() -> None:
    clipper, model, compiled = small("once")
    step(clipper, model, compiled, make_batch(3, 6))
    with pytest.raises(UnsupportedLayerError, match="'layer'"):
        step(clipper, model, lambda ids: model.layer(compiled(ids)), make_batch(3, 6))


def test_checkpointed_activations_cannot_be_compiled() -> None:
    model, trunk = build(gpt2)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    with pytest.raises(UnsupportedLayerError, match="checkpoints"):
        PerSampleClipper(model, 1.0).compile(trunk)
