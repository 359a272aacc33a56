"""Frozen linear layers of four bits a weight, packed and unpacked by bitsandbytes, on a CPU as on a GPU."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from doppel.errors import UserError
from doppel.models.frozen_layers import FrozenLinear, compute_dtype, frozen_product

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: How a frozen base may be packed: ``nf4`` is four bits, at quantiles of a normal distribution (Dettmers et al., 2023).
Quantization = Literal["nf4"]
#: Weights that share a scale, and the bytes of which where the codes begin is a multiple.
_BLOCK, _ALIGNED = 64, 256


class PackedLinear(nn.Linear):
    """A frozen linear layer whose weight is four-bit codes, with a float32 scale for each 64 of them: .5625 bytes each.

    Scales and codes lie in one tensor of bytes, ``weight``, so that what moves, counts or hashes weights finds all of
    it. A product takes the unpacked weight in the dtype of autocast, or else of its input, for as long as it lasts, and
    so does its backward pass: no second copy stays. A row of the product depends on no other row, as in any other
    linear layer.

    Attributes:
        form: ``nf4`` or ``fp4``.
        block: Weights of a scale.
    """

    form: str
    block: int

    @classmethod
    def pack(cls, layer: nn.Linear) -> None:
        """Pack a layer in place.

        Packing goes on on the CPU, whose result is the same on every machine, and so the digest of the base.
        """
        flat = (layer.weight.data if layer.weight.is_meta else layer.weight.data.cpu()).flatten()
        blocks = F.pad(flat, (0, -len(flat) % _BLOCK)).view(-1, _BLOCK)
        codes, scales = torch.ops.bitsandbytes.quantize_4bit(blocks, _BLOCK, "nf4", torch.uint8)
        cls._become(layer, codes, scales, "nf4", _BLOCK)

    @classmethod
    def take(cls, layer: Any) -> nn.Linear:
        """Return a layer of these of a ``Linear4bit`` of bitsandbytes, with the weights that this one computes with."""
        state, weight = layer.weight.quant_state, layer.weight.data
        scales = state.absmax
        if state.nested:  # scales in eight bits, with scales of their own
            dequantize = importlib.import_module("bitsandbytes.functional").dequantize_blockwise
            scales = dequantize(scales, state.state2).float() + state.offset
        own = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
        own.bias = layer.bias
        cls._become(own, weight.view(torch.uint8), scales, state.quant_type, state.blocksize)
        return own

    @classmethod
    def _become(cls, layer: nn.Linear, codes: Tensor, scales: Tensor, form: str, block: int) -> None:
        start = _start(len(scales))
        own = torch.zeros(start + len(scales) * block // 2, dtype=torch.uint8, device=codes.device)
        own[: 4 * len(scales)] = scales.float().contiguous().view(torch.uint8)
        own[start : start + codes.numel()] = codes.reshape(-1)
        layer.weight = nn.Parameter(own, requires_grad=False)
        layer.__class__ = cls
        vars(layer).update(form=form, block=block)

    def unpacked(self, dtype: torch.dtype) -> Tensor:
        """Return the weight [out_features, in_features] in a dtype."""
        return self._unpack(self.weight, dtype)

    def unpack(self, dtype: torch.dtype) -> None:
        """Become an ordinary layer with this weight, in place."""
        self.weight = nn.Parameter(self.unpacked(dtype), requires_grad=False)
        self.__class__ = nn.Linear  # type: ignore[assignment]

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input @ weight.T + bias`` in the dtype of autocast, or else in that of the input."""
        dtype = compute_dtype(input)
        bias = None if self.bias is None else self.bias.to(dtype)
        return frozen_product(input.to(dtype), self.weight, bias, self._unpack)

    def _unpack(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        length = self.out_features * self.in_features
        num = -(-length // self.block)
        scales, codes = weight[: 4 * num].view(torch.float32), weight[_start(num) :].unsqueeze(1)
        # a block a row: where a row of the weight ends inside a block, the CPU's kernel takes the scale of another one
        unpacked: Tensor = torch.ops.bitsandbytes.dequantize_4bit(
            codes, scales, self.block, self.form, [num, self.block], dtype
        )
        return unpacked.flatten()[:length].view(self.out_features, self.in_features)


def check_bitsandbytes() -> None:
    """Refuse four bits where bitsandbytes is not installed.

    Raises:
        UserError: It is not.
    """
    try:
        importlib.import_module("bitsandbytes")
    except ImportError as error:
        raise UserError(
            "model.quantization and bases of four bits need bitsandbytes, which is not installed here or does not "
            "load: pip install --constraint constraints.txt --editable '.[train,quantized]'"
        ) from error


def check_packed(packing: Any, is_frozen: bool) -> None:
    """Refuse quantised weights that are to be trained, or of a kind whose products rows would share.

    Args:
        packing: ``quantization_config`` of a folder.
        is_frozen: Whether none of the weights is to be trained.

    Raises:
        ValueError: They are.
        UserError: bitsandbytes is not installed.
    """
    given: dict[str, Any] = packing if isinstance(packing, dict) else packing.to_dict()
    if given.get("quant_method") != "bitsandbytes" or not given.get("load_in_4bit"):
        raise ValueError(
            f"its weights are quantised by {given.get('quant_method')}, and of bitsandbytes in four bits alone they "
            "are loaded: give the folder before that, with model.quantization: nf4"
        )
    if not is_frozen:
        raise ValueError(
            "its weights are quantised, which no gradient trains: train LoRA on them (model.lora), or give the folder "
            "before that"
        )
    check_bitsandbytes()


def packable(model: PreTrainedModel) -> list[nn.Linear]:
    """Return the linear layers that four bits are for: all that are frozen and not packed yet, but the output head."""
    head = model.get_output_embeddings()
    linear = [m for m in model.modules() if isinstance(m, nn.Linear) and type(m) in (nn.Linear, FrozenLinear)]
    return [m for m in linear if m is not head and not m.weight.requires_grad]


def saved_by_packing(model: PreTrainedModel) -> int:
    """Return the bytes by which a model is smaller once it is packed; bitsandbytes is not asked."""
    weights = [layer.weight for layer in packable(model)]
    return sum(weight.nbytes - _packed_bytes(weight.numel()) for weight in weights)


def pack(model: PreTrainedModel) -> None:
    """Pack the linear layers of a model in place; embeddings and the output head stay as they are.

    Args:
        model: Its frozen weights are let go layer by layer; those of adapters are trained, and stay.

    Raises:
        UserError: bitsandbytes is not installed, or the model has no linear layer.
    """
    check_bitsandbytes()
    layers = packable(model)
    if not layers and not is_packed(model):
        raise UserError(
            f"model.quantization: {type(model).__name__} has no linear layer that it packs (GPT-2 has others): set it "
            "to null"
        )
    for layer in layers:
        PackedLinear.pack(layer)


def take_packed(model: Any) -> None:
    """Put layers of ours in place of those that a folder of four-bit weights was loaded with.

    What the model says of its quantisation goes: it is true of the folder, and not of what is merged and exported.
    """
    of_bitsandbytes = importlib.import_module("bitsandbytes.nn").Linear4bit
    for name, module in list(model.named_modules()):
        if isinstance(module, of_bitsandbytes):
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, PackedLinear.take(module))
    for name in ("hf_quantizer", "is_quantized", "is_loaded_in_4bit", "quantization_method", "_weight_conversions"):
        vars(model).pop(name, None)
    del model.config.quantization_config


def is_packed(model: nn.Module) -> bool:
    """Return whether a model has packed layers."""
    return any(isinstance(module, PackedLinear) for module in model.modules())


def _packed_bytes(num_weights: int) -> int:
    """What they take, with their scales."""
    num_scales = -(-num_weights // _BLOCK)
    return _start(num_scales) + num_scales * _BLOCK // 2


def _start(num_scales: int) -> int:
    """Byte at which codes begin behind their scales."""
    return -(-4 * num_scales // _ALIGNED) * _ALIGNED
