"""Calls of ``python cli.py run`` in the tests' own process, and what a dry run lists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import yaml

import cli

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = ROOT / "configs" / "experiments"


def launch(experiment: str | Path, run: Path, *words: str) -> int:
    """Status of the command for an experiment: a shipped one's name, or a file."""
    path = experiment if isinstance(experiment, Path) else EXPERIMENTS / f"{experiment}.yaml"
    return cli.main(["run", str(path), str(run), *words])


def write_experiment(path: Path, **fields: object) -> Path:
    """An experiment's file."""
    path.write_text(yaml.safe_dump(fields, allow_unicode=True))
    return path


class Job:
    """One job of a dry run: its name, its options, its run, its command, the names that it waits for."""

    def __init__(self, text: str) -> None:
        match = re.fullmatch(r"JOB_(\w+)=\$\((sbatch .*)\)", text, re.DOTALL)
        assert match, text
        words = shlex.split(match[2].replace("\\\n", " "))
        self.variable = match[1]
        place = next(i for i, word in enumerate(words) if word.endswith(".sbatch"))
        self.options = words[1:place]
        self.kind, self.run = Path(words[place]).stem, words[place + 1]
        self.command = words[place + 3 :]
        waits = [word for word in self.options if word.startswith("--dependency=after")]
        self.after = re.findall(r"\$JOB_(\w+)", "".join(waits))  # variables, of which jobs_in makes names
        assert bool(self.after) == ("--kill-on-invalid-dep=yes" in words)
        (named,) = (word for word in words if word.startswith("--job-name="))
        self.name = named.rpartition(".")[2]
        assert words[place + 2] == self.name and self.variable.startswith(re.sub(r"\W", "_", self.name))


def jobs_in(text: str) -> list[Job]:
    """The jobs of a dry run."""
    jobs = [Job(block) for block in re.split(r"\n(?=JOB_)", text.strip())[1:]]
    names = {job.variable: job.name for job in jobs}
    for job in jobs:
        job.after = [names[variable] for variable in job.after]
    return jobs
