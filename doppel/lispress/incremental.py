"""Reading a program character by character: which characters may come next, and how to end in time."""

from __future__ import annotations

from enum import IntEnum, auto
from functools import lru_cache
from typing import Literal, NamedTuple

from doppel.lispress import forms
from doppel.lispress.forms import OPENERS, Form, Info, Kind, Role, is_closable, outcome, role_of
from doppel.lispress.names import Names, is_escaping
from doppel.lispress.reader import MAX_DEPTH

Layout = Literal["any", "raw", "spaced"]
"""``any``: blanks wherever `doppel.lispress.read` takes them. ``raw``: one line with single blanks, as
`doppel.lispress.write` writes it. ``spaced``: the same with a space inside each quote."""

_CACHED = 1 << 16
_IMPOSSIBLE = 1 << 20  # characters, where a table has no name of the kind
_SPARE_LEVELS = 3  # that the shortest end of a form may need below the deepest value


class _Lex(IntEnum):
    """What the last character was."""

    START = auto()  # an opening mark: an item comes, without a blank
    AFTER = auto()  # the end of an item
    SPACE = auto()  # a blank after an item
    ATOM = auto()
    STRING = auto()


_OPENED, _INSIDE, _CLOSABLE, _ESCAPED = "opened", "inside", "closable", "escaped"


class Stack(NamedTuple):
    """Open forms, the innermost first.

    Attributes:
        form: The innermost.
        outer: The forms around it; None around the outermost.
        up: Characters with which what is around the innermost form can be ended, once that form is closed.
        depth: Forms around it.
    """

    form: Form
    outer: Stack | None
    up: int
    depth: int


class State(NamedTuple):
    """Where a recogniser is after some characters. Equal states allow the same.

    Attributes:
        lex: What the last character was.
        text: The atom so far, or where in a string.
        stack: Open forms.
    """

    lex: int
    text: str
    stack: Stack

    @property
    def is_in_string(self) -> bool:
        """Whether the next character belongs to a string or closes it."""
        return self.lex == _Lex.STRING


class Left(NamedTuple):
    """The outermost form of a stack is complete, and what is around it is not at hand.

    Attributes:
        info: What the form tells the form around it.
        is_read: Whether the last character belonged to the form; otherwise it is to be read again after it.
    """

    info: Info
    is_read: bool


class _Open(NamedTuple):
    form: Form
    inner: Form


class _Stay(NamedTuple):
    lex: int
    text: str
    form: Form


