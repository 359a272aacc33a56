"""Documents use the field's standard terms: home-made words for the same things stay out of the covered files."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from markdown_blocks import ROOT
from source_modules import modules

#: Files that are covered; code blocks and names in backticks are left out.
COVERED = sorted(
    file
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "docs/**/*.jinja",
        "commands/report/templates/**/*.html",
        "configs/**/*.yaml",
        "models/base/*.md",
        "models/smollm2/*.md",
        "studies/**/*.md",
    )
    for file in ROOT.glob(pattern)
)
MESSAGES = sorted(modules().values())
#: Home-made phrase, as a pattern → the field's term.
WORDS = {
    r"nats a (word|token)": "cross-entropy per word (nats)",
    r"(by|to) MiniLM": "MAUVE (MiniLM)",
    r"expects? (the samples )?less": "above the human 95th-percentile loss",
    r"of (two|three|five|\d) draws": "std over n resamples, or seeds",
    r"own-tree match": "round-trip parse match",
    r"coin of its own|by (a|the toss of a) coin": "Poisson sampling; a coin flip",
    r"a unit more|one unit more": "sensitivity ≤ 1",
    r"drowns?|drowned": "below the noise",
    r"paid for|pays? for|free of ε|costs? no(thing)? ε|no further ε": "charged; no additional privacy cost",
    r"dealt out anew|dealt anew": "shuffled baseline",
    r"\b(private|public|human|training|user|synthetic|\d+) turns?\b": "requests",
    r"(?<!low-rank )\badapters\b": "LoRA",
    r"SIGNED OFF": "VERIFIED",
    r"the law of": "the same distribution",
    r"as near as it gets": "compare with the human column",
    r"who(m|se)? (a text|it) votes": "vote",
    r"\b(commonest|likeliest)\b": "most frequent, most likely",
    r"(goes|gone|go|going) on from": "resume",
    r"borders? of words": "word boundaries",
}  # fmt: skip


def found(text: str) -> dict[str, str]:
    """Home-made phrases of a text, with the field's terms."""
    text = " ".join(text.split())
    return {match[0]: term for pattern, term in WORDS.items() for match in re.finditer(pattern, text, re.IGNORECASE)}


@pytest.mark.parametrize("path", COVERED, ids=lambda path: str(path.relative_to(ROOT)))
def test_standard_terms(path: Path) -> None:
    text = re.sub(r"^```.*?^```$|`[^`\n]+`", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert found(text) == {}, "left: what stands there; right: the standard term"


def test_standard_terms_of_messages() -> None:
    """String constants of several words, without docstrings."""
    wrong = {}
    for path in MESSAGES:
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        texts = [
            n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in docs
        ]
        wrong |= {f"{path}: {text}": terms for text in texts if " " in text.strip() and (terms := found(text))}
    assert wrong == {}


@pytest.mark.parametrize("phrase", ["7.6 nats a word", "votes drown", "it costs no ε", "free of ε", "SIGNED OFF"])
def test_a_home_made_word_is_found(phrase: str) -> None:
    assert found(phrase)
