"""Runs the jobs, two at a time where nothing is timed, until they are done or the time is up.

    python -m benchmarks.gpu.parts OUT --data FOLDER [--rehearse] [--parts LAHBCDEFG] [--minutes 11]

What a job leaves goes into OUT at its end, so what is cut short leaves what is done: ``gpu.txt`` (the card's name),
``jobs.csv`` (a line a job), ``large-base.md``, ``clipping-*.md``, ``step-graphs.md``, ``adapter.safetensors.N`` (half
precision, in pieces of at most 15 MiB), ``results.tar`` (samples, ledgers, losses) and ``logs.tar``. A job that is done
is skipped.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import re
import signal
import subprocess
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.gpu.jobs import Job, Place, jobs

#: Parts whose steps are timed, each job of which has the machine for itself.
ALONE = "LAH"
#: Bytes of a piece of the adapters.
PIECE = 15 * 2**20


class Running:
    """A job that has begun.

    Args:
        job: Which.
        place: Where.
        limit: Seconds that it may take.
    """

    def __init__(self, job: Job, place: Place, limit: float) -> None:
        self.job, self.limit, self.begin = job, limit, time.monotonic()
        self.log = place.work / "logs" / f"{job.name}.txt"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("w") as file:
            file.write(" ".join(job.command) + "\n")
            file.flush()
            self._process = subprocess.Popen(
                job.command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
            )

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.begin

    def status(self) -> str | None:
        """How it ended; None while it runs. One that is past its limit is ended."""
        code = self._process.poll()
        if code is None and self.seconds < self.limit:
            return None
        if code is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            return "out of time"
        return "done" if code == 0 else f"failed ({code})"


class Kept:
    """The folder that is brought back.

    Args:
        place: Where jobs run, and the folder.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        place.out.mkdir(parents=True, exist_ok=True)
        self.table = place.out / "jobs.csv"
        if not self.table.exists():
            self.table.write_text("part,job,status,seconds\n")

    def done(self) -> set[str]:
        """Names of the jobs that ended well."""
        lines = [line.split(",") for line in self.table.read_text().splitlines()[1:]]
        return {line[1] for line in lines if line[2] == "done"}

    def add(self, running: Running, status: str) -> None:
        """Keep what a job has left."""
        job, folder = running.job, self.place.work / running.job.name
        with self.table.open("a") as file:
            file.write(f"{job.part},{job.name},{status},{running.seconds:.1f}\n")
        files = [file for pattern in job.keeps for file in sorted(folder.glob(pattern)) if file.is_file()]
        self._pack("results.tar", [(f"{job.name}/{file.relative_to(folder)}", file) for file in files])
        self._pack("logs.tar", [(running.log.name, running.log)])
        checkpoint = folder / "checkpoints" / "last.ckpt"
        if job.part == "B" and checkpoint.exists():
            self._adapter(checkpoint)
        print(f"{job.part} {job.name}: {status}, {running.seconds:.0f} s", flush=True)

    def _pack(self, name: str, files: Sequence[tuple[str, Path]]) -> None:
        with tarfile.open(self.place.out / name, "a") as tar:
            for path, file in files:
                content = gzip.compress(file.read_bytes(), 9)
                entry = tarfile.TarInfo(f"{path}.gz")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))

    def _adapter(self, checkpoint: Path) -> None:
        """The adapters of a checkpoint in half precision, in pieces."""
        from safetensors.torch import save

        state = torch.load(checkpoint, map_location="cpu", mmap=True, weights_only=True)["state_dict"]
        kept = {key: value.half().contiguous() for key, value in state.items() if re.search(r"\.lora_[AB]\.", key)}
        content = save(kept)
        for number, start in enumerate(range(0, len(content), PIECE)):
            piece = self.place.out / f"adapter.safetensors.{number}"
            piece.write_bytes(content[start : start + PIECE])


def run(wanted: Sequence[Job], place: Place, minutes: float, workers: int) -> None:
    """Begin the jobs in order, as many at a time as there are workers, those of :data:`ALONE` by themselves."""
    end = time.monotonic() + 60 * minutes
    kept = Kept(place)
    waiting = [job for job in wanted if job.name not in kept.done()]
    running: list[Running] = []
    while waiting or running:
        for one in list(running):
            status = one.status()
            if status is not None:
                running.remove(one)
                kept.add(one, status)
        left = end - time.monotonic()
        if left <= 0 and waiting:
            print(f"the time is up: {', '.join(job.name for job in waiting)} not begun", flush=True)
            waiting = []
        while waiting and len(running) < workers:
            job = waiting[0]
            is_alone = job.part in ALONE
            if running and (is_alone or running[0].job.part in ALONE):
                break
            waiting.pop(0)
            limit = left if place.is_rehearsal else min(60 * job.minutes, left)
            running.append(Running(job, place, max(limit, 1)))
        time.sleep(0.2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of what is brought back")
    parser.add_argument("--work", type=Path, default=Path("runs/gpu"), help="folder of the runs")
    parser.add_argument("--data", type=Path, required=True, help="folder with smcalflow/, sgd/ and public/")
    parser.add_argument("--parts", default="LAHBCDE")
    parser.add_argument("--minutes", type=float, default=11.0, help="after which nothing runs any more")
    parser.add_argument("--workers", type=int, default=2, help="jobs at a time, but for those of parts L, A and H")
    parser.add_argument("--rehearse", action="store_true", help="toy size, on what device there is")
    options = parser.parse_args(arguments)
    work, out, data = (path.resolve() for path in (options.work, options.out, options.data))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    place = Place(work / ("rehearsal" if options.rehearse else "runs"), out, data, device, options.rehearse)
    os.environ["DOPPEL_DATA"] = str(data)
    out.mkdir(parents=True, exist_ok=True)
    (out / "gpu.txt").write_text(torch.cuda.get_device_name() if device == "cuda" else "none")
    run([job for job in jobs(place) if job.part in options.parts], place, options.minutes, options.workers)


if __name__ == "__main__":
    main()
