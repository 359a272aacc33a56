"""A checkpoint read without PyTorch: who asks which weights these are need not wait for its import."""

from __future__ import annotations

import io
import mmap
import pickle
import re
import struct
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray


class _Unusual(Exception):
    """What is not plain."""


_NOT_PLAIN = (
    *(_Unusual, OSError, EOFError, struct.error, zipfile.BadZipFile, pickle.PickleError),
    *(ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError),  # of a pickle of nonsense
)
_LOCAL = struct.Struct("<4s5H3L2H")  # before each file of a zip; its name and an extra field follow
_END64, _LOCATOR, _END = struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL"), struct.Struct("<4s4H2LH")  # of a zip
_SIZES_BEHIND, _UTF8 = 0x8, 0x800  # flags of a file in a zip
#: Files of a checkpoint beside its storages.
_FILES = {"data.pkl", ".format_version", ".storage_alignment", "byteorder", "version", ".data/serialization_id"}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file that is mapped into memory.

    Attributes:
        shape: Of the tensor.
        dtype: As PyTorch writes it, such as ``torch.float32``.
    """

    shape: tuple[int, ...]
    dtype: str
    _elements: NDArray[np.void]
    _strides: tuple[int, ...]

    def content(self) -> memoryview:
        """The bytes of its values, in the order of the contiguous tensor."""
        strides = [self._elements.itemsize * stride for stride in self._strides]
        strided = np.lib.stride_tricks.as_strided(self._elements, self.shape, strides, writeable=False)
        return np.ascontiguousarray(strided).reshape(-1).view(np.uint8).data

    def __setstate__(self, state: Any) -> NoReturn:
        """Refuse a pickle that changes a tensor after it was made."""
        raise _Unusual


def read_plain(path: Path) -> dict[str, Any] | None:
    """A checkpoint as ``torch.load(path, weights_only=True)`` gives it, with a :class:`StoredTensor` for each tensor;
    None where the file is not just as ``torch.save`` writes one. It must stay as it is while the tensors are used.

    Formal guarantees:
        Whoever trusts what is read here must not be shown other weights than PyTorch loads from the same file. So
        nothing is read that two readers may read in two ways: the zip must be plain (one directory at its end, which
        all records agree on, no compression, no bytes between its files, no two names that differ in case alone), hold
        what ``torch.save`` writes and nothing else, each storage as long as its numbers; and the pickle may name
        ordered dictionaries, dense tensors, parameters and storages alone. The caller asks PyTorch about any other
        file.
    """
    try:
        with open(path, "rb") as file:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            content = _Reader(_records(file, mapped)).load()
    except _NOT_PLAIN:
        return None
    return content if isinstance(content, dict) else None


def _records(file: IO[bytes], mapped: memoryview) -> dict[str, memoryview]:
    """Contents of a plain zip by their names below its one folder."""
    total, start = _directory(mapped)
    found: dict[str, memoryview] = {}
    position = 0
    with zipfile.ZipFile(file) as archive:
        members = sorted(archive.infolist(), key=lambda member: member.header_offset)
    for member in members:
        signature, _, flags, method, *_, name_length, extra_length = _LOCAL.unpack_from(mapped, member.header_offset)
        begin = member.header_offset + _LOCAL.size + name_length + extra_length
        end = begin + member.file_size
        name = bytes(mapped[member.header_offset + _LOCAL.size :][:name_length])
        if (signature, method, name) != (b"PK\3\4", zipfile.ZIP_STORED, member.filename.encode()):
            raise _Unusual
        if member.header_offset != position or member.compress_type or member.compress_size != member.file_size:
            raise _Unusual
        if flags != member.flag_bits or flags & ~(_UTF8 | _SIZES_BEHIND):
            raise _Unusual
        found[member.filename] = mapped[begin:end]
        position = end
        if flags & _SIZES_BEHIND:
            position += 24 if mapped[end + 16 : end + 20] not in (b"PK\3\4", b"PK\1\2") else 16
    (folder,) = {name.partition("/")[0] for name in found}
    inner = {name.removeprefix(f"{folder}/"): content for name, content in found.items()}
    if position != start or len(inner) != total or len({name.lower() for name in found}) != total:
        raise _Unusual
    if any(name not in _FILES and not re.fullmatch(r"data/\d+", name) for name in inner):
        raise _Unusual
    if (inner["byteorder"], sys.byteorder) != (b"little", "little"):
        raise _Unusual
    return inner


def _directory(mapped: memoryview) -> tuple[int, int]:
    """Number of files and offset of the directory of a zip, as all three records behind it say them."""
    *large, total, size, start = _END64.unpack_from(mapped, len(mapped) - _END.size - _LOCATOR.size - _END64.size)
    locator = _LOCATOR.unpack_from(mapped, len(mapped) - _END.size - _LOCATOR.size)
    end = _END.unpack_from(mapped, len(mapped) - _END.size)
    is_large = (large[0], large[1], *large[4:]) == (b"PK\6\6", _END64.size - 12, 0, 0, total)
    if not is_large or locator != (b"PK\6\7", 0, start + size, 1):
        raise _Unusual
    short, long = min(total, 0xFFFF), 0xFFFFFFFF  # what does not fit is all ones
    if end != (b"PK\5\6", 0, 0, short, short, min(size, long), min(start, long), 0):
        raise _Unusual
    if start + size + _END64.size + _LOCATOR.size + _END.size != len(mapped):
        raise _Unusual
    return total, start


class _Reader(pickle.Unpickler):
    """Reads the pickle of a checkpoint, in which the storages are names of other files of the zip."""

    def __init__(self, records: Mapping[str, memoryview]) -> None:
        super().__init__(io.BytesIO(records["data.pkl"]))
        self._records = records
        self._types: dict[str, _Type] = {}

    def find_class(self, module: str, name: str) -> Any:
        """One of few classes and functions, or its stand-in."""
        if module == "torch" and name in _TYPES:
            return _TYPES[name]
        return _CLASSES[module, name]

    def persistent_load(self, pid: Any) -> Any:
        """The elements of a storage."""
        word, kind, key, _, length = pid
        if word != "storage" or not isinstance(kind, _Type) or self._types.setdefault(key, kind) is not kind:
            raise _Unusual
        record = self._records[f"data/{key}"]
        if type(length) is not int or len(record) != length * kind.itemsize:
            raise _Unusual
        return _Storage(kind, np.frombuffer(record, f"V{kind.itemsize}"))


class _Ordered(OrderedDict[Any, Any]):
    """An ordered dictionary that carries nothing but a module's ``_metadata``: no attribute hides its entries."""

    def __setstate__(self, state: Any) -> None:
        if set(state) != {"_metadata"}:
            raise _Unusual
        self.__dict__.update(state)


