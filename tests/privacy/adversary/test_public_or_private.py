"""The attacker names the private file as a public one: in another form, in part, or hidden among other lines."""

from __future__ import annotations

import csv
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from private_training import data_module, fit, privacy
from run_folders import work_of
from table_files import made_turns, write_lines, write_table

import cli
from commands.report.quality import reference
from commands.run.experiment.experiment import load, shipped
from commands.run.preflight.sources import read_sources
from commands.run_folder.run_folder import RunFolder
from datamodules.guards.overlap import overlapping
from datamodules.reading.columns import Columns
from datamodules.reading.utterances import form_of, plain
from doppel.errors import UserError
from lightning_modules.causal_lm import UtteranceLM

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parents[3]
COLUMNS = {"text": "said", "parse": "tree"}


PRIVATE, OTHERS = made_turns(300, 1), made_turns(3000, 2)
TEXTS = [row["said"] for row in PRIVATE]


@pytest.fixture
def private(tmp_path: Path) -> str:
    return write_lines(tmp_path / "private.jsonl", PRIVATE)


def _renamed(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{"text": row["said"]} for row in rows]


#: The private turns as somebody may call them public.
FORMS: dict[str, Callable[[Path], str]] = {
    "a link": lambda folder: str(_linked(folder)),
    "a blank line more": lambda folder: str(
        _text(folder / "x.jsonl", "".join(f"{json.dumps(r)}\n\n" for r in PRIVATE))
    ),
    "text": lambda folder: write_table(folder, "txt", _renamed(PRIVATE)),
    "packed": lambda folder: write_table(folder, "csv.gz", PRIVATE),
    "parquet": lambda folder: write_table(folder, "parquet", PRIVATE),
    "other columns": lambda folder: write_lines(folder / "x.jsonl", _renamed(PRIVATE)),
    "another order": lambda folder: write_lines(folder / "x.jsonl", random.Random(1).sample(PRIVATE, len(PRIVATE))),
    "a part": lambda folder: write_lines(folder / "x.jsonl", PRIVATE[100:150]),
    "three lines": lambda folder: write_lines(folder / "x.jsonl", PRIVATE[100:103]),
    "upper case": lambda folder: str(_text(folder / "x.txt", "\n".join(text.upper() for text in TEXTS))),
    "punctuation": lambda folder: str(_text(folder / "x.txt", "\n".join(f"— {t.replace(' ', '  ')} …" for t in TEXTS))),
    "every line twice": lambda folder: write_lines(folder / "x.jsonl", PRIVATE * 2),
    "half of it with others": lambda folder: write_lines(folder / "x.jsonl", PRIVATE[:150] + OTHERS[:150]),
    "hidden among ten times as many": lambda folder: write_lines(folder / "x.jsonl", OTHERS + PRIVATE),
}


