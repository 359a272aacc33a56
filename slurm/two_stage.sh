#!/usr/bin/env bash
# An experiment from data to report, as `python cli.py run` does it; CONFIG is a file of configs/experiments.
#   slurm/two_stage.sh [--submit|--local|--dry-run|--check] CONFIG RUN_DIR [OPTION…]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=python
if [ -x "$root/.venv/bin/python" ]; then python=$root/.venv/bin/python; fi
exec "${PYTHON:-$python}" "$root/cli.py" run "$@"
