"""A copy of the code in a run folder, and which version it is."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path

from commands.run.slurm import Site
from commands.runs.yaml_files import ROOT, dump
from doppel.console.say import say

#: New files of these kinds are code; others may be data.
_CODE = (".py", ".sh", ".sbatch", ".yaml")


def copy_code(folder: Path, site: Site) -> bool:
    """Copy the code, so that a job that waits or is requeued runs what was submitted.

    Weights (models/) and data stay where they are. The site goes along: tasks of an array read it there.

    Returns:
        Whether it was copied now; a folder that is there already is kept.
    """
    if folder.is_dir():
        say(f"── code: {folder} is kept, for the run began with it; delete the folder to go on with the present code")
        return False
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for name in code_files():
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, partial / name, follow_symlinks=False)
    (partial / "slurm" / "site.yaml").write_text(dump(asdict(site)), encoding="utf-8")
    (partial / "COMMIT").write_text(f"{version()}\n", encoding="utf-8")
    partial.rename(folder)
    say(f"── code: copied to {folder}, from where the jobs run it")
    return True


def code_files() -> list[str]:
    """Return what git tracks, and new source, which is named; without git, all but what is never code.

    Other new files stay where they are: a run folder is handed on, and they may be private data.
    """
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "--exclude-standard", "-z"]
        listed = []
        for which in ("--cached", "--others"):
            words = [*command, which, "--", ".", ":!models", ":!.venv"]
            names = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
            listed.append([name for name in names if name and (ROOT / name).exists()])
        new = [name for name in listed[1] if Path(name).suffix in _CODE]
        if new:
            say(f"── code: with {', '.join(new)}, which git does not track")
        return [*listed[0], *new]
    left_out, names = {".git", ".venv", "__pycache__"}, []
    for place, folders, files in os.walk(ROOT):
        top = Path(place) == ROOT
        folders[:] = [f for f in folders if f not in left_out and not (top and f in ("runs", "data", "models"))]
        names += [str((Path(place) / file).relative_to(ROOT)) for file in files]
    return names


def version() -> str:
    """Return the commit of the code, with a mark where it was changed since."""
    if (ROOT / "COMMIT").is_file():
        return (ROOT / "COMMIT").read_text(encoding="utf-8").strip()
    command = ["git", "describe", "--always", "--abbrev=12", "--exclude", "*", "--dirty=+dirty"]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
