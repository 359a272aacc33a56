"""Questions of the Schema2QA grammar: programs that can be read, whose values are said, distinct, by their seed."""

from __future__ import annotations

import csv
import gzip
import os
import re
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from datamodules.reading.examples import read_examples
from studies.structural_sampling import schema2qa_pool
from studies.structural_sampling.__main__ import main
from studies.structural_sampling.programs import abstract_query, template
from studies.structural_sampling.schema2qa import questions
from studies.structural_sampling.thingtalk import to_lispress

MANY = list(islice(questions(seed=3), 5000))


def test_every_program_can_be_read_and_its_conditions_stand_in_order() -> None:
    for question in MANY:
        to_lispress(question.program)
        for part in re.findall(r"filter (.*?)(?: \)| =>)", re.sub(r'" [^"]* "', '""', question.program)):
            conditions = part.split(" and ")
            if not any("(" in c.replace("(org", "") for c in conditions):
                assert conditions == sorted(conditions), question
    assert {question.domain for question in MANY} == {"restaurants", "hotels", "books", "movies", "music", "people"}


def test_what_a_program_names_is_said() -> None:
    for question in MANY:
        for text in re.findall(r'" ([^"]*) "', question.program):
            assert f" {text} " in f" {question.utterance} ", question
        for mark in re.findall(r"\b(?:NUMBER|TIME|DATE)_\d\b", question.program):
            assert question.utterance.count(mark) == question.program.count(mark) == 1, question
        assert not re.search(r"[{}\[\]|]", question.utterance), question


def test_the_skew_makes_frequent_shapes_more_frequent() -> None:
    def kinds(skew: float) -> int:
        return len({re.sub(r'" [^"]* "|\d+', "x", question.program) for question in islice(questions(1, skew), 1000)})

    assert kinds(0.0) > 1.2 * kinds(1.0) > 1.4 * kinds(2.0)


def exponent(counts: NDArray[np.integer]) -> float:
    """The s of p ∝ 1 / rank^s under which counts are likeliest."""
    logs = np.log(np.arange(1, len(counts) + 1))
    mean = float(np.sort(counts)[::-1] @ logs / counts.sum())
    return float(minimize_scalar(lambda s: s * mean + np.log(np.exp(-s * logs).sum()), (0, 1), tol=1e-6).x)


def test_templates_are_as_skewed_as_natural_ones() -> None:
    _, counts = np.unique([template(abstract_query(question.program)) for question in MANY], return_counts=True)
    assert exponent(counts) == pytest.approx(1.72, abs=0.15)  # of the 1,619 natural programs to train on


def test_every_template_of_the_natural_programs_to_train_on_is_made() -> None:
    if "DOPPEL_DATA" not in os.environ:
        pytest.skip("DOPPEL_DATA is unset: it names the folder with schema2qa/program_train.tsv")
    path = Path(os.environ["DOPPEL_DATA"]) / "schema2qa" / "program_train.tsv"
    with path.open(encoding="utf-8", newline="") as file:
        natural = {row[5] for row in csv.reader(file, delimiter="\t")}
    made = {template(abstract_query(question.program)) for question in islice(questions(1, skew=0.5), 10_000)}
    assert len(natural & made) >= len(natural) - 2


def test_one_person_is_spoken_of_in_the_singular() -> None:
    said = [q.utterance for q in MANY if q.domain == "people" and q.utterance.startswith(("find a ", "who "))]
    assert len(said) > 100
    assert not [text for text in said if re.search(r"\bwho (work|live|speak|have|are)\b", text)]


def test_other_seeds_give_other_questions() -> None:
    programs = {question.program for question in MANY}
    assert sum(question.program not in programs for question in islice(questions(seed=4), 300)) > 100


def test_a_grammar_that_is_used_up_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema2qa_pool, "_PATIENCE", 0)
    out = tmp_path / "pool.tsv"
    assert main(["pool", "--num", "1000000", "--out", str(out)]) == 2
    assert re.search(r"hardly more than \d+ questions: ask for fewer", capsys.readouterr().err)
    assert not out.exists()


def test_a_pool_has_distinct_rows_that_a_parser_can_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "pool.tsv.gz"
    assert main(["pool", "--num", "500", "--out", str(out)]) == 0
    assert "500 distinct questions" in capsys.readouterr().out
    with gzip.open(out, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t"))
    assert len(rows) == len({(row[1], row[2]) for row in rows}) == len({row[0] for row in rows}) == 500
    assert main(["lispress", str(out), "--out", str(tmp_path / "rows.jsonl")]) == 0
    turns = read_examples(str(tmp_path / "rows.jsonl"), "utterance", needs=["parse", "label"])
    assert [turn.utterance for turn in turns] == [row[1] for row in rows]
    fewer = tmp_path / "fewer.tsv"
    assert main(["pool", "--num", "100", "--out", str(fewer)]) == 0
    with fewer.open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file, delimiter="\t")) == rows[:100]


def test_what_cannot_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--num", "0"], ["--skew", "-1"]):
        assert main(["pool", "--out", str(tmp_path / "pool.tsv"), *words]) == 2
    assert main(["pool", "--out", str(tmp_path / "pool.csv")]) == 2
    assert ".tsv" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
