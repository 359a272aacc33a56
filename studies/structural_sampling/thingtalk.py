"""ThingTalk programs of Schema2QA as Lispress and back, so that whatever reads and learns Lispress takes both.

ThingTalk (Xu et al., 2020, *Schema2QA*, arXiv 2001.05609) writes a query with infix operators and optional brackets; a
Lispress call has its function first and nothing optional. Both say the same:

======================================================  ================================================================
ThingTalk                                               Lispress
======================================================  ================================================================
``now => Q => notify``                                  ``Q``
``@org.schema.Book.Book``                               ``(@org.schema.Book.Book)``
``( Q ) filter C``, ``( Q ) join ( R )``                ``(filter Q C)``, ``(join Q R)``
``[ P , P ] of ( Q )``                                  ``(project Q P P)``
``sort P desc of ( Q )``                                ``(sort_desc Q P)``
``( Q ) [ 1 ]``, ``( Q ) [ 1 : 5 ]``                    ``(index Q 1)``, ``(slice Q 1 5)``
``aggregate sum P of ( Q )``                            ``(aggregate_sum Q P)``
``compute distance ( P , V ) of ( Q )``                 ``(compute Q (distance P V))``
``P >= V and not P == V``                               ``(and (>= P V) (not (== P V)))``
``count ( P ) >= V``, ``@T { C }``                      ``(>= (count P) V)``, ``(exists (@T) C)``
``" tom hanks " ^^org.schema.Movie:Person``             ``(\\^^org.schema.Movie:Person "tom hanks")``
``NUMBER_0 unit:min + 1 unit:h``                        ``(+ (unit:min (NUMBER_0)) (unit:h 1))``
``new Date ( 2020 , , , )``, ``[ 4 , 5 ]``              ``(Date 2020 (_) (_) (_))``, ``(list 4 5)``
======================================================  ================================================================
"""

from __future__ import annotations

import re

from doppel.lispress import Expression, LispressError, List, Number, String, Symbol, read, write

_TOKEN = re.compile(r'"(?P<text>(?: [^"]*)?) "(?=\s|$)|\S+')
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?").fullmatch
_RELATIONS = ("==", "<=", ">=", "=~", "~=", "contains~", "contains", "in_array~", "in_array")
_LOGIC = ("and", "or")
_FUNCTIONS = ("count", "distance")
_ARITHMETIC = ("+", "-")
_EMPTY = "_"


class ThingTalkError(ValueError):
    """A text is no ThingTalk program, or a tree stands for none. The message quotes nothing of either."""


def is_program(text: str) -> bool:
    """Whether a text begins as a program does."""
    return text.split(maxsplit=2)[:2] == ["now", "=>"]


def to_lispress(program: str) -> str:
    """A program as Lispress.

    Args:
        program: As Schema2QA writes it: tokens with single blanks between them, ``now => … => notify``.

    Returns:
        One line of well-formed Lispress, of which :func:`from_lispress` makes the program again.

    Raises:
        ThingTalkError: It is no program of the shapes above, or one that would not come back as it was.
    """
    reader = _Reader(program)
    reader.take("now", "=>")
    query = reader.query()
    reader.take("=>", "notify")
    if reader.place < len(reader.tokens):
        raise reader.fault("nothing after notify")
    tree = write(query)
    if from_lispress(tree) != program:
        raise ThingTalkError("the program has brackets or blanks that another one of the same meaning lacks")
    return tree


def from_lispress(tree: str) -> str:
    """The program that a tree stands for: the inverse of :func:`to_lispress`.

    Raises:
        ThingTalkError: The tree is no Lispress, or stands for no program, as a parser may write.
    """
    try:
        return f"now => {_query(read(tree))} => notify"
    except LispressError as error:
        raise ThingTalkError(f"no Lispress: {error}") from error