@dataclass(frozen=True)
class _Type:
    dtype: str
    itemsize: int

    def __setstate__(self, state: Any) -> NoReturn:
        raise _Unusual


@dataclass(frozen=True)
class _Storage:
    kind: _Type
    elements: NDArray[np.void]

    def __setstate__(self, state: Any) -> NoReturn:
        raise _Unusual


def _tensor(storage: Any, offset: int, shape: Any, strides: Any, requires_grad: Any, hooks: Any) -> StoredTensor:
    """What `torch._utils._rebuild_tensor_v2` makes: a view into a storage."""
    numbers = (offset, *shape, *strides)
    if not isinstance(storage, _Storage) or hooks or len(shape) != len(strides):
        raise _Unusual
    if any(type(number) is not int or number < 0 for number in numbers):
        raise _Unusual
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if offset > len(storage.elements) or (0 not in shape and last >= len(storage.elements)):
        raise _Unusual
    return StoredTensor(tuple(shape), storage.kind.dtype, storage.elements[offset:], tuple(strides))


def _parameter(data: Any, requires_grad: Any, hooks: Any) -> StoredTensor:
    """What `torch._utils._rebuild_parameter` makes; a parameter is fingerprinted as its tensor."""
    if not isinstance(data, StoredTensor) or hooks:
        raise _Unusual
    return data


#: Storages that hold plain numbers: their type as ``str(tensor.dtype)`` says it, and bytes an element.
_TYPES = {
    "DoubleStorage": _Type("torch.float64", 8),
    "FloatStorage": _Type("torch.float32", 4),
    "HalfStorage": _Type("torch.float16", 2),
    "BFloat16Storage": _Type("torch.bfloat16", 2),
    "LongStorage": _Type("torch.int64", 8),
    "IntStorage": _Type("torch.int32", 4),
    "ShortStorage": _Type("torch.int16", 2),
    "CharStorage": _Type("torch.int8", 1),
    "ByteStorage": _Type("torch.uint8", 1),
    "BoolStorage": _Type("torch.bool", 1),
}
_CLASSES: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): _Ordered,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
}
