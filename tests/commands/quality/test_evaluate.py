"""The tool ``evaluate``: keys, equal sample counts, one-stage files, private values, and one-line errors."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from commands.quality import evaluate as command
from commands.quality import judges
from commands.run_folder.places import ROOT
from doppel.console.command import call
from doppel.errors import DataError, UserError
from doppel.metrics import next_token
from tests.stopped_reads import Reads

KEYS = {
    "word_overlap",
    "function_overlap",
    "chi_square",
    "mauve_tiny_model0",
    "mauve_own_base",
    "judges",
    "top_10_overlap",
    "top_25_overlap",
    "top_50_overlap",
    "top_100_overlap",
    "valid_trees",
    "distinct",
    "commonest",
    "distinct_trees",
    "commonest_tree",
    "reference_commonest_tree",
    "mean_words",
    "trees",
    "featurizer",
    "num_synthetic",
    "num_reference",
    "num_compared",
    "notes",
}
HEADS = ("Create", "Find", "Delete")
REFERENCE = [
    {"utterance": f"{head.lower()} meeting number {n}", "parse": f"(Yield ({head} (Number{n % 5})))"}
    for head in HEADS
    for n in range(20)
]
SYNTHETIC = [{**row, "parse": row["parse"] if n % 4 else "(Broken ("} for n, row in enumerate(REFERENCE[:40])]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> str:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def run(*options: str) -> None:
    """Run, as ``cli.py`` does, but for the errors."""
    call(command.evaluate, list(options), "evaluate")


Rows = list[dict[str, Any]]


def values_of(folder: Path, synthetic: Rows, reference: Rows, *options: str) -> dict[str, Any]:
    """Evaluate lines."""
    sides = ("--synthetic", write_lines(folder / "synthetic.jsonl", synthetic))
    sides += ("--reference", write_lines(folder / "reference.jsonl", reference))
    run(*sides, "--out", str(folder / "out.json"), *options)
    values: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return values


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A reference, samples with trees, and samples without."""
    return {
        "reference": write_lines(tmp_path / "reference.jsonl", REFERENCE),
        "two_stage": write_lines(tmp_path / "two.jsonl", SYNTHETIC),
        "one_stage": write_lines(tmp_path / "one.jsonl", [{"utterance": row["utterance"]} for row in SYNTHETIC]),
    }


