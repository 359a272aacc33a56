"""Low-rank adapters on the linear layers of a frozen causal language model."""

from __future__ import annotations

import logging
import re
from dataclasses import asdict, dataclass
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from doppel.errors import UserError
from doppel.models.quantized import PackedLinear

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoraArguments:
    """Low-rank adapters (Hu et al., 2022): the model is frozen, and each adapted layer learns W + (alpha / rank) B A.

    Args:
        rank: Rank of B A; a layer of n inputs and m outputs has rank * (n + m) trainable parameters.
        alpha: Scale of B A, divided by the rank.
        dropout: Dropout probability in front of A.
        target_modules: Names of the linear layers to adapt, such as ``[q_proj, v_proj]``: each stands for all layers
            whose name is that or ends in it, and names one at least. Null: all linear layers but the output head.
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    target_modules: list[str] | None = None

    def check(self) -> None:
        """Refuse sizes that are not possible.

        Raises:
            UserError: One is not.
        """
        if self.rank < 1 or not self.alpha > 0 or not 0 <= self.dropout < 1:
            raise UserError(
                f"lora: rank {self.rank}, alpha {self.alpha} and dropout {self.dropout} must be at least 1, above 0, "
                "and in [0, 1)"
            )


def add_adapters(model: PreTrainedModel, arguments: LoraArguments) -> None:
    """Freeze a model and put adapters on its linear layers, in place. B starts at zero, so the model's outputs stay.

    Raises:
        UserError: A size is not possible, or an entry of ``target_modules`` names no linear layer.
    """
    arguments.check()
    head = model.get_output_embeddings()
    linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear | Conv1D) and m is not head}
    chosen = set(linear)
    if arguments.target_modules is not None:
        of_entry = {
            wanted: {name for name in linear if f".{name}".endswith(f".{wanted}")}
            for wanted in arguments.target_modules
        }
        chosen = set().union(*of_entry.values())
        wrong = ", ".join(repr(wanted) for wanted, names in of_entry.items() if not names)
        if wrong or not chosen:
            kinds = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
            raise UserError(
                f"lora.target_modules: {wrong or 'an empty list'} names no linear layer of {type(model).__name__}: it "
                f"has {kinds}"
            )
    experts = {name: sum(p.numel() for p in own) for name, m in model.named_modules() if (own := _stacked(m))}
    if experts:
        share = 100 * sum(experts.values()) / sum(p.numel() for p in model.parameters())
        log.warning(
            "lora: the experts of %s, such as %s, get no LoRA: %.0f %% of the weights stay as they are",
            type(model).__name__,
            min(experts),
            share,
        )
    config = LoraConfig(
        r=arguments.rank,
        lora_alpha=arguments.alpha,  # type: ignore[arg-type]
        lora_dropout=arguments.dropout,
        target_modules=sorted(chosen),
        fan_in_fan_out=any(isinstance(linear[name], Conv1D) for name in chosen),
    )
    try:
        inject_adapter_in_model(config, model)
    except ValueError as error:  # such as layers of Mamba, whose weights are used without calling them
        reason = str(error).splitlines()[0].rpartition("] ")[2]
        raise UserError(f"lora: {type(model).__name__} cannot have these LoRA layers: {reason}") from error
    for module in model.modules():
        if isinstance(module, LoraLinear):  # autocast casts for the product: peft's copy to float32 comes on top of it
            module.cast_input_dtype_enabled = False


def _stacked(module: nn.Module) -> list[nn.Parameter]:
    """The matrices of a layer of experts, which stand in one parameter [experts, n, m] and in no linear layer."""
    is_own = not type(module).__module__.startswith("torch.")  # whose convolutions have three dimensions, too
    return [p for p in module.parameters(recurse=False) if is_own and p.dim() == 3]


def check_same_adapters(trained_with: dict[str, Any] | None, arguments: LoraArguments | None) -> None:
    """Refuse to load weights into a model with other adapters; dropout alone may differ.

    Raises:
        UserError: The adapters of the checkpoint and of the model differ.
    """
    own = None if arguments is None else asdict(arguments)
    both = [None if fields is None else {**fields, "dropout": None} for fields in (trained_with, own)]
    if both[0] != both[1]:
        raise UserError(
            f"the checkpoint was trained with lora: {trained_with or 'null'}, but the model has lora: {own or 'null'}: "
            "set the model's lora as it was in training, such as by the same configs"
        )


@torch.no_grad()
def merged_weights(model: nn.Module, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Return the state dict that the model would have without adapters, each one added to the layer it adapts.

    A model without adapters gives its own state dict. What is packed is unpacked. Sums are taken in float32 and rounded
    once.

    Args:
        model: The model.
        dtype: Of the weights; None: each as it is.
    """
    modules = dict(model.named_modules())
    layers = {name: module for name, module in modules.items() if isinstance(module, LoraLinear)}
    merged: dict[str, Tensor] = {}
    for key, value in model.state_dict().items():
        if re.search(r"\.lora_[AB]\.", key):
            continue
        wanted = value.dtype if dtype is None or not value.is_floating_point() else dtype
        owner, _, parameter = key.rpartition(".base_layer.")
        name = key if owner not in layers else f"{owner}.{parameter}"
        packed = modules.get(key.rpartition(".")[0])
        if isinstance(packed, PackedLinear) and key.endswith(".weight"):
            value = packed.unpacked(torch.float32)
            wanted = dtype or torch.bfloat16
        if owner in layers and parameter == "weight":
            value = value.float() + layers[owner].get_delta_weight("default").float()
        merged[name] = value.to(wanted)
    return merged
