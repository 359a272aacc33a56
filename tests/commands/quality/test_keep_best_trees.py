"""keep-best, trees: of several utterances drawn for a tree, the one that a public parser reads as the tree."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from run_folders import work_of

from commands.quality.evaluate import CHOSEN_BY_JUDGE, evaluate
from commands.quality.keep_best import best, keep_best, record_of
from commands.run.experiment.experiment import load
from commands.run.preflight.sources import check_sources, read_sources
from commands.run.steps.recipes import steps_of
from doppel.console.command import call
from doppel.errors import UserError
from doppel.metrics import graph_overlap, names_said
from lightning_modules import semantic_parser

FIND, ALICE = "(Yield (Find (Number1)))", '(Yield (Find (Person "Alice Smith")))'
NEAR, FAR = "(Yield (Find (Number2)))", "(Wave)"
#: What the parser reads in each utterance.
READS = {
    "find one": FIND,
    "look for one": FIND,
    "find two": NEAR,
    "hello": FAR,
    "find alice  smith": FAR,
    "find her": '(Yield (Find (Person "Bob")))',
}


def drawn(tree: str, *utterances: str) -> list[dict[str, Any]]:
    return [{"utterance": utterance, "parse": tree, "stage": "parse2utterance"} for utterance in utterances]


def chosen(trees: list[str], lines: list[dict[str, Any]], seed: int = 0) -> list[dict[str, Any]]:
    """What is kept of lines whose utterances the parser reads as above."""
    lines = [line for line in lines if line["parse"] in trees]
    worth = [
        (names_said(line["utterance"], line["parse"]), graph_overlap(READS[line["utterance"]], line["parse"]))
        for line in lines
    ]
    return [lines[place] for place in best(trees, [line["parse"] for line in lines], worth, seed)]


def texts(lines: list[Any]) -> list[str]:
    return [line["utterance"] for line in lines]


def test_a_match_goes_before_the_nearest_graph_and_said_names_before_both() -> None:
    assert texts(chosen([FIND], drawn(FIND, "hello", "find two", "find one"))) == ["find one"]
    assert texts(chosen([FIND], drawn(FIND, "hello", "find two"))) == ["find two"]
    assert texts(chosen([ALICE], drawn(ALICE, "find her", "find alice  smith"))) == ["find alice  smith"]
    assert graph_overlap(READS["find her"], ALICE) == 1 > graph_overlap(NEAR, FIND) > graph_overlap(FAR, FIND)
    assert graph_overlap("(no tree", FIND) == 0
    assert names_said("bring ALICE smith", '(f (Path.apply "bring") "Alice Smith" "Bob")') == 1


def test_each_tree_keeps_as_many_as_it_has_and_the_lines_follow_the_trees() -> None:
    trees = [FIND, ALICE, FIND, "(Lost)"]
    lines = [*drawn(ALICE, "find her"), *drawn(FIND, "hello", "find one", "look for one"), *drawn("(Other)", "hello")]
    kept = chosen(trees, lines)
    assert [line["parse"] for line in kept] == [FIND, ALICE, FIND]
    assert {kept[0]["utterance"], kept[2]["utterance"]} == {"find one", "look for one"}


def test_equals_are_drawn_as_often_as_the_model_draws_them() -> None:
    lines = drawn(FIND, "find one", "find one", "hello", "look for one")
    counts = Counter(texts([line for seed in range(900) for line in chosen([FIND], lines, seed)]))
    assert set(counts) == {"find one", "look for one"}
    assert abs(counts["find one"] - 600) < 60  # Binomial(900, 2/3): a standard deviation of 14
    assert chosen([FIND], lines, 5) == chosen([FIND], lines, 5)


def write_lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


class Parser:
    """A parser that knows its answers."""

    max_rows, device = 256, torch.device("cpu")

    def annotate_with_scores(self, utterances: list[str]) -> list[tuple[str, float]]:
        """Trees, with nats an action."""
        return [(READS[utterance], 0.5) for utterance in utterances]


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that stands for the parser."""
    monkeypatch.setattr(semantic_parser, "load_parser", lambda path: Parser())
    path = tmp_path / "run" / "parser" / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)
    path.write_text("a parser")
    return path