def _text(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _linked(folder: Path) -> Path:
    (folder / "link.jsonl").symlink_to(folder.parent / "private.jsonl")
    return folder / "link.jsonl"


@pytest.fixture(params=FORMS)
def disguised(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    (tmp_path / "public").mkdir()
    return FORMS[request.param](tmp_path / "public")


def own(private: str, **changes: Any) -> dict[str, Any]:
    return {"data.train_path": private, "data.columns": COLUMNS, "systems": ["topics"], "reference": None} | changes


def test_no_form_of_the_private_file_is_a_public_reference(private: str, disguised: str) -> None:
    with pytest.raises(UserError, match="reference") as refused:
        read_sources(work_of(load(shipped("own-data-small"), own(private, reference=disguised))))
    assert disguised in str(refused.value) and private in str(refused.value)
    assert not any(text in str(refused.value) for text in TEXTS if len(text.split()) > 2)  # "1" is in a path, too


@pytest.mark.parametrize("field", ["topics.texts", "data.val_path", "evolution.examples", "redact.safe"])
def test_nor_anything_else_that_is_public_in_a_run(private: str, field: str, tmp_path: Path) -> None:
    public = write_table(tmp_path / "public", "csv.gz", _renamed(PRIVATE))
    changes = own(private, **{field: public, "data.val_is_public": field == "data.val_path"})
    if field == "evolution.examples":
        changes |= {"systems": ["evolution"], "evolution.generator": "grammar"}
    if field == "redact.safe":
        changes |= {
            "redact.level": 0.5,
            "redact.sensitive": write_lines(tmp_path / "sensitive.jsonl", _renamed(OTHERS[:50])),
        }
    with pytest.raises(UserError, match=f"{field} is .* is to be public"):
        read_sources(work_of(load(shipped("own-data-small"), changes)))


@pytest.mark.parametrize("disguised", ["text", "upper case", "a part"], indirect=True)
def test_nor_public_to_norms(private: str, disguised: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = {"base": "own-data-small", "data": {"train_path": private, "columns": COLUMNS}, "systems": ["one_stage"]}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(content))
    assert cli.main(["norms", str(tmp_path / "own.yaml"), "--public", disguised]) == 2
    said = capsys.readouterr()
    assert said.out == "" and f"--public is {disguised}, which is to be public but" in said.err


def test_turns_of_the_same_kind_and_a_few_private_ones_among_them_are_taken(private: str, tmp_path: Path) -> None:
    for rows in (OTHERS[:300], OTHERS + PRIVATE[:20]):  # the second is what the comparison cannot notice
        public = write_lines(tmp_path / "public.jsonl", rows)
        assert overlapping(public, Columns(**COLUMNS), [(private, Columns(**COLUMNS))]) is None
    embedded = "embedded:train?num=300&seed=1"
    assert overlapping(embedded, None, [(embedded, None)]) is None
    assert overlapping(write_lines(tmp_path / "x.jsonl", PRIVATE), Columns(**COLUMNS), [("gone.jsonl", None)]) is None


@given(st.text(), st.sampled_from([str.upper, str.lower, str.title, lambda t: f" {t} ?!", lambda t: "\u200b".join(t)]))
def test_case_space_and_punctuation_make_no_difference(text: str, change: Callable[[str], str]) -> None:
    ascii_text = text.encode("ascii", "ignore").decode()
    for made in (plain, form_of):
        assert made(change(ascii_text)) == made(ascii_text)
        assert made(f"{text}\u00a0") == made(text)  # also where the letters are of another script


def test_the_published_splits_of_one_source_are_told_from_copies(data_folder: Path, tmp_path: Path) -> None:
    """The comparison is worth something only if real public data pass; for the shares see its docstring."""
    smcalflow, schema2qa = data_folder / "smcalflow", data_folder / "schema2qa"
    names = [(smcalflow, f"{part}.dataflow_dialogues.jsonl.zip") for part in ("train", "valid")]
    train, valid = (str(folder / name) for folder, name in names)
    assert overlapping(valid, None, [(train, None)]) is None
    programs = []
    for name in ("program_train", "program_dev", "iid_dev"):
        with (schema2qa / f"{name}.tsv").open(encoding="utf-8", newline="") as file:
            said = "\n".join(row[1] for row in csv.reader(file, delimiter="\t"))
        (tmp_path / f"{name}.txt").write_text(said, encoding="utf-8")
        programs.append(str(tmp_path / f"{name}.txt"))
    assert not any(overlapping(other, None, [(programs[0], None)]) for other in programs[1:])
    found = overlapping(train, None, [(valid, None), (train, None)])
    assert found is not None and found.path == train


def test_nothing_of_an_utterance_is_the_same_in_another_process(private: str) -> None:
    words = "import sys; from datamodules.reading.examples import utterances_of as u; "
    words += "from datamodules.reading.columns import Columns; "
    words += "print(*u(sys.argv[1], Columns(text='said')).long)"
    told = [
        subprocess.run(
            [sys.executable, "-c", words, private], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    first, second = (set(text.split()) for text in told)
    assert len(first) == len(second) > 100 and not first & second


@pytest.mark.parametrize("name", ["val", "test"])
def test_no_metric_of_the_private_file_is_public(name: str, tmp_path: Path, tiny_model: str, corpus: str) -> None:
    rows = [json.loads(line)["utterance"].upper() for line in Path(corpus).read_bytes().splitlines()]
    copy = _text(tmp_path / "copy.txt", "\n".join(rows))
    for path in (corpus, str(copy)):
        data = data_module(corpus, **{f"{name}_path": path, f"{name}_is_public": True})
        model = UtteranceLM(base_model=tiny_model)
        with pytest.raises(UserError, match=f"data.{name}_path is .* is to be public"):
            if name == "val":
                fit(tmp_path, model, data, [privacy(tmp_path)])
            else:
                data.text_format = model.text_format
                data.setup("test")
        assert not (tmp_path / "ledger.jsonl").exists()  # nothing was spent


def stage(folder: Path, train: str, **data: Any) -> Path:
    """Leave what a training leaves of its configuration."""
    folder.mkdir(parents=True)
    arguments = {"train_path": train, "columns": COLUMNS, **data}
    config = {"data": {"class_path": "datamodules.dialogue_data_module.DialogueDataModule", "init_args": arguments}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


@pytest.mark.parametrize("verb", ["validate", "test"])
def test_a_verb_on_a_checkpoint_knows_what_it_learnt_from(
    verb: str,
    tmp_path: Path,
    tiny_model: str,
    private: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    folder = stage(tmp_path / "run" / "one_stage", private)
    copy = write_lines(tmp_path / "copy.jsonl", _renamed(PRIVATE))
    name = {"validate": "val"}.get(verb, verb)
    words = [f"--config={ROOT}/configs/utterance_lm.yaml", f"--model.init_args.base_model={tiny_model}"]
    words += ["--data=datamodules.dialogue_data_module.DialogueDataModule", "--data.init_args.is_public=true"]
    words += ["--data.init_args.train_path=embedded:train?num=20", f"--data.init_args.{name}_path={copy}"]
    words += ["--trainer.accelerator=cpu", "--trainer.logger=false", f"--run_dir={folder}"]
    assert cli.main([verb, *words]) == 2
    told = capsys.readouterr()
    assert f"{name}_path is {copy}" in told.err and private in told.err and "loss" not in told.out


def test_what_predict_calls_public_is_compared_too(
    run: Path, tmp_path: Path, tiny_model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    prompts = write_lines(
        tmp_path / "prompts.jsonl", [{"utterance": r["said"].upper(), "parse": r["tree"]} for r in PRIVATE]
    )
    words = [f"--config={ROOT}/configs/parse2utterance.yaml", f"--config={ROOT}/configs/overlays/sample.yaml"]
    words += [f"--model.init_args.base_model={tiny_model}", f"--run_dir={run / 'two_stage'}", "--trainer.logger=false"]
    words += [
        f"--data.init_args.prompts_path={prompts}",
        "--data.init_args.is_public=true",
        "--trainer.accelerator=cpu",
    ]
    assert cli.main(["predict", *words]) == 2
    told = capsys.readouterr().err
    assert f"data.prompts_path is {prompts}, which is to be public but" in told and not list(run.rglob("*.part*"))


@pytest.fixture
def run(tmp_path: Path, private: str) -> Path:
    """A run whose trainings read trees that a parser wrote, under a path of the run's own."""
    run = tmp_path / "run"
    rewritten = run / "data" / "private_annotated.jsonl"
    stage(run / "two_stage", str(rewritten))
    experiment = {"name": "own", "data": {"columns": COLUMNS}, "write_parses": True, "epsilon": 8.0}
    experiment["overrides"] = {"data": {"train_path": private}}
    (run / "experiment.yaml").write_text(yaml.safe_dump(experiment))
    return run


@pytest.mark.parametrize("where", ["out", "synthetic", "columns.text"])
@pytest.mark.parametrize("kind", [["evaluate", "--no-mauve"], ["label-accuracy"]])
def test_an_evaluation_of_a_run_does_not_compare_with_its_private_turns(
    kind: list[str], where: str, run: Path, private: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = [{"utterance": row["said"], "label": "x"} for row in OTHERS[:50]]
    synthetic = write_lines((run if where == "synthetic" else tmp_path) / "synthetic.jsonl", samples)
    out = (tmp_path if where == "synthetic" else run / "evaluation") / "exact.json"
    reference = private if where == "columns.text" else write_lines(tmp_path / "x.jsonl", _renamed(PRIVATE))
    words = [*kind, "--synthetic", synthetic, "--reference", reference, "--out", str(out)]
    words += ["--columns.text", "said"] if where == "columns.text" else []
    assert cli.main(words) == 2
    told = capsys.readouterr()
    assert told.out == "" and f"--reference is {reference}" in told.err and private in told.err and not out.exists()


def test_nor_do_those_that_name_it_private_or_score_a_parser(
    run: Path, private: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = write_lines(tmp_path / "synthetic.jsonl", [{"utterance": row["said"]} for row in OTHERS[:50]])
    copy = write_lines(tmp_path / "copy.jsonl", [{"utterance": r["said"], "parse": r["tree"]} for r in PRIVATE])
    words = ["--synthetic", outside, "--no-mauve", "--private", private, "--columns.text", "said"]
    assert cli.main(["evaluate", *words, "--reference", copy]) == 2
    assert f"--reference is {copy}" in capsys.readouterr().err
    out = run / "parser_metrics" / "mine.json"
    assert cli.main(["step", "parser-metrics", "--predicted", copy, "--gold", copy, "--out", str(out)]) == 2
    told = capsys.readouterr()
    assert told.out == "" and "--gold" in told.err and not out.exists()


@pytest.mark.parametrize("way", ["itself", "a part", "upper case"])
def test_the_private_turns_of_a_split_are_no_test(
    way: str, private: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = PRIVATE[:50] if way == "a part" else [{**row, "said": row["said"].upper()} for row in PRIVATE]
    test = private if way == "itself" else write_lines(tmp_path / "test.jsonl", rows)
    words = ["--train", private, "--test", test, "--columns", json.dumps(COLUMNS), "--out", str(tmp_path / "split")]
    assert cli.main(["step", "partition", *words]) == 2
    assert f"--test is {test}" in capsys.readouterr().err and not (tmp_path / "split").exists()
    others = write_lines(tmp_path / "others.jsonl", OTHERS[:300])
    words[3] = others
    assert cli.main(["step", "partition", *words]) == 0


@pytest.mark.parametrize("way", ["itself", "a copy", "what it started from"])
def test_a_parser_that_learnt_from_a_private_file_is_not_public(
    way: str, run: Path, private: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read = private if way == "itself" else write_lines(tmp_path / "x.jsonl", _renamed(PRIVATE))
    parser, start = (_parser(tmp_path / name, paths) for name, paths in (("parser", [read]), ("start", [read])))
    if way == "what it started from":
        _parser(tmp_path / "parser", ["embedded:train?num=20"], str(start))
    changes = own(private, systems=["two_stage"], write_parses=True, public_parser=str(parser))
    with pytest.raises(UserError, match="public_parser"):
        read_sources(work_of(load(shipped("own-data-small"), changes)))
    pool = write_lines(run / "pool.jsonl", [{"utterance": r["said"], "parse": r["tree"]} for r in OTHERS[:20]])
    by_hand = {
        "keep-best": ["--candidates", pool, "--prompts", pool],
        "resample": [str(run / "two_stage"), "--pool", pool, "--num-samples", "3"],
    }
    for command, words in by_hand.items():
        assert cli.main(["step", command, *words, "--parser", str(parser), "--out", str(tmp_path / "o.jsonl")]) == 2
        told = capsys.readouterr()
        assert told.out == "" and f"what --parser={parser} learnt from is {read}" in told.err and private in told.err


def test_what_a_parser_reads_that_learnt_from_the_private_file_is_in_no_budget(private: str, tmp_path: Path) -> None:
    """It may judge, as that of the paper does; no ε covers what it writes, and that is said before it is paid."""
    own_one = _parser(tmp_path / "parser", [private])
    changes = own(private, systems=["two_stage"], parser=str(own_one), reference="embedded:test?num=300&seed=1")
    work = work_of(load(shipped("own-data-small"), changes))
    (judges,) = [step for step in work.steps if step.command == "evaluate"]
    assert judges.protected == (private,) and private in judges.reads and not judges.mechanisms
    assert any(f"parser={own_one} learnt from {private} without privacy" in note for note in read_sources(work).notes)
    Path(private).rename(tmp_path / "elsewhere")  # deleted once the models are trained: the parser still learnt it
    (judges,) = [step for step in work_of(load(shipped("own-data-small"), changes)).steps if step.command == "evaluate"]
    assert judges.protected == (private,)
    (tmp_path / "elsewhere").rename(private)
    others = _parser(tmp_path / "others", [write_lines(tmp_path / "others.jsonl", _renamed(OTHERS[:300]))])
    work = work_of(load(shipped("own-data-small"), changes | {"parser": str(others)}))
    assert not any(step.protected for step in work.steps if step.command == "evaluate")
    assert not any("without privacy" in note for note in read_sources(work).notes)
    copy = _parser(tmp_path / "copy", [write_lines(tmp_path / "x.jsonl", _renamed(PRIVATE))])
    with pytest.raises(UserError, match="what parser=.* learnt from"):  # of which no step could say what it reads
        read_sources(work_of(load(shipped("own-data-small"), changes | {"parser": str(copy)})))


def test_an_evaluation_says_that_its_parser_learnt_from_private_text(
    run: Path, private: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = "(Yield (Ask))"
    monkeypatch.setattr(
        "commands.quality.evaluate.trees_of", lambda parser, texts, cache: dict.fromkeys(texts, (tree, 0.1))
    )
    samples = write_lines(run / "samples.jsonl", [{"utterance": row["said"], "parse": tree} for row in OTHERS[:20]])
    public = write_lines(tmp_path / "public.jsonl", [{"utterance": r["said"], "parse": tree} for r in OTHERS[300:340]])
    for paths, is_said in (([private], True), (["embedded:train?num=20"], False)):
        parser = _parser(tmp_path / "parser", paths)
        words = ["--synthetic", samples, "--reference", public, "--no-mauve", "--out", str(run / "evaluation.json")]
        assert cli.main(["evaluate", *words, "--parser", str(parser)]) == 0
        notes = json.loads((run / "evaluation.json").read_text())["notes"]
        assert any("no ε covers parsed_" in note for note in notes) == is_said


def _parser(folder: Path, paths: list[str], start: str | None = None) -> Path:
    checkpoint = folder / "checkpoints" / "last.ckpt"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_text("a parser")
    config = {"data": {"init_args": {"train_paths": paths}}, "model": {"init_args": {"init_weights": start}}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return checkpoint


def test_the_page_draws_nothing_of_a_reference_that_is_private(run: Path, private: str, tmp_path: Path) -> None:
    path = run / "experiment.yaml"
    for rows, is_shown in ((PRIVATE, False), (OTHERS[:300], True)):
        copy = write_lines(tmp_path / "copy.jsonl", _renamed(rows))
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "reference": copy}))
        shown, why = reference(RunFolder(run))
        assert bool(shown) == is_shown and (private in why) != is_shown


def test_the_parts_of_a_split_are_compared_with_its_private_one(
    private: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The test was cut off the very file that is split, and is public; the private part with its trees is not."""
    run = tmp_path / "run"
    words = ["--train", private, "--columns", json.dumps(COLUMNS), "--out", str(run / "data")]
    assert cli.main(["step", "partition", *words]) == 0
    experiment = {"name": "split", "adaptation": {"train": private}, "data": {"columns": COLUMNS}}
    (run / "experiment.yaml").write_text(yaml.safe_dump(experiment))
    capsys.readouterr()
    for part, code in (("test", 0), ("private_gold", 2), ("full", 2)):
        file = str(run / "data" / f"{part}.jsonl")
        assert cli.main(["step", "parser-metrics", "--predicted", file, "--gold", file]) == code
        assert bool(capsys.readouterr().out) == (code == 0)
