"""What makes an abstract template of a ThingTalk program, rule by rule; :mod:`.thingtalk` makes trees of it.

Programs are the space-separated tokens of the published files, such as
``now => ( @org.schema.Book.Book ) filter param:award:Array(String) contains~ " newbery " => notify``.
"""

from __future__ import annotations

import re
import unicodedata

from doppel.selection.templates import VALUE, ProgramError

_SPACE = re.compile(r"\s+")
_CLOSES = {")": "(", "]": "[", "}": "{"}

#: What stands for an entity, in this order; each is replaced by VALUE between single spaces.
_ENTITIES = [
    re.compile(pattern)
    for pattern in (
        r'" [^"]+ "',
        r"(?<= )(?:true|false)(?= )",
        r"(?<= )(?:[A-Z]+_[0-9]|start_of|end_of|[0-9]{1,2}) unit:[a-z]+(?= )",
        r"(?<= )[0-9]{1,2}(?= )",
        r"enum:[\w:.]+",
        r"new Date \( [^()]* \)",
        r"time:[0-9:]+",
        r"(?<= )now(?= )",
        r"(?<= )location: ?\S+(?= )",
        r"(?<= )[A-Z]+(?:_[A-Z]+)*_[0-9](?= )",
        r"\[ VALUE , VALUE \]",
        r"\( VALUE \)(?= [-+] )",
    )
]
_STRING = _ENTITIES[0]
_NAME = re.compile(
    r"(?:@|param:|enum:|\^\^).+|[=<>]=|=~|~=|(?:contains|in_array)~?|and|or|not|compute|count|sort|distance|aggregate|"
    r"avg|sum|min|max|join|asc|desc|[-+]"
)
_SUM = re.compile(r"\( VALUE [-+] VALUE \)|VALUE [-+] VALUE")

#: What a template leaves of tables, properties and operators (Table 2 of Oren et al., without its token for types).
_COARSE = [
    (re.compile(pattern), token)
    for pattern, token in (
        (r"@org\.schema\.[A-Za-z_]+\.[A-Za-z_]+", "schema_table"),
        (r"(?<= )param:\S+", "param:property"),
        (r"(?<= )(?:==|<=|>=|=~|~=|contains~|contains|in_array~|in_array)(?= )", "REL_OP"),
        (r"(?<= )(?:and|or|not)(?= )", "LOG_OP"),
        (r"(?<= )(?:compute|count|sort|distance|aggregate|avg|sum)(?= )", "FUNC_OP"),
        (r"(?<= )(?:asc|desc)(?= )", "FUNC_MOD"),
        (r"FUNC_OP FUNC_OP", "FUNC_OP"),
    )
]


def abstract_entities(program: str) -> str:
    """A program with ``VALUE`` for every entity: strings, numbers, dates, times, places, enums and slots.

    A bare number of three digits or more stays, as in the published files; ``now`` stays in front; the types of
    values (``^^tt:us_state``) go. Sums of values are one value.

    Raises:
        ProgramError: A quote or a bracket has no partner, or the program is not ``now => … => …``.
    """
    text = unicodedata.normalize("NFKD", program).encode("ascii", "ignore").decode()
    text = _SPACE.sub(" ", text).strip()
    _check(text)
    for pattern in _ENTITIES:
        text = pattern.sub(VALUE, text)
    while (shorter := _SUM.sub(VALUE, text)) != text:
        text = shorter
    return _SPACE.sub(" ", re.sub(r"\^\^\S+", "", text)).strip()


def template(query: str) -> str:
    """The abstract template of what :func:`abstract_entities` gives: column 6 of the Schema2QA files.

    Returns:
        Tokens, with ``schema_table``, ``param:property``, ``REL_OP``, ``LOG_OP``, ``FUNC_OP`` and ``FUNC_MOD``;
        ``min``, ``max`` and ``join`` stay (Oren et al., 2021, Table 2 and the rules of its published files).
    """
    for pattern, token in _COARSE:
        query = pattern.sub(token, query)
    return query


def names(program: str) -> set[str]:
    """The tables, properties with their types, types of values, enums and operators that a program uses.

    Args:
        program: One program, entities included.
    """
    return {name for name in _STRING.sub(VALUE, program).split() if _NAME.fullmatch(name)}


def _check(text: str) -> None:
    tokens = text.split()
    if tokens[:2] != ["now", "=>"] or tokens.count("=>") < 2 or tokens[-1] == "=>":
        raise ProgramError("not `now => … => …`")
    if tokens.count('"') % 2:
        raise ProgramError("a string that is never closed")
    is_string = False
    opened: list[str] = []
    for place, token in enumerate(tokens, 1):
        is_string ^= token == '"'
        if is_string:
            continue
        if token in "([{":
            opened.append(token)
        elif token in _CLOSES and (not opened or opened.pop() != _CLOSES[token]):
            raise ProgramError(f"token {place} closes a bracket that is not open")
    if opened:
        raise ProgramError("a bracket that is never closed")
