"""Programs of either language, ThingTalk or Lispress, as what the samplers look at."""

from __future__ import annotations

import re

from doppel.lispress import (
    Expression,
    LispressError,
    List,
    Number,
    ReaderLiteral,
    String,
    Symbol,
    TypeAnnotation,
    read,
    write,
)
from doppel.selection import thingtalk_rules
from doppel.selection.tree import VALUE, ProgramError, Tree
from doppel.thingtalk import ThingTalkError, to_lispress

_VALUE = Symbol(VALUE)

#: Calls without arguments that are a date or a time by themselves.
_is_date = re.compile(
    r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|January|February|March|April|May|June|July|August|September|October|"
    r"November|December|Season\w+|Holiday\.\w+|Today|Tomorrow|Yesterday|Noon|Midnight"
).fullmatch
#: Functions that make a name, a date or a time of literals alone.
_is_maker = re.compile(
    r"(?:PersonName|LocationKeyphrase|Year|Day|Month)\.apply|Number(?:AM|PM)|HourMinute(?:Am|Pm|Military)|HourMilitary|"
    r"to(?:Month|Hours|Days|Minutes|Weeks|Months|Years)|MDY?|MonthDayYear|Date|Time"
).fullmatch


def abstract_query(program: str) -> str:
    """A program without its entities: what CMaxEnt chooses among (Oren et al., 2021, section 3.3).

    ThingTalk: see :func:`doppel.selection.thingtalk_rules.abstract_entities`. Lispress (what begins with a bracket):
    strings, numbers and literals become ``VALUE``, and so do calls that are a day, month, holiday or time of day, and
    calls that make a name, a date or a duration of such values alone: ``(PersonName.apply "Ana")``, ``(MD 5L (May))``.

    Returns:
        One line; equal for programs that differ in their entities alone.

    Raises:
        ProgramError: The program is empty or broken; the message never quotes it.
    """
    text = program.strip()
    if not text:
        raise ProgramError("an empty program")
    if not _is_lispress(text):
        return thingtalk_rules.abstract_entities(text)
    return write(_abstract(_read(text)))


def template(query: str) -> str:
    """The abstract template of an :func:`abstract_query`, by which UAT counts and splits are made.

    ThingTalk: :func:`doppel.selection.thingtalk_rules.template`, which hides tables, properties and operators too.
    Lispress, whose function names are its structure: the query itself.
    """
    return query if _is_lispress(query) else thingtalk_rules.template(query)


def tree(query: str) -> Tree:
    """The tree of an :func:`abstract_query`.

    ThingTalk becomes Lispress first (:func:`doppel.thingtalk.to_lispress`). A call is a node with the function's name
    and, if it has them, type arguments; an argument with a name is a node ``:name`` above its value. The document shows
    one tree (Figure 3) and no grammar.

    Raises:
        ProgramError: The program is not in the grammar.
    """
    if _is_lispress(query):
        return _tree(_read(query))
    try:
        return _tree(_read(to_lispress(query)))
    except ThingTalkError as error:
        raise ProgramError(str(error)) from None


def names(program: str) -> set[str]:
    """Everything that a program names: tables, properties, enums and operators, or functions and types.

    Raises:
        ProgramError: A Lispress program is broken.
    """
    if not _is_lispress(program.strip()):
        return thingtalk_rules.names(program)
    labels: set[str] = set()
    todo = [_tree(_abstract(_read(program)))]
    while todo:
        label, parts = todo.pop()
        labels.add(label)
        todo += parts
    return labels


def _is_lispress(text: str) -> bool:
    return text[:1] in ("(", "^", "#")


def _read(text: str) -> Expression:
    try:
        return read(text)
    except LispressError as error:
        raise ProgramError(str(error)) from None


def _abstract(node: Expression) -> Expression:
    if isinstance(node, String | Number | ReaderLiteral):
        return _VALUE
    if isinstance(node, TypeAnnotation):
        return TypeAnnotation(node.type, _abstract(node.body))
    if not isinstance(node, List) or not node.items:
        return node
    head, *rest = node.items
    inner = [_abstract(item) for item in rest]
    if isinstance(head, Symbol):
        values = [item for item in inner if not (isinstance(item, Symbol) and item.is_keyword)]
        if _is_date(head.name) and not inner:
            return _VALUE
        if _is_maker(head.name) and values and all(item == _VALUE for item in values):
            return _VALUE
    return List((head if isinstance(head, Symbol | TypeAnnotation) else _abstract(head), *inner))


def _tree(node: Expression) -> Tree:
    if isinstance(node, TypeAnnotation):
        return (f"^{write(node.type)}", (_tree(node.body),))
    if not isinstance(node, List) or not node.items:
        return (write(node), ())
    head, *rest = node.items
    if not isinstance(head, Symbol | TypeAnnotation):
        return ("()", tuple(map(_tree, node.items)))
    parts: list[Tree] = []
    keyword = ""
    for item in rest:
        if isinstance(item, Symbol) and item.is_keyword:
            keyword = item.name
            continue
        part = _tree(item)
        parts.append((keyword, (part,)) if keyword else part)
        keyword = ""
    return (write(head), tuple(parts))
