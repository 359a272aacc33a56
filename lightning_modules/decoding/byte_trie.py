"""The bytes that each token of a byte-level tokenizer stands for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from doppel.errors import UserError


class ByteTrie:
    """Tokens by their bytes.

    Attributes:
        children: For each node, the node that each byte leads to; node 0 is the root.
        tokens: For each node, the ids of the tokens that end there.
    """

    def __init__(self, tokens: Iterable[tuple[int, bytes]]) -> None:
        self.children: list[dict[int, int]] = [{}]
        self.tokens: list[list[int]] = [[]]
        for number, spelling in tokens:
            node = 0
            for byte in spelling:
                node = self.children[node].setdefault(byte, len(self.children))
                if node == len(self.children):
                    self.children.append({})
                    self.tokens.append([])
            self.tokens[node].append(number)

    def has(self, byte: int) -> bool:
        """Whether a token is this one byte."""
        node = self.children[0].get(byte)
        return node is not None and bool(self.tokens[node])


def token_bytes(tokenizer: Any) -> list[bytes]:
    """What each id of a byte-level BPE tokenizer adds to a text; nothing for special and added tokens.

    Args:
        tokenizer: A Hugging Face tokenizer.

    Returns:
        One spelling for each id, in the order of the ids.

    Raises:
        UserError: The tokenizer is of another kind.
    """
    name = tokenizer.name_or_path
    decoder = json.loads(tokenizer.backend_tokenizer.to_str())["decoder"] if tokenizer.is_fast else None
    if decoder is None or decoder["type"] != "ByteLevel":
        raise UserError(
            "sampling.grammar needs a byte-level BPE tokenizer, as GPT-2, Llama 3 or models/base have; that of "
            f"{name!r} is of another kind: leave sampling.grammar at null for this model"
        )
    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    added = set(tokenizer.added_tokens_decoder) | set(tokenizer.all_special_ids)
    spellings = [b""] * len(tokenizer)
    for token, number in tokenizer.get_vocab().items():
        if number not in added and all(character in byte_of for character in token):
            spellings[number] = bytes(byte_of[character] for character in token)
    return spellings
