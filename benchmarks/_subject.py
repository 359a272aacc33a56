"""The model that the benchmarks train, and on what."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from doppel.models.adapters import LoraArguments, add_adapters
from doppel.privacy.clipping.head import HeadLoss

Step = Callable[[], None]


def _large(
    family: str, layers: int, width: int, inner: int, heads: int, kv: int, rows: int, **more: Any
) -> dict[str, Any]:
    """Fields of a configuration, as the published ones have them."""
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "intermediate_size": inner, "vocab_size": rows}
    heads_of = {"num_attention_heads": heads, "num_key_value_heads": kv, "tie_word_embeddings": False}
    return {"model_type": family, **sizes, **heads_of, "max_position_embeddings": 131072, "dtype": "bfloat16", **more}


#: Architectures by name; weights are random, so no hub is needed.
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 101, "n_positions": 32},
    "cpu-256": {"n_layer": 4, "n_embd": 256, "n_head": 4, "vocab_size": 8192, "n_positions": 128},
    "cpu-768": {"n_layer": 4, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 128},
    "gpt2": {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024},
    "gpt2-medium": {"n_layer": 24, "n_embd": 1024, "n_head": 16, "vocab_size": 50257, "n_positions": 1024},
    "gpt2-large": {"n_layer": 36, "n_embd": 1280, "n_head": 20, "vocab_size": 50257, "n_positions": 1024},
    "smollm2-135m": {
        "model_type": "llama",
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
    },
    "llama-30": {
        "model_type": "llama",
        "num_hidden_layers": 30,
        "hidden_size": 256,
        "intermediate_size": 680,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "max_position_embeddings": 256,
    },
    "gpt2-12": {"n_layer": 12, "n_embd": 256, "n_head": 4, "vocab_size": 512, "n_positions": 128},
    "tiny-llama": _large("llama", 2, 64, 160, 4, 2, 500),
    "llama-3.2-1b": _large("llama", 16, 2048, 8192, 32, 8, 128256, head_dim=64, tie_word_embeddings=True),
    "llama-3.2-3b": _large("llama", 28, 3072, 8192, 24, 8, 128256, head_dim=128, tie_word_embeddings=True),
    "llama-3.1-8b": _large("llama", 32, 4096, 14336, 32, 8, 128256, head_dim=128),
    "qwen2.5-7b": _large("qwen2", 28, 3584, 18944, 28, 4, 152064),
}

PRECISIONS = {"32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

MAX_GRAD_NORM = 0.1
NOISE_MULTIPLIER = 0.6
LOSS_SCALE = 2.0**10  # fp16
IGNORE_INDEX = -100


@dataclass(frozen=True)
class Setting:
    """What is trained, on what.

    Args:
        size: Key of :data:`SIZES`.
        rows: Rows of a micro-batch; every row is a unit.
        length: Tokens of a row, all of them labelled.
        num_micro_batches: Micro-batches of one optimizer step.
        device: ``cpu`` or ``cuda``.
        precision: Key of :data:`PRECISIONS`: autocast to half precision, or none.
        checkpointing: Activation checkpointing of each block.
        adapters: Rank of LoRA, the rest frozen; 0 trains all weights.
    """

    size: str
    rows: int
    length: int
    num_micro_batches: int = 1
    device: str = "cpu"
    precision: str = "32"
    checkpointing: bool = False
    adapters: int = 0

    def __str__(self) -> str:
        micro_batches = f", {self.num_micro_batches} micro-batches a step" if self.num_micro_batches > 1 else ""
        precision = {"32": "fp32"}.get(self.precision, f"{self.precision} autocast")
        checkpointing = ", activation checkpointing" if self.checkpointing else ""
        trained = f", LoRA of rank {self.adapters}" if self.adapters else ""
        size = f"{self.size}{trained}, {self.rows} rows x {self.length} tokens"
        return f"{size}{micro_batches}, {precision}{checkpointing}"

    @property
    def num_tokens(self) -> int:
        """Tokens of a step."""
        return self.rows * self.length * self.num_micro_batches

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision's context."""
        dtype = PRECISIONS[self.precision]
        return torch.autocast(self.device, dtype, enabled=dtype is not None)


@dataclass
class Subject:
    """A model with its optimizer and its data; ordinary and Doppel's training take turns on the same one.

    Args:
        setting: What is trained.
        tied: Whether embedding and head share their weight, as in GPT-2.
        linear: Whether Hugging Face's ``Conv1D`` layers are replaced by ``nn.Linear`` (the same function), for which
            Opacus has rules.
    """

    setting: Setting
    tied: bool = True
    linear: bool = False
    model: PreTrainedModel = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    micro_batches: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        fields = dict(SIZES[self.setting.size])
        config = AutoConfig.for_model(
            fields.pop("model_type", "gpt2"),
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
            tie_word_embeddings=fields.pop("tie_word_embeddings", self.tied),
            **fields,
        )
        for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout"):
            if hasattr(config, name):
                setattr(config, name, 0.0)
        with torch.device(self.setting.device):  # weights are drawn where they will be
            self.model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").train()
        if self.linear:
            _replace_conv1d(self.model)
        if self.setting.adapters:
            add_adapters(self.model, LoraArguments(self.setting.adapters, 2.0 * self.setting.adapters))
        self.model.to(torch.device(self.setting.device))  # type: ignore[arg-type]
        if self.setting.checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0)
        shape = (self.setting.num_micro_batches, self.setting.rows, self.setting.length)
        self.micro_batches = list(torch.randint(config.vocab_size, shape).to(self.setting.device))

    @property
    def num_parameters(self) -> int:
        """Trained numbers, the tied weight once."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    @cached_property
    def position_ids(self) -> Tensor:
        """One row of positions for each row: Opacus does not know positions that are broadcast."""
        length = self.setting.length
        return torch.arange(length, device=self.setting.device).repeat(self.setting.rows, 1)

    def losses(self, input_ids: Tensor) -> Tensor:
        """Mean token NLL of each row: the loss kernel of ordinary, Doppel's and Opacus's training alike."""
        return plain_losses(self.model, input_ids)

    def trunk(self, input_ids: Tensor) -> Tensor:
        """What the head is applied to."""
        hidden_BTD: Tensor = self.model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
        return hidden_BTD

    def head_losses(self, input_ids: Tensor) -> Tensor:
        """The same losses by a :class:`HeadLoss`, whose gradient takes the place of the logits."""
        return HeadLoss(self.model.get_output_embeddings())(self.trunk(input_ids), next_tokens(input_ids))


def next_tokens(input_ids: Tensor) -> Tensor:
    """Labels of each position: the next token, none for the last."""
    return F.pad(input_ids[:, 1:], (0, 1), value=IGNORE_INDEX)


def plain_losses(model: Callable[..., Any], input_ids: Tensor, **kwargs: Tensor) -> Tensor:
    """Mean token NLL of each row, from all logits in float32."""
    logits_BTV = model(input_ids, **kwargs).logits
    labels_BT = next_tokens(input_ids)
    nll_NV = F.cross_entropy(
        logits_BTV.flatten(0, 1).float(), labels_BT.flatten(), ignore_index=IGNORE_INDEX, reduction="none"
    )
    return nll_NV.view_as(labels_BT).sum(1) / (input_ids.shape[1] - 1)


def _replace_conv1d(model: nn.Module) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Conv1D):
                linear = nn.Linear(child.nx, child.nf)
                linear.weight.data.copy_(child.weight.t())
                linear.bias.data.copy_(child.bias)
                setattr(module, name, linear)
