"""The tool ``evaluate`` with a semantic parser: its trees, ready annotations, the ground-truth row, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from commands.privacy import embedded_parts
from commands.quality import evaluate as command
from commands.quality.measures import human_value
from doppel.console.command import call
from doppel.errors import UserError
from doppel.lispress import is_valid
from doppel.metrics.compare import FUNCTION_KEYS, Corpus, compare, compared_sides, function_metrics
from lightning_modules import semantic_parser
from tests.tiny_parser import write_parser

HEADS = ("Create", "Find", "Delete")
REFERENCE = [
    {"utterance": f"{head.lower()} meeting {n}", "parse": f"(Yield ({head} (Number{n % 5})))"}
    for head in HEADS
    for n in range(10)
]
SYNTHETIC = [{"utterance": f"please {row['utterance']}", "parse": row["parse"]} for row in REFERENCE[:20]]
PARSED_KEYS = [f"{prefix}_{key}" for prefix in ("parsed", "ground_truth") for key in FUNCTION_KEYS]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> str:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def run(*options: str) -> None:
    """Run, as ``cli.py`` does, but for the errors."""
    call(command.evaluate, list(options), "evaluate")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def sides(tmp_path: Path) -> tuple[str, ...]:
    """The options for a reference and samples with trees."""
    return (
        *("--synthetic", write_lines(tmp_path / "samples.jsonl", SYNTHETIC)),
        *("--reference", write_lines(tmp_path / "reference.jsonl", REFERENCE), "--no-mauve"),
    )


def test_ready_annotations_of_both_sides(sides: tuple[str, ...], tmp_path: Path) -> None:
    """Order and further lines do not matter; a parser that is always right has a perfect ground truth."""
    parsed = [{**row, "parse": "(Yield (Find (Number0)))"} for row in SYNTHETIC]
    files = {
        "parsed": write_lines(tmp_path / "parsed.jsonl", [*reversed(parsed), {"utterance": "no sample"}, *REFERENCE]),
        "out": str(tmp_path / "out.json"),
    }
    run(*sides, *(part for name, path in files.items() for part in (f"--{name}", path)))
    values = json.loads((tmp_path / "out.json").read_text())
    assert values["parsed_function_overlap"] == pytest.approx(3 / 9)  # Yield, Find, Number0 of 4 + 5 types
    assert 0 < values["parsed_chi_square"] < 1
    assert values["function_overlap"] > values["parsed_function_overlap"]  # the sampled trees are another matter
    assert values["parsed_own_tree_match"] == sum(row["parse"] == parsed[0]["parse"] for row in SYNTHETIC) / 20
    assert (values["ground_truth_function_overlap"], values["ground_truth_chi_square"]) == (1, 0)
    assert values["ground_truth_exact_match"] == 1
    assert values["parser"] is None


def test_without_a_parser_the_values_are_null_and_a_note_says_why(sides: tuple[str, ...], tmp_path: Path) -> None:
    run(*sides, "--out", str(tmp_path / "out.json"))
    values = json.loads((tmp_path / "out.json").read_text())
    assert {values[key] for key in (*PARSED_KEYS, "parsed_own_tree_match", "ground_truth_exact_match")} == {None}
    assert any("--parser or --parsed" in note for note in values["notes"])


@pytest.fixture
def checkpoint(tmp_path: Path, tiny_model: str) -> str:
    """A parser with random weights: its trees are well-formed and wrong."""
    write_parser(tmp_path / "last.ckpt", tiny_model, [row["parse"] for row in REFERENCE])
    return str(tmp_path / "last.ckpt")


def test_a_checkpoint_annotates_and_its_annotations_serve_again(
    sides: tuple[str, ...], tmp_path: Path, checkpoint: str
) -> None:
    cache, out = tmp_path / "new" / "parsed.jsonl", [tmp_path / f"{n}.json" for n in range(3)]
    words = [*sides, "--num-samples", "7", "--parsed", str(cache)]
    run(*words, "--parser", checkpoint, "--out", str(out[0]))
    kept = cache.read_bytes()
    lines = read_lines(cache)
    assert len(lines) == 21 and sum(line["utterance"].startswith("please ") for line in lines) == 7
    assert all(is_valid(line["parse"]) and 0 < line["confidence"] <= 1 for line in lines)
    with mock.patch.object(semantic_parser, "load_parser"):  # which nothing asks for
        run(*words, "--parser", checkpoint, "--out", str(out[1]))
    run(*words, "--out", str(out[2]))
    first, again, without = (json.loads(path.read_text()) for path in out)
    assert first == again and without == {**first, "parser": None} and cache.read_bytes() == kept
    assert all(first[key] is not None for key in PARSED_KEYS)
    wrong = [{**line, "parse": "(Wrong)", "parser": "another"} for line in lines]  # of another parser: read anew
    write_lines(cache, wrong)
    run(*words, "--parser", checkpoint, "--out", str(out[1]))
    assert json.loads(out[1].read_text()) == first


def test_lines_that_no_parser_wrote_are_taken_and_kept(sides: tuple[str, ...], tmp_path: Path, checkpoint: str) -> None:
    by_hand = [
        {"parse": "(Right)", "annotator": "Ana", "utterance": text} for text in ("no sample", "please find meeting 0")
    ]
    stale = {"utterance": "another sample", "parse": "(Old)", "confidence": 0.5, "parser": "another"}
    cache = write_lines(tmp_path / "parsed.jsonl", [*by_hand, stale])
    run(*sides, "--parsed", cache, "--parser", checkpoint)
    lines = read_lines(Path(cache))
    assert lines[:3] == [*by_hand, stale] and "please find meeting 0" not in [line["utterance"] for line in lines[3:]]
    assert len(lines) == 3 + 40 - 1
    for path in (sides[1], sides[3]):
        before = Path(path).read_bytes()
        with pytest.raises(UserError, match="a file that is compared: give another --parsed"):
            run(*sides, "--parsed", path, "--parser", checkpoint)
        assert Path(path).read_bytes() == before


def test_a_stopped_evaluation_goes_on_with_the_trees_that_a_parser_has_read(
    sides: tuple[str, ...], tmp_path: Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches, where the bits of a confidence depend on the texts beside it."""
    read, most, annotate = list[str](), 99, semantic_parser.SemanticParser.annotate_with_scores

    def stopped(parser: semantic_parser.SemanticParser, some: list[str]) -> list[tuple[str, float]]:
        if len(read) >= most:
            raise SystemExit(75)
        read.extend(some)
        return annotate(parser, some)

    monkeypatch.setattr(embedded_parts, "_BATCHES", 7)
    monkeypatch.setattr(semantic_parser.SemanticParser, "annotate_with_scores", stopped)
    load = semantic_parser.load_parser
    monkeypatch.setattr(semantic_parser, "load_parser", lambda path: _of_batches(load(path), 4))
    words = [*sides, "--parser", checkpoint, "--parsed"]
    run(*words, str(tmp_path / "undisturbed" / "parsed.jsonl"))
    whole, most = sorted(read), 16
    read.clear()
    cache = tmp_path / "stopped" / "parsed.jsonl"
    with pytest.raises(SystemExit):
        run(*words, str(cache))
    assert not cache.exists() and len(read) == 16
    most = 99
    run(*words, str(cache))
    assert sorted(read) == whole, "each is read once"
    assert cache.read_bytes() == (tmp_path / "undisturbed" / "parsed.jsonl").read_bytes()
    assert [path.name for path in cache.parent.iterdir()] == ["parsed.jsonl"]


