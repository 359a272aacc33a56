"""What a job notes of its step: whether it goes back into the queue, and a training that fails again and again."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands.run.execution.in_job import main
from commands.run_folder.manifest_writer import declare
from commands.run_folder.steps import File, Step


def test_a_step_goes_back_into_the_queue_three_times_unless_it_has_saved_something(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "configs").mkdir()
    declare(Step("draw", "predict", folder="draw", writes=(File("samples.jsonl", "release"),)), tmp_path)
    end = ["end", "predict", str(tmp_path), "draw", "75", "1", "true"]
    assert [main(end) for _ in range(3)] == [75] * 3
    (tmp_path / "samples.jsonl.rank0.jsonl.part").touch()
    assert [main(end) for _ in range(5)] == [75, 75, 75, 1, 75]
    assert capsys.readouterr().err.count("draw was requeued 3 times and has saved nothing since") == 1


def test_a_training_that_failed_twice_in_its_jobs_is_not_begun_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["python", "cli.py", "--run_dir", str(tmp_path / "fit")]
    for status in (0, 1, 137):
        assert main(["begin", "fit", str(tmp_path), "fit", *words]) == 0
        with (tmp_path / "ledger.jsonl").open("a") as file:
            file.write("spent\n")
        assert main(["end", "fit", str(tmp_path), "fit", str(status), "1", *words]) == status
    assert main(["begin", "fit", str(tmp_path), "fit", *words]) == 2
    told = capsys.readouterr().err
    assert "fit has failed twice" in told and "killed, as a system does" in told
    assert not (tmp_path / ".done").exists(), "a step that declared nothing, as one by hand, has no mark"
