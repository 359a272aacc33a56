"""`RUN/manifest.json`: every file of a run, what made it and of what; what was changed, copied or is stale is named."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_folders import edit_manifest, end_step

from commands.run.execution.execute import run_step
from commands.run_folder.manifest import Manifest
from commands.run_folder.manifest_writer import declare
from commands.run_folder.run_folder import RunFolder
from commands.run_folder.stage_config import StageConfig
from commands.run_folder.steps import File, Step
from doppel.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
WEIGHTS = File("model/checkpoints/last.ckpt", "checkpoint", "two_stage", "two_stage")
TREES = File("trees.jsonl", "prompts", "two_stage", "two_stage")
SAMPLES = File("synthetic.jsonl", "release", "two_stage", "two_stage")


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A private file, outside of the run folder."""
    path = tmp_path / "private.jsonl"
    path.write_text('{"utterance": "lunch with Ana"}\n')
    return path


@pytest.fixture
def run(tmp_path: Path, private: Path) -> Path:
    """A run of three steps: training, trees, utterances."""
    run = tmp_path / "run"
    write(run / WEIGHTS.path, "weights")
    end_step(run, "model", ["fit", "--run_dir", f"{run}/model"], [WEIGHTS], private=str(private))
    write(run / TREES.path, "{}\n")
    end_step(run, "trees", ["predict", "--run_dir", f"{run}/sample_trees"], [TREES], [WEIGHTS.path])
    write(run / SAMPLES.path, "{}\n")
    end_step(run, "samples", ["predict"], [SAMPLES], [WEIGHTS.path, TREES.path])
    return run


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("share", [0, 0.5])
def test_files_of_a_run_that_a_full_disk_cut_are_named_with_how_to_mend_them(run: Path, share: float) -> None:
    config = run / "model" / "config.yaml"
    write(config, "seed_everything: 1\nmodel:\n  init_args:\n    max_length: 512\ndata: {}\n")
    assert StageConfig.read(config.parent).data == {}
    lost = "is empty" if share == 0 else "has no data, so that its end is lost"
    cut = {
        run / "manifest.json": (lambda: Manifest.read(run), "cannot be read as a manifest .*: put back a copy of it"),
        config: (lambda: StageConfig.read(config.parent), f"{lost}.*: put back a copy"),
        run / "report.json": (lambda: RunFolder(run).report(), "is no JSON .*: put back a copy, or make it again"),
    }
    write(run / "report.json", '{"runs": 1}')
    for path, (read, said) in cut.items():
        read()
        whole = path.read_text()
        path.write_text(whole[: int(share * len(whole))])
        with pytest.raises(UserError, match=f"{path.name}.*{said}"):
            read()
        path.write_text(whole)


def test_a_file_is_followed_back_to_its_checkpoint(run: Path) -> None:
    manifest = Manifest.read(run)
    chain = manifest.upstream("synthetic.jsonl")
    assert [entry.path for entry in chain] == ["synthetic.jsonl", WEIGHTS.path, "trees.jsonl"]
    (trees,) = manifest.find("prompts", "two_stage", "predict")
    assert (trees.budget, trees.verb, trees.folder) == ("two_stage", "predict", "sample_trees")
    assert trees.sha256 == hashlib.sha256(b"{}\n").hexdigest()
    assert trees.inputs == {WEIGHTS.path: hashlib.sha256(b"weights").hexdigest()}
    assert manifest.stale_inputs("synthetic.jsonl") == []
    assert manifest.unknown() == ["configs/ (3 files)"]


