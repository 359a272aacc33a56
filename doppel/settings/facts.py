"""What a setting is, as its field says: what it binds, and whether it names a file, a text or a number."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, replace
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

#: What a setting binds, the most last. Whatever is bound and has begun keeps the value with which it began.
Binds = Literal["nothing", "evaluation", "samples", "training"]
LEVELS: tuple[Binds, ...] = get_args(Binds)


class Unset(Enum):
    """The value of a key that is not there."""

    UNSET = "(not set)"


UNSET = Unset.UNSET


@dataclass(frozen=True)
class Fact:
    """What a setting is.

    Attributes:
        binds: What of a run depends on it. ``training``: what is learnt, counted or paid. ``samples``: texts that are
            drawn of that, which is post-processing. ``evaluation``: figures about texts. ``nothing``: how a machine
            works, and what a page calls things.
        path: Whether it names a file or a folder, or a list of such.
        alone: Whether a list of several holds names, so that a file is meant by a single text alone.
        words: Words that stand there for no file.
        text: Whether it is text, as it is written, whatever YAML would read in it.
        number: Whether it is a number.
        default: What a missing value means; UNSET where nothing here says it.
        keys: Its keys, for a mapping.
        each: What any other key of it is, such as the name of a stage.
    """

    binds: Binds = "training"
    path: bool = False
    alone: bool = False
    words: tuple[str, ...] = ()
    text: bool = False
    number: bool = False
    default: Any = UNSET
    keys: Mapping[str, Fact] = field(default_factory=dict)
    each: Fact | None = None

    def at(self, key: str) -> Fact:
        """Return what a key below is; ``init_args`` and what YAML merges are no places of their own."""
        if key in ("init_args", "<<"):
            return self
        return self.keys.get(key.removesuffix("+")) or self.each or Fact(self.binds, text=self.text)

    def below(self, dotted: str) -> Fact:
        """Return what a dotted key is."""
        found = self
        for key in dotted.split("."):
            found = found.at(key)
        return found


def setting(default: Any = MISSING, factory: Any = MISSING, **facts: Any) -> Any:
    """Declare a field of a dataclass and what it is, by attributes of :class:`Fact`; its type tells the rest."""
    if factory is not MISSING:
        return field(default_factory=factory, metadata=facts)
    return field(default=default, metadata=facts)


@cache
def facts_of(cls: type, binds: Binds = "training") -> Fact:
    """Return what the fields of a dataclass are; those that do not say what they bind bind this."""
    hints = get_type_hints(cls)
    return Fact(binds, keys={entry.name: _fact(entry, hints[entry.name], binds) for entry in dataclasses.fields(cls)})


def _fact(entry: dataclasses.Field[Any], hint: Any, binds: Binds) -> Fact:
    default = UNSET if entry.default is MISSING else entry.default
    given = {"binds": binds, "default": default, **entry.metadata}
    if (part := part_of(hint)) is not None:
        return replace(facts_of(part, given["binds"]), **given)
    leaves = set(_leaves(hint)) - {NoneType, ...}
    is_text = all(leaf is str or isinstance(leaf, str) for leaf in leaves)
    return Fact(**{"text": is_text, "number": leaves <= {int, float}, **given})


def part_of(hint: Any) -> type | None:
    """Return the dataclass that a field holds, or may hold."""
    kinds = (kind for kind in (hint, *get_args(hint)) if isinstance(kind, type))
    return next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)


def _leaves(hint: Any) -> list[Any]:
    """The types of a hint that hold no others, and the words of a literal."""
    inner = get_args(hint)[1:] if get_origin(hint) is dict else get_args(hint)
    return [leaf for part in inner for leaf in _leaves(part)] or [hint]
