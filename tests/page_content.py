"""Pages read back: their elements, and the run folders that they are made of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml
from run_folders import end_step

from commands.run_folder.steps import File

_VOID = {"meta", "link", "input", "br", "hr", "img"}


@dataclass
class Element:
    """An element with its attributes, its children, and all text below it."""

    tag: str
    attributes: dict[str, str]
    parent: Element | None = None
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def all(self, tag: str = "", **attributes: str) -> list[Element]:
        """Elements below, in order, with these attributes; ``class_`` is one of the classes."""
        found = []
        for child in self.children:
            wanted = {k.rstrip("_").replace("_", "-"): v for k, v in attributes.items()}
            fits = all(
                v in child.attributes.get(k, "").split() if k == "class" else child.attributes.get(k) == v
                for k, v in wanted.items()
            )
            found += [child] if fits and tag in ("", child.tag) else []
            found += child.all(tag, **attributes)
        return found

    @property
    def words(self) -> str:
        """Its text with single blanks."""
        return " ".join(self.text.split())


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = self.open = Element("", {})

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs}, self.open)
        self.open.children.append(element)
        if tag not in _VOID:
            self.open = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.tag == tag, f"</{tag}> closes <{self.open.tag}>"
        assert self.open.parent is not None
        self.open = self.open.parent

    def handle_data(self, data: str) -> None:
        element: Element | None = self.open
        while element is not None:
            element.text += data
            element = element.parent


def read_html(path: Path) -> Element:
    """The tree of a page; every element must be closed in its turn."""
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    assert reader.open is reader.root, f"<{reader.open.tag}> is not closed"
    return reader.root


def make_samples(
    folder: Path, lines: Iterable[Mapping[str, Any]], system: str = "two_stage", **experiment: Any
) -> Path:
    """A run folder that holds samples, and the experiment that they came from; without privacy unless it says ε."""
    folder.mkdir(exist_ok=True)
    name = f"{system}/samples.jsonl"
    (folder / system).mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    end_step(folder, f"sample_{system}", ["predict"], [File(name, "release", system, system)])
    told = {"name": "mine", "systems": [system], "epsilon": float("inf"), **experiment}
    (folder / "experiment.yaml").write_text(yaml.safe_dump(told))
    return folder
