"""What people call functions, labels and topics: a public table that an experiment names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from commands.report.supported import matches, public_file
from doppel import files
from doppel.errors import UserError
from doppel.tables.schema import plain

_SHIPPED = "configs/names/smcalflow.yaml"
#: Key of a table under which stands what nobody asks for.
PLUMBING = "plumbing"


@dataclass(frozen=True)
class Names:
    """Words for names.

    Attributes:
        words: Function, label or topic → what people call it.
        plumbing: What programs are built with and nobody asks for: names, or starts of names with a star.
    """

    words: Mapping[str, str]
    plumbing: frozenset[str]

    def of(self, name: str) -> str:
        """Return what people call it; a name without words stays as it is."""
        return self.words.get(plain(name), name)

    def is_plumbing(self, name: str) -> bool:
        """Check whether nobody asks for it."""
        return matches(name, self.plumbing)


def read_names(given: Mapping[str, Any] | str | None) -> Names:
    """Read a table of names.

    Formal guarantees:
        The table is declared public, as the list of what is supported is: it must not be made by reading private text.
        It changes how a page calls things, and no number on it but which names count as asked for.

    Args:
        given: Name → words (empty: it has none), and under ``plumbing`` a list of names; or a YAML file of that, which
            may lie beside the code. None: no name has words, and nothing is plumbing.

    Raises:
        UserError: There is no such file, or it holds something else.
    """
    if given is None:
        return Names({}, frozenset())
    where = "names"
    if isinstance(given, str):
        path = public_file(given)
        if not path.is_file():
            raise UserError(
                f"names is {given}, and there is no such file: give a YAML file of lines 'FunctionName: what people "
                "call it', such as configs/names/smcalflow.yaml"
            )
        given, where = files.read_yaml(path), str(path)
        if not isinstance(given, dict):
            raise UserError("holds no names: give lines 'FunctionName: what people call it'", about=path)
    told = {key: value for key, value in given.items() if key != PLUMBING}
    for key, value in told.items():
        if value is not None and not isinstance(value, str):
            raise UserError(f"{where} calls {key!r} {value!r}: give a text")
    plumbing = given.get(PLUMBING) or []
    if not isinstance(plumbing, list) or not all(isinstance(name, str) and name for name in plumbing):
        raise UserError(f"{where} has {PLUMBING} {plumbing!r}: give a list of names")
    words = {plain(key): " ".join(value.split()) for key, value in told.items() if value and value.strip()}
    return Names(words, frozenset(map(plain, plumbing)))


def shipped_names(functions: Collection[str]) -> Names:
    """SMCalFlow's names where they name most of the functions; of another API what programs are built with alone.

    Formal guarantees:
        A function of a public file and of what released samples call.
    """
    table = read_names(_SHIPPED)
    own = [name for name in functions if not table.is_plumbing(name)]
    is_known = 2 * sum(name in table.words for name in own) > len(own)
    return table if is_known else Names({}, table.plumbing)


def write_template(path: Path, called: Names, told: Mapping[str, str], plumbing: Collection[str]) -> None:
    """Write names as a file to fill in and to read.

    Args:
        path: A new file.
        called: What names are called already.
        told: What is said of each name, above it; empty: nothing.
        plumbing: Names that nobody asks for.

    Raises:
        UserError: The file is there, and may be filled in.
    """
    files.refuse_existing(path, "--names-template, or fill that in")
    lines = ["# What people call these; where nothing stands, the name itself is shown.\n"]
    for name, about in told.items():
        lines += [f"# {about}\n" if about else "", _yaml({name: called.words.get(plain(name), "")})]
    files.write_text(path, "".join([*lines, _yaml({PLUMBING: sorted(plumbing)})]))


def _yaml(content: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(content, allow_unicode=True)
    return text