class _Reader:
    """Reads tokens from left to right, by recursive descent."""

    def __init__(self, program: str) -> None:
        self.tokens = [match[0] for match in _TOKEN.finditer(program)]
        self.place = 0

    def fault(self, expected: str) -> ThingTalkError:
        return ThingTalkError(f"token {self.place + 1} of {len(self.tokens)}: expected {expected}")

    @property
    def next(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def take(self, *wanted: str) -> None:
        for token in wanted:
            if self.next != token:
                raise self.fault(token)
            self.place += 1

    def pop(self, expected: str = "more") -> str:
        token = self.next
        if not token:
            raise self.fault(expected)
        self.place += 1
        return token

    def query(self) -> Expression:
        query = self.source()
        while True:
            if self.next == "filter":
                self.place += 1
                query = _call("filter", query, self.condition())
            elif self.next == "join":
                self.place += 1
                query = _call("join", query, self.bracketed())
            elif self.next == "[":
                self.place += 1
                bounds = [self.value()]
                if self.next == ":":
                    self.place += 1
                    bounds.append(self.value())
                self.take("]")
                query = _call("index" if len(bounds) == 1 else "slice", query, *bounds)
            else:
                return query

    def bracketed(self) -> Expression:
        self.take("(")
        query = self.query()
        self.take(")")
        return query

    def source(self) -> Expression:
        if self.next == "(":
            return self.bracketed()
        if self.next.startswith("@"):
            return _call(self.pop())
        verb = self.pop("a query")
        parts: list[Expression] = []
        if verb == "[":
            name = "project"
            parts = [self.property()]
            while self.next == ",":
                self.place += 1
                parts.append(self.property())
            self.take("]")
        elif verb == "sort":
            parts = [self.property()]
            name = f"sort_{self.pop('asc or desc')}"
            if name not in ("sort_asc", "sort_desc"):
                raise self.fault("asc or desc")
        elif verb == "aggregate":
            name = f"aggregate_{self.pop('a function')}"
            parts = [self.property()] if self.next != "of" else []
        elif verb == "compute":
            name, parts = "compute", [self.function()]
        else:
            self.place -= 1
            raise self.fault("a query")
        self.take("of")
        return _call(name, self.bracketed(), *parts)

    def property(self) -> Expression:
        if not self.next.startswith("param:"):
            raise self.fault("a property")
        return _call(self.pop())

    def function(self) -> Expression:
        if self.next not in _FUNCTIONS:
            raise self.fault("count or distance")
        name = self.pop()
        self.take("(")
        parts = [self.property()]
        if self.next == "filter":
            self.take("filter", "{")
            parts[0] = _call("filter", parts[0], self.condition())
            self.take("}")
        while self.next == ",":
            self.place += 1
            parts.append(self.value())
        self.take(")")
        return _call(name, *parts)

    def condition(self) -> Expression:
        terms = [self.term()]
        joint = self.next
        while self.next in _LOGIC:
            if self.next != joint:
                raise self.fault(f"{joint} again, for nothing says which binds closer")
            self.place += 1
            terms.append(self.term())
        return terms[0] if len(terms) == 1 else _call(joint, *terms)

    def term(self) -> Expression:
        if self.next == "not":
            self.place += 1
            return _call("not", self.term())
        if self.next.startswith("@"):
            table = _call(self.pop())
            self.take("{")
            inner = self.condition()
            self.take("}")
            return _call("exists", table, inner)
        left = self.function() if self.next in _FUNCTIONS else self.property()
        if self.next not in _RELATIONS:
            raise self.fault("a relation")
        return _call(self.pop(), left, self.value())

    def value(self) -> Expression:
        left = self.quantity()
        while self.next in _ARITHMETIC:
            left = _call(self.pop(), left, self.quantity())
        return left

    def quantity(self) -> Expression:
        atom = self.atom()
        return _call(self.pop(), atom) if self.next.startswith("unit:") else atom

    def atom(self) -> Expression:
        token = self.pop("a value")
        if token.startswith('"'):
            text = String.of(token[2:-2])
            return _call(self.pop(), text) if self.next.startswith("^^") else text
        if token == "location:":
            return _call(token, String.of(self.pop("a place")[2:-2]))
        if token == "[":
            items = [self.value()]
            while self.next == ",":
                self.place += 1
                items.append(self.value())
            self.take("]")
            return _call("list", *items)
        if token in ("start_of", "end_of"):
            return _call(token, _call(self.pop("a unit")))
        if token == "new":
            self.take("Date", "(")
            slots: list[Expression] = [_call(_EMPTY)]
            while self.next != ")":
                if self.next == ",":
                    self.place += 1
                    slots.append(_call(_EMPTY))
                else:
                    slots[-1] = self.quantity()
            self.take(")")
            return _call("Date", *slots)
        if re.match(r"[\w:]", token) is None:
            self.place -= 1
            raise self.fault("a value")
        if token in ("true", "false"):
            return Symbol(token)
        return Number(token) if _NUMBER(token) else _call(token)


def _call(name: str, *parts: Expression) -> List:
    escaped = re.sub(r'([\s()"\\])', r"\\\1", name)
    return List((Symbol("\\" + escaped if escaped[0] in "^#" else escaped), *parts))


def _opened(node: Expression) -> tuple[str, tuple[Expression, ...]]:
    """The name of a call, without escapes, and its parts."""
    if not isinstance(node, List) or not node.items or not isinstance(node.items[0], Symbol):
        raise ThingTalkError("a call was expected")
    return re.sub(r"\\(.)", r"\1", node.items[0].name), node.items[1:]


def _query(node: Expression) -> str:
    name, parts = _opened(node)
    if name.startswith("@") and not parts:
        return name
    if not parts:
        raise ThingTalkError(f"{name} has no query")
    inner, rest = f"( {_query(parts[0])} )", parts[1:]
    if name in ("filter", "join") and len(rest) == 1:
        return f"{inner} {name} " + (_condition(rest[0]) if name == "filter" else f"( {_query(rest[0])} )")
    if name in ("index", "slice") and len(rest) == (1 if name == "index" else 2):
        return f"{inner} [ {' : '.join(map(_value, rest))} ]"
    if name == "project" and rest:
        return f"[ {' , '.join(map(_value, rest))} ] of {inner}"
    if name in ("sort_asc", "sort_desc") and len(rest) == 1:
        return f"sort {_value(rest[0])} {name[5:]} of {inner}"
    if name.startswith("aggregate_") and len(rest) <= 1:
        return " ".join(["aggregate", name.removeprefix("aggregate_"), *map(_value, rest), "of", inner])
    if name == "compute" and len(rest) == 1:
        return f"compute {_value(rest[0])} of {inner}"
    raise ThingTalkError("a query was expected")


def _condition(node: Expression) -> str:
    name, parts = _opened(node)
    if name in _LOGIC and len(parts) > 1:
        if any(_opened(part)[0] in _LOGIC for part in parts):
            raise ThingTalkError("conditions are joined in one level")
        return f" {name} ".join(map(_condition, parts))
    if name == "not" and len(parts) == 1:
        return f"not {_condition(parts[0])}"
    if name == "exists" and len(parts) == 2:
        return f"{_query(parts[0])} {{ {_condition(parts[1])} }}"
    if name in _RELATIONS and len(parts) == 2:
        return f"{_value(parts[0])} {name} {_value(parts[1])}"
    raise ThingTalkError("a condition was expected")


def _value(node: Expression) -> str:
    if isinstance(node, String):
        return f'" {node.value} "'
    if isinstance(node, Number):
        return node.spelling
    if isinstance(node, Symbol):
        return node.name
    name, parts = _opened(node)
    if not parts:
        return name
    if name in _FUNCTIONS:
        if isinstance(parts[0], List) and _opened(parts[0])[0] == "filter":
            inner = _opened(parts[0])[1]
            if len(inner) != 2 or len(parts) > 1:
                raise ThingTalkError("a filtered property was expected")
            return f"{name} ( {_value(inner[0])} filter {{ {_condition(inner[1])} }} )"
        return f"{name} ( {' , '.join(map(_value, parts))} )"
    if name == "list":
        return f"[ {' , '.join(map(_value, parts))} ]"
    if name == "Date":
        slots = ["" if isinstance(p, List) and _opened(p) == (_EMPTY, ()) else _value(p) for p in parts]
        return re.sub(" +", " ", f"new Date ( {' , '.join(slots)} )")
    if name in _ARITHMETIC and len(parts) == 2:
        return f"{_value(parts[0])} {name} {_value(parts[1])}"
    if len(parts) > 1:
        raise ThingTalkError("one value was expected")
    inside = _value(parts[0])
    if name.startswith(("^^", "unit:")):
        return f"{inside} {name}"
    if name in ("location:", "start_of", "end_of"):
        return f"{name} {inside}"
    raise ThingTalkError("a value was expected")
