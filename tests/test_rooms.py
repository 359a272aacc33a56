"""The order of the rooms: imports run downward only, and no two modules import each other."""

from __future__ import annotations

import re

from source_modules import ROOMS, ROOT, imported, modules


def circles(graph: dict[str, set[str]]) -> set[tuple[str, ...]]:
    """Strongly connected components of more than one module (Tarjan, 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: set[tuple[str, ...]] = set()

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for other in graph[name]:
            if other not in order:
                visit(other)
            if other in stack:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == order[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.add(tuple(sorted(stack[at:])))
            del stack[at:]

    for name in graph:
        if name not in order:
            visit(name)
    return found


def test_imports_run_downward() -> None:
    upward = {
        (name, other)
        for name in modules()
        for other in imported(name)
        if (room := other.split(".")[0]) in ROOMS and ROOMS.index(room) < ROOMS.index(name.split(".")[0])
    }
    assert upward == set()


def test_no_file_of_the_product_names_a_study() -> None:
    """Neither by an import nor by a name that is imported later: studies may go and nothing else changes."""
    studies = "|".join(path.name for path in (ROOT / "studies").iterdir() if path.is_dir())
    files = [*modules().values(), *(ROOT / "configs").rglob("*.yaml")]
    assert [
        path for path in files if re.search(rf"\bstudies\.({studies})|import studies", path.read_text("utf-8"))
    ] == []


def test_no_modules_import_each_other() -> None:
    graph = {name: {other for other in imported(name) if other in modules() and other != name} for name in modules()}
    assert circles(graph) == set()


def test_no_rooms_of_commands_import_each_other() -> None:
    graph: dict[str, set[str]] = {}
    for name in modules():
        if name.startswith("commands."):
            others = {other.split(".")[1] for other in imported(name) if other.startswith("commands.")}
            graph.setdefault(name.split(".")[1], set()).update(others)
    assert circles(graph) == set()
    assert graph["run_folder"] == {"run_folder"}, "what a run folder is depends on no room that reads or writes one"


def test_an_experiment_is_read_then_made_steps_of_then_checked_then_executed() -> None:
    rooms = ("experiment", "steps", "preflight", "execution")
    rank = {f"commands.run.{room}": place for place, room in enumerate(rooms)}
    for name in modules():
        own = rank.get(".".join(name.split(".")[:3]))
        for other in imported(name):
            if own is not None and other.startswith("commands.run."):
                assert rank.get(".".join(other.split(".")[:3]), len(rooms)) <= own, (name, other)


def test_a_file_is_read_by_one_module_after_another() -> None:
    """What a later one needs travels in its value: none asks one that comes after it, and ``examples`` calls all."""
    order = "example embedded hub files records attribute_codes columns conversations units cells dialogues utterances"
    rank = {f"datamodules.reading.{name}": place for place, name in enumerate([*order.split(), "examples"])}
    for name in rank:
        assert all(rank[other] < rank[name] for other in imported(name) if other in rank), name
    assert {*rank} <= {*modules()}


def test_what_makes_a_training_private_reads_no_data_and_no_model() -> None:
    """So that whoever checks the guarantee reads the files that it rests on, and no reader of tables or base models."""
    found, waiting = set[str](), ["callbacks.differential_privacy"]
    while waiting:
        name = waiting.pop()
        if name in modules() and name not in found:
            found.add(name)
            waiting += imported(name)
    assert {".".join(name.split(".")[:2]) for name in found if name.startswith(("datamodules.", "doppel."))} == {
        *("datamodules.batches", "datamodules.private_data", "doppel.compressed", "doppel.console", "doppel.errors"),
        *("doppel.files", "doppel.gradients", "doppel.privacy", "doppel.settings"),
    }


def test_a_circle_is_found() -> None:
    graph: dict[str, set[str]] = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert circles(graph) == {("a", "b", "c")}
