"""keep-best, trees: of several utterances drawn for a tree, the one that a public parser reads as the tree."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_folders import work_of

from commands.privacy import feature_extractors
from commands.quality.evaluate import CHOSEN_BY_JUDGE, evaluate
from commands.quality.keep_best import best, keep_best, record_of
from commands.run.experiment.experiment import load
from commands.run.preflight.models import check_models
from commands.run.preflight.sources import check_sources, read_sources
from commands.run.steps.recipes import steps_of
from datamodules.reading.examples import read_examples
from doppel.console.command import call
from doppel.errors import UserError
from doppel.metrics import graph_overlap, names_said
from lightning_modules import semantic_parser
from tests.stopped_reads import Reads

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


@pytest.mark.slow
def test_fluent_texts_come_first_and_the_cap_keeps_the_draw_among_them(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The larger model's place is taken by the shipped base, which knows what people ask of a calendar."""
    base = Path("models/base").resolve()
    monkeypatch.setattr("commands.privacy.feature_extractors.place_of", lambda name: base)
    people = [turn.utterance for turn in read_examples("embedded:test?num=150&seed=9", "utterance")]
    garbled = [" ".join(f"{word[::-1]}q" for word in text.split()) for text in people]
    prompts = [f"(Prompt (Number{n}))" for n in range(50)]
    lines = []
    for n, prompt in enumerate(prompts):
        lines += drawn(prompt, garbled[n], people[n], people[n + 50], people[n + 100])
    given = ["--candidates", write_lines(tmp_path / "c.jsonl", lines), "--reference", "embedded:test?num=400&seed=5"]
    given += ["--prompts", write_lines(tmp_path / "p.jsonl", [{"parse": prompt} for prompt in prompts])]
    kept: list[str] = []
    for seed in range(6):
        call(keep_best, [*given, "--out", str(tmp_path / "o.jsonl"), "--seed", str(seed)], "keep-best")
        kept += texts([json.loads(line) for line in (tmp_path / "o.jsonl").read_bytes().splitlines()])
    told = json.loads(record_of(tmp_path / "o.jsonl").read_text())
    assert 0.25 < told["candidates_fluent"] < 0.6 and told["kept_match"] > 0.7
    assert len(kept) == 300 and sum(text in garbled for text in kept) < 6
    call(evaluate, ["--synthetic", str(tmp_path / "o.jsonl"), "--reference", given[3], "--no-mauve"], "evaluate")
    assert "also chose these samples" in capsys.readouterr().out
    assert len(set(kept)) > 60  # the least loss alone would keep one of each of the 50 prompts, whatever the seed
    lines = drawn(FIND, "find two", "find one") + drawn(ALICE, "find her", "hello")  # with a parser: the match
    monkeypatch.setattr("commands.quality.keep_best.places_of", lambda texts, *_: [0.2] * len(texts))
    words = ["--candidates", write_lines(tmp_path / "c.jsonl", lines), "--reference", "embedded:test?num=50&seed=5"]
    words += ["--prompts", write_lines(tmp_path / "p.jsonl", [{"parse": FIND}, {"parse": ALICE}])]
    call(keep_best, [*words, "--parser", str(checkpoint), "--out", str(tmp_path / "o.jsonl")], "keep-best")
    assert [json.loads(line)["utterance"] for line in (tmp_path / "o.jsonl").read_bytes().splitlines()][0] == "find one"


def test_a_run_with_fluent_candidates_needs_the_model_and_a_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path("configs/experiments/quickstart.yaml")
    for changes in ({"candidates": 1}, {"candidates": 4, "reference": None}):
        with pytest.raises(UserError, match="fluent"):
            load(file, {"fluent": True, **changes})
    load(file, {"fluent": True, "systems": ["topics"]})  # which has an over-sample
    experiment = load(file, {"fluent": True, "candidates": 4, "systems": ["two_stage"]})
    check_sources(experiment)  # and no parser
    (step,) = (step for step in steps_of(experiment, tmp_path) if step.name == "two_stage-choose")
    assert "reference" in step.config and "parser" not in step.config
    monkeypatch.setattr("commands.lightning.given_models.ROOT", tmp_path)
    with pytest.raises(UserError, match="make base-135m"):
        check_models(work_of(experiment))