def test_nothing_of_a_private_file_is_in_it_but_a_keyed_digest(
    run: Path, private: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(run / "data" / "parsed.jsonl", private.read_text())
    parsed = File("data/parsed.jsonl", "private")
    end_step(run, "annotate", ["predict"], [parsed], private=str(private))
    end_step(run, "model", ["fit"], [WEIGHTS], ["data/parsed.jsonl"])
    text = (run / "manifest.json").read_text()
    assert hashlib.sha256(private.read_bytes()).hexdigest() not in text
    entry = Manifest.read(run).files["data/parsed.jsonl"]
    assert entry.is_private and entry.private_inputs == [str(private)]
    assert Manifest.read(run).files[WEIGHTS.path].private_inputs == ["data/parsed.jsonl"], "though no step said so"
    monkeypatch.setenv("DOPPEL_KEY", str(tmp_path / "another.key"))
    end_step(run, "annotate", ["predict"], [parsed], private=str(private))
    assert Manifest.read(run).files["data/parsed.jsonl"].sha256 != entry.sha256


def test_what_read_private_text_and_what_paid_for_it_is_told_of_each_file(run: Path, private: Path) -> None:
    end_step(run, "model", ["fit"], [WEIGHTS], private=str(private), mechanisms=["two_stage/model"])
    told = {path: (e.reads_private, e.mechanisms) for path, e in Manifest.read(run).files.items()}
    assert told == {WEIGHTS.path: (True, ["two_stage/model"]), TREES.path: (False, []), SAMPLES.path: (False, [])}


def test_the_length_of_a_private_file_does_not_show(run: Path, private: Path) -> None:
    before = (run / "manifest.json").read_text()
    private.write_text(private.read_text() * 50)
    end_step(run, "model", ["fit", "--run_dir", f"{run}/model"], [WEIGHTS], private=str(private))
    assert len((run / "manifest.json").read_text()) == len(before)


def changed(run: Path) -> None:
    with (run / "synthetic.jsonl").open("a") as file:
        file.write("{}\n")


def exchanged_behind(run: Path) -> None:
    write(run / "trees.jsonl", "[]\n")


def gone(run: Path) -> None:
    (run / "trees.jsonl").unlink()


def made_anew(run: Path) -> None:
    write(run / "trees.jsonl", "[]\n")
    end_step(run, "trees", ["predict"], [TREES], [WEIGHTS.path])


def unmade_behind(run: Path) -> None:
    edit_manifest(run, "trees.jsonl")


def other_private_file(run: Path) -> None:
    private = run.parent / "private.jsonl"
    private.write_text("other people\n")
    write(run / TREES.path, "[]\n")
    end_step(run, "trees", ["predict"], [TREES], [WEIGHTS.path], private=str(private))
    end_step(run, "samples", ["predict"], [SAMPLES], [WEIGHTS.path, TREES.path])


def other_public_file(run: Path) -> None:
    parser = run.parent / "parser.ckpt"
    parser.write_text("parser")
    end_step(run, "samples", ["keep-best"], [SAMPLES], [WEIGHTS.path, TREES.path, str(parser)])
    parser.write_text("another parser")


@pytest.mark.parametrize(
    ("change", "said"),
    {
        changed: "synthetic.jsonl was changed after samples made it: put back a copy, or delete what is left of it and "
        "RUN/.done/samples, and give the command of the run again",
        exchanged_behind: "trees.jsonl was changed after trees made it",
        gone: "trees.jsonl is not in the run folder since trees made it",
        made_anew: "synthetic.jsonl was made of another trees.jsonl than the one that trees has made since",
        unmade_behind: "was made of trees.jsonl, which no step of this run has made",
        other_private_file: "private.jsonl was another file when",
        other_public_file: "parser.ckpt, of which synthetic.jsonl was made, is another file now",
    }.items(),
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_where_a_chain_is_not_whole_is_said(run: Path, change, said: str) -> None:
    change(run)
    breaks = Manifest.read(run).stale_inputs("synthetic.jsonl")
    assert any(said in text for text in breaks), breaks


def test_a_step_that_runs_again_replaces_what_it_left(run: Path) -> None:
    made_anew(run)
    write(run / SAMPLES.path, "[]\n")
    end_step(run, "samples", ["predict"], [SAMPLES], [WEIGHTS.path, TREES.path])
    assert Manifest.read(run).stale_inputs("synthetic.jsonl") == []
    end_step(run, "samples", ["predict"], [File("synthetic_shuffled.jsonl", "release")], [])
    assert "synthetic.jsonl" not in Manifest.read(run).files


def test_a_finished_file_that_a_sampling_left_alone_is_not_said_to_be_of_new_prompts(run: Path) -> None:
    made_anew(run)
    end_step(run, "samples", ["predict"], [SAMPLES], [WEIGHTS.path, TREES.path])
    assert Manifest.read(run).stale_inputs("synthetic.jsonl"), "its mark was deleted, and the file was not"


@pytest.mark.parametrize("name", ["private.txt", "audit/private.csv", "model/notes", "model/more.ckpt", ".hidden.txt"])
def test_whatever_no_step_has_made_is_found(run: Path, name: str) -> None:
    """Whatever its ending or place; a folder of such files alone stands for all of them."""
    write(run / "code" / "a.py", "1")
    write(run / "code" / "tests" / "data.jsonl", "{}\n")
    write(run / "ledger.jsonl", "{}\n")
    write(run / name, "lunch with Ana")
    (run / "elsewhere").symlink_to(run.parent)
    assert sorted(Manifest.read(run).unknown()) == sorted([name, "code/ (2 files)", "configs/ (3 files)", "elsewhere"])


def test_a_checkpoint_under_another_name_is_not_unknown(run: Path) -> None:
    """Lightning links last.ckpt to the file of its last step."""
    (run / WEIGHTS.path).rename(run / "model" / "checkpoints" / "step=3.ckpt")
    (run / WEIGHTS.path).symlink_to("step=3.ckpt")
    assert Manifest.read(run).unknown() == ["configs/ (3 files)"]


def test_what_a_system_wrote_is_not_what_was_chosen_of_it(run: Path) -> None:
    write(run / "chosen.jsonl", "{}\n")
    end_step(run, "choose", ["choose"], [File("chosen.jsonl", "release", "two_stage", "two_stage")], [SAMPLES.path])
    assert {name: entry.path for name, entry in Manifest.read(run).samples().items()} == {
        "two_stage": "synthetic.jsonl"
    }


def test_jobs_that_end_together_are_all_entered(tmp_path: Path) -> None:
    for number in range(6):
        write(tmp_path / f"{number}.jsonl", f"{number}\n")
        declare(Step(f"step{number}", "evaluate", writes=(File(f"{number}.jsonl", "data"),)), tmp_path)
    words = [sys.executable, "-m", "commands.run.execution.in_job", "end", "tool", str(tmp_path)]
    jobs = [subprocess.Popen([*words, f"step{n}", "0", "1", "true"], cwd=ROOT) for n in range(6)]
    assert [job.wait(60) for job in jobs] == [0] * 6
    assert len(Manifest.read(tmp_path).files) == 6


def test_a_stage_enters_what_it_left_if_it_ends_well_and_before_its_mark(tmp_path: Path) -> None:
    declare(Step("made", "evaluate", writes=(File("a.jsonl", "data"),)), tmp_path)
    mark = tmp_path / ".done" / "made"
    words = [sys.executable, "-c", f"open({str(tmp_path / 'a.jsonl')!r}, 'w').write('1'); raise SystemExit(3)"]
    assert run_step("tool", mark, words) == 3
    assert not Manifest.read(tmp_path).files and not mark.exists()
    assert run_step("tool", mark, ["true"]) == 0
    assert list(Manifest.read(tmp_path).files) == ["a.jsonl"] and mark.exists()
    assert os.stat(tmp_path / "manifest.json").st_mode & 0o077 == 0


def no_maker(content: dict) -> None:
    del content["files"]["trees.jsonl"]["step"]


def later(content: dict) -> None:
    content["version"] += 1


@pytest.mark.parametrize("spoil", [no_maker, later])
def test_what_is_no_manifest_is_refused_in_one_line(run: Path, spoil) -> None:
    content = json.loads((run / "manifest.json").read_text())
    spoil(content)
    (run / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(UserError) as caught:
        Manifest.read(run)
    assert "\n" not in str(caught.value)
