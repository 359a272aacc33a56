"""Tensors that have shapes and no numbers, and how many bytes of them are alive at once."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_ops = torch.ops.aten


class Shape(Tensor):
    """A tensor without numbers that autograd and autocast take for one of the CPU, whatever the machine has.

    PyTorch's own tensors of the device ``meta`` know no autocast. :class:`LiveBytes` runs operations on one within.

    Args:
        bare: The same of the device ``meta``.
        as_cuda: Whether code that asks for ``is_cuda`` is told so.
        answer: What it is to who asks for a truth.
    """

    bare: Tensor
    as_cuda: bool
    answer: bool
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, bare: Tensor, as_cuda: bool, answer: bool = True) -> Shape:
        shape: Shape = Tensor._make_wrapper_subclass(
            cls,
            bare.shape,
            strides=bare.stride(),
            storage_offset=bare.storage_offset(),
            dtype=bare.dtype,
            device=torch.device("cpu"),
        )
        shape.bare, shape.as_cuda, shape.answer = bare, as_cuda, answer
        return shape

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return self.as_cuda

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"{func} on a tensor without numbers: run it within LiveBytes")


class LiveBytes(TorchDispatchMode):
    """Runs every operation within on shapes alone, and counts the bytes of those that are alive.

    Who asks for a number is told ``number``. Who asks whether all of some are as he thinks is told yes, and whether any
    is, no.

    Args:
        as_cuda: Whether code is told that it computes on a CUDA GPU, and attention is its fused kernel.
        number: What a whole number is, such as the largest number of labels of a row.

    Attributes:
        now: Bytes alive, without those of :meth:`copy`.
        most: The most so far.
    """

    def __init__(self, as_cuda: bool, number: int) -> None:
        super().__init__()
        self.as_cuda, self.number = as_cuda, number
        self.now = self.most = 0
        self._bytes: dict[int, int] = {}

    def copy(self, model: Any) -> Any:
        """Return a copy of modules whose parameters and buffers are shapes, and are not counted."""
        modules = [part for part in (model if isinstance(model, tuple) else (model,)) if isinstance(part, nn.Module)]
        memo: dict[int, Any] = {}
        for part in modules:
            for tensor in (*part.parameters(), *part.buffers()):
                bare = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
                self._bytes[bare.untyped_storage()._cdata] = 0
                with self:
                    shape = self._outer(bare)
                    is_weight = isinstance(tensor, nn.Parameter)
                    memo[id(tensor)] = nn.Parameter(shape, tensor.requires_grad) if is_weight else shape
        return copy.deepcopy(model, memo)

    def running(self, half: torch.dtype | None) -> AbstractContextManager[Any]:
        """Return a block in which operations are counted, under autocast to ``half`` if it is given."""
        stack = ExitStack()
        stack.enter_context(self)
        if half is not None:
            stack.enter_context(torch.autocast("cpu", half))
        if self.as_cuda:
            stack.enter_context(_FusedAttention())
        return stack

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _ops._local_scalar_dense.default and isinstance(args[0], Shape):
            return args[0].answer if args[0].dtype is torch.bool else self.number
        if func in (_ops.equal.default, _ops.allclose.default):
            return True
        outer: dict[int, Shape] = {}

        def inner(x: Any) -> Any:
            if isinstance(x, Shape):
                outer[id(x.bare)] = x
                return x.bare
            return x.to("meta") if isinstance(x, Tensor) and x.dim() else x

        args, kwargs = tree_map(inner, args), tree_map(inner, kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = torch.device("meta")

        def seen(x: Any) -> Any:
            if not isinstance(x, Tensor) or not x.is_meta:
                return x
            return outer[id(x)] if id(x) in outer else self._outer(x, answer)

        answer = func.overloadpacket is not _ops.any
        return tree_map(seen, func(*args, **kwargs))

    def _outer(self, bare: Tensor, answer: bool = True) -> Shape:
        storage = bare.untyped_storage()
        if storage._cdata not in self._bytes:
            self._bytes[storage._cdata] = storage.nbytes()
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._freed, storage._cdata)
        return Shape(bare, self.as_cuda, answer)

    def _freed(self, address: int) -> None:
        self.now -= self._bytes.pop(address)


class _FusedAttention(TorchFunctionMode):
    """Attention as a GPU's fused kernel computes it, which keeps no matrix of positions and repeats no key."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention and kwargs.get("attn_mask") is None:
            dropout, is_causal = kwargs.get("dropout_p", 0.0), kwargs.get("is_causal", False)
            return _ops._scaled_dot_product_flash_attention(*args[:3], dropout, is_causal)[0]
        return func(*args, **kwargs)
