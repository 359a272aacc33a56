"""Strings survive the byte tensors that ranks exchange."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from doppel.metrics.string_state import pack_strings, unpack_strings

ANY_TEXT = st.lists(st.text(st.characters(exclude_categories=[]), max_size=8), max_size=6)


@given(ANY_TEXT, ANY_TEXT)
def test_packed_strings_survive_concatenation(first: list[str], second: list[str]) -> None:
    packed = torch.cat([pack_strings(first), pack_strings(second)])
    assert packed.dtype == torch.uint8
    assert unpack_strings(packed) == first + second
