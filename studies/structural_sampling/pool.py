"""A pool of programs, each kind of program held once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from studies.structural_sampling import programs
from studies.structural_sampling.structures import Structures, structures


@dataclass
class Pool:
    """Rows by what they have in common.

    Attributes:
        queries: Distinct programs without entities, in the order of their first rows.
        query_of_row: Which of them each row is, (rows,).
    """

    queries: list[str] = field(default_factory=list)
    query_of_row: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))

    @classmethod
    def of(cls, abstract_queries: Iterable[str]) -> Pool:
        """A pool of rows, each given by its :func:`~studies.structural_sampling.programs.abstract_query`."""
        known: dict[str, int] = {}
        rows = np.fromiter((known.setdefault(query, len(known)) for query in abstract_queries), np.int32)
        return cls(list(known), rows)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Rows of each query, (queries,)."""
        return np.bincount(self.query_of_row, minlength=len(self.queries))

    @cached_property
    def _templates(self) -> tuple[list[str], NDArray[np.int32]]:
        known: dict[str, int] = {}
        of_query = (known.setdefault(programs.template(query), len(known)) for query in self.queries)
        numbers = np.fromiter(of_query, np.int32, len(self.queries))
        return list(known), numbers

    @property
    def templates(self) -> list[str]:
        """Distinct abstract templates."""
        return self._templates[0]

    @property
    def template_of_query(self) -> NDArray[np.int32]:
        """Which of them each query has, (queries,)."""
        return self._templates[1]

    @property
    def template_of_row(self) -> NDArray[np.int32]:
        """Which of them each row has, (rows,)."""
        return self.template_of_query[self.query_of_row]

    @cached_property
    def structures(self) -> Structures:
        """Atoms and weighted compounds of the queries.

        Raises:
            ProgramError: A program is not in the grammar; readers of files check that first.
        """
        return structures(map(programs.tree, self.queries), self.counts)
