"""Keys and values of the rows that are being decoded, in preallocated buffers that are written in place."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

_GROWTH = 1.5  # of the buffers, in columns, when they are full


class RowCache(Cache):
    """A cache of ``max_rows`` rows, each of which writes at a column of its own.

    A row's entries lie from column 0 on, without padding, whatever the lengths of the other rows. What a query may
    look at is the caller's attention mask alone. Three things happen to rows, all of them without touching the others:
    a prompt is written into new rows (:meth:`write_prompts`), every row gets the entries of its next tokens
    (:meth:`write_next`), and rows are moved to where others have left (:meth:`move_rows`).

    The buffers of a layer have shape [rows, columns, heads, head size] and grow by half when their columns are used
    up; they take the type of the first keys and values that arrive, so autocast is followed.

    Args:
        num_layers: Layers of the model that have keys and values.
        max_rows: Most rows at a time.
        num_columns: Columns of the buffers at first.
    """

    def __init__(self, num_layers: int, max_rows: int, num_columns: int) -> None:
        self.max_rows = max_rows
        self.num_columns = num_columns
        #: Flat indices (row · columns + column) at which the next keys and values are written.
        self.targets = torch.empty(0, dtype=torch.long)
        #: Rows and columns that the queries see besides what is written now; (0, 0) while prompts are written.
        self.visible = (0, 0)
        self._row_layers = [_RowLayer(self) for _ in range(num_layers)]
        super().__init__(layers=[*self._row_layers])

    def write_prompts(self, rows: Tensor, length: int, source: Tensor) -> None:
        """Let the next forward write the first ``length`` entries of ``rows``, which see their own prompt only.

        Args:
            rows: Row indices of shape [R].
            length: Entries of each row.
            source: For each of the rows, the row of the forward's batch that holds its prompt.
        """
        self._reserve(length)
        columns_T = torch.arange(length, device=rows.device)
        self.targets = (rows[:, None] * self.num_columns + columns_T).flatten()
        self.visible = (0, 0)
        for layer in self._row_layers:
            layer.source = source

    def write_next(self, columns: Tensor, num_visible: int) -> None:
        """Let the next forward write row r's entries at ``columns[r]``; its queries see ``num_visible`` columns.

        Args:
            columns: Shape [rows, tokens], for rows 0, 1, …
            num_visible: More than every column in ``columns``.
        """
        self._reserve(num_visible)
        num_rows = columns.shape[0]
        rows = torch.arange(num_rows, device=columns.device)
        self.targets = (rows[:, None] * self.num_columns + columns).flatten()
        self.visible = (num_rows, num_visible)

    def move_rows(self, source: Tensor, target: Tensor, num_columns: int) -> None:
        """Copy the first ``num_columns`` entries of rows ``source`` over those of rows ``target``."""
        for buffer in self.buffers():
            buffer[target, :num_columns] = buffer[source, :num_columns]

    def buffers(self) -> list[Tensor]:
        """Return keys and values of every layer."""
        return [buffer for layer in self._row_layers for buffer in layer.buffers]

    def _reserve(self, num_columns: int) -> None:
        if num_columns <= self.num_columns:
            return
        old, self.num_columns = self.num_columns, max(num_columns, int(self.num_columns * _GROWTH))
        for layer in self._row_layers:
            layer.buffers = [F.pad(buffer, (0, 0, 0, 0, 0, self.num_columns - old)) for buffer in layer.buffers]


class _RowLayer(CacheLayerMixin):
    """Keys and values of one layer: the two ``buffers``, once they are there."""

    def __init__(self, cache: RowCache) -> None:
        super().__init__()
        self.cache = cache
        self.source = torch.empty(0, dtype=torch.long)
        self.buffers: list[Tensor] = []

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the buffers; zeros, because a masked entry must still be finite."""
        shape = self.cache.max_rows, self.cache.num_columns
        self.buffers = [states.new_zeros(*shape, *states.shape[1::2]) for states in (key_states, value_states)]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the states, of shape [rows, heads, tokens, head size], and return what the queries see."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        num_rows, num_visible = self.cache.visible
        seen = []
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            states_RTHD = states.transpose(1, 2)
            if num_rows == 0:
                states_RTHD = states_RTHD.index_select(0, self.source)
            buffer.flatten(0, 1).index_copy_(0, self.cache.targets, states_RTHD.flatten(0, 1).to(buffer.dtype))
            seen.append(states if num_rows == 0 else buffer[:num_rows, :num_visible].transpose(1, 2))
        return seen[0], seen[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Columns that the queries see, from column 0 on."""
        return self.cache.visible[1] or query_length, 0

    def get_seq_length(self) -> int:
        """No entry counts as seen before: positions and masks are explicit."""
        return 0

    def get_max_length(self) -> int:
        """No bound: the buffers grow."""
        return -1