def test_two_stage_file(
    files: dict[str, str], tmp_path: Path, tiny_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "report.json"
    run(
        *("--synthetic", files["two_stage"], "--reference", files["reference"]),
        *("--out", str(out), "--featurizer", tiny_model),
    )
    values = json.loads(out.read_text())
    assert values.keys() >= KEYS
    assert not any(name.startswith("private/") for name in values)
    assert values["featurizer"] == Path(tiny_model).name
    assert not [path for path in (tiny_model, str(tmp_path), str(ROOT)) if path in out.read_text()], (
        "anybody may read it"
    )
    assert (values["num_synthetic"], values["num_reference"], values["num_compared"]) == (40, 60, 40)
    assert values["valid_trees"] == pytest.approx(0.75)
    assert 0 < values["function_overlap"] < 1
    assert 0 < values["mauve_tiny_model0"] <= 1 and values["judges"].endswith(", own_base: models/base")
    assert values["trees"].startswith("sampled with the text")
    assert [path.name for path in out.parent.iterdir()] == ["report.json"]  # no temporary file is left
    table = capsys.readouterr().out.splitlines()
    starts = {line.index(line.split()[1]) for line in table if not line.startswith("note:")}
    assert len(starts) == 1  # aligned


def test_a_stopped_evaluation_goes_on_with_what_its_judges_have_read(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few texts are read by its second start, and its file is, to the byte, that of an undisturbed one."""
    monkeypatch.setattr(judges, "LARGER", "nowhere/smollm2-135m")  # one judge is enough
    monkeypatch.setattr(judges, "find_spec", lambda name: None)
    given = ("--synthetic", files["two_stage"], "--reference", files["reference"], "--base-model", "models/base")
    outs = [tmp_path / name / "evaluation.json" for name in ("undisturbed", "stopped")]
    undisturbed, stopped = (partial(run, *given, "--out", str(out)) for out in outs)
    Reads(monkeypatch).are_kept(undisturbed, stopped, 5)
    assert [list(out.parent.iterdir()) for out in outs] == [[out] for out in outs]
    assert outs[0].read_bytes() == outs[1].read_bytes() and json.loads(outs[0].read_text())["mauve_own_base"]


def test_a_stopped_evaluation_trains_no_model_of_the_next_token_again(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, most = list[tuple[str, ...]](), 1

    def accuracy(taught: list[str], *_: object) -> float:
        if len(trained) == most:
            raise SystemExit(75)
        trained.append(tuple(taught))
        return len(trained) / 7

    monkeypatch.setattr(next_token, "next_token_accuracy", accuracy)
    out = tmp_path / "new" / "evaluation.json"
    words = ("--synthetic", files["two_stage"], "--reference", files["reference"], "--no-mauve", "--out", str(out))
    with pytest.raises(SystemExit):
        run(*words, "--next-token-epochs", "1")
    most = 9
    run(*words, "--next-token-epochs", "1")
    assert len(trained) == len(set(trained)) == 3 and list(out.parent.iterdir()) == [out]
    values = json.loads(out.read_text())
    names = ("next_token_accuracy", "human_next_token_accuracy", "next_token_accuracy_untrained")
    assert [values[name] for name in names] == [1 / 7, 2 / 7, 3 / 7]


def test_one_stage_file_has_no_tree_metrics(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.json"
    run("--synthetic", files["one_stage"], "--reference", files["reference"], "--no-mauve", "--out", str(out))
    one = json.loads(out.read_text())
    for key in ("function_overlap", "chi_square", "valid_trees", "top_10_overlap"):
        assert one[key] is None
    assert one["judges"] is None and not [name for name in one if name.startswith(("mauve", "fluency"))]
    assert one["trees"].startswith("none: one-stage samples carry no tree")
    assert any("no trees" in note for note in one["notes"])
    said = capsys.readouterr().out
    printed = {line.split()[0] for line in said.splitlines() if not line.startswith("note:")}
    assert printed == {name for name, value in one.items() if value is not None} - {"notes"} and "–" not in said


def test_equal_files_are_perfect_and_subsets_depend_on_the_seed_alone(tmp_path: Path) -> None:
    perfect = values_of(tmp_path, REFERENCE, REFERENCE, "--no-mauve")
    for key in ("word_overlap", "function_overlap", "valid_trees", "distinct"):
        assert perfect[key] == 1
    assert perfect["chi_square"] == 0
    few = ("--no-mauve", "--num-samples", "20", "--seed")
    half = [values_of(tmp_path, REFERENCE[:50], REFERENCE, *few, seed) for seed in ("1", "1", "2")]
    assert half[0] == half[1] != half[2]
    assert half[0]["num_compared"] == 20


def test_empty_samples_are_noted(tmp_path: Path) -> None:
    half = [row if n % 2 else {"utterance": " "} for n, row in enumerate(REFERENCE)]
    for rows, said in (
        (half, [f"30 of {len(half)} compared samples are empty, which MAUVE hardly shows"]),
        (REFERENCE, []),
    ):
        notes = values_of(tmp_path, rows, REFERENCE, "--no-mauve")["notes"]
        assert [note for note in notes if "empty" in note] == said


def test_a_tree_model_that_fell_back_on_its_mode_is_named(tmp_path: Path) -> None:
    mode = [{"utterance": f"delete meeting {n}", "parse": "(Yield (Delete (Number1)))"} for n in range(30)]
    collapsed = values_of(tmp_path, mode + REFERENCE[:10], REFERENCE, "--no-mauve")
    assert collapsed["commonest_tree"] == 0.75
    assert collapsed["distinct_trees"] == pytest.approx(6 / 40)  # Create with 0 to 4, and the mode
    assert collapsed["reference_commonest_tree"] < 0.2
    assert any("falls back on its mode" in note for note in collapsed["notes"])
    healthy = values_of(tmp_path, REFERENCE, REFERENCE, "--no-mauve")
    assert healthy["commonest_tree"] == healthy["reference_commonest_tree"] == pytest.approx(4 / 60, abs=1e-6)
    assert not any("mode" in note for note in healthy["notes"])
    unannotated = values_of(tmp_path, [{"utterance": r["utterance"]} for r in REFERENCE], REFERENCE, "--no-mauve")
    assert unannotated["commonest_tree"] is None and unannotated["distinct_trees"] is None


def test_private_values_only_when_asked(files: dict[str, str], tmp_path: Path) -> None:
    private = write_lines(
        tmp_path / "private.jsonl", REFERENCE[:10] + [{"utterance": f"something else {n}"} for n in range(9)]
    )
    out = tmp_path / "report.json"
    run(
        *("--synthetic", files["two_stage"], "--reference", files["reference"], "--private", private),
        *("--no-mauve", "--out", str(out)),
    )
    values = json.loads(out.read_text())
    assert values["private/exact_copies"] == pytest.approx(10 / 40)
    assert values["private/near_copies"] >= values["private/exact_copies"]
    assert any("not differentially private" in note for note in values["notes"])


def test_private_values_are_not_in_the_output_of_a_job(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [{"utterance": f"something else {n}"} for n in range(9)]
    private = write_lines(tmp_path / "private.jsonl", REFERENCE[:10] + others)
    words = ["--synthetic", files["two_stage"], "--reference", files["reference"], "--private", private, "--no-mauve"]
    for job in (None, "7"):
        capsys.readouterr()
        if job is not None:
            monkeypatch.setenv("SLURM_JOB_ID", job)
        run(*words, "--out", str(tmp_path / "report.json"))
        assert ("private/exact_copies (NOT PRIVATE)" in capsys.readouterr().out) is (job is None)
        assert "private/exact_copies" in json.loads((tmp_path / "report.json").read_text())


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (None, None),
        ("", ""),
        (
            '{"utterance": "private words"}\n{"text": "private words"}\n',
            ":2",
        ),
        ('{"utterance": "private words"\n', ":1"),
        ('["private words"]\n', ":1"),
        ('{"utterance": "private words", "parse": ["private words"]}\n', ":1"),
        (b"\xe9 private words", ":1"),
    ],
)
def test_bad_samples_end_in_one_line_that_quotes_nothing(
    content: str | bytes | None, place: str | None, files: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "samples.jsonl"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=str(path)) as caught:
        run("--synthetic", str(path), "--reference", files["reference"], "--no-mauve")
    assert caught.value.about == ("" if place is None else f"{path}{place}")
    assert "private words" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--num-samples", "0"), "--num-samples"),
        (("--featurizer", "/no/such/model"), "/no/such/model"),
        (("--out", "{file}/report.json"), "report.json"),
        (("--balanced",), "balanced"),
    ],
)
def test_bad_options(options: tuple[str, ...], message: str, files: dict[str, str]) -> None:
    options = tuple(option.format(file=files["reference"]) for option in options)
    with pytest.raises(UserError, match=message):
        run("--synthetic", files["two_stage"], "--reference", files["reference"], *options)


def test_a_reference_in_the_home_folder_is_found(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(Path(files["reference"]).parent))
    out = tmp_path / "out.json"
    name = f"~/{Path(files['reference']).name}"
    run("--synthetic", files["two_stage"], "--reference", name, "--no-mauve", "--out", str(out))
    assert json.loads(out.read_text())["num_reference"] == len(REFERENCE)


def test_an_empty_side_is_refused(tmp_path: Path) -> None:
    for sides in (([], REFERENCE), (REFERENCE, [])):
        with pytest.raises(DataError, match="holds no"):
            values_of(tmp_path, *sides, "--no-mauve")
