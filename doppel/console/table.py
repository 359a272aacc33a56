"""One table, written as aligned text or as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Table:
    """Rows of cells below headings.

    Attributes:
        headings: One a column.
        rows: Cells, which may be values or text.
    """

    headings: Sequence[str]
    rows: list[list[Any]] = field(default_factory=list)

    def text(self, align: str = ">") -> str:
        """Render aligned columns; the first one is on the left, the others as ``align`` says, ``<`` or ``>``."""
        lines = [[show(cell) for cell in row] for row in (self.headings, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligns = ["<", *[align] * (len(widths) - 1)]
        cells = ((f"{c:{a}{w}}" for c, a, w in zip(line, aligns, widths, strict=True)) for line in lines)
        return "\n".join("  ".join(line).rstrip() for line in cells)

    def markdown(self) -> str:
        """Render markdown, without a line break at the end."""
        lines = [self.headings, ["---"] * len(self.headings), *self.rows]
        cells = ([show(cell).replace("|", "\\|") for cell in line] for line in lines)
        return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def show(value: Any) -> str:
    """Format a value for people: four digits of a float, a dash for None."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