def test_the_command_counts_and_the_evaluation_knows_who_chose(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = drawn(FIND, "hello", "find one", "find two") + drawn(ALICE, "hello", "find alice  smith")
    candidates = write_lines(tmp_path / "candidates.jsonl", lines)
    trees = write_lines(tmp_path / "trees.jsonl", [{"utterance": None, "parse": tree} for tree in (FIND, ALICE)])
    out = tmp_path / "synthetic.jsonl"
    given = ["--candidates", candidates, "--prompts", trees, "--parser", str(checkpoint), "--out", str(out)]
    call(keep_best, given, "keep-best")
    told = json.loads(record_of(out).read_text())
    assert json.loads(capsys.readouterr().out) == told
    assert (told["num_prompts"], told["num_candidates"], told["num_kept"]) == (2, 5, 2)
    assert (told["candidates_match"], told["kept_match"]) == (0.2, 0.5)
    assert [json.loads(line)["stage"] for line in out.read_bytes().splitlines()] == ["parse2utterance"] * 2

    reference, values = write_lines(tmp_path / "reference.jsonl", drawn(FIND, "find one", "find two")), []
    for content in ("a parser", "another parser"):
        checkpoint.write_text(content)
        words = ["--reference", reference, "--no-mauve", "--parser", str(checkpoint), "--out", str(tmp_path / "o.json")]
        call(evaluate, ["--synthetic", str(out), *words], "evaluate")
        values.append(json.loads((tmp_path / "o.json").read_text()))
    assert [v["chosen_by_this_parser"] for v in values] == [True, False]
    assert [CHOSEN_BY_JUDGE in v["notes"] for v in values] == [True, False]
    with pytest.raises(UserError, match=r"other\.jsonl"):
        call(
            keep_best, [*given, "--prompts", write_lines(tmp_path / "other.jsonl", [{"parse": "(Other)"}])], "keep-best"
        )


def test_the_stages_draw_choose_and_judge(tmp_path: Path, checkpoint: Path) -> None:
    systems = ["one_stage", "two_stage", "mine", "shuffled"]
    changes = {"systems": systems, "candidates": 4, "public_parser": str(checkpoint), "num_samples": 30}
    changes |= {f"variants.{name}.data.batch_size": 150 for name in systems[1:]}
    experiment = load(Path("configs/experiments/quickstart.yaml"), changes)
    check_sources(experiment)
    stages = {stage.name: stage for stage in steps_of(experiment, tmp_path)}
    for name in systems[1:]:
        step = stages[f"{name}-choose"]
        assert step.needs == (f"{name}-sample_parse2utterance",) and step.command == "keep-best"
        assert str(tmp_path / name / "trees.jsonl") in step.config.values()
        assert step.needs[0] in stages and stages[f"{name}-evaluate"].needs[0] == step.name
        config = stages[step.needs[0]].config
        assert config is not None and config["data"]["init_args"]["num_samples"] == 120
        (written,) = (c["init_args"]["output_path"] for c in config["trainer"]["callbacks"] if "init_args" in c)
        assert written in step.config.values() and written != str(tmp_path / name / "samples.jsonl")
    assert stages["one_stage-evaluate"].needs == ("one_stage-sample_one_stage",)
    tree_config = stages["two_stage-sample_parse_tree"].config
    assert tree_config is not None and tree_config["data"]["init_args"]["num_samples"] == 30


def test_a_parser_that_saw_the_private_turns_does_not_choose(tmp_path: Path, checkpoint: Path) -> None:
    file = Path("configs/experiments/quickstart.yaml")
    with pytest.raises(UserError, match="public_parser"):
        check_sources(load(file, {"candidates": 2}))
    with pytest.raises(UserError, match="no/such"):
        check_sources(load(file, {"candidates": 2, "public_parser": "no/such.ckpt"}))
    with pytest.raises(UserError, match="candidates is 0"):
        load(file, {"candidates": 0})
    private = tmp_path / "private.jsonl"
    private.write_text("".join(f'{{"utterance": "call {n}", "parse": "(A)", "unit": "{n}"}}\n' for n in range(40)))
    changes = {"candidates": 2, "public_parser": str(checkpoint), "data.train_path": str(private), "reference": None}
    for trained_on, is_refused in ((f"{tmp_path}/../{tmp_path.name}/private.jsonl", True), ("gone.jsonl", False)):
        config = {"data": {"init_args": {"train_paths": [trained_on]}}}
        (checkpoint.parents[1] / "config.yaml").write_text(json.dumps(config))
        if is_refused:
            with pytest.raises(UserError, match=f"what public_parser=.* learnt from is .*{private}"):
                read_sources(work_of(load(file, changes)))
            read_sources(work_of(load(file, changes | {"epsilon": "inf"})))
        else:
            read_sources(work_of(load(file, changes)))
