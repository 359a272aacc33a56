"""From tree to actions, to train a parser on."""

from __future__ import annotations

from collections.abc import Sequence

from doppel.lispress import String, read, to_graph
from doppel.parsing.actions import Actions
from doppel.parsing.build_order import Step, build_steps
from doppel.parsing.vocabulary import BOS, COPY, END, STRING_CLOSE, STRING_OPEN, ActionVocabulary
from doppel.text.words import pieces_of


def encode(tree: str, utterance: str, vocabulary: ActionVocabulary) -> Actions | None:
    """Return the one action sequence by which `doppel.parsing.ParserMachine` builds a tree's graph.

    A piece of a string that equals a piece of the utterance is copied, in the longest runs there are; another
    piece is its own action where the vocabulary has it, and is spelled in bytes where not.

    None when a label is not in the vocabulary or the graph lies outside the parser's language (see
    `doppel.parsing.build_order`).

    Raises:
        LispressError: The tree is not well-formed.
    """
    steps = build_steps(to_graph(read(tree)))
    return None if steps is None else _encode_steps(steps, pieces_of(utterance), vocabulary)


def _encode_steps(steps: list[Step], source: list[str], vocabulary: ActionVocabulary) -> Actions | None:
    actions = [(BOS, -1, -1)]
    positions = []
    for step in steps:
        positions.append(len(actions))
        if step.label.startswith('"'):
            pieces = _string_actions(String(step.label[1:-1]).value, source, vocabulary)
            if pieces is None:
                return None
            actions += ((STRING_OPEN, -1, -1), *((action, -1, copy) for action, copy in pieces), (STRING_CLOSE, -1, -1))
        else:
            actions.append((vocabulary.node_ids.get(step.label, -1), -1, -1))
        for arcs, numbers in ((step.right, vocabulary.right_arc_ids), (step.left, vocabulary.left_arc_ids)):
            for arc in arcs:
                if arc.node < 0:
                    actions.append((vocabulary.first_right_arc, 0, -1))
                else:
                    actions.append((numbers.get(arc.label, -1), positions[arc.node], -1))
    ids, pointers, copies = map(list, zip(*actions, (END, -1, -1), strict=True))
    return None if -1 in ids else Actions(ids, pointers, copies)


def _string_actions(text: str, source: Sequence[str], vocabulary: ActionVocabulary) -> list[tuple[int, int]] | None:
    """The action for every piece of a string, with the source piece that it copies or -1."""
    pieces = pieces_of(text)
    actions: list[tuple[int, int]] = []
    place = 0
    while place < len(pieces):
        start, length = _longest_run(pieces, place, source)
        if length:
            actions += ((COPY, start + offset) for offset in range(length))
            place += length
            continue
        piece = pieces[place]
        number = vocabulary.string_piece_ids.get(piece)
        if number is not None:
            actions.append((number, -1))
        else:
            try:
                actions += ((byte, -1) for byte in vocabulary.spell(piece))
            except UnicodeEncodeError:
                return None
        place += 1
    return actions


def _longest_run(pieces: Sequence[str], place: int, source: Sequence[str]) -> tuple[int, int]:
    """Where in the source the pieces from `place` on occur for longest, the first such place, and how long."""
    best = (-1, 0)
    for start in range(len(source)):
        length = 0
        while place + length < len(pieces) and start + length < len(source):
            copied = source[start + length]
            if (copied if place + length else copied.lstrip()) != pieces[place + length]:
                break
            length += 1
        if length > best[1]:
            best = (start, length)
    return best
