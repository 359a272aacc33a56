"""Private text is put into one file of a finished run, of whatever kind: it is neither covered nor shown."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from page_content import read_html
from run_folders import end_step, evaluate, sample, spec

import cli
from commands.quality.frame import read_runs
from commands.run_folder.manifest import Manifest
from commands.run_folder.steps import File
from doppel.privacy.ledger import Ledger
from doppel.privacy.release import NoisyHistogram, declare
from doppel.privacy.spec import PrivacyArguments

PRIVATE = "lunch with Ana at her mother's"
#: Every file that people get or read of the run below, and what vouches for it.
KINDS = [
    "labels/labels.jsonl",
    "labels/labels.histogram.json",
    "labels/candidates.jsonl",
    "labels/samples.jsonl",
    "labels/samples.jsonl.kept.json",
    "topics/pool.jsonl",
    "topics/pool.jsonl.metrics.json",
    "topics/samples.jsonl",
    "topics/samples.jsonl.resampling.json",
    "topics/marginals.json",
    "topics/codebook.jsonl",
    "unconstrained/pool.jsonl",
    "two_stage/trees.jsonl",
    "two_stage/trees.jsonl.resampling.json",
    "parse_tree/marginals.json",
    "two_stage/samples.jsonl",
    "two_stage/samples.jsonl.metrics.json",
    "two_stage/chosen.jsonl",
    "two_stage/evaluation.json",
    "two_stage/evaluation.parsed.jsonl",
    "report.json",
    "report.html",
]
METRICS = {"mauve_own_base": 0.5, "word_overlap": 0.4, "notes": []}


def lines(*records: dict[str, str]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def shares(name: str, value: float = 900.0) -> str:
    told = {"unit": "utterance", "num_units": 2000, "noise_multiplier": 20.0, "sums": {name: value}}
    return json.dumps(told)


def texts(label: str) -> bytes:
    words = ("yes", "no", "maybe", "later", "please", "now")
    return lines(*({"utterance": f"{word} to {label}", "label": label} for word in words))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three systems, with every kind of file that steps derive from samples, and its report."""
    folder = tmp_path_factory.mktemp("kinds")
    run = folder / "run"
    private, public = str(folder / "private.jsonl"), str(folder / "public.jsonl")
    Path(private).write_bytes(lines({"utterance": PRIVATE}))
    Path(public).write_bytes(lines({"utterance": "what people say"}))
    run.mkdir()
    told = f"name: mine\nsystems: [labels, topics, two_stage]\nepsilon: 3.0\nnum_samples: 6\nreference: {public}\n"
    (run / "experiment.yaml").write_text(told)
    ledger, terms = Ledger(run / "ledger.jsonl"), replace(spec(3.0), noise_multiplier=2 * spec(3.0).noise_multiplier)
    counts = PrivacyArguments(3.0, delta=1e-5, accountant="rdp", histogram_noise_multiplier=20.0)
    for scope in ("labels", "topics", "two_stage"):
        made: dict[str, Any] = {"planned_steps": 5, "data_fingerprint": "f00d"}
        mechanism = ledger.open(scope=scope, stage="fit", spec=terms, **made)
        for _ in range(5):
            ledger.spend(mechanism)
        plan = counts.plan_release(NoisyHistogram.kind, 2000, "utterance", 20.0)
        ledger.spend(declare(ledger, scope, "histogram", plan, "f00d"), {"sums": {"a": 900.0}})

    def leave(step: str, words: list[str], contents: dict[str, bytes | str], reads: list[str], counts: bool) -> None:
        own = "labels" if "labels" in step else "topics" if "topics" in step else "two_stage"
        roles = {"samples": "release", "chosen": "release", "labels.jsonl": "prompts", "trees.jsonl": "prompts"}
        files = []
        for path, content in contents.items():
            (run / path).parent.mkdir(exist_ok=True)
            (run / path).write_bytes(content if isinstance(content, bytes) else content.encode())
            role: Any = next((r for start, r in roles.items() if Path(path).name.startswith(start)), "data")
            files.append(File(path, "metrics" if path.endswith(".json") else role, own, own))
        end_step(run, step, words, files, reads, private if counts else "", [f"{own}/histogram"] if counts else [])

    asked = texts("a") + texts("b")
    prompts = lines({"label": "a"}, {"label": "b"})
    leave(
        "histogram_labels",
        ["histogram"],
        {"labels/labels.jsonl": prompts, "labels/labels.histogram.json": shares("a")},
        [],
        True,
    )
    sample(run, "labels", "labels/candidates.jsonl", "candidates", asked)
    chosen = {"labels/samples.jsonl": texts("a"), "labels/samples.jsonl.kept.json": "{}"}
    leave("labels-choose", ["keep-best"], chosen, ["labels/candidates.jsonl", "labels/labels.jsonl"], False)

    sample(run, "topics", "topics/pool.jsonl", "pool", texts("pool"))
    drawn: dict[str, bytes | str] = {"topics/samples.jsonl": texts("pool").replace(b'"label": "pool"', b'"label": "1"')}
    drawn |= {"topics/samples.jsonl.resampling.json": '{"of": "utterances"}', "topics/marginals.json": shares("1")}
    drawn["topics/codebook.jsonl"] = lines({"name": "1"})
    leave("topics-resample", ["resample"], drawn, ["topics/pool.jsonl"], True)

    sample(run, "unconstrained", "unconstrained/pool.jsonl", "pool", lines({"parse": "(a)"}, {"parse": "(b)"}))
    drawn = {"two_stage/trees.jsonl": lines({"parse": "(a)"}), "parse_tree/marginals.json": shares("a")}
    drawn["two_stage/trees.jsonl.resampling.json"] = '{"of": "trees"}'
    leave("resample_trees_two_stage", ["resample"], drawn, ["unconstrained/pool.jsonl"], True)
    sample(run, "two_stage", lines=texts("c"))
    leave("diverse_two_stage", ["choose"], {"two_stage/chosen.jsonl": texts("c")}, ["two_stage/samples.jsonl"], False)
    for name in ("labels", "topics"):
        evaluate(run, name, METRICS)
    (run / "two_stage" / "evaluation.json").write_text(json.dumps(METRICS))
    (run / "two_stage" / "evaluation.parsed.jsonl").write_bytes(texts("c"))
    files = [File("two_stage/evaluation.json", "metrics", "two_stage", "two_stage")]
    files.append(File("two_stage/evaluation.parsed.jsonl", "data", "two_stage", "two_stage"))
    end_step(run, "two_stage-evaluate", ["evaluate"], files, ["two_stage/samples.jsonl", public])
    assert cli.main(["report", str(run)]) == 0
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path, own_site: None) -> Path:
    """A copy of its own, which reads its own files beside it."""
    run = Path(shutil.copytree(finished, tmp_path / "runs")) / "run"
    for path in (run / "manifest.json", run / "experiment.yaml", *(run / "configs").glob("*.json")):
        path.write_text(path.read_text().replace(str(finished), str(run.parent)))
    return run


