"""Memory is estimated before it is taken."""

from __future__ import annotations

import sys
import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from private_training import data_module, fit, privacy
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from benchmarks._memory_meter import live_bytes, peak_bytes
from doppel.errors import UserError
from doppel.models import frozen_base, memory
from doppel.models.activations import attention_for, checkpoint_activations
from doppel.models.adapters import LoraArguments, add_adapters
from doppel.models.footprint import LONG, SHORT, Micro, budget, footprint
from doppel.models.frozen_base import FrozenBase
from doppel.models.heads import head_loss
from doppel.models.memory import described
from doppel.privacy.banded_noise import BandedNoise
from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.clipping.head import HeadLoss, ScaledLogits
from doppel.privacy.optimizer import DPAdam
from lightning_modules.causal_lm import UtteranceLM

HALF = torch.bfloat16


def llama(rank: int | None, is_less: bool = False) -> PreTrainedModel:
    """Two layers; adapters in float32 over bfloat16, or all weights in float32."""
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = AutoConfig.for_model("llama", num_hidden_layers=2, vocab_size=500, **sizes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32 if rank is None else HALF).train()
    if rank is not None:
        add_adapters(model, LoraArguments(rank=rank))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
    if is_less:
        checkpoint_activations(model, 128)  # with attention by plain products
    return model


def peak_of_a_step(model: PreTrainedModel, micro: Micro, length: int, function: ScaledLogits | None = None) -> int:
    """The most bytes of tensors that are alive at once in a second step."""
    head, num_rows = HeadLoss(model.get_output_embeddings(), 16.0, function), micro.units(length)
    clipper = PerSampleClipper(model, 0.1) if micro.is_private else None
    optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
    ids = torch.randint(500, (num_rows, length + 1))

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        with nullcontext() if clipper is None else clipper.capture(num_rows):
            with torch.autocast("cpu", HALF, enabled=micro.half is not None):
                with attention_for(torch.device("cpu"), micro.longest):
                    hidden = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
                losses = head(hidden, ids[:, 1:])
            del hidden
            losses.sum().backward()
        if clipper is not None:
            clipper.accumulate()
        optimizer.step()

    step()
    return peak_bytes(step, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "micro", "is_less"),
    [
        (16, Micro(512, half=HALF, longest=128), False),  # per-unit gradients of short rows are most of it
        (16, Micro(512, 4, half=HALF, longest=128), True),
        (None, Micro(512, is_private=False, half=HALF), False),
    ],
)
def test_the_estimate_is_what_a_step_takes(rank: int | None, micro: Micro, is_less: bool) -> None:
    others = live_bytes()  # what other tests of this process have left
    model = llama(rank, is_less)
    found = footprint(model, micro, HeadLoss(model.get_output_embeddings(), 16.0))
    assert found is not None
    taken = max(peak_of_a_step(model, micro, length) for length in (LONG, SHORT))
    taken -= others
    assert 0.9 * taken < found.peak < 1.1 * taken
    weights = {True: 0, False: 0}
    for parameter in model.parameters():
        weights[parameter.requires_grad] += parameter.nbytes
    assert (found.trained, found.optimizer) == (weights[True], 3 * weights[True])
    assert abs(found.base - weights[False]) < 1000, "buffers are more"
    if micro.is_private and rank is not None:
        formed = [micro.units(length) * weights[True] for length in (LONG, SHORT)]
        assert any(0.95 * most < found.kept <= most for most in formed)  # factors of short rows are less than products


def test_bands_hold_earlier_noise_and_their_optimiser_one_mean() -> None:
    """Ranks share the noise out."""
    model, own = llama(16), Micro(512, half=HALF)
    plain, banded = footprint(model, own), footprint(model, replace(own, moments=1, bands=8))
    shared = footprint(model, replace(own, moments=1, bands=8, num_ranks=4))
    assert plain is not None and banded is not None and shared is not None
    assert (plain.noise, plain.optimizer, banded.optimizer) == (0, 3 * plain.trained, 2 * plain.trained)
    noise = BandedNoise(1.0, 1.0, [8**-0.5] * 8, 20)
    for step in range(10):
        noise.add_(torch.zeros(banded.num_trained), 0, step)
    assert banded.noise == sum(past.nbytes for past in noise._past[0]) == pytest.approx(4 * shared.noise, abs=4)
    assert banded.peak - plain.peak == banded.noise - plain.trained
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = DPAdam(weights)
    optimizer.bind(1.0, 1)
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    kept = sum(mean.nbytes for state in optimizer.state.values() for mean in state.values())
    assert banded.checkpoint - 2**20 == banded.trained + kept == plain.checkpoint - 2**20 - plain.trained
    assert "earlier noise 3.00" in described(replace(banded, noise=3 * 10**9), torch.device("cpu"))


