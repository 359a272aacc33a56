"""A copy of the code in a run folder, and which version it is."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from commands.run_folder.places import ROOT
from doppel.console.say import say

#: New files of these kinds are code; others may be data.
_CODE = (".py", ".sh", ".sbatch", ".yaml")


def copy_code(folder: Path) -> bool:
    """Copy the code, so that a job that waits or is requeued runs what was submitted.

    Weights (models/) and data stay where they are, and so does the site, whose environment may hold keys.

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
    (partial / "COMMIT").write_text(f"{version()}\n", encoding="utf-8")
    partial.rename(folder)
    say(f"── code: copied to {folder}, from where the jobs run it")
    return True


def code_files() -> list[str]:
    """Return what git tracks, and new source, which is named; without git, all but what is never code.

    Other new files stay where they are: a run folder is handed on, and they may be private data.
    """
    listed = []
    for which in ("--cached", "--others"):
        names = _git("ls-files", "--exclude-standard", "-z", which, "--", ".", ":!models", ":!.venv")
        if names is None:
            return _walked()
        listed.append([name for name in names.split("\0") if name and (ROOT / name).exists()])
    new = [name for name in listed[1] if Path(name).suffix in _CODE]
    if new:
        say(f"── code: with {', '.join(new)}, which git does not track")
    return [*listed[0], *new]


def version() -> str:
    """Return the commit of the code, with a mark where it was changed since."""
    if (ROOT / "COMMIT").is_file():
        return (ROOT / "COMMIT").read_text(encoding="utf-8").strip()
    return (_git("describe", "--always", "--abbrev=12", "--exclude", "*", "--dirty=+dirty") or "").strip() or "unknown"


def _git(*words: str) -> str | None:
    """What git says of the code; None where there is no git, or it says nothing, which is told.

    The checkout may be that of another user, which git by itself does not read: whose code runs here all the same.
    """
    if not (ROOT / ".git").exists():
        return None
    command = ["git", "-c", f"safe.directory={ROOT}", *words]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        _tell(getattr(error, "stderr", str(error)).strip().partition("\n")[0])
        return None


@cache
def _tell(why: str) -> None:
    say(f"── code: git does not tell of {ROOT} ({why}): the run does not say its commit, and copies files by name")


def _walked() -> list[str]:
    left_out, names = {".git", ".venv", "__pycache__"}, list[str]()
    for place, folders, files in os.walk(ROOT):
        top = Path(place) == ROOT
        folders[:] = [f for f in folders if f not in left_out and not (top and f in ("runs", "data", "models"))]
        code = [file for file in files if not top or Path(file).suffix in _CODE]  # beside these lie a user's tables
        names += [str((Path(place) / file).relative_to(ROOT)) for file in code]
    return [name for name in names if name != "slurm/site.yaml"]
