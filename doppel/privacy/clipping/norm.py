"""Normalisation layers over features: ``nn.LayerNorm``, ``nn.RMSNorm`` and Hugging Face's RMSNorm family."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from doppel.privacy.clipping.arithmetic import wide_dtype
from doppel.privacy.clipping.refusals import UnsupportedLayerError
from doppel.privacy.clipping.rule import Capture, LayerRule

_LAYER_NORM_BACKWARD = torch.ops.aten.native_layer_norm_backward.default
_EPS_NAMES = ("variance_epsilon", "eps")


def _is_float(value: object) -> TypeGuard[float]:
    return isinstance(value, float)


class _NormRule(LayerRule):
    """``y = w ∘ x̂ + b``: a unit's gradients, Σ G ∘ x̂ and Σ G over its positions, are small and are formed."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__(name, module)
        self._dims = tuple(range(-self.weight.dim(), 0))

    def give(self, capture: Capture, parameter: nn.Parameter, x: Tensor) -> None:
        """Form the units' gradients of weight or bias, of which ``x`` has a share for each position."""
        place = capture.place(parameter)
        x = capture.split(x) if len(self._dims) == 1 else x.reshape(capture.num_units, -1, *parameter.shape)
        torch.sum(x, 1, dtype=place.dtype, out=place)


class LayerNormRule(_NormRule):
    """``nn.LayerNorm``."""

    module_type = nn.LayerNorm

    def compute(self, ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x, self.weight, self.bias)
        shape, eps = self.module.normalized_shape, self.module.eps
        return F.layer_norm(x, shape, self.weight, self.bias, eps)  # type: ignore[arg-type]

    def pull(self, ctx: Any, grads: Tensor) -> tuple[Tensor | None]:
        (x, weight, bias), wide = ctx.saved_tensors, wide_dtype(grads.dtype)
        if not x.dtype is weight.dtype is grads.dtype is wide:
            x, weight, grads = x.to(wide), weight.to(wide), grads.to(wide)
        shape = self.module.normalized_shape
        normalised, mean, rstd = torch.native_layer_norm(x, shape, None, None, self.module.eps)  # type: ignore[arg-type]
        if ctx.capture.is_open:
            if self.trains_weight:
                self.give(ctx.capture, self.weight, grads * normalised)
            if self.trains_bias:
                self.give(ctx.capture, self.bias, grads)  # type: ignore[arg-type]
        if not ctx.needs_input_grad[3]:
            return (None,)
        bias, wanted = None if bias is None else bias.to(wide), [True, False, False]
        found = _LAYER_NORM_BACKWARD(grads, x, shape, mean, rstd, weight, bias, wanted)
        return (found[0],)


class RMSNormRule(_NormRule):
    """``nn.RMSNorm`` and any class ``…RMSNorm`` with one ``weight`` and a ``variance_epsilon`` or ``eps`` (Llama, …).

    They are many classes with one formula: x̂ = x·rsqrt(mean(x²) + ε), times w or 1 + w. Both passes are the operations
    that the module's own are made of, in their order: the bits are the same. Since a name proves nothing, a class that
    is not PyTorch's is compared with its own output and autograd gradients when the rule is built.

    Raises:
        UnsupportedLayerError: It computes something else.
    """

    module_type = nn.RMSNorm
    parameter_names = ("weight",)
    has_offset = False  # y = (1 + w) ∘ x̂
    is_rounded_once = False  # to the input's dtype: x̂ is, or y

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__(name, module)
        self._is_torch = type(module) is nn.RMSNorm
        self._eps: float | None = next(filter(_is_float, (getattr(module, key, None) for key in _EPS_NAMES)), None)
        for self.has_offset, self.is_rounded_once in ((False, False), (False, True), (True, True)):
            if self._is_torch or all(self._is_formula(dtype) for dtype in (self.weight.dtype, torch.bfloat16)):
                return
        raise UnsupportedLayerError(
            f"module '{self.name}' ({type(self.module).__name__}) is not the usual RMSNorm, so it has no clipping "
            "rule: freeze its weight, or use torch.nn.RMSNorm"
        )

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        """Match by the class name and its attributes."""
        names = [name for name, _ in module.named_parameters(recurse=False)]
        has_eps = any(_is_float(getattr(module, key, None)) for key in _EPS_NAMES)
        is_other = type(module).__name__.endswith("RMSNorm") and names == ["weight"] and has_eps
        return is_other or super().matches(module)

    def widened(self, x: Tensor) -> Tensor:
        """Return the input in the dtype in which it is normalised."""
        return x.to(wide_dtype(x.dtype) if self._is_torch else torch.float32)

    def compute(self, ctx: Any, x: Tensor) -> Tensor:
        output, rsqrt = self.formula(x, self.weight)
        ctx.save_for_backward(x, rsqrt, self.weight)
        return output

    def formula(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output, and rsqrt(mean(x²) + ε)."""
        wide, eps = self.widened(x), torch.finfo(x.dtype).eps if self._eps is None else self._eps
        rsqrt = torch.rsqrt(wide.pow(2).mean(self._dims, keepdim=True) + eps)
        normalised = wide * rsqrt
        if self.has_offset:
            return (normalised * (1.0 + weight.float())).to(x.dtype), rsqrt
        if self.is_rounded_once:
            return (weight * normalised).to(x.dtype), rsqrt
        return weight * normalised.to(x.dtype), rsqrt

    def pull(self, ctx: Any, grads: Tensor) -> tuple[Tensor | None]:
        x, rsqrt, weight = ctx.saved_tensors
        wide = self.widened(x)
        if ctx.capture.is_open:
            normalised = wide * rsqrt if self.is_rounded_once else (wide * rsqrt).to(x.dtype)
            self.give(ctx.capture, self.weight, grads * normalised)
        if not ctx.needs_input_grad[3]:
            return (None,)
        if self.has_offset:
            grads = grads.to(wide.dtype) * (1.0 + weight.float())
        else:
            grads = (grads.to(wide.dtype) if self.is_rounded_once else grads) * weight
        grads = grads.to(wide.dtype)
        of_mean = (grads * wide).sum(self._dims, keepdim=True).mul_(rsqrt.pow(3)).div_(weight.numel())
        return ((grads * rsqrt).sub_(wide * of_mean),)

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
            given_up, needed = SimpleNamespace(is_open=False), (False, False, False, True)
            node = SimpleNamespace(saved_tensors=(probe, rsqrt, self.weight), capture=given_up, needs_input_grad=needed)
            (pulled,) = self.pull(node, upstream.to(found.dtype))
            of_weight = (upstream * self.widened(probe) * rsqrt).sum(0)
        tolerance = 1e-5 if dtype in (torch.float32, torch.float64) else 0.1
        pairs = zip((found, pulled, of_weight), (output, *expected), strict=True)
        return found.dtype is output.dtype and all(
            torch.allclose(a.double(), b.double(), rtol=tolerance, atol=tolerance)  # type: ignore[union-attr]
            for a, b in pairs
        )