def test_no_weight_is_read_of_a_model_that_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same is counted on the device without memory; and what is chosen fits, with less where less is free."""
    micro, own = Micro(1024, half=HALF), llama(16)
    with torch.device("meta"):
        model = llama(16)
    head = HeadLoss(model.get_output_embeddings(), 16.0)
    assert footprint(model, micro, head) == footprint(own, micro, HeadLoss(own.get_output_embeddings(), 16.0))
    sizes = []
    for free in (10_000_000, 40_000_000):
        chosen = budget(model, micro, free, head)
        found = footprint(model, chosen, head)
        assert found is not None and found.peak < free and chosen.max_units is not None
        sizes.append(chosen.max_tokens)
    assert LONG <= sizes[0] < sizes[1]


@pytest.mark.slow
@pytest.mark.parametrize("function", [ScaledLogits(cap=30.0), ScaledLogits(scale=0.5)])
def test_what_a_cap_makes_of_logits_is_counted(function: ScaledLogits) -> None:
    others, model, micro = live_bytes(), llama(4), Micro(2048, half=HALF, is_private=False)
    plain, capped = (HeadLoss(model.get_output_embeddings(), 16.0, f) for f in (None, function))
    found, other = footprint(model, micro, capped), footprint(model, micro, plain)
    assert found is not None and other is not None and found.peak > other.peak, "one is not taken for the other"
    taken = peak_of_a_step(model, micro, LONG, function) - others
    assert 0.9 * taken < found.peak < 1.1 * taken


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "gemma3_text", "cohere", "granite", "qwen2_moe"])
def test_what_a_model_does_with_its_logits_is_read_off_a_shell_too(family: str) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    given = {"head_dim": 8, "vocab_size": 50, "logits_scaling": 4.0}
    config = AutoConfig.for_model(family, **sizes, num_key_value_heads=2, **given, bos_token_id=1, eos_token_id=2)
    with torch.device("meta"):
        shell = AutoModelForCausalLM.from_config(config)
    own, of_shell = head_loss(AutoModelForCausalLM.from_config(config)), head_loss(shell)
    assert own is not None and of_shell is not None and own.function == of_shell.function
    assert (own.function is None) == (family not in ("gemma2", "cohere", "granite"))


def test_four_bits_are_counted_without_bitsandbytes(
    tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a base is loaded, as in the planner: so many bytes are asked for, and no fewer are enough."""
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    model = llama(4)
    model.save_pretrained(tmp_path)
    linear = sum(m.base_layer.weight.numel() for m in model.modules() if hasattr(m, "base_layer"))
    whole, packed = (footprint(model, Micro(256, is_packed=is_packed)) for is_packed in (False, True))
    assert whole is not None and packed is not None
    assert whole.base - packed.base == pytest.approx((2 - 0.5625) * linear, rel=0.02)
    monkeypatch.setattr(frozen_base, "check_bitsandbytes", lambda: None)
    llama(None).to(HALF).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(tmp_path)
    for left, is_enough in ((0, True), (-1, False)):
        monkeypatch.setattr(memory, "free_bytes", lambda device, left=left: packed.base - buffers(model) + left)
        with nullcontext() if is_enough else pytest.raises(UserError, match="memory are free on cpu: nothing was"):
            FrozenBase(str(tmp_path), quantization="nf4").load()


def buffers(model: PreTrainedModel) -> int:
    return sum(buffer.nbytes for buffer in model.buffers())


def test_a_training_that_does_not_fit_names_what_to_lower(
    tiny_model: str, corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(name: str) -> None:
        model = UtteranceLM(base_model=tiny_model)
        fit(tmp_path / name, model, data_module(corpus), [privacy(tmp_path / name)], max_epochs=1)

    meminfo = tmp_path / "meminfo"
    monkeypatch.setattr(memory, "_MEMINFO", meminfo)
    meminfo.write_text("MemTotal:       99999999 kB\nMemAvailable:   64 kB\n")
    with pytest.warns(
        UserWarning, match=r"0\.0 GB are free: lower data\.max_units_per_micro_batch .*max_tokens_per_micro_batch"
    ):
        train("short")
    meminfo.write_text("MemTotal:       99999999 kB\nMemAvailable:   99999999 kB\n")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        train("enough")
    assert not any("GB are free" in str(warning.message) for warning in said)


def test_a_machine_that_does_not_say_is_asked_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "none")
    assert memory.free_bytes(torch.device("cpu")) is None
    model = llama(4)
    found = footprint(model, Micro(1024), HeadLoss(model.get_output_embeddings()))
    assert found is not None and memory.shortage(found, torch.device("cpu")) is None
    assert "free" not in memory.described(found, torch.device("cpu"))
