"""A checkpoint that is read without PyTorch is the one that PyTorch reads, or it is left to PyTorch."""

from __future__ import annotations

import pickle
import struct
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from doppel.privacy.checkpoint import read_checkpoint, weights_fingerprint
from doppel.privacy.stored_checkpoint import StoredTensor, read_plain

TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8)


def saved(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def checkpoint() -> dict[str, Any]:
    """What a training saves: a module with a tied and a frozen parameter, numbers beside it, an optimizer's state."""
    module = nn.Sequential(nn.Linear(3, 5), nn.Embedding(5, 3), nn.BatchNorm1d(3))
    module[1].weight = module[0].weight
    state = {"weight": torch.randn(2, 3), "step": torch.tensor(4.0)}
    return {"state_dict": module.state_dict(), "optimizer_states": [state], "callbacks": {"a": (1, 2.5, None, "é")}}


@pytest.mark.parametrize("dtype", [*TYPES, torch.uint8, torch.bool], ids=str)
def test_each_type_shape_and_stride_has_the_fingerprint_that_pytorch_gives(tmp_path: Path, dtype: torch.dtype) -> None:
    base = (torch.randn(4, 6, 2) * 9).to(dtype)
    tensors = {
        "whole": base,
        "transposed": base.transpose(0, 2),
        "part of a storage": base[1:3, ::2],
        "one number": base[0, 0, 0],
        "repeated": base[:, :1].expand(4, 5, 2),
        "empty": base[:0],
        "parameter": nn.Parameter(base.clone(), requires_grad=False),
    }
    content = read_plain(saved(tmp_path / "a.ckpt", tensors))
    assert content is not None and all(isinstance(value, StoredTensor) for value in content.values())
    for name, value in tensors.items():
        assert weights_fingerprint({name: content[name]}) == weights_fingerprint({name: value}), name


def test_a_checkpoint_has_the_same_content_either_way(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.ckpt", checkpoint())
    plain, torchs = read_plain(path), read_checkpoint(path)
    assert plain is not None and list(plain) == list(torchs)
    for name in ("state_dict", "optimizer_states", "callbacks"):
        assert weights_fingerprint({"": plain[name]}) == weights_fingerprint({"": torchs[name]})
    assert list(plain["state_dict"]) == list(torchs["state_dict"])


def test_one_changed_bit_of_the_weights_is_another_fingerprint(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.ckpt", {"weight": torch.randn(100)})
    before = weights_fingerprint(read_plain(path) or {})
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        header = archive.getinfo("a/data/0").header_offset
    content[header + 30 + sum(struct.unpack_from("<2H", content, header + 26))] ^= 1
    path.write_bytes(content)
    assert weights_fingerprint(read_plain(path) or {}) == weights_fingerprint(read_checkpoint(path)) != before


class _Call:
    """Pickled as a call."""

    def __init__(self, function: Callable[..., Any], *args: Any, state: Any = None) -> None:
        self.call = (function, args) if state is None else (function, args, state)

    def __reduce__(self) -> Any:
        return self.call


def _complex() -> Any:
    return {"a": torch.randn(2, dtype=torch.complex64)}


def _conjugate() -> Any:
    return {"a": torch.randn(2, dtype=torch.complex64).conj()}


def _sparse() -> Any:
    return {"a": torch.eye(3).to_sparse()}


def _another_class() -> Any:
    return {"a": Path("here")}


def _hidden_entries() -> Any:
    return {"state_dict": _Call(OrderedDict, (("a", 1),), state={"items": OrderedDict})}


@pytest.mark.parametrize("make", [_complex, _conjugate, _sparse, _another_class, _hidden_entries])
def test_what_is_no_plain_tensor_or_number_is_left_to_pytorch(tmp_path: Path, make: Callable[[], Any]) -> None:
    assert read_plain(saved(tmp_path / "a.ckpt", make())) is None


def _rewritten(path: Path, **changes: bytes) -> bytes:
    """The same zip by PyTorch's own writer, with other contents."""
    with zipfile.ZipFile(path) as archive:
        members = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    written = path.with_name("written.ckpt")
    writer = torch._C.PyTorchFileWriter(str(written))
    for name, content in (members | changes).items():
        if name not in ("version", ".data/serialization_id"):  # which it writes itself
            writer.write_record(name, content, len(content))
    writer.write_end_of_file()
    return written.read_bytes()


def _two_names(content: bytes) -> bytes:
    """Two storages of names that a reader may take for one."""
    return content.replace(b"a/data/1", b"A/data/0")


CHANGES: dict[str, Callable[[Path], bytes]] = {
    "bytes before": lambda path: b"PK" + path.read_bytes(),
    "bytes behind": lambda path: path.read_bytes() + b"\0",
    "cut": lambda path: path.read_bytes()[:-1],
    "another zip before": lambda path: path.read_bytes() * 2,
    "comment": lambda path: path.read_bytes()[:-2] + b"\1\0x",
    "two names that differ in case": lambda path: _two_names(path.read_bytes()),
    "the same name twice": lambda path: path.read_bytes().replace(b"a/data/1", b"a/data/0"),
    "local name of another file": lambda path: path.read_bytes().replace(b"a/data/1", b"a/data/0", 1),
    "another file": lambda path: _rewritten(path, **{"code/x.py": b"1"}),
    "said to be compressed": lambda path: path.read_bytes()[:8] + b"\x08\0" + path.read_bytes()[10:],
    "big numbers first": lambda path: path.read_bytes().replace(b"little", b"biglit"),
    "no pickle": lambda path: path.read_bytes().replace(b"a/data.pkl", b"a/data.pkx"),
    "other number of files": lambda path: _recounted(path.read_bytes()),
    "not a zip": lambda path: pickle.dumps({"a": 1}),
    "nothing": lambda path: b"",
}


def _recounted(content: bytes) -> bytes:
    at = len(content) - 22 + 8
    return content[:at] + struct.pack("<HH", 1, 1) + content[at + 4 :]


@pytest.mark.parametrize("change", CHANGES)
def test_a_zip_that_two_readers_may_read_in_two_ways_is_left_to_pytorch(tmp_path: Path, change: str) -> None:
    path = saved(tmp_path / "a.ckpt", {"state_dict": OrderedDict(one=torch.zeros(2), two=torch.ones(2))})
    assert read_plain(path) is not None
    path.write_bytes(CHANGES[change](path))
    assert read_plain(path) is None


@pytest.mark.parametrize("length", [4, 8, 12])
def test_a_storage_is_as_long_as_its_numbers(tmp_path: Path, length: int) -> None:
    path = saved(tmp_path / "a.ckpt", {"a": torch.zeros(2)})
    path.write_bytes(_rewritten(path, **{"data/0": bytes(length)}))
    assert (read_plain(path) is not None) == (length == 8)


def test_no_view_reaches_beyond_its_storage(tmp_path: Path) -> None:
    whole = torch.zeros(6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        storage = whole.storage()

    def is_read(offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
        view = _Call(torch._utils._rebuild_tensor_v2, storage, offset, shape, strides, False, OrderedDict())
        return read_plain(saved(tmp_path / "a.ckpt", {"a": view})) is not None

    assert is_read(2, (2, 2), (2, 1)) and is_read(6, (0,), (1,))
    for view in ((3, (2, 2), (2, 1)), (0, (7,), (1,)), (7, (0,), (1,)), (-1, (2,), (1,)), (5, (2,), (-1,))):
        assert not is_read(*view), view
