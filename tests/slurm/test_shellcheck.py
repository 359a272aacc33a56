"""Every shell script is free of what shellcheck finds."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("slurm", "tests", "benchmarks", ".ci", "docs")


def scripts() -> list[Path]:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [p for p in files if p.suffix in (".sh", ".sbatch") or (p.parent.name == ".ci" and not p.suffix)]


def test_shellcheck_finds_nothing() -> None:
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")
    assert shellcheck is not None, "shellcheck is part of the extra `test`: pip install '.[test]'"
    files = scripts()
    assert {"job.sh", "fit.sbatch", "tool.sbatch", "run"} <= {path.name for path in files}
    command = [shellcheck, "--external-sources", f"--source-path={ROOT}", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stdout