class Recognizer:
    """An incremental recogniser of well-formed programs.

    With the layout ``any`` and no table of names, a text is accepted if and only if `doppel.lispress.first_error`
    finds no error in it. A state from :meth:`advance` is viable: :meth:`shortest_end` characters, in the range of
    ``names.characters``, make a complete program of the text so far. Nesting stops at `doppel.lispress.MAX_DEPTH`, a
    few levels earlier where a layout or a table asks for more than the notation.

    Args:
        names: The atoms that it lets through; None for all that the notation allows.
        layout: Where blanks stand.
        only_calls: Refuses programs that are no call, such as a bare ``1L``; no published tree is one.
    """

    def __init__(self, names: Names | None = None, layout: Layout = "any", only_calls: bool = False) -> None:
        self.names = Names() if names is None else names
        self.layout = layout
        self.only_calls = only_calls
        self._is_free = layout == "any"
        self._deepest_value = MAX_DEPTH - (0 if self._is_free and not self.names.is_table else _SPARE_LEVELS)
        self._step = lru_cache(_CACHED)(self._step_in_form)
        self._atom_end = lru_cache(_CACHED)(self._shortest_atom)
        self._end_of = lru_cache(_CACHED)(self._shortest_end_of_form)

    def start(self, after_blank: bool = False) -> State:
        """The state before the first character.

        Args:
            after_blank: Whether one blank stands in front of the program, as language models write it.
        """
        root = Form(Kind.ROOT_CALL if self.only_calls else Kind.ROOT)
        return State(_Lex.AFTER if after_blank else _Lex.START, "", Stack(root, None, 0, 0))

    def advance(self, state: State, character: str) -> State | None:
        """The state after one more character, or None if no program goes on like this."""
        after = self.advance_within(state, character)
        assert not isinstance(after, Left)
        return after

    def read(self, text: str, state: State | None = None) -> State | None:
        """The state after all characters of a text, or None if no program begins like this."""
        state = self.start() if state is None else state
        for character in text:
            after = self.advance(state, character)
            if after is None:
                return None
            state = after
        return state

    def accepts(self, state: State) -> bool:
        """Whether the text so far is a complete program."""
        return self.shortest_end(state) == 0

    def shortest_end(self, state: State) -> int:
        """Number of characters that are enough to complete the program; the next can be one that leaves fewer."""
        lex, text, stack = state
        return self._end_in_form(lex, text, stack.form) + stack.up

    def end_after_item(self, form: Form) -> int:
        """Characters that end a form after the item that begins now: a string, or one in brackets or with a mark."""
        if form.kind is Kind.CALL and form.stage == 0:
            return 1
        infos: dict[Role | None, Info] = {
            Role.BINDINGS: frozenset(),
            Role.PARAMETERS: frozenset(),
            Role.PARAMETER: "x0",
        }
        return self._end_after(self._after_item(form, infos.get(role_of(form))))

    def advance_within(self, state: State, character: str) -> State | Left | None:
        """As `advance`, for a stack whose outermost form need not be the root."""
        lex, text, stack = state
        while True:
            move = self._step(lex, text, stack.form, character)
            if move is None:
                return None
            if isinstance(move, _Stay):
                if stack.depth + forms.levels_to_come(move.form) > MAX_DEPTH:
                    return None
                return State(move.lex, move.text, stack._replace(form=move.form))
            if isinstance(move, _Open):
                return self._open(stack._replace(form=move.form), move.inner)
            after = self.leave(stack, move)
            if isinstance(after, Left) or move.is_read:
                return after
            lex, text, stack = after

    def leave(self, stack: Stack, left: Left) -> State | Left:
        """The state after the innermost form of a stack is complete; or the outermost is complete as well."""
        return left if stack.outer is None else self.resume(stack.outer, left)

    def resume(self, stack: Stack, left: Left) -> State | Left:
        """The state after an item of the innermost form of a stack is complete."""
        form = self._after_item(stack.form, left.info)
        stack = stack._replace(form=form)
        if forms.is_finished(form):
            return self.leave(stack, Left(outcome(form), left.is_read))
        return State(_Lex.AFTER, "", stack)

    def _open(self, stack: Stack, form: Form) -> State | None:
        depth = stack.depth + 1
        most = self._deepest_value if role_of(stack.form) in (Role.VALUE, Role.PROGRAM) else MAX_DEPTH
        if depth > most or depth + forms.levels_to_come(form) > MAX_DEPTH or self._end_of(form) >= _IMPOSSIBLE:
            return None
        return State(_Lex.START, "", Stack(form, stack, self.end_after_item(stack.form) + stack.up, depth))

    def _step_in_form(self, lex: int, text: str, form: Form, character: str) -> _Stay | _Open | Left | None:
        if lex == _Lex.STRING:
            return self._step_in_string(text, form, character)
        if lex == _Lex.ATOM:
            is_end = character in '()"' or character.isspace()
            if is_escaping(text) or not is_end:
                return self._lengthen(text, form, character)
            if "" not in self.names.suffixes(form, text):
                return None
            form = self._after_item(form, text)
            if forms.is_finished(form):
                return Left(outcome(form), False)
            lex = _Lex.AFTER
        return self._step_between(lex, form, character)

    def _step_between(self, lex: int, form: Form, character: str) -> _Stay | _Open | Left | None:
        role = role_of(form)
        if character == " " if not self._is_free else character.isspace():
            if self._is_free:
                return _Stay(_Lex.START if lex == _Lex.START else _Lex.SPACE, "", form)
            return _Stay(_Lex.SPACE, "", form) if lex == _Lex.AFTER and role is not None else None
        if character == ")":
            return Left(outcome(form), True) if is_closable(form) and (self._is_free or lex == _Lex.AFTER) else None
        if role is None or character.isspace() or (lex == _Lex.AFTER and not self._is_free):
            return None
        if character in OPENERS:
            kind = OPENERS[character].get(role)
            if kind is None or (kind is Kind.READER and self.names.is_table):
                return None
            return _Open(form, Form(kind, bound=form.bound))
        if character == '"':
            text = _OPENED if self.layout == "spaced" else _CLOSABLE
            return _Stay(_Lex.STRING, text, form) if role is Role.VALUE else None
        return self._lengthen("", form, character)

    def _lengthen(self, text: str, form: Form, character: str) -> _Stay | None:
        if not self._is_free and character < " ":
            return None
        text += character
        if not self.names.suffixes(form, text):
            return None
        return _Stay(_Lex.ATOM, self.names.shorten(form, text), form)

    def _step_in_string(self, text: str, form: Form, character: str) -> _Stay | Left | None:
        if not self._is_free and character < " ":
            return None
        is_spaced = self.layout == "spaced"
        plain = _INSIDE if is_spaced else _CLOSABLE
        if text == _OPENED:
            return _Stay(_Lex.STRING, _INSIDE, form) if character == " " else None
        if text == _ESCAPED:
            return _Stay(_Lex.STRING, plain, form)
        if character == "\\":
            return _Stay(_Lex.STRING, _ESCAPED, form)
        if character != '"':
            return _Stay(_Lex.STRING, _CLOSABLE if is_spaced and character == " " else plain, form)
        if text != _CLOSABLE:
            return None
        form = self._after_item(form, None)
        return Left(outcome(form), True) if forms.is_finished(form) else _Stay(_Lex.AFTER, "", form)

    def _after_item(self, form: Form, info: Info) -> Form:
        """The form after one more item in it."""
        after = forms.after_item(form, info)
        if form.stage == 0 and isinstance(info, str):
            if after.kind is Kind.CALL:
                return after._replace(signature=self.names.signature(info.removeprefix("^")))
            if after.kind is Kind.TYPE:
                return after._replace(signature=self.names.type_signature(info))
        return after

    def _end_in_form(self, lex: int, text: str, form: Form) -> int:
        """Characters that end the form, without what is around it."""
        if lex == _Lex.ATOM:
            return self._atom_end(form, text)
        if lex == _Lex.STRING:
            plain = 2 if self.layout == "spaced" else 1
            missing = {_OPENED: 3, _INSIDE: 2, _CLOSABLE: 1, _ESCAPED: 1 + plain}[text]
            return missing + self._end_after(self._after_item(form, None))
        if lex == _Lex.AFTER or role_of(form) is None:
            return self._end_after(form)
        if self._is_free and is_closable(form):
            return 1
        return self._end_of(form)

    def _end_after(self, form: Form) -> int:
        """Characters that end a form after an item of it."""
        if is_closable(form):
            return 1
        return 0 if role_of(form) is None else 1 + self._end_of(form)

    def _shortest_end_of_form(self, form: Form) -> int:
        """The same where an item must come at once."""
        role = role_of(form)
        assert role is not None
        kind = OPENERS["("].get(role)
        if role in (Role.VALUE, Role.TYPE) or kind is None:
            return self._atom_end(form, "")
        return 1 + self._end_of(Form(kind, bound=form.bound)) + self.end_after_item(form)

    def _shortest_atom(self, form: Form, text: str) -> int:
        """The same within an atom; what a typed head demands of its call is counted here."""
        ends = []
        for suffix in self.names.suffixes(form, text):
            demands = 0
            if form.kind is Kind.TYPED_HEAD:
                signature = self.names.signature(text + suffix)
                demands = 2 * signature.min_args if signature is not None else 0
            ends.append(len(suffix) + demands + self._end_after(self._after_item(form, text + suffix)))
        return min(ends, default=_IMPOSSIBLE)
