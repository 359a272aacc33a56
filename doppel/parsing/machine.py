"""The transition system of the semantic parser: which action sequences there are, and which program each builds.

A program graph (`doppel.lispress.Graph`) is built top down, as in Zhou et al. 2022, *Online Semantic Parsing for
Latency Reduction in Task-Oriented Dialogue*, whose parser Mireshghallah et al. use. Position 0 of the sequence, BOS,
stands for a virtual root. Then come the nodes, depth first in the order of their first visit, each as

1. its node action: a label, or ``<str> piece … </str>`` for a string, whose pieces are copied from the utterance
   (COPY), taken from the vocabulary, or spelled in bytes;
2. one or more arcs ``-RA-(position, label)``, edges from an earlier node to this one;
3. any number of arcs ``-LA-(position, label)``, edges from this one to an earlier node: a value that is used again.

An arc points to the position of the other node's action (to ``<str>`` for a string); the arcs of a kind come nearest
node first. Statements hang on position 0 by RA with label ``:root``. END closes the sequence.

Where this departs from the published parser, it is so that *every* sequence the machine lets through is a
well-formed program, whatever the network prefers:

- **Stack discipline.** The nodes from the virtual root to the newest node are open. The first RA of a node comes from
  an open node and closes all open nodes below that one; further RAs come from open nodes farther up; LAs lead to
  closed nodes. So no cycle can arise, and a graph fixes its sequence but for the order in which the children of
  a node are visited (the oracle takes types, then arguments by number, then keywords as the graph has them).
- **Arguments.** Labels of the edges out of one node are distinct, and the first RA takes the lowest ``:arg{i}`` that
  is free. LAs and further RAs may leave gaps; a node with a gap (or a lambda without its body or its parameters)
  stays open, and no statement or END may come, until the gap is filled.
- **Types.** What ``:type`` and ``:type-arg{i}`` lead to is a type: it has only type arguments and is never shared.
  Strings, numbers and parameters have no edges out but ``:type``.
- **Lambda.** Parameters come first, then the body; the body's label (``:arg2`` for two parameters) is the last. A
  value that depends on a parameter is not used outside the body of its lambda.
- **Depth.** Nodes near the reader's greatest nesting take no arguments.
- **An end.** After `max_actions` actions, strings are closed, gaps are filled with leaves, and END is all that is left.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from doppel.lispress import Edge, Graph, String, write
from doppel.lispress.from_graph import to_expression
from doppel.parsing.actions import Actions
from doppel.parsing.build_order import edge_rank
from doppel.parsing.growing_graph import GrowingGraph
from doppel.parsing.tables import Group, tables_of
from doppel.parsing.vocabulary import BOS, COPY, END, STRING_CLOSE, STRING_OPEN, ActionVocabulary


class ParserMachine:
    """The state of one parse: what may come next, and what was built.

    BOS is applied already. In every state at least one action is allowed, and for an allowed arc at least one pointer,
    until END; after END only PAD is, which changes nothing. Nodes are numbered from 1 here, 0 is the virtual root.

    Args:
        vocabulary: The actions.
        num_source_pieces: How many pieces the utterance has.
        max_actions: From this length on, the machine only lets finish what is begun.

    Attributes:
        done: Whether END was applied.
        actions: What was applied so far, BOS first.
    """

    def __init__(self, vocabulary: ActionVocabulary, num_source_pieces: int, max_actions: int) -> None:
        self.vocabulary = vocabulary
        self.num_source_pieces = num_source_pieces
        self.max_actions = max_actions
        self._tables = tables_of(vocabulary)
        self.actions = Actions([BOS], [-1], [-1])
        self._positions = [0]
        self._node_at = {0: 0}
        self._string_ends: dict[int, int] = {}
        self._graph = GrowingGraph(self._tables)
        self._in_string = False
        self.done = False
        self._mask: np.ndarray | None = None

    @property
    def position(self) -> int:
        """Position of the next action."""
        return len(self.actions.ids)

    def allowed(self) -> np.ndarray:
        """Return which actions may come next, bool[len(vocabulary)]; shared between states and read-only."""
        if self._mask is None:
            self._mask = self._tables.mask(*self._allowed_bits())
        return self._mask

    def allowed_pointers(self, action_id: int) -> list[int]:
        """Return where an arc may point, nearest first; nothing for an action that is not allowed or is no arc."""
        vocabulary = self.vocabulary
        if not vocabulary.is_arc(action_id) or not self.allowed()[action_id]:
            return []
        if action_id >= vocabulary.first_left_arc:
            nodes = self._graph.left_targets()
        else:
            bit = 1 << (action_id - vocabulary.first_right_arc)
            nodes = [node for node, bits in self._graph.next_sources(self._is_finishing) if bits & bit]
        return [self._positions[node] for node in nodes]

    def apply(self, action_id: int, pointer: int = -1, copy: int = -1) -> None:
        """Apply one action.

        Args:
            action_id: An action that `allowed` allows.
            pointer: For an arc, one of its `allowed_pointers`; else left out.
            copy: For COPY, the number of a source piece; else left out.

        Raises:
            ValueError: The action, the pointer or the source piece is not allowed here.
        """
        vocabulary = self.vocabulary
        if not (0 <= action_id < len(vocabulary) and self.allowed()[action_id]):
            raise ValueError(f"action {action_id} is not allowed at position {self.position}: see allowed()")
        if self.done:
            return
        is_arc = vocabulary.is_arc(action_id)
        if is_arc and pointer not in self.allowed_pointers(action_id):
            raise ValueError(f"action {action_id} may not point to position {pointer}: see allowed_pointers()")
        if action_id == COPY and not 0 <= copy < self.num_source_pieces:
            raise ValueError(f"there is no source piece {copy} to copy: the utterance has {self.num_source_pieces}")
        self._mask = None
        if is_arc:
            node = self._node_at[pointer]
            if action_id < vocabulary.first_left_arc:
                self._graph.add_right(node, action_id - vocabulary.first_right_arc)
            else:
                self._graph.add_left(node, self._tables.left[action_id - vocabulary.first_left_arc])
        elif action_id == END:
            self.done = True
        elif action_id == STRING_CLOSE:
            self._in_string = False
            self._string_ends[self._graph.num_nodes] = self.position
        elif not self._in_string:
            self._in_string = action_id == STRING_OPEN
            self._graph.add_node(action_id, self._name(action_id))
            self._node_at[self.position] = self._graph.num_nodes
            self._positions.append(self.position)
        ids, pointers, copies = self.actions
        ids.append(action_id)
        pointers.append(pointer if is_arc else -1)
        copies.append(copy if action_id == COPY else -1)

    def graph(self, source: Sequence[str]) -> Graph:
        """Return the graph that was built, its nodes numbered in the order of their actions.

        Args:
            source: The pieces of the utterance, by `doppel.parsing.pieces_of`, for the strings copied from it.

        Raises:
            ValueError: The sequence has no END yet.
        """
        if not self.done:
            raise ValueError("the parse is not finished: apply actions until done")
        labels = self.vocabulary.right_arcs
        named = [(one - 1, labels[label], other - 1) for one, label, other in self._graph.edges if one]
        edges: list[Edge] = sorted(named, key=lambda edge: (edge[0], edge_rank(edge[1])))
        return Graph(tuple(self._label(node, source) for node in range(1, len(self._positions))), tuple(edges))

    def lispress(self, source: Sequence[str]) -> str:
        """Return the program that was built, as text; arguments and result as for `graph`."""
        return write(to_expression(self.graph(source), self.vocabulary.constants))

    @property
    def _is_finishing(self) -> bool:
        return self.position >= self.max_actions

    def _allowed_bits(self) -> tuple[int, int, int]:
        """Groups of actions, labels of RA and labels of LA that may come next."""
        graph, right = self._graph, 0
        if self.done:
            return int(Group.PAD), 0, 0
        if self._in_string:
            if self._is_finishing:
                return int(Group.STRING_CLOSE), 0, 0
            return int(Group.STRING | Group.COPY if self.num_source_pieces else Group.STRING), 0, 0
        if self._is_finishing and graph.num_nodes and not graph.is_pending:
            return graph.gap_groups() if graph.has_gap else int(Group.END), 0, 0
        for _, bits in graph.next_sources(self._is_finishing):
            right |= bits
        if graph.is_pending:
            return 0, right, 0
        can_end = graph.num_nodes and not graph.has_gap
        return graph.node_groups() | (int(Group.END) if can_end else 0), right, graph.left_labels()

    def _name(self, action: int) -> str:
        return '"' if action == STRING_OPEN else self.vocabulary.nodes[action - self.vocabulary.first_node]

    def _label(self, node: int, source: Sequence[str]) -> str:
        """The label of a node; a string's pieces are put together."""
        begin = self._positions[node]
        if node not in self._string_ends:
            return self._name(self.actions.ids[begin])
        vocabulary, text = self.vocabulary, bytearray()
        for position in range(begin + 1, self._string_ends[node]):
            action = self.actions.ids[position]
            if action == COPY:
                piece = source[self.actions.copies[position]]
                text += (piece if position > begin + 1 else piece.lstrip()).encode(errors="replace")
            elif action >= vocabulary.first_byte:
                text.append(action - vocabulary.first_byte)
            else:
                text += vocabulary.string_pieces[action - vocabulary.first_string_piece].encode(errors="replace")
        return f'"{String.of(text.decode(errors="replace")).spelling}"'
