"""Normalisation layers over features: ``nn.LayerNorm``, ``nn.RMSNorm`` and Hugging Face's RMSNorm family."""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from doppel.privacy.clipping.arithmetic import squared_norm, wide_dtype
from doppel.privacy.clipping.rule import LayerRule, UnitLayout, UnsupportedLayerError

_EPS_NAMES = ("variance_epsilon", "eps")


def _is_float(value: object) -> TypeGuard[float]:
    return isinstance(value, float)


class _NormRule(LayerRule):
    """``y = w ∘ x̂ + b``: a unit's gradients, Σ G ∘ x̂ and Σ G over its positions, are small and are formed."""

    def normalise(self, x: Tensor) -> Tensor:
        """x̂, as the module itself computes it."""
        raise NotImplementedError

    def summarise(self, inputs: Tensor, grads: Tensor, layout: UnitLayout) -> tuple[Tensor, dict[str, Tensor]]:
        num_features, wide = self.weight.numel(), wide_dtype(grads.dtype)
        kept = {}
        if self.trains_weight:
            product = grads * self.normalise(inputs)
            kept["weight_grads"] = layout.split(product, num_features).sum(1, dtype=wide)
        if self.trains_bias:
            kept["bias_grads"] = layout.split(grads, num_features).sum(1, dtype=wide)
        return sum(map(squared_norm, kept.values())), kept  # type: ignore[return-value]

    def add_clipped(self, factors: Tensor, scale: float) -> None:
        self.add_formed(factors, scale)


class LayerNormRule(_NormRule):
    """``nn.LayerNorm``."""

    module_type = nn.LayerNorm

    def normalise(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.module.normalized_shape, eps=self.module.eps)  # type: ignore[arg-type]


class RMSNormRule(_NormRule):
    """``nn.RMSNorm``."""

    module_type = nn.RMSNorm
    parameter_names = ("weight",)

    def normalise(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.module.normalized_shape, eps=self.module.eps)  # type: ignore[arg-type]


class HuggingFaceRMSNormRule(_NormRule):
    """Any class ``…RMSNorm`` with one ``weight`` and a ``variance_epsilon`` or ``eps``: Llama, Qwen, Mistral,
    Gemma, …

    They are many classes with one formula, computed in float32: x̂ = x·rsqrt(mean(x²) + ε), times w or 1 + w.
    Since a name proves nothing, the rule is checked against the module's own autograd gradient when it is
    built.
    """

    parameter_names = ("weight",)

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__(name, module)
        self.eps = next(filter(_is_float, (getattr(module, key, None) for key in _EPS_NAMES)))
        self._check_formula()

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        """Match by the class name and its attributes."""
        names = [name for name, _ in module.named_parameters(recurse=False)]
        has_eps = any(_is_float(getattr(module, key, None)) for key in _EPS_NAMES)
        return type(module).__name__.endswith("RMSNorm") and names == ["weight"] and has_eps

    def normalise(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)

    def _check_formula(self) -> None:
        """Compare with autograd on one fixed input; takes nothing from any random number generator."""
        size = self.weight.numel()
        probe = torch.linspace(-2.0, 3.0, 2 * size, device=self.weight.device, dtype=self.weight.dtype).view(2, size)
        upstream = probe.flip(0).cos()
        with torch.enable_grad():
            (expected,) = torch.autograd.grad((self.module(probe) * upstream).sum(), self.weight)
        found = (upstream * self.normalise(probe)).sum(0)
        tolerance = 1e-5 if self.weight.dtype in (torch.float32, torch.float64) else 0.1
        if not torch.allclose(found, expected, rtol=tolerance, atol=tolerance):
            raise UnsupportedLayerError(
                f"module '{self.name}' ({type(self.module).__name__}) is not the usual RMSNorm, so it has no "
                "clipping rule: "
                "freeze its weight, or use torch.nn.RMSNorm"
            )
