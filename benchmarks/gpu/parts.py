"""Runs the next jobs, one at a time, until three minutes are up.

    python -m benchmarks.gpu.parts OUT --data FOLDER [--work FOLDER] [--parts abc] [--minutes 3] [--rehearse]

Each call goes on where the last one with this --work has ended: a job that is done is skipped, and a training that was
told to end goes on from its checkpoint. What is measured begins where as many minutes are left as it takes. OUT, which
may be empty in each call, gets what there is, job by job: ``rows.csv`` (of all calls: of each job how it ended and how
long it took, each number of its tables, and the seconds of each of its steps), the tables of this call
(``clipping-*.md``, ``step-graphs.md``, ``large-base.md``), ``results.tar`` (samples, ledgers) and ``logs.tar``.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.gpu.jobs import Job, Place, jobs
from commands.run.execution.code_copy import version

#: Seconds that a training may take to save and end.
GRACE = 30.0
COLUMNS = ("part", "job", "status", "what", "metric", "value", "gpu", "commit")


def run(wanted: Sequence[Job], place: Place, minutes: float) -> None:
    """Run the jobs in order until the time is up.

    Args:
        wanted: Jobs, most wanted first.
        place: Where they run.
        minutes: In which all of them end.
    """
    end = time.monotonic() + 60 * minutes
    kept = Kept(place)
    for job in wanted:
        if job.name in kept.done:
            continue
        left, measured = end - time.monotonic(), 0.0 if place.is_rehearsal else 60 * job.minutes
        needed = 2 * GRACE if job.goes_on else measured
        why = f"{left:.0f} s are left and it needs {needed:.0f}" if left < needed else None
        if job.part == "c" and not Path(place.base).exists():
            why = f"{place.base} is not there yet"
        if why is not None:
            print(f"{job.part} {job.name}: not begun, for {why}", flush=True)
            continue
        status, seconds = _run(job, place, left)
        kept.add(job, status, seconds)


def _run(job: Job, place: Place, left: float) -> tuple[str, float]:
    """Run a job, and end it where the time is up: how it ended, and its seconds."""
    begin, log = time.monotonic(), place.work / "logs" / f"{job.name}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        file.write(" ".join(job.command) + "\n")
        file.flush()
        process = subprocess.Popen(
            job.command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )
    status = None
    try:
        code = process.wait(max(left - GRACE, 1) if job.goes_on else left)
        status = "done" if code == 0 else f"failed ({code})"
    except subprocess.TimeoutExpired:
        if job.goes_on:
            process.terminate()  # which saves
            try:
                process.wait(GRACE)
                status = "goes on"
            except subprocess.TimeoutExpired:
                pass
    if status is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        status = "out of time"
    return status, time.monotonic() - begin


class Kept:
    """What is known of all jobs, and the folder that is brought back.

    Args:
        place: Where jobs run, and the folder.

    Attributes:
        done: Names of the jobs that ended well.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        for folder in (place.out, place.work):
            folder.mkdir(parents=True, exist_ok=True)
        self.table = place.work / "rows.csv"
        if not self.table.exists():
            self.table.write_text(",".join(COLUMNS) + "\n")
        with self.table.open(newline="") as file:
            self.done = {row["job"] for row in csv.DictReader(file) if row["status"] == "done"}
        self._gpu, self._commit = torch.cuda.get_device_name() if place.is_gpu else "none", version()
        shutil.copy(self.table, place.out)

    def add(self, job: Job, status: str, seconds: float) -> None:
        """Keep what a job has left."""
        folder = self.place.work / job.name
        table = self.place.out / f"{job.name}.md"
        found = [("job", "seconds", f"{seconds:.1f}")]
        found += cells(table.read_text()) if table.exists() else []
        found += [(mark.name, "seconds", mark.read_text().strip()) for mark in sorted(folder.glob(".done/*"))]
        with self.table.open("a", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerows([job.part, job.name, status, *cell, self._gpu, self._commit] for cell in found)
        shutil.copy(self.table, self.place.out)
        files = [file for pattern in job.keeps for file in sorted(folder.glob(pattern)) if file.is_file()]
        self._pack("results.tar", [(f"{job.name}/{file.relative_to(folder)}", file) for file in files])
        log = self.place.work / "logs" / f"{job.name}.txt"
        self._pack("logs.tar", [(log.name, log)])
        print(f"{job.part} {job.name}: {status}, {seconds:.0f} s", flush=True)

    def _pack(self, name: str, files: Sequence[tuple[str, Path]]) -> None:
        with tarfile.open(self.place.out / name, "a") as tar:
            for path, file in files:
                content = gzip.compress(file.read_bytes(), 9)
                entry = tarfile.TarInfo(f"{path}.gz")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))


def cells(text: str) -> Iterator[tuple[str, str, str]]:
    """Each number of Markdown's tables: its row, below which heading, its column, and it."""
    heading, columns = "", list[str]()
    for line in text.splitlines():
        if line.startswith("#"):
            heading, columns = line.lstrip("# "), []
        elif line.startswith("|---"):
            continue
        elif line.startswith("|"):
            found = [cell.strip().replace("**", "") for cell in line.strip("|").split("|")]
            if not columns:
                columns = found
                continue
            for column, value in zip(columns[1:], found[1:], strict=True):
                yield f"{heading}: {found[0]}", column, value
        else:
            columns = []


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of what is brought back")
    parser.add_argument("--work", type=Path, default=Path("runs/gpu"), help="folder of the runs, kept between calls")
    parser.add_argument("--data", type=Path, required=True, help="folder with smcalflow/ and sgd/")
    parser.add_argument("--parts", default="abc")
    parser.add_argument("--minutes", type=float, default=3.0, help="after which nothing runs any more")
    parser.add_argument("--rehearse", action="store_true", help="toy size, on what device there is")
    options = parser.parse_args(arguments)
    work, out, data = (path.resolve() for path in (options.work, options.out, options.data))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    place = Place(work / ("rehearsal" if options.rehearse else "runs"), out, data, device, options.rehearse)
    os.environ["DOPPEL_DATA"] = str(data)
    run([job for job in jobs(place) if job.part in options.parts], place, options.minutes)


if __name__ == "__main__":
    main()
