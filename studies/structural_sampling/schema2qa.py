"""Questions to a database with their ThingTalk programs: a grammar for the six domains of Schema2QA.

What is the document's (Oren et al., 2021, section 4.1; Xu et al., 2020, arXiv 2001.05609): the six domains, their
tables, properties and operators, and the notation of programs. What is ours: the phrases, the values
(``schema2qa.yaml``), how shapes compose, and their weights. The weights fall with the rank of a shape, as the natural
ones do, which ``skew`` makes steeper or flatter.

Every query is built of one table, at most three filters, and operators around them: sort, distance, count, slice,
projection, aggregation. Filters stand in the alphabetical order that Schema2QA has. Which shapes there are was chosen
by the natural programs to train on, never by those to evaluate on; what is rare, such as joins, is written out in
``schema2qa.yaml`` (``more``).
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from itertools import combinations
from typing import Any, NamedTuple

import yaml

from doppel.grammar import lexicon
from doppel.grammar.synchronous import Draw, Pair, Rule, SynchronousGrammar, rule

_LISTS = "[find|show me|list|search for|give me|i want|what are the|which are the|are there|look for|i need]"
_ONE = "[find|show me|give me|what is|which is|i want|look for]"
_DISTANCE = "compute distance ( param:geo:Location , location:current_location ) of"
_PLACEHOLDER = re.compile(r"\b(?:NUMBER|TIME|DATE)_0\b")
_AN = re.compile(r"\ba (?=[aeiou])")
_VERB = re.compile(r"(?:(?<=that )|(?<=who ))(have|are|serve|allow|take|accept|work|live|speak)\b")
_SINGULAR = {"have": "has", "are": "is"}
#: What a property is asked of, and how often.
_ASKED = {"named_0": 1.0, "many_1": 0.06, "first": 0.05, "named_1": 0.04, "many_2": 0.01, "named_2": 0.01, "top": 0.004}
_FORMATS = {"ebook": "EBook", "audiobook": "AudiobookFormat", "hardcover": "Hardcover", "paperback": "Paperback"}


class Question(NamedTuple):
    """What somebody asks.

    Attributes:
        utterance: In lower case, its tokens with single blanks between them, as Schema2QA has them.
        program: ThingTalk.
        domain: One of the six.
    """

    utterance: str
    program: str
    domain: str


def questions(seed: int = 1, skew: float = 1.0) -> Iterator[Question]:
    """Draw questions for ever; they may repeat.

    Args:
        seed: Equal seeds give equal questions.
        skew: Exponent of all weights: 0 makes shapes equally frequent, above 1 the frequent ones more frequent.
    """
    grammar, rng = _grammar(skew), random.Random(seed)
    domains = _content()["domains"]
    names, shares = list(domains), [domain.get("share", 1) for domain in domains.values()]
    while True:
        name = rng.choices(names, shares)[0]
        utterance, query = grammar.expand(f"{name}_question", rng)
        yield Question(
            _AN.sub("an ", " ".join(utterance.split())), f"now => {query} => notify", domains[name].get("of", name)
        )


@cache
def _grammar(skew: float) -> SynchronousGrammar:
    return SynchronousGrammar(_rules(), skew)


@cache
def _content() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("schema2qa.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def _rules() -> dict[str, Sequence[Rule] | Draw]:
    content = _content()
    rules: dict[str, Sequence[Rule] | Draw] = {
        name: [rule(1, f'" {value} "', value) for value in values] for name, values in content["values"].items()
    }
    rules |= {
        "person": _said(lexicon.person),
        "place": _said(lexicon.city),
        "venue": _said(lexicon.venue),
        "title": _said(_title),
        "hotel": _said(_hotel),
        "artist": [rule(3, "{person}", "{person}"), rule(2, "{title}", "{title}")],
        "zip": _said(lambda rng: (f"{rng.randrange(10_000, 99_999)}", "")),
        "stars": [rule(1, str(n), str(n)) for n in range(1, 6)],
        "few": [rule(1, str(n), str(n)) for n in range(2, 10)],
        "price": [rule(1, f"enum:{word}", word) for word in ("cheap", "moderate", "expensive", "luxury")],
        "format": [rule(1, f"enum:{name}", word) for word, name in _FORMATS.items()],
        "hour": [rule(1, f"time:{n}:0:0", f"{(n - 1) % 12 + 1} {'am' if n < 12 else 'pm'}") for n in range(6, 24)],
    }
    for name, domain in content["domains"].items():
        rules |= _domain(name, domain)
    return rules


def _domain(d: str, given: dict[str, Any]) -> dict[str, Sequence[Rule] | Draw]:
    """The rules of a domain, from single filters to whole questions. A query is written without brackets around it."""
    table = f"@{given['table']}"
    rules: dict[str, Sequence[Rule] | Draw] = {
        f"{d}_one_{k}": found for k, found in _filtered(d, given, given["noun"]).items()
    }
    rules |= {f"{d}_many_{k}": found for k, found in _filtered(d, given, given["nouns"]).items()}
    (value,) = re.findall(r"\{\w+\}", given["name"])
    rules |= {f"{d}_named_{k}": found for k, found in _filtered(d, given, value, given["name"]).items()}
    rules |= {f"{d}_who_{k}": found for k, found in _filtered(d, given, "who").items() if found}
    for number, (_, condition, *phrases) in enumerate(given["filters"]):
        for place, phrase in zip(("before", "after", "who"), phrases, strict=False):
            if phrase is not None:
                rules[f"{d}_{number}_{place}"] = [rule(1, condition, phrase)]
        one = _VERB.sub(lambda verb: _SINGULAR.get(verb[0], f"{verb[0]}s"), phrases[1])
        rules[f"{d}_{number}_single"] = [rule(1, condition, one)]
    for form, noun in (("one", given["noun"]), ("many", given["nouns"])):
        rules[f"{d}_{form}"] = [
            rule(4, f"( {{{d}_{form}_1}} )", f"{{{d}_{form}_1}}"),
            rule(2, f"( {table} )", noun),
            rule(1, f"( {{{d}_{form}_2}} )", f"{{{d}_{form}_2}}"),
        ]
    sort = [rule(8, f"sort {p} {order} of {{{d}_one}}", f"{word} {{{d}_one}}") for p, order, word in given["sorts"]]
    most = [
        rule(3, f"sort param:count:Number desc of ( compute count ( {p} ) of {{{d}_one}} )", f"{{{d}_one}} {words}")
        for p, words, _ in given.get("counts", ())
    ]
    near = []
    if given.get("has_place"):
        tree = f"sort param:distance:Measure(m) asc of ( {_DISTANCE} {{{d}_one}} )"
        there = tree.replace("location:current_location", "location: {place}")
        near = [
            rule(14, tree, f"[nearest|closest] {{{d}_one}}", f"{{{d}_one}} closest to me"),
            rule(4, there, f"{{{d}_one}} [closest to|nearest to|nearest] {{place}}"),
        ]
    rules[f"{d}_ranked"] = [*sort, *most, *near]
    rules[f"{d}_first"] = [rule(1, f"( {{{d}_ranked}} ) [ 1 ]", f"{{{d}_ranked}}")]
    tops = [(f"sort {p} {order} of {{{d}_many}}", word) for p, order, word in given["sorts"]]
    if near:
        tops.append((f"sort param:distance:Measure(m) asc of ( {_DISTANCE} {{{d}_many}} )", "[nearest|closest]"))
    rules[f"{d}_top"] = [
        rule(1, f"( {tree} ) [ 1 : {{few}} ]", f"{{few}} {word} {{{d}_many}}", f"top {{few}} {word} {{{d}_many}}")
        for tree, word in tops
    ]
    rules[f"{d}_question"] = [
        *_lists(d, given),
        *_asks(d, given),
        *(rule(weight, tree, *phrases) for weight, tree, *phrases in given.get("more", ())),
        rule(0.3, table, f"{_LISTS} all {given['nouns']}"),
    ]
    return rules


def _lists(d: str, given: dict[str, Any]) -> list[Rule]:
    """Questions for the things that pass filters, for how many they are, and for the first of them in some order."""
    rules = [rule(6, f"{{{d}_first}}", f"{_ONE} the {{{d}_first}} [.|?|]")]
    if given["sorts"]:
        rules.append(rule(0.5, f"{{{d}_top}}", f"{_ONE} the {{{d}_top}} [.|?|]"))
    for number, weight, count in ((1, 50, 2), (2, 55, 2), (3, 2, 0.5)):
        many, one, who = (f"{{{d}_{form}_{number}}}" for form in ("many", "one", "who"))
        rules.append(rule(weight * 0.7, many, f"{_LISTS} {many} [.|?|]"))
        rules.append(rule(weight * 0.3, one, f"[find|show me|is there|i need|look for] a {one} [.|?|]"))
        rules.append(rule(count, f"aggregate count of ( {many} )", f"how many {many} are there [?|]"))
        if any(len(found) > 4 for found in given["filters"]):
            rules.append(rule(weight * 0.7, who, f"{who} [?|.|]"))
    for number, weight in ((0, 9), (1, 8), (2, 0.2)):
        named = f"{{{d}_named_{number}}}"
        rules.append(rule(weight, named, f"[find|show me|look for|search for|locate|give me] {named} [.|]"))
    return rules


def _filtered(d: str, given: dict[str, Any], word: str, name: str = "") -> dict[int, list[Rule]]:
    """Queries by how many filters they have, and how they are said.

    Args:
        d: Name of the domain.
        given: Its content.
        word: What the filters are said around: a noun, the slot of a name, or "who" before clauses.
        name: The condition of the name, if ``word`` is its slot; it is not counted.
    """
    table, filters = f"@{given['table']}", given["filters"]
    last = "who" if word == "who" else "after" if word == given["nouns"] else "single"
    usable = [i for i, found in enumerate(filters) if last != "who" or len(found) > 4]
    numbers = (0, 1, 2) if name else (1, 2, 3)
    found: dict[int, list[Rule]] = {number: [] for number in numbers}
    for chosen in (c for n in numbers for c in combinations(usable, n)):
        conditions = [filters[i][1] for i in chosen]
        marks = [mark for condition in conditions for mark in _PLACEHOLDER.findall(condition)]
        properties = [re.findall(r"(?:count \( )?param:[^ :]+", condition)[0] for condition in conditions]
        if len({*marks}) < len(marks) or len({*properties}) < len(properties):
            continue  # two numbers would have one name; or a property would stand twice
        weight = math.prod(filters[i][0] for i in chosen)
        can_precede = [] if name or last == "who" else [i for i in chosen if filters[i][2] is not None]
        for first in (None, *can_precede):
            slot = {i: f"{{{d}_{i}_{'before' if i == first else last}}}" for i in chosen}
            parts = sorted([*zip(conditions, slot.values(), strict=True), *([(name, name)] if name else [])])
            tree = f"( {table} ) filter " + " and ".join(part for _, part in parts)
            rest = [slot[i] for i in chosen if i != first]
            before, joint = "" if first is None else f"{slot[first]} ", " and " if last == "who" else " [and |]"
            phrases = {f"{before}{word} {joint.join(part)}" for part in (rest, rest[::-1])}
            found[len(chosen)].append(rule(weight * (1 if first is None else 2), tree, *sorted(phrases)))
    return found


def _asks(d: str, given: dict[str, Any]) -> list[Rule]:
    """Questions about properties: of the thing of a name, of the first of a ranking, of all that pass a filter."""
    rules, weights = [], [1 / (rank + 1) for rank in range(len(given["asks"]))]
    scale = 50 / sum(weights)
    for weight, (p, questions_) in zip(weights, given["asks"], strict=True):
        for x, share in _ASKED.items():
            if x == "top" and not given["sorts"]:
                continue
            said = [q.replace("{x}", f"{'' if 'named' in x else '[the|] '}{{{d}_{x}}}") for q in questions_]
            rules.append(rule(scale * weight * share, f"[ {p} ] of ( {{{d}_{x}}} )", *(f"{q} [?|]" for q in said)))
    for (p, _), (other, _) in combinations(sorted(given["asks"])[:6], 2):
        names = (name.split(":")[1].split(".")[-1] for name in (p, other))
        words = [re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower() for name in names]
        for weight, x in ((0.1, f"{{{d}_named_0}}"), (0.03, f"{{{d}_named_1}}")):
            tree = f"[ {p} , {other} ] of ( {x} )"
            rules.append(rule(weight, tree, f"what are the {words[0]} and the {words[1]} of {x} [?|]"))
    for p, _, (question,) in given.get("counts", ()):
        tree = f"[ param:count:Number ] of ( compute count ( {p} ) of ( {{{d}_named_0}} ) )"
        rules.append(rule(1.5, tree, question.replace("{x}", f"{{{d}_named_0}}") + " [?|]"))
    return rules


def _said(draw: Draw) -> Draw:
    """A value in lower case with its marks apart, and the same between quotes."""

    def value(rng: random.Random) -> Pair:
        text = re.sub(r"(['.,])", r" \1", draw(rng)[0].lower())
        return text, f'" {text} "'

    return value


def _title(rng: random.Random) -> Pair:
    word, noun = lexicon.pick(rng, "venue_words"), lexicon.pick(rng, "venue_nouns")
    draw = rng.random()
    if draw < 0.3:
        return f"the {word} {noun}", ""
    if draw < 0.5:
        return f"{word} {lexicon.pick(rng, 'activities')}", ""
    if draw < 0.7:
        return f"the {noun} of {lexicon.pick(rng, 'places')}", ""
    return (
        (lexicon.pick(rng, "rare_surnames"), "")
        if draw < 0.8
        else (f"{lexicon.pick(rng, 'first_names')} and the {noun}", "")
    )


def _hotel(rng: random.Random) -> Pair:
    word = lexicon.pick(rng, "rare_surnames" if rng.random() < 0.3 else "venue_words")
    return f"{word} {('hotel', 'inn', 'resort', 'suites', 'lodge')[rng.randrange(5)]}", ""
