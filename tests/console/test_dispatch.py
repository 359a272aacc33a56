"""A function is a command: its signature the options, its docstring the help, its errors one line."""

from __future__ import annotations

import gc
from pathlib import Path

import console_commands
import pytest

import cli
from doppel.console.dispatch import main, overview
from doppel.errors import UserError
from doppel.garbage import no_collection

COMMANDS = {"Look": {"measure": "console_commands:measure", "words": "console_commands:words"}}
MORE = {"Steps": {"refuse": "console_commands:refuse"}}


def run(*words: str) -> int:
    return main(COMMANDS, "About.", "prog", words, MORE)


@pytest.mark.parametrize("option", ["--num-samples", "--num_samples"])
def test_a_signature_is_a_command_line(option: str) -> None:
    words = ["measure", "a", "b", f"{option}=4", "--epochs", "2", "8", "--epochs=1", "--limits.depth", "5"]
    assert run(*words, "--out", "c_d", "--accountant=rdp", "--dry-run") == 3
    seen = console_commands.seen
    assert (seen["runs"], seen["num_samples"], seen["epochs"]) == ([Path("a"), Path("b")], 4, [2.0, 8.0, 1.0])
    assert (seen["out"], seen["accountant"]) == (Path("c_d"), "rdp")
    assert seen["limits"] == console_commands.Limits(5)


def test_a_file_gives_arguments_by_name_and_words_win_over_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So every step of a run is called, and what no list shows is called by ``step`` alone."""
    (tmp_path / "a.yaml").write_text(
        "runs: [a, b]\nnum_samples: 4\nepochs: [2, 1e-1]\nlimits: {depth: 5}\ndry_run: true\n"
    )
    words = ["--config", str(tmp_path / "a.yaml"), "--num-samples", "9"]
    for call in (["measure"], ["step", "measure"], ["step", "hidden"]):
        assert main(COMMANDS, "About.", "prog", [*call, *words], MORE, {"hidden": "console_commands:measure"}) == 3
        seen = console_commands.seen
        assert (seen["runs"], seen["num_samples"], seen["epochs"]) == ([Path("a"), Path("b")], 9, [2.0, 0.1])
        assert seen["limits"] == console_commands.Limits(5)
    assert main(COMMANDS, "About.", "prog", ["hidden"], MORE, {"hidden": "console_commands:measure"}) == 2
    assert "did you mean step hidden?" in capsys.readouterr().err


def test_a_command_answers_to_the_name_that_it_had_before(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["size", "a", "--num-samples", "4"]
    assert main(COMMANDS, "About.", "prog", words, aliases={"size": "measure"}) == 0
    assert console_commands.seen["runs"] == [Path("a")]
    assert main(COMMANDS, "About.", "prog", [], aliases={"size": "measure"}) == 0
    assert "size" not in capsys.readouterr().out


def test_what_is_left_out_has_the_default_of_the_signature() -> None:
    assert run("measure", "a", "--num-samples", "4") == 0
    seen = console_commands.seen
    assert (seen["epochs"], seen["out"], seen["accountant"], seen["dry_run"]) == (None, None, "pld", False)
    assert seen["limits"] == console_commands.Limits()


def test_the_docstring_is_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        run("measure", "--help")
    text = capsys.readouterr().out
    assert done.value.code == 0
    assert "Measure some runs.\n\nA second paragraph\n  with an indented line.\n" in text
    assert "How many samples to compare. (required)" in " ".join(text.split())
    assert "<class" not in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["measur"], "there is no command 'measur': did you mean measure?"),
        (["measure", "a", "--num-samples=4", "--num-sample=4"], "no option 'num-sample': did you mean 'num-samples'?"),
        (["measure", "a", "--num-samples=x"], "--num-samples: 'x' does not fit: give a whole number, such as 3"),
        (["measure", "a", "--num-samples=0"], "--num-samples: 0 is not above 0"),
        (["measure", "a", "--num-samples=1", "--batch-size=-2"], "--batch-size: -2 is not above 0"),
        (
            ["measure", "a", "--num-samples=1", "--batch-size=x"],
            "--batch-size: 'x' does not fit: give a whole number, such as 3",
        ),
        (["measure", "--num-samples=4"], "runs"),
        (["measure", "a"], "are required: --num-samples\n"),
        (["refuse", "bread"], "bread is wrong: mend it"),
        (["refuse"], "it is wrong: mend it"),
        (["refuse", "disk"], "runs/a: No space left on device"),
    ],
)
def test_errors_are_short_and_say_what_is_wrong(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and says in error and error.count("\n") <= 2


def test_a_negative_seed_is_refused_by_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"utterance": "yes", "parse": "(A)"}\n')
    assert cli.main(["choose", str(rows), "--num", "1", "--out", str(tmp_path / "o.jsonl"), "--seed=-1"]) == 2
    assert "--seed is -1: give a number from 0 on" in capsys.readouterr().err


def test_an_error_of_the_program_keeps_its_traceback() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        run("refuse", "bug")


def test_a_command_may_read_its_words_itself() -> None:
    assert run("words", "--any", "thing") == 0
    assert console_commands.seen["argv"] == ["--any", "thing"]


def test_the_overview_reads_docstrings_and_imports_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = tmp_path / "overview_room"
    room.mkdir()
    (room / "__init__.py").touch()
    (room / "fails.py").write_text('raise RuntimeError\n\ndef do() -> None:\n    """Do it.\n\n    Really.\n    """\n')
    monkeypatch.syspath_prepend(tmp_path)
    text = overview({"Things to do": {"do-it": "overview_room.fails:do"}}, "About.")
    assert text == "About.\n\nThings to do:\n  do-it  Do it.\n"


def test_steps_are_listed_on_demand_and_can_always_be_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    assert "refuse" not in capsys.readouterr().out
    assert run("--help", "all") == 0
    assert "Steps:\n  refuse " in capsys.readouterr().out
    assert run("refus") == 2
    assert "refuse" in capsys.readouterr().err


def test_the_collector_rests_and_works_again() -> None:
    @no_collection()
    def is_on(error: bool = False) -> bool:
        if error:
            raise UserError("refused")
        return gc.isenabled()

    assert not is_on() and gc.isenabled()
    with pytest.raises(UserError):
        is_on(error=True)
    assert gc.isenabled()
    gc.disable()
    try:
        assert not is_on() and not gc.isenabled()
    finally:
        gc.enable()
