"""Synchronous grammars: rules that write an English phrase and a Lispress fragment together.

A nonterminal is either a list of weighted :class:`Rule` or a function that draws a (phrase, fragment) pair.
In templates, ``{name}`` stands for an expansion of nonterminal ``name``; the same variable in phrase and tree is
one expansion, and ``{name.2}`` is a second, independent one. In phrases, ``[a|b|]`` chooses one alternative,
and may nest. Variables that occur in the phrase alone (politeness, filler) leave no trace in the tree.
"""

from __future__ import annotations

import random
import re
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Pair = tuple[str, str]
Draw = Callable[[random.Random], Pair]

_TOKEN = re.compile(r"\{([^{}]+)\}|[\[\]|]")


class GrammarError(ValueError):
    """A rule that cannot be compiled: an unknown nonterminal, a variable without a phrase, an open bracket."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One weighted production: a tree template with the phrase templates that may express it."""

    weight: float
    tree: str
    phrases: tuple[str, ...]


RuleSet = Mapping[str, "Sequence[Rule] | Draw"]


def rule(weight: float, tree: str, *phrases: str) -> Rule:
    """Return a production of relative frequency ``weight`` whose ``tree`` is said in one of ``phrases``."""
    return Rule(weight, tree, phrases)


@dataclass(frozen=True, slots=True)
class _Variable:
    key: str
    nonterminal: str


@dataclass(frozen=True, slots=True)
class _Choice:
    options: tuple[tuple[_Part, ...], ...]


_Part = str | _Variable | _Choice


@dataclass(frozen=True, slots=True)
class _Compiled:
    phrases: tuple[tuple[_Part, ...], ...]
    tree: tuple[str | _Variable, ...]


def _variable(key: str) -> _Variable:
    return _Variable(key, key.split(".")[0])


def _parse_phrase(text: str) -> tuple[_Part, ...]:
    """Compile a phrase template to text pieces, variables and (nested) choices."""
    stack: list[list[list[_Part]]] = [[[]]]
    end = 0
    for match in _TOKEN.finditer(text):
        if match.start() > end:
            stack[-1][-1].append(text[end : match.start()])
        end = match.end()
        token = match.group(0)
        if match.group(1):
            stack[-1][-1].append(_variable(match.group(1)))
        elif token == "[":
            stack.append([[]])
        elif len(stack) == 1:
            raise GrammarError(f"'{token}' outside brackets in phrase template {text!r}: add the opening '['")
        elif token == "|":
            stack[-1].append([])
        else:
            options = stack.pop()
            stack[-1][-1].append(_Choice(tuple(tuple(option) for option in options)))
    if len(stack) > 1:
        raise GrammarError(f"unclosed '[' in phrase template {text!r}: add ']'")
    if end < len(text):
        stack[-1][-1].append(text[end:])
    return tuple(stack[0][0])


def _parse_tree(text: str) -> tuple[str | _Variable, ...]:
    """Compile a tree template: odd pieces between braces are variables."""
    pieces = re.split(r"\{([^{}]+)\}", text)
    parts: list[str | _Variable] = [_variable(piece) if i % 2 else piece for i, piece in enumerate(pieces)]
    return tuple(part for part in parts if part != "")


def _variables(parts: Sequence[_Part], certain: bool = False) -> set[str]:
    """Variable keys within phrase parts; with ``certain``, only those that no choice can leave out."""
    found: set[str] = set()
    for part in parts:
        if isinstance(part, _Variable):
            found.add(part.key)
        elif isinstance(part, _Choice):
            options = [_variables(option, certain) for option in part.options]
            found |= set.intersection(*options) if certain else set.union(*options)
    return found


class SynchronousGrammar:
    """Draws (phrase, tree) pairs from a rule set.

    Args:
        rules: Nonterminal → weighted rules or a drawing function.
        skew: Exponent on the rule weights; above 1 frequent rules become more frequent, 0 makes all equal.

    Raises:
        GrammarError: If a template names an unknown nonterminal, or a tree has a variable its phrase may lack.
    """

    def __init__(self, rules: RuleSet, skew: float = 1.0) -> None:
        self._draws: dict[str, Draw] = {}
        self._rules: dict[str, list[_Compiled]] = {}
        self._cumulative: dict[str, list[float]] = {}
        for name, productions in rules.items():
            if callable(productions):
                self._draws[name] = productions
                continue
            self._rules[name] = [self._compile(name, production, rules) for production in productions]
            total = 0.0
            self._cumulative[name] = cumulative = []
            for production in productions:
                total += production.weight**skew
                cumulative.append(total)

    @staticmethod
    def _compile(name: str, production: Rule, rules: RuleSet) -> _Compiled:
        phrases = tuple(_parse_phrase(phrase) for phrase in production.phrases)
        tree = _parse_tree(production.tree)
        needed = {part.key for part in tree if isinstance(part, _Variable)}
        for source, phrase in zip(production.phrases, phrases, strict=True):
            unknown = {key for key in _variables(phrase) if key.split(".")[0] not in rules}
            if unknown:
                raise GrammarError(f"{name}: phrase {source!r} names unknown nonterminals {sorted(unknown)}")
            missing = needed - _variables(phrase, certain=True)
            if missing:
                raise GrammarError(f"{name}: phrase {source!r} may lack variables {sorted(missing)} of its tree")
        return _Compiled(phrases, tree)

    def expand(self, name: str, rng: random.Random) -> Pair:
        """Return a random (phrase, tree) of nonterminal ``name``."""
        draw = self._draws.get(name)
        if draw is not None:
            return draw(rng)
        cumulative = self._cumulative[name]
        chosen = self._rules[name][bisect(cumulative, rng.random() * cumulative[-1], 0, len(cumulative) - 1)]
        phrases = chosen.phrases
        phrase = phrases[0] if len(phrases) == 1 else phrases[int(rng.random() * len(phrases))]
        bound: dict[str, Pair] = {}
        text: list[str] = []
        self._say(phrase, rng, bound, text)
        tree = [part if isinstance(part, str) else bound[part.key][1] for part in chosen.tree]
        return "".join(text), "".join(tree)

    def _say(self, parts: tuple[_Part, ...], rng: random.Random, bound: dict[str, Pair], text: list[str]) -> None:
        """Append the words of a phrase to ``text`` and its expansions to ``bound``."""
        for part in parts:
            if isinstance(part, str):
                text.append(part)
            elif isinstance(part, _Variable):
                pair = bound.get(part.key)
                if pair is None:
                    pair = bound[part.key] = self.expand(part.nonterminal, rng)
                text.append(pair[0])
            else:
                self._say(part.options[int(rng.random() * len(part.options))], rng, bound, text)
