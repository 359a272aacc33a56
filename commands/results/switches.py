"""Switches beyond the paper, each against the two-stage run that it changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from commands.results.paper import PaperTable, tables
from commands.results.pool import Group
from commands.results.tables import NO_CELL, SECTION_FIELDS, Row, Section, differences, order_of

SWITCHES = ("warm_start", "constrained", "upweighted", "iterative", "shared")
#: A switch is compared with the two-stage runs that agree in all of these.
CONTEXT = (*SECTION_FIELDS, "epsilon", "delta", "unit", "accountant", "num_compared")


def switch_sections(groups: Sequence[Group]) -> list[Section]:
    """One table for each data set, model and so on: the two-stage rows, and the switches at the same ε beside them.

    Returns:
        Sections whose rows hold, as ``paper``, the difference to the two-stage row (– where there is no such row, or
        more than one to choose from).
    """
    layout = replace(tables()[0], id="S", title="switches beyond the paper", note="", values={}, requires=None)
    by_key: dict[tuple[Any, ...], list[Group]] = {}
    for group in groups:
        if group.key["kind"] == "generation" and group.key["system"] in (*SWITCHES, "two_stage"):
            by_key.setdefault(tuple(group.key[name] for name in SECTION_FIELDS), []).append(group)
    return [
        _section(layout, dict(zip(SECTION_FIELDS, key, strict=True)), members)
        for key, members in sorted(by_key.items(), key=lambda item: str(item[0]))
        if any(group.key["system"] in SWITCHES for group in members)
    ]


def _section(table: PaperTable, key: dict[str, Any], members: Sequence[Group]) -> Section:
    faithful = [group for group in members if group.key["system"] == "two_stage"]
    switched = [group for group in members if group.key["system"] in SWITCHES]
    rows = []
    for group in switched:
        same = [other for other in faithful if _context(other) == _context(group)]
        own = [other for other in same if other.key["experiment"] == group.key["experiment"]]
        row = Row(group.key["epsilon"], group.key["system"], group, [], [], list(group.notes))
        row.cells = [group.cell(metric.key) for metric in table.metrics]
        row.paper = ["–"] * len(table.metrics)
        base = own if own else same
        if len(base) == 1:
            row.paper = [_difference(group, base[0], metric.key, metric.digits) for metric in table.metrics]
        else:
            row.notes.append(
                "several two-stage rows to compare with, so none was chosen"
                if base
                else "no two-stage run at the same ε, δ, unit, data, model and number of samples"
            )
        rows.append(row)
    wanted = {_context(group) for group in switched}
    for group in faithful:
        if _context(group) in wanted:
            cells = [group.cell(metric.key) for metric in table.metrics]
            rows.append(Row(group.key["epsilon"], "two_stage", group, cells, ["–"] * len(cells), list(group.notes)))
    for epsilon in {row.epsilon for row in rows}:
        for system in SWITCHES:
            if not any(row.system == system and row.epsilon == epsilon for row in rows):
                gap = [NO_CELL] * len(table.metrics)
                rows.append(Row(epsilon, system, None, gap, ["–"] * len(gap), ["no run"]))
    rows.sort(key=order_of)
    return Section(table, key, rows, differences(rows))


def _context(group: Group) -> tuple[Any, ...]:
    return tuple(group.key[name] for name in CONTEXT)


def _difference(group: Group, base: Group, key: str, digits: int) -> str:
    ours, theirs = group.cell(key).mean, base.cell(key).mean
    return "–" if ours is None or theirs is None else f"{ours - theirs:+.{digits}f}"
