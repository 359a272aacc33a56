"""Metric states that hold strings and still travel between ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors

_END = 0xFF  # never a byte of UTF-8, so it can end a string


def pack_strings(strings: Iterable[str]) -> Tensor:
    """Write strings into one byte tensor, so that ``all_gather`` and ``torch.cat`` work on them.

    Returns:
        uint8 tensor of shape [num_bytes]; ``unpack_strings`` reads it back, also after concatenation.
    """
    data = bytearray()
    for string in strings:
        data += string.encode("utf-8", "surrogatepass")
        data.append(_END)
    return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def unpack_strings(packed: Tensor) -> list[str]:
    """Read the strings of one (concatenated) tensor of ``pack_strings``."""
    pieces = packed.cpu().numpy().tobytes().split(bytes([_END]))
    return [piece.decode("utf-8", "surrogatepass") for piece in pieces[:-1]]


class StringStateMetric(Metric):
    """A ``torchmetrics.Metric`` with list states of one-dimensional tensors of a fixed type.

    ``torchmetrics`` stands in a float tensor for the state of a rank that saw no data; gathered beside the
    bytes or counts of other ranks it would be garbage. This class keeps every list state in its own type.
    States are never persistent, so no text enters a checkpoint.
    """

    full_state_update = False

    def __init__(self, **kwargs: Any) -> None:
        """Args: kwargs: passed to ``torchmetrics.Metric``."""
        super().__init__(**kwargs)
        self._list_types: dict[str, torch.dtype] = {}

    def add_list_state(self, name: str, dtype: torch.dtype) -> None:
        """Add a list state of 1-D tensors of ``dtype`` that ranks concatenate."""
        self.add_state(name, default=[], dist_reduce_fx="cat", persistent=False)
        self._list_types[name] = dtype

    def append_state(self, name: str, values: Tensor) -> None:
        """Append a 1-D tensor to a list state."""
        getattr(self, name).append(values.to(device=self.device, dtype=self._list_types[name]))

    def joined_state(self, name: str) -> Tensor:
        """The whole list state as one 1-D tensor, before or after ranks were joined."""
        state = getattr(self, name)
        if isinstance(state, Tensor):
            return state
        return torch.cat(state) if state else torch.empty(0, dtype=self._list_types[name], device=self.device)

    def _sync_dist(self, dist_sync_fn: Any = gather_all_tensors, process_group: Any | None = None) -> None:
        for name in self._list_types:
            setattr(self, name, [self.joined_state(name)])
        super()._sync_dist(dist_sync_fn, process_group)
