"""The actions that a parser chooses from, numbered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from doppel.errors import UserError
from doppel.lispress import LispressError, String, read, to_graph
from doppel.lispress.function_types import bare_symbols
from doppel.lispress.graph import TYPE, argument_number
from doppel.parsing.build_order import build_steps
from doppel.text.words import pieces_of

PAD, BOS, END, STRING_OPEN, STRING_CLOSE, COPY = range(6)
"""The actions that every vocabulary starts with."""

ROOT = ":root"
"""Label of the arcs from the virtual root to the statements of a program."""

_FIRST_NODE = 6
_NUM_BYTES = 256


@dataclass(frozen=True)
class ActionVocabulary:
    """All actions, numbered from 0: six fixed ones, nodes, RA arcs, LA arcs, string pieces, bytes.

    A vocabulary is read off the trees that a parser is trained on, and is therefore as private as they are.

    Attributes:
        nodes: Labels of nodes other than strings; numbers are among them.
        right_arcs: Labels of arcs from an earlier node to the new one; `ROOT` first, then `:type`,
            `:type-arg0` …, `:arg0` …, keywords.
        left_arcs: Labels of arcs from the new node to an earlier one; a part of `right_arcs`, in its order.
        string_pieces: Pieces of strings, with the white space before them as `pieces_of` keeps it.
        constants: Those of `nodes` that are written bare rather than as a call without arguments.
    """

    nodes: tuple[str, ...]
    right_arcs: tuple[str, ...]
    left_arcs: tuple[str, ...]
    string_pieces: tuple[str, ...]
    constants: tuple[str, ...]

    @classmethod
    def build(cls, trees: Iterable[str], min_piece_count: int = 2) -> ActionVocabulary:
        """Collect the labels of trees, the most frequent first.

        Args:
            trees: Lispress. A tree that is not well-formed or that the parser cannot build is passed over.
            min_piece_count: String pieces seen less often than this have no action of their own; they are
                copied from the utterance or spelled in bytes.

        Raises:
            UserError: No tree could be used.
        """
        nodes: Counter[str] = Counter()
        right: Counter[str] = Counter()
        left: Counter[str] = Counter()
        pieces: Counter[str] = Counter()
        constants: Counter[str] = Counter()
        for tree in trees:
            try:
                expression = read(tree)
                steps = build_steps(to_graph(expression))
            except LispressError:
                continue
            if steps is None:
                continue
            constants.update(bare_symbols(expression))
            for step in steps:
                if step.label.startswith('"'):
                    pieces.update(pieces_of(String(step.label[1:-1]).value))
                else:
                    nodes[step.label] += 1
                right.update(arc.label for arc in step.right if arc.node >= 0)
                left.update(arc.label for arc in step.left)
        if not nodes and not pieces:
            raise UserError("no tree to read the parser's vocabulary off: none is well-formed; check the training file")
        labels = _with_gaps_filled([*_ordered(right), *_ordered(left)])
        return cls(
            tuple(_ordered(nodes)),
            (ROOT, *labels),
            tuple(label for label in labels if label in left),
            tuple(piece for piece in _ordered(pieces) if pieces[piece] >= min_piece_count),
            tuple(_ordered(constants)),
        )

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> ActionVocabulary:
        """Rebuild from `to_dict`."""
        return cls(**{name: tuple(labels) for name, labels in fields.items()})

    def extended(self, other: ActionVocabulary) -> ActionVocabulary:
        """Return this vocabulary with what it lacks of another one, for a parser that learns from new trees."""
        right = _with_gaps_filled([*self.right_arcs[1:], *other.right_arcs[1:]])
        left = {*self.left_arcs, *other.left_arcs}
        nodes, pieces, constants = (
            tuple(dict.fromkeys((*getattr(self, name), *getattr(other, name))))
            for name in ("nodes", "string_pieces", "constants")
        )
        return ActionVocabulary(
            nodes, (ROOT, *right), tuple(label for label in right if label in left), pieces, constants
        )

    def numbers_in(self, other: ActionVocabulary) -> list[int]:
        """Return the number of each action in another vocabulary, -1 where that has it not; [len(self)]."""
        numbers = list(range(self.first_node))
        for name in ("node_ids", "right_arc_ids", "left_arc_ids", "string_piece_ids"):
            theirs = getattr(other, name)
            numbers += [other.first_right_arc] * (name == "right_arc_ids")  # ROOT, which the table leaves out
            numbers += [theirs.get(label, -1) for label in getattr(self, name)]
        return numbers + list(range(other.first_byte, len(other)))

    def to_dict(self) -> dict[str, list[str]]:
        """Return the vocabulary in JSON primitives."""
        return {name: list(labels) for name, labels in vars(self).items() if name in self.__dataclass_fields__}

    def __len__(self) -> int:
        return self.first_byte + _NUM_BYTES

    @property
    def first_node(self) -> int:
        """Number of the first node action."""
        return _FIRST_NODE

    @cached_property
    def first_right_arc(self) -> int:
        """Number of the first RA action, that of `ROOT`."""
        return _FIRST_NODE + len(self.nodes)

    @cached_property
    def first_left_arc(self) -> int:
        """Number of the first LA action."""
        return self.first_right_arc + len(self.right_arcs)

    @cached_property
    def first_string_piece(self) -> int:
        """Number of the first string piece."""
        return self.first_left_arc + len(self.left_arcs)

    @cached_property
    def first_byte(self) -> int:
        """Number of the byte 0."""
        return self.first_string_piece + len(self.string_pieces)

    @cached_property
    def node_ids(self) -> dict[str, int]:
        """Action of every node label."""
        return {label: id for id, label in enumerate(self.nodes, self.first_node)}

    @cached_property
    def right_arc_ids(self) -> dict[str, int]:
        """Action of every RA label but `ROOT`, whose name a keyword may share."""
        return {label: id for id, label in enumerate(self.right_arcs[1:], self.first_right_arc + 1)}

    @cached_property
    def left_arc_ids(self) -> dict[str, int]:
        """Action of every LA label."""
        return {label: id for id, label in enumerate(self.left_arcs, self.first_left_arc)}

    @cached_property
    def string_piece_ids(self) -> dict[str, int]:
        """Action of every string piece."""
        return {piece: id for id, piece in enumerate(self.string_pieces, self.first_string_piece)}

    def spell(self, piece: str) -> list[int]:
        """Return the bytes of a piece, as actions."""
        return [self.first_byte + byte for byte in piece.encode()]

    def is_arc(self, action: int) -> bool:
        """Return whether an action is RA or LA, and so needs a pointer."""
        return self.first_right_arc <= action < self.first_string_piece


def _ordered(counts: Counter[str]) -> list[str]:
    """The most frequent first, ties in the order of the alphabet, so that the order of the trees is no matter."""
    return sorted(counts, key=lambda label: (-counts[label], label))


def _with_gaps_filled(labels: list[str]) -> list[str]:
    """Distinct labels in the order of `right_arcs`, every `:arg{i}` with those before it."""
    numbers = [found for found in map(argument_number, labels) if found is not None]
    num_types = max((number + 1 for of_types, number in numbers if of_types), default=0)
    num_arguments = max((number + 1 for of_types, number in numbers if not of_types), default=0)
    return [
        *([TYPE] if TYPE in labels else []),
        *(f":type-arg{number}" for number in range(num_types)),
        *(f":arg{number}" for number in range(num_arguments)),
        *dict.fromkeys(label for label in labels if label != TYPE and argument_number(label) is None),
    ]