def _of_batches(parser: semantic_parser.SemanticParser, max_rows: int) -> semantic_parser.SemanticParser:
    parser.max_rows = max_rows
    return parser


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--parsed", "{part}"), "--parsed lacks 19 of the 20"),
        (("--parser", "/no/such.ckpt"), r"/no/such.ckpt"),
        (("--parsed", "/no/such.jsonl"), "/no/such.jsonl"),
        (("--parsed", "{synthetic}/here"), "/here"),
    ],
)
def test_bad_options(options: tuple[str, ...], message: str, sides: tuple[str, ...], tmp_path: Path) -> None:
    part = write_lines(tmp_path / "part.jsonl", SYNTHETIC[:1])
    options = tuple(option.format(synthetic=sides[1], part=part) for option in options)
    with pytest.raises(UserError, match=message) as caught:
        run(*sides, *options)
    assert "meeting" not in str(caught.value)


def test_function_metrics_take_equally_many_trees_of_both_sides() -> None:
    """Every reference tree has a function of its own, so that overlap would show a side that is too large."""
    reference = [f"(F{n})" for n in range(40)]
    few = function_metrics([*reference[:10], *[None] * 30], reference, "node_labels")
    assert few["function_overlap"] == pytest.approx(3 / 10)  # of every fourth function, F0, F4 and F8
    assert function_metrics(reference, reference, "node_labels")["function_overlap"] == 1
    assert set(function_metrics([None], reference, "node_labels").values()) == {None}


