"""Abstract templates of Lispress programs, by which rows are told apart."""

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

#: What stands for every entity.
VALUE = "VALUE"
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


class ProgramError(ValueError):
    """A program cannot be read; the message says where and never quotes it."""


def template(program: str) -> str:
    """Return a program without its entities, which are ``VALUE``.

    Strings, numbers and literals, calls that are a day, month, holiday or time of day, and calls that make a name, a
    date or a duration of such values alone: ``(PersonName.apply "Ana")``, ``(MD 5L (May))``.

    Returns:
        One line; equal for programs that differ in their entities alone.

    Raises:
        ProgramError: The program is empty or broken; the message never quotes it.
    """
    text = program.strip()
    if not text:
        raise ProgramError("an empty program")
    if text[0] not in "(^#":
        raise ProgramError("no Lispress, which begins with a bracket")
    try:
        return write(_abstract(read(text)))
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