def put_private_text(path: Path) -> None:
    """Twenty private rows among lines, or under every key of a file of numbers, or anywhere in a page."""
    if path.suffix == ".jsonl":
        path.write_bytes(path.read_bytes() + lines({"utterance": PRIVATE, "parse": f'("{PRIVATE}")'}) * 20)
    elif path.suffix == ".json":
        told = json.loads(path.read_text())
        changed = {key: told[key] for key in told if not isinstance(told[key], list | dict)}
        told |= {"sums": {**told.get("sums", {}), PRIVATE: 1500.0}, "notes": [PRIVATE], "synthetic/num_x": PRIVATE}
        path.write_text(json.dumps(told | {"statement": PRIVATE, "experiment": PRIVATE, "changed": changed}))
    else:
        path.write_text(path.read_text().replace("</h1>", f" {PRIVATE}</h1>"))


def reasons(run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert cli.main(["verify", str(run)]) == 1
    told = capsys.readouterr().out
    assert PRIVATE not in told
    return told.split("NOT VERIFIED:")[1]


def shown(run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """All that the page, the report and its file, and the tables tell."""
    capsys.readouterr()
    assert cli.main(["report", str(run)]) == 0 and cli.main(["report", str(run), "--csv", str(run / "all.csv")]) == 0
    return capsys.readouterr().out + read_html(run / "report.html").words + (run / "report.json").read_text()


def test_the_run_is_verified_with_its_report(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {made.path for made in Manifest.read(run).files.values() if made.role != "checkpoint"} >= set(KINDS)
    assert cli.main(["verify", str(run)]) == 0, capsys.readouterr().out
    assert "0.5" in shown(run, capsys)
    assert cli.main(["verify", str(run)]) == 0, capsys.readouterr().out


def test_what_was_deleted_is_not_released_and_prevents_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("two_stage/evaluation.parsed.jsonl", "topics/codebook.jsonl", "report.html"):
        (run / name).unlink()
    assert cli.main(["verify", str(run)]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", KINDS)
def test_private_text_in_a_file_is_neither_covered_nor_shown(
    run: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    put_private_text(run / name)
    assert re.search(rf"^- {name} was changed after [\w-]+ made it", reasons(run, capsys), flags=re.M)
    assert PRIVATE not in shown(run, capsys)


@pytest.mark.parametrize("name", ["topics/pool.jsonl", "labels/candidates.jsonl", "two_stage/samples.jsonl"])
def test_private_rows_put_in_between_two_steps_are_neither_covered_nor_shown(
    run: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """The later step read them, and all that it left is as it left it."""
    manifest = Manifest.read(run)
    (later,) = (e for e in manifest.files.values() if name in e.inputs and e.role == "release")
    put_private_text(run / name)
    put_private_text(run / later.path)
    source = [path for path in later.inputs if not Path(path).is_absolute()]
    private = [path for path in later.private_inputs if Path(path).is_absolute()]
    file = File(later.path, "release", later.system, later.budget)
    end_step(run, later.step, later.command, [file], source, *private, mechanisms=later.mechanisms)
    assert name in reasons(run, capsys)
    assert PRIVATE not in shown(run, capsys)


def test_a_table_reads_no_report_that_was_edited(run: Path) -> None:
    put_private_text(run / "report.json")
    frame, problems = read_runs([run])
    assert frame.empty and len(problems) == 1 and re.search(r"report\.json was changed", problems[0])


def by_hand(run: Path) -> None:
    """`evaluate --out RUN/one_stage/evaluation.json`, compared with what the attacker liked."""
    (run / "one_stage").mkdir()
    shutil.copy(run / "two_stage" / "evaluation.json", run / "one_stage" / "evaluation.json")


def by_hand_in_its_place(run: Path) -> None:
    (run / "two_stage" / "evaluation.json").write_text(json.dumps({"mauve_own_base": 0.98765, "notes": []}))


def another_reference(run: Path) -> None:
    """The public file changed under its name after one evaluation, and before another."""
    (run.parent / "public.jsonl").write_bytes(lines({"utterance": "else"}))
    own = [File("labels/evaluation.json", "metrics", "labels", "labels")]
    end_step(run, "labels-evaluate", ["evaluate"], own, ["labels/samples.jsonl", str(run.parent / "public.jsonl")])
    assert cli.main(["report", str(run)]) == 0


def another_private_file(run: Path) -> None:
    """The private file changed under its name between two resamplings."""
    path = run.parent / "private.jsonl"
    own = [File("labels/samples.jsonl", "release", "labels", "labels")]
    for content in (b"one", b"other"):
        path.unlink(missing_ok=True)
        path = path.with_name("private.jsonl")
        path.write_bytes(lines({"utterance": content.decode()}))
        reads, paid = ["labels/candidates.jsonl"], ["labels/histogram"]
        end_step(run, f"read_{content.decode()}", ["histogram"], own, reads, str(path), paid)
        own = [File("labels/labels.histogram.json", "metrics", "labels", "labels")]


def an_old_page(run: Path) -> None:
    """Samples were made anew, and the page shows those of before."""
    sample(run, "two_stage", lines=texts("d"))


MORE = {
    by_hand_in_its_place: r"two_stage/evaluation.json was changed",
    another_reference: r"public.jsonl",
    another_private_file: r"private.jsonl was another file when",
    an_old_page: r"report.html was made of another two_stage/samples.jsonl .*python cli.py report",
}


@pytest.mark.parametrize(("attack", "said"), MORE.items(), ids=[attack.__name__ for attack in MORE])
def test_a_run_whose_files_do_not_fit_is_not_verified(
    run: Path, capsys: pytest.CaptureFixture[str], attack: Callable[[Path], None], said: str
) -> None:
    attack(run)
    assert re.search(rf"^- .*{said}", reasons(run, capsys), flags=re.M)


@pytest.mark.parametrize("attack", [by_hand, by_hand_in_its_place])
def test_a_number_that_no_step_made_is_not_told(
    run: Path, capsys: pytest.CaptureFixture[str], attack: Callable[[Path], None]
) -> None:
    attack(run)
    told = shown(run, capsys)
    assert "0.98765" not in told and ".988" not in told
    assert "one_stage" not in json.loads((run / "report.json").read_text())["metrics"]


def test_what_was_compared_with_private_text_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Such figures are in report.json too, and on a page that was asked for them."""
    own = [File("two_stage/evaluation.json", "metrics", "two_stage", "two_stage")]
    (run / "two_stage" / "evaluation.json").write_text(json.dumps({**METRICS, "private/exact_copies": 0.25}))
    end_step(
        run, "two_stage-evaluate", ["evaluate"], own, ["two_stage/samples.jsonl"], str(run.parent / "private.jsonl")
    )
    (run / "two_stage" / "evaluation.parsed.jsonl").unlink()
    assert cli.main(["report", str(run)]) == 0 and cli.main(["verify", str(run)]) == 0, capsys.readouterr().out
    told = json.loads((run / "privacy_card.json").read_text())["not_covered"]
    named = {path for path, why in told.items() if why != "no step of the run made it"}
    assert named == {"two_stage/evaluation.json", "report.json", "report.html"}, "nobody asked for a comparison"
    experiment = yaml.safe_load((run / "experiment.yaml").read_text()) if (run / "experiment.yaml").exists() else {}
    (run / "experiment.yaml").write_text(yaml.safe_dump({**experiment, "compare_with_private": True}))
    assert cli.main(["report", str(run)]) == 0 and cli.main(["verify", str(run)]) == 0, capsys.readouterr().out
    told = json.loads((run / "privacy_card.json").read_text())["not_covered"]
    named = {path for path, why in told.items() if why != "no step of the run made it"}
    assert named == {"two_stage/evaluation.json", "report.json"}
    assert cli.main(["report", "--private", str(run)]) == 0 and cli.main(["verify", str(run)]) == 0
    assert "report.html" in json.loads((run / "privacy_card.json").read_text())["not_covered"]


def test_what_an_earlier_version_asked_of_a_parser_that_learnt_private_text_is_not_covered(run: Path) -> None:
    """Its manifest names the parser, and not what the parser had read."""
    parser, private = run.parent / "parser" / "checkpoints" / "last.ckpt", str(run.parent / "private.jsonl")
    parser.parent.mkdir(parents=True)
    parser.write_text("weights")
    told = yaml.safe_load((run / "experiment.yaml").read_text())
    (run / "experiment.yaml").write_text(
        yaml.safe_dump({**told, "parser": str(parser), "data": {"train_path": private}})
    )
    own = [File("two_stage/evaluation.json", "metrics", "two_stage", "two_stage")]
    end_step(run, "two_stage-evaluate", ["evaluate"], own, ["two_stage/samples.jsonl", str(parser)])
    (run / "two_stage" / "evaluation.parsed.jsonl").unlink()
    for learnt, named in ((run.parent / "public.jsonl", set()), (private, {own[0].path, "report.json", "report.html"})):
        config = {"model": {}, "data": {"init_args": {"train_path": str(learnt)}}}
        (parser.parents[1] / "config.yaml").write_text(yaml.safe_dump(config))
        assert cli.main(["report", str(run)]) == 0 and cli.main(["verify", str(run)]) == 0
        told = json.loads((run / "privacy_card.json").read_text())["not_covered"]
        assert {path for path, why in told.items() if "asked a parser that learnt private text" in why} == named


def test_the_card_lists_what_it_did_not_check(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(run)]) == 0
    told = capsys.readouterr().out
    content = json.loads((run / "privacy_card.json").read_text())["not_checked"]
    (listed,) = re.findall(r"^Not checked: (.*)\.$", told, flags=re.M)
    assert listed.split("; ") == content
    words = " ".join(content)
    assert "public.jsonl" in words and "private.jsonl" not in words  # what nobody compared, and no name of the other
    assert "base model" in words
    assert all(text in read_html(run / "report.html").words for text in content)