def test_what_is_usual_is_never_learnt_from_private_turns(tmp_path: Path, tiny_model: str) -> None:
    run, private = tmp_path / "run", tmp_path / "private.csv"
    run.mkdir()
    private.write_text("utterance\n" + "".join(f"call person number {n} today\n" for n in range(80)))
    (run / "experiment.yaml").write_text(json.dumps({"epsilon": 3.0, "data": {"train_path": str(private)}}))
    trees = write_lines(run / "trees.jsonl", drawn(FIND, ""))
    words = ["--candidates", write_lines(run / "c.jsonl", drawn(FIND, "find one")), "--prompts", trees]
    with pytest.raises(UserError, match="--reference is .* is to be public"):
        call(keep_best, [*words, "--out", str(run / "o.jsonl"), "--reference", str(private)], "keep-best")


def test_texts_without_prompts_are_kept_by_fluency_in_the_shares_of_their_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the texts of each length are garbled, and none of these is kept."""
    rng = np.random.default_rng(3)
    sound = [" ".join(["say"] * int(n)) for n in rng.integers(1, 12, 200)]
    lines = [{"utterance": text} for one in sound for text in (one, one.replace("say", "yas"))]
    people = [" ".join(["say"] * n) for n in range(1, 12)] * 3
    monkeypatch.setattr(
        "commands.quality.keep_best.places_of", lambda texts, *_: [0.9 if "yas" in text else 0.1 for text in texts]
    )
    monkeypatch.setattr(
        "commands.privacy.feature_extractors.embed",
        lambda texts, _, keep: np.array([[1.0, len(t.split()) > 6] for t in texts], "f"),
    )
    words = ["--candidates", write_lines(tmp_path / "c.jsonl", lines), "--out", str(tmp_path / "o.jsonl")]
    file = tmp_path / "people.txt"
    file.write_text("\n".join(people))
    words += ["--reference", str(file), "--num-samples", "100"]
    call(keep_best, words, "keep-best")
    kept = [json.loads(line) for line in (tmp_path / "o.jsonl").read_bytes().splitlines()]
    assert len(kept) == 100 and all(line["place"] == 0.1 and "yas" not in line["utterance"] for line in kept)
    mean = np.mean([len(line["utterance"].split()) for line in kept])
    assert abs(mean - np.mean([len(text.split()) for text in sound])) < 0.5
    assert json.loads(record_of(tmp_path / "o.jsonl").read_text())["candidates_fluent"] == 0.5
    for lacking in (words[:-2], [*words[:4], *words[6:]]):
        with pytest.raises(UserError, match="--reference and --num-samples"):
            call(keep_best, lacking, "keep-best")


def test_a_run_of_one_stage_keeps_fluent_ones_of_its_candidates_and_topics_of_the_over_sample(tmp_path: Path) -> None:
    file = Path("configs/experiments/quickstart.yaml")
    wanted = {"fluent": True, "candidates": 4, "systems": ["one_stage", "topics"], "num_samples": 50}
    steps = {step.name: step for step in steps_of(load(file, wanted), tmp_path)}
    sampled, kept = steps["one_stage-sample_one_stage"], steps["one_stage-choose"]
    assert sampled.config["data"]["init_args"]["num_samples"] == 200
    assert kept.config["num_samples"] == 50 and "prompts" not in kept.config and kept.config["reference"]
    assert steps["topics-resample"].config["fluent"] == kept.config["reference"]
    assert "topics-choose" not in steps


@pytest.mark.slow
def test_a_choice_that_is_stopped_goes_on_with_losses_and_vectors_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_extractors, "LARGER", "models/base")
    texts = [f"{'please ' * (n % 4)}find number {n}" for n in range(60)]
    (tmp_path / "people.txt").write_text("\n".join(texts[:20]))
    given = ["--candidates", write_lines(tmp_path / "c.jsonl", [{"utterance": text} for text in texts[10:]])]
    given += ["--reference", str(tmp_path / "people.txt"), "--num-samples", "20", "--encoder", "models/base"]
    outs = [tmp_path / name / "o.jsonl" for name in ("undisturbed", "stopped")]
    steps = [partial(call, keep_best, [*given, "--out", str(out)], "keep-best") for out in outs]
    Reads(monkeypatch).are_kept(steps[0], steps[1], 14)  # the losses are there, and some of the vectors
    assert outs[0].read_bytes() == outs[1].read_bytes() and len(list(tmp_path.glob("*/*"))) == 4