def test_the_human_value_is_that_of_other_requests_which_the_parser_reads(
    sides: tuple[str, ...], tmp_path: Path, checkpoint: str
) -> None:
    words = [*sides, "--num-samples", "7", "--out", str(tmp_path / "out.json")]
    right = write_lines(tmp_path / "right.jsonl", [*REFERENCE, *SYNTHETIC])
    run(*words, "--parsed", right)
    values = json.loads((tmp_path / "out.json").read_text())
    assert (values["ground_truth_function_overlap"], values["ground_truth_chi_square"]) == (1, 0)
    assert values["human_parsed_chi_square"] == values["human_chi_square"] > 0, "chance, and no error of a parser"
    assert human_value(values, "parsed_chi_square") == values["human_chi_square"]
    assert human_value({"human_chi_square": 0.2, "ground_truth_chi_square": 0.0}, "parsed_chi_square") == 0.2
    assert human_value(values, "parsed_own_tree_match") == values["ground_truth_exact_match"] == 1
    run(*words, "--parser", checkpoint)
    values = json.loads((tmp_path / "out.json").read_text())
    assert values["human_parsed_chi_square"] > values["human_chi_square"]
    few = write_lines(tmp_path / "few.jsonl", REFERENCE[:20])
    run(*sides[:2], "--reference", few, "--no-mauve", "--parsed", right, "--out", str(tmp_path / "out.json"))
    values = json.loads((tmp_path / "out.json").read_text())
    assert values["parsed_chi_square"] is not None
    assert human_value(values, "parsed_chi_square") is None, "there are no others, and the reference is no ceiling"


def test_trees_must_be_as_many_as_the_compared_utterances() -> None:
    corpus = Corpus(tuple(row["utterance"] for row in REFERENCE), tuple(row["parse"] for row in REFERENCE))
    side, other = compared_sides(corpus, corpus, num_samples=5, seed=3)
    assert side == other
    assert len(side.utterances) == 5
    with pytest.raises(ValueError, match="30 .* 5 "):
        compare(corpus, corpus, parsed=corpus.trees, num_samples=5, seed=3)
    values = compare(corpus, corpus, parsed=side.trees, num_samples=5, seed=3)
    assert (values["parsed_function_overlap"], values["parsed_own_tree_match"]) == (1, 1)
    assert values["ground_truth_chi_square"] is None


def test_a_reference_without_trees_has_no_parsed_values(tmp_path: Path) -> None:
    trees = write_lines(tmp_path / "trees.jsonl", REFERENCE)
    bare = write_lines(tmp_path / "bare.jsonl", [{"utterance": row["utterance"]} for row in REFERENCE])
    ready = ("--parsed", trees)
    run("--synthetic", trees, "--reference", bare, "--no-mauve", *ready, "--out", str(tmp_path / "out.json"))
    values = json.loads((tmp_path / "out.json").read_text())
    assert {values[key] for key in PARSED_KEYS} == {None}
    assert any("parsed_… and ground_truth_…" in note for note in values["notes"])
