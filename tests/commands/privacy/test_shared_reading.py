"""A step of several tasks: the first pays and counts, all read private texts, and no result tells how many."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from commands.privacy import embedded_parts
from commands.privacy.embedded_parts import Work, work
from tests.shared_reading import check_shared, folder_of_stage, readers, variables_of, words_of


def _run(place: Path, num_tasks: int, killed: str) -> list[int]:
    """Exit statuses of the tasks of a resampling, which find what srun would tell them."""
    shared = {"DOPPEL_TASKS": str(place / "tasks"), "SLURM_STEP_NUM_TASKS": str(num_tasks), "SLURM_CPUS_PER_TASK": "1"}
    shared |= variables_of(place, num_tasks - 1 - bool(killed), killed)
    words, tasks = [sys.executable, *words_of(place)], list[subprocess.Popen[bytes]]()
    try:
        for rank in range(num_tasks):
            tasks.append(subprocess.Popen(words, env={**os.environ, **shared, "SLURM_PROCID": str(rank)}))
        return [task.wait(300) for task in tasks]
    finally:
        for task in tasks:
            task.kill()


@pytest.mark.slow
def test_however_many_tasks_read_the_step_is_charged_once_and_gives_the_same_bits(tmp_path: Path) -> None:
    """Also where one is killed while it reads: another one takes its part."""
    found = {}
    for num_tasks, killed in ((1, ""), (2, ""), (4, "3")):
        place = folder_of_stage(tmp_path / str(num_tasks))
        assert _run(place, num_tasks, killed) == [-9 if str(rank) == killed else 0 for rank in range(num_tasks)]
        found[num_tasks] = check_shared(place)
        assert set(readers(place)) - {killed} != {"0"} or num_tasks == 1, "the first one alone has read"
    assert len(json.loads(found[1][0])["sums"]) > 3 and found[1] == found[2] == found[4]


def _base() -> str:
    return "base"


def _ones(texts: Sequence[str]) -> np.ndarray:
    return np.ones((len(texts), 2), np.float32)


@pytest.mark.parametrize(("told", "num_read"), [("base", 2), ("another kind of machine", 0)])
def test_a_task_reads_only_where_its_vectors_are_those_of_the_first(
    told: str, num_read: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, gone = tmp_path / ".work", tmp_path / "gone"
    files = [tmp_path / f"{text}.npy" for text in ("a", "b")]
    for file in files:
        embedded_parts._texts_of(file).write_text(f'["{file.stem}"]')
    asked.write_bytes(pickle.dumps(Work(_base, told, _ones, files)))
    monkeypatch.setattr(embedded_parts, "told", lambda: [gone, asked])
    monkeypatch.setattr(embedded_parts, "_num_processes", lambda: 1)
    work()
    assert len([*tmp_path.glob("*.npy")]) == num_read


def test_tasks_of_a_node_have_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = list[int]()
    for name, value in {"is_available": lambda: True, "device_count": lambda: 4, "set_device": taken.append}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(embedded_parts, "told", lambda: [])
    for number in (0, 3, 5):
        monkeypatch.setenv("SLURM_LOCALID", str(number))
        work()
    assert taken == [0, 3, 1]
