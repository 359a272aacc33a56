"""What the state machine looks up: a vocabulary's labels as bits, its actions as masks."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from functools import lru_cache

import numpy as np

from doppel.lispress.graph import PARAMETER, TYPE, argument_number, is_literal
from doppel.parsing.build_order import LAMBDA, can_be_type, can_be_value
from doppel.parsing.vocabulary import COPY, END, PAD, STRING_CLOSE, STRING_OPEN, ActionVocabulary

_MAX_MASKS = 8192
"""Masks kept for reuse: some ten megabytes. A parser meets a few hundred different ones."""


class Group(IntFlag):
    """Groups of actions that are allowed together; a node label may belong to several."""

    END = 1
    VALUE = 2
    TYPE = 4
    LAMBDA = 8
    PARAMETER = 16
    STRING = 32
    STRING_CLOSE = 64
    COPY = 128
    PAD = 256


class Kind(IntEnum):
    """What a node is, which says what edges may leave it."""

    ROOT = 0
    FUNCTION = 1
    LEAF = 2
    TYPE = 3
    LAMBDA = 4


class Tables:
    """Facts about a vocabulary, shared by all machines that use it.

    An edge label is a bit: bit i stands for ``vocabulary.right_arcs[i]``, so bit 0 for `ROOT`; an LA label uses the
    bit of the RA label of the same name.

    Attributes:
        type_bit: Bit of ``:type``; 0 where the vocabulary lacks it.
        type_argument_bits: Bits of ``:type-arg0`` ….
        first_argument, argument_bits: Number of the bit of ``:arg0``; all bits of this kind.
        keyword_bits: The rest but `ROOT`.
        left, left_bits: Number of the bit of every LA label; their bits.
        groups: For every node action and ``<str>``, to which of the `Group` the label belongs, as plain integers.
        kinds: Likewise, what kind of node it makes unless it stands for a type.
        calls: Actions of nodes that are written as a call, whatever follows, bool[len(vocabulary)]: no word alone.
        has_lambda: Whether some label is a lambda.
        has_pure_type: Whether some label can only be a type.
    """

    def __init__(self, vocabulary: ActionVocabulary) -> None:
        self.vocabulary = vocabulary
        labels = vocabulary.right_arcs
        numbers = [None, *map(argument_number, labels[1:])]
        type_arguments = [i for i, found in enumerate(numbers) if found and found[0]]
        arguments = [i for i, found in enumerate(numbers) if found and not found[0]]
        self.type_bit = sum(1 << i for i, label in enumerate(labels) if i and label == TYPE)
        self.type_argument_bits = sum(1 << i for i in type_arguments)
        self.first_argument = min(arguments, default=0)
        self.argument_bits = sum(1 << i for i in arguments)
        self.keyword_bits = sum(1 << i for i, label in enumerate(labels) if i and label != TYPE and numbers[i] is None)
        self.left = [labels.index(label, 1) for label in vocabulary.left_arcs]
        self.left_bits = sum(1 << i for i in self.left)

        self.groups = {STRING_OPEN: int(Group.VALUE)} | {
            id: _groups(label) for label, id in vocabulary.node_ids.items()
        }
        self.kinds = {STRING_OPEN: Kind.LEAF} | {id: _kind(label) for label, id in vocabulary.node_ids.items()}
        self.calls = np.zeros(len(vocabulary), dtype=bool)
        self.calls[[id for label, id in vocabulary.node_ids.items() if _is_call(label, vocabulary.constants)]] = True
        self.has_lambda = LAMBDA in vocabulary.node_ids
        self.has_pure_type = Group.TYPE in self.groups.values()
        self.mask = lru_cache(_MAX_MASKS)(self._mask)

    def _mask(self, groups: int, right: int, left: int) -> np.ndarray:
        """Which actions are allowed by bits of `Group`, of RA and of LA labels, bool[len(vocabulary)], read-only."""
        vocabulary = self.vocabulary
        mask = np.zeros(len(vocabulary), dtype=bool)
        for action, of_action in self.groups.items():
            mask[action] = bool(groups & of_action)
        for i in range(len(vocabulary.right_arcs)):
            mask[vocabulary.first_right_arc + i] = bool(right >> i & 1)
        for place, i in enumerate(self.left):
            mask[vocabulary.first_left_arc + place] = bool(left >> i & 1)
        mask[PAD] = bool(groups & Group.PAD)
        mask[END] = bool(groups & Group.END)
        mask[COPY] = bool(groups & Group.COPY)
        mask[STRING_CLOSE] = bool(groups & (Group.STRING | Group.STRING_CLOSE))
        mask[vocabulary.first_string_piece :] = bool(groups & Group.STRING)
        mask.flags.writeable = False
        return mask


@lru_cache(maxsize=8)
def tables_of(vocabulary: ActionVocabulary) -> Tables:
    """Return the tables of a vocabulary, made once."""
    return Tables(vocabulary)


def _groups(label: str) -> int:
    if label in (LAMBDA, PARAMETER):
        return int(Group.LAMBDA if label == LAMBDA else Group.PARAMETER)
    return int(Group.VALUE) * can_be_value(label) | int(Group.TYPE) * can_be_type(label)


def _is_call(label: str, constants: tuple[str, ...]) -> bool:
    return _kind(label) in (Kind.FUNCTION, Kind.LAMBDA) and label not in constants


def _kind(label: str) -> Kind:
    if label == LAMBDA:
        return Kind.LAMBDA
    return Kind.LEAF if is_literal(label) or label == PARAMETER else Kind.FUNCTION
