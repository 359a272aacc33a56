"""Normalisation layers over features: ``nn.LayerNorm``, ``nn.RMSNorm`` and Hugging Face's RMSNorm family."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from doppel.privacy.clipping.arithmetic import wide_dtype
from doppel.privacy.clipping.observed import ObservedRule
from doppel.privacy.clipping.rule import Capture, UnsupportedLayerError

_EPS_NAMES = ("variance_epsilon", "eps")


def _is_float(value: object) -> TypeGuard[float]:
    return isinstance(value, float)


class _NormRule(ObservedRule):
    """``y = w ∘ x̂ + b``: a unit's gradients, Σ G ∘ x̂ and Σ G over its positions, are small and are formed."""

    def give(self, capture: Capture, grads: Tensor, normalised: Tensor) -> None:
        """Form the units' gradients of weight and bias."""
        if self.trains_weight:
            self._sum(capture, self.weight, grads * normalised)
        if self.trains_bias:
            assert self.bias is not None
            self._sum(capture, self.bias, grads)

    def _sum(self, capture: Capture, parameter: nn.Parameter, x: Tensor) -> None:
        place = capture.place(parameter, x)
        x = capture.split(x) if parameter.dim() == 1 else x.reshape(capture.num_units, -1, *parameter.shape)
        torch.sum(x, 1, dtype=place.dtype, out=place)


class LayerNormRule(_NormRule):
    """``nn.LayerNorm``."""

    module_type = nn.LayerNorm

    def compute(self, ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x, self.weight, self.bias)
        shape, eps = self.module.normalized_shape, self.module.eps
        return F.layer_norm(x, shape, self.weight, self.bias, eps)  # type: ignore[arg-type]

    def pull(self, ctx: Any, capture: Capture | None, grads: Tensor, needs_input: bool) -> Tensor | None:
        wide = wide_dtype(grads.dtype)
        x, weight, bias = (None if value is None else value.to(wide) for value in ctx.saved_tensors)
        grads, shape = grads.to(wide), self.module.normalized_shape
        assert x is not None
        normalised, mean, rstd = torch.native_layer_norm(x, shape, None, None, self.module.eps)  # type: ignore[arg-type]
        if capture is not None:
            self.give(capture, grads, normalised)
        if not needs_input:
            return None
        wanted = [True, False, False]
        found: Tensor = torch.ops.aten.native_layer_norm_backward(grads, x, shape, mean, rstd, weight, bias, wanted)[0]
        return found


class RMSNormRule(_NormRule):
    """``nn.RMSNorm``: x̂ = x·rsqrt(mean(x²) + ε), times w.

    Both passes are the operations that the module's own are made of, in their order: the bits are the same.
    """

    module_type = nn.RMSNorm
    parameter_names = ("weight",)
    has_offset = False  # y = (1 + w) ∘ x̂
    is_rounded_once = False  # to the input's dtype: x̂ is, or y

    def widened(self, x: Tensor) -> Tensor:
        """Return the input in the dtype in which it is normalised."""
        return x.to(wide_dtype(x.dtype))

    def epsilon(self, dtype: torch.dtype) -> float:
        """Return ε for inputs of a dtype."""
        eps: float | None = self.module.eps  # type: ignore[assignment]
        return torch.finfo(dtype).eps if eps is None else eps

    def compute(self, ctx: Any, x: Tensor) -> Tensor:
        output, rsqrt = self.formula(x, self.weight)
        ctx.save_for_backward(x, rsqrt, self.weight)
        return output

    def formula(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output, and rsqrt(mean(x²) + ε)."""
        wide, dims = self.widened(x), tuple(range(-weight.dim(), 0))
        rsqrt = torch.rsqrt(wide.pow(2).mean(dims, keepdim=True) + self.epsilon(x.dtype))
        normalised = wide * rsqrt
        if self.has_offset:
            return (normalised * (1.0 + weight.float())).to(x.dtype), rsqrt
        if self.is_rounded_once:
            return (weight * normalised).to(x.dtype), rsqrt
        return weight * normalised.to(x.dtype), rsqrt

    def pull(self, ctx: Any, capture: Capture | None, grads: Tensor, needs_input: bool) -> Tensor | None:
        x, rsqrt, weight = ctx.saved_tensors
        wide = self.widened(x)
        if capture is not None:
            normalised = wide * rsqrt
            is_wide = self.has_offset or self.is_rounded_once
            self.give(capture, grads, normalised if is_wide else normalised.to(x.dtype))
        if not needs_input:
            return None
        if self.has_offset:
            grads = grads.to(wide.dtype) * (1.0 + weight.float())
        else:
            grads = (grads.to(wide.dtype) if self.is_rounded_once else grads) * weight
        grads, dims = grads.to(wide.dtype), tuple(range(-weight.dim(), 0))
        of_mean = (grads * wide).sum(dims, keepdim=True).mul_(rsqrt.pow(3)).div_(weight.numel())
        return (grads * rsqrt).sub_(wide * of_mean)


class HuggingFaceRMSNormRule(RMSNormRule):
    """Any class ``…RMSNorm`` with one ``weight`` and a ``variance_epsilon`` or ``eps``: Llama, Qwen, Mistral,
    Gemma, …

    They are many classes with one formula, computed in float32: x̂ = x·rsqrt(mean(x²) + ε), times w or 1 + w.
    Since a name proves nothing, the rule is checked against the module's own output and autograd gradients when it is
    built.
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__(name, module)
        self._eps = next(filter(_is_float, (getattr(module, key, None) for key in _EPS_NAMES)))
        for self.has_offset, self.is_rounded_once in ((False, False), (False, True), (True, True)):
            if all(self._is_formula(dtype) for dtype in (self.weight.dtype, torch.bfloat16)):
                return
        raise UnsupportedLayerError(
            f"module '{self.name}' ({type(self.module).__name__}) is not the usual RMSNorm, so it has no "
            "clipping rule: "
            "freeze its weight, or use torch.nn.RMSNorm"
        )

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        """Match by the class name and its attributes."""
        names = [name for name, _ in module.named_parameters(recurse=False)]
        has_eps = any(_is_float(getattr(module, key, None)) for key in _EPS_NAMES)
        return type(module).__name__.endswith("RMSNorm") and names == ["weight"] and has_eps

    def widened(self, x: Tensor) -> Tensor:
        return x.to(torch.float32)

    def epsilon(self, dtype: torch.dtype) -> float:
        return self._eps

    def _is_formula(self, dtype: torch.dtype) -> bool:
        """Compare with the module on one fixed input; takes nothing from any random number generator."""
        size = self.weight.numel()
        probe = torch.linspace(-2.0, 3.0, 2 * size, device=self.weight.device).view(2, size).to(dtype)
        upstream = probe.flip(0).cos()
        with torch.enable_grad():
            output = self.module(probe.requires_grad_())
            expected = torch.autograd.grad((output * upstream).sum(), [probe, self.weight])
        with torch.no_grad():
            found, rsqrt = self.formula(probe, self.weight)
            node = SimpleNamespace(saved_tensors=(probe, rsqrt, self.weight))
            pulled = self.pull(node, None, upstream.to(found.dtype), True)
            of_weight = (upstream * self.widened(probe) * rsqrt).sum(0)
        tolerance = 1e-5 if dtype in (torch.float32, torch.float64) else 0.1
        pairs = zip((found, pulled, of_weight), (output, *expected), strict=True)
        return found.dtype is output.dtype and all(
            torch.allclose(a.double(), b.double(), rtol=tolerance, atol=tolerance)  # type: ignore[union-attr]
            for a, b in pairs
        )
