"""Layers that no rule can clip exactly, each with what to use in its place."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.spectral_norm import SpectralNorm

from doppel.errors import UserError


class UnsupportedLayerError(UserError):
    """A trainable parameter whose per-sample gradient norm the engine cannot give exactly.

    The message is one line: the parameter or module, why it is refused, and what to do. It is always raised;
    a parameter is never left out of the norm in silence.
    """


def changed_in_place() -> UnsupportedLayerError:
    """Say that a tensor which the engine reads is not what it was."""
    return UnsupportedLayerError(
        "the input, the output or a gradient of a trainable layer was changed in place, so its gradient cannot be "
        "seen: use the out-of-place operation (such as ReLU(inplace=False), in a hook `return grad * 2`), or train "
        "LoRA (model.lora)"
    )


def uses_children_without_calling_them(module: nn.Module) -> bool:
    """Return whether a layer's forward takes the weights of its children, so that they must be seen as one layer."""
    return isinstance(module, nn.MultiheadAttention) or parametrize.is_parametrized(module)


def refusal_of(name: str, module: nn.Module, owned: Mapping[str, nn.Parameter]) -> UnsupportedLayerError | None:
    """Say why a layer cannot be trained privately and what to use instead, in one line; None if nothing is known.

    Args:
        name: Its name in the model.
        module: The layer.
        owned: Its trainable parameters.
    """
    reason = _mixes_rows(module) or _learns_a_prompt(module) or (_cannot_be_clipped(module) if owned else None)
    if reason is None:
        return None
    where = f"module '{name}'" if name else "the model itself"
    return UnsupportedLayerError(f"{where} ({type(module).__name__}) {reason}{', or freeze it' if owned else ''}")


def _is_spectral(module: nn.Module) -> bool:
    parts = [*module.modules(), *module._forward_pre_hooks.values()]
    return any(isinstance(part, SpectralNorm | parametrizations._SpectralNorm) for part in parts)


def _mixes_rows(module: nn.Module) -> str | None:
    if isinstance(module, _BatchNorm):
        return "mixes the rows of a batch, so a row has no gradient of its own: replace it by GroupNorm or LayerNorm"
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        return "keeps statistics of the batch, which mix its rows: build it with track_running_stats=False"
    return None


def _learns_a_prompt(module: nn.Module) -> str | None:
    kinds = {kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("peft.")}
    if kinds & {"PromptEmbedding", "PromptEncoder"} and any(p.requires_grad for p in module.parameters()):
        return "gives one prompt for all rows, which has no gradient of a row: replace it by LoRA (peft.LoraConfig)"
    return None


def _cannot_be_clipped(module: nn.Module) -> str | None:
    if _is_spectral(module):
        return (
            "divides its weight by an estimate of its largest singular value, which each call changes, so that what is "
            "clipped is not what was called: build it without spectral_norm"
        )
    if isinstance(module, nn.RNNBase):
        ours = "lightning_modules.linear_lstm.LinearLSTM, or by " if module.mode == "LSTM" else ""
        return (
            f"is one fused kernel over all positions, which gives no gradient of a row: replace it by {ours}a module "
            "whose forward computes the recurrence with parameters of its own"
        )
    if isinstance(module, nn.MultiheadAttention) and not module.batch_first:
        return "takes positions first, but rows must be first: build it with batch_first=True"
    for option in ("max_norm", "scale_grad_by_freq", "sparse"):
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and getattr(module, option):
            return (
                f"has {option} set, which makes its gradient depend on other rows or on no dense weight: build it "
                f"without {option}"
            )
    if any(nn.parameter.is_lazy(p) for p in module.parameters(recurse=False)):
        return "has no parameters before its first call: call the model once before it is clipped"
    if isinstance(module, torch.jit.ScriptModule):
        return "is compiled by torch.jit, where no layer can be seen: use the Python module"
    if isinstance(module, nn.ParameterList | nn.ParameterDict):
        return "is never called, so its gradient cannot be seen: put it into the module that uses it"
    return None
