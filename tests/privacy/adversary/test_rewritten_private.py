"""The attacker makes private requests fit to be published: some of them, without digits, names or texts."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from private_training import data_module, fit, privacy
from run_folders import work_of
from table_files import made_turns, write_lines

from commands.lightning.prompts import check_trees
from commands.run.experiment.experiment import load, shipped
from commands.run.preflight.sources import read_sources
from commands.run_folder.private_files import learnt_from
from datamodules.guards.overlap import overlapping
from datamodules.reading.columns import Columns
from datamodules.reading.examples import read_examples
from doppel.errors import UserError
from doppel.grammar.slot_table import SHIPPED, slot_table
from doppel.lispress.slots import to_slots
from lightning_modules.causal_lm import UtteranceLM

COLUMNS = Columns(text="said", parse="tree")


PRIVATE, OTHERS = made_turns(300, 1), made_turns(3000, 2)


@pytest.fixture
def private(tmp_path: Path) -> str:
    return write_lines(tmp_path / "private.jsonl", PRIVATE)


#: Requests under 30 letters and digits alone, as people ask a speaker or a calendar.
SHORT = [row for row in made_turns(1500, 5) if sum(map(str.isalnum, row["said"])) < 30]
KINDS = slot_table(SHIPPED).kinds


def _masked(rows: list[dict[str, str]], mask: str) -> list[dict[str, str]]:
    """With a mask in place of the names that the trees quote; ``\\g<0>`` is a placeholder such as person1."""
    return [{"text": KINDS.slot.sub(mask, to_slots(row["tree"], row["said"], KINDS).utterance)} for row in rows]


#: What is left of private turns that somebody has made fit to be published, and what was asked of it.
REWRITTEN: dict[str, Callable[[list[dict[str, str]]], list[dict[str, str]]]] = {
    "four of five": lambda rows: [row for place, row in enumerate(rows) if place % 5],
    "four of five among others": lambda rows: [row for place, row in enumerate(rows) if place % 5] + OTHERS,
    "digits": lambda rows: [{"text": re.sub(r"\d", "#", row["said"])} for row in rows],
    "digits left out": lambda rows: [{"text": re.sub(r"\d+", "", row["said"])} for row in rows],
    "[NAME]": lambda rows: _masked(rows, "[NAME]"),
    "<PERSON_1>": lambda rows: _masked(rows, "<PERSON_1>"),
    "***": lambda rows: _masked(rows, "***"),
    "placeholders": lambda rows: _masked(rows, r"\g<0>"),
    "XXXX and digits": lambda rows: [{"text": re.sub(r"\d", "#", row["text"])} for row in _masked(rows, "XXXX")],
}


#: Requests of which each names somebody.
NAMED = [row for row in made_turns(1500, 1) if to_slots(row["tree"], row["said"], KINDS).values]


def _said(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{"text": row["text"] if "text" in row else row["said"]} for row in rows]


@pytest.mark.parametrize("rows", [SHORT, NAMED], ids=["short", "named"])
@pytest.mark.parametrize("way", REWRITTEN)
def test_private_requests_made_fit_to_be_published_are_no_public_ones(
    way: str, rows: list[dict[str, str]], tmp_path: Path
) -> None:
    """In any order; the share of them is told in tens."""
    private = write_lines(tmp_path / "private.jsonl", rows)
    public = _said(REWRITTEN[way](rows))
    path = write_lines(tmp_path / "public.jsonl", random.Random(1).sample(public, len(public)))
    found = overlapping(path, None, [(private, COLUMNS)])
    assert found is not None and re.fullmatch(r"some (80|90|100) % of that file's requests stand in it", found.told)


@pytest.mark.parametrize("rows", [SHORT, NAMED], ids=["short", "named"])
def test_requests_of_other_people_are_public_ones_however_they_are_masked(
    rows: list[dict[str, str]], tmp_path: Path
) -> None:
    private, others = write_lines(tmp_path / "private.jsonl", rows), made_turns(3000, 7)
    for number, made in enumerate((others, others[:60], _masked(others, "[NAME]"), _masked(others, "***")[:300])):
        honest = write_lines(tmp_path / f"{number}.jsonl", _said(made))
        assert overlapping(honest, None, [(private, COLUMNS)]) is None
    once = list({row["said"].casefold(): row for row in others}.values())
    assert overlapping(write_lines(tmp_path / "once.jsonl", _said(once)), None, [(private, COLUMNS)]) is None


def test_published_requests_are_told_from_those_of_the_same_kind(data_folder: Path, tmp_path: Path) -> None:
    """SMCalFlow: of its short requests four of five, in one order or another, and the next split."""
    train, valid = (
        read_examples(str(data_folder / "smcalflow" / f"{part}.dataflow_dialogues.jsonl.zip"), "utterance")
        for part in ("train", "valid")
    )
    short = [{"said": turn.utterance} for turn in train if sum(map(str.isalnum, turn.utterance)) < 30]
    private = write_lines(tmp_path / "private.jsonl", short)
    others = [{"text": turn.utterance} for turn in valid]
    assert overlapping(write_lines(tmp_path / "valid.jsonl", others), None, [(private, Columns(text="said"))]) is None
    some = _said([row for place, row in enumerate(short) if place % 5])
    told = [
        overlapping(write_lines(tmp_path / f"{number}.jsonl", rows), None, [(private, Columns(text="said"))])
        for number, rows in enumerate((some + others, [*others, *reversed(some)]))
    ]
    assert told[0] is not None and told[0] == told[1]


@pytest.mark.parametrize("by", ["parse", "tree"])
def test_private_trees_alone_are_no_public_trees(by: str, private: str, tmp_path: Path) -> None:
    """Trees stand beside what is written for them."""
    run = tmp_path / "run"
    run.mkdir()
    data = {"columns": COLUMNS.as_dict(), "train_path": private}
    (run / "experiment.yaml").write_text(yaml.safe_dump({"name": "own", "data": data}))
    for rows, way in ((PRIVATE, "are"), (PRIVATE[:80] + OTHERS[:120], "hold some"), (OTHERS[:300], "are others")):
        trees = write_lines(tmp_path / "trees.jsonl", [{by: row["tree"]} for row in rows])
        if way == "are others":
            assert overlapping(trees, Columns(parse=by), [(private, COLUMNS)]) is None
            assert by == "tree" or check_trees(run, Path(trees), is_public=True) == 300
            continue
        found = overlapping(trees, Columns(parse=by), [(private, COLUMNS)])
        assert found is not None and "trees" in found.told
        if by == "parse":
            with pytest.raises(UserError, match="--trees is .* is to be public but"):
                check_trees(run, Path(trees), is_public=True)


def _stage(folder: Path, train: str) -> Path:
    """Leave what a training without privacy leaves of its configuration."""
    folder.mkdir(parents=True)
    arguments = {"train_path": train, "columns": COLUMNS.as_dict(), "is_public": True}
    (folder / "config.yaml").write_text(yaml.safe_dump({"data": {"init_args": arguments}}))
    return folder


@pytest.mark.parametrize("way", ["itself", "without digits", "another"])
def test_weights_that_learnt_from_a_private_file_are_no_public_start(
    way: str, private: str, tmp_path: Path, tiny_model: str
) -> None:
    """Declared public by mistake; a start that was trained privately has its own ledger."""
    rows = [{"text": re.sub(r"\d", "#", row["said"])} for row in (OTHERS[:300] if way == "another" else PRIVATE)]
    read = private if way == "itself" else write_lines(tmp_path / "x.jsonl", rows)
    start = _stage(tmp_path / "start", read) / "checkpoints" / "last.ckpt"
    changes = {"data.train_path": private, "data.columns": COLUMNS.as_dict(), "systems": ["one_stage"]}
    changes |= {"reference": None, "model.init_weights": str(start)}
    if way == "another":
        read_sources(work_of(load(shipped("own-data-small"), changes)))
        return
    with pytest.raises(UserError, match="what init_weights=.* learnt from is .* is to be public but"):
        read_sources(work_of(load(shipped("own-data-small"), changes)))
    fit(
        tmp_path / "begun",
        UtteranceLM(base_model=tiny_model),
        data_module(private, columns=COLUMNS.as_dict(), is_public=True),
        [],
    )
    data = data_module(private, columns=COLUMNS.as_dict())
    data.also_public = list(learnt_from("model.init_weights", str(start)))
    with pytest.raises(UserError, match="what model.init_weights=.* learnt from"):
        fit(tmp_path, UtteranceLM(base_model=tiny_model), data, [privacy(tmp_path)])
    assert not (tmp_path / "ledger.jsonl").exists()
    config = start.parents[1] / "config.yaml"
    config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), "privacy": {"target_epsilon": 8.0}}))
    assert not list(learnt_from("model.init_weights", str(start)))
