#!/usr/bin/env bash
# Many runs of one experiment: every ε with every seed, one after the other.
#
#   slurm/grid.sh --local CONFIG_DIR RUNS_DIR
#
# Runs slurm/two_stage.sh into RUNS_DIR/eps3-seed1, … A finished run is skipped, an interrupted one goes on, and the
# runs after a failed one still take place; then the summary names it and the exit status is 1.
#
# Variables: EPSILONS (default: those of CONFIG_DIR/pipeline.env, or "3 8 16 inf"), SEEDS ("1 2 3"), and those of
# slurm/two_stage.sh.
# `python cli.py results RUNS_DIR` gathers the reports into tables.
set -euo pipefail

usage() {
    sed -n '2,11s/^# \{0,1\}//p' "$0"
}
case "${1:-}" in
    --local) shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; echo "error: give --local; submission to SLURM is not there yet" >&2; exit 2 ;;
esac
if [ $# -ne 2 ]; then
    usage >&2
    echo "error: give CONFIG_DIR and RUNS_DIR" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
umask 077
mkdir -p "$2"
runs=$(cd "$2" && pwd)
[ -n "${EPSILONS:-}" ] || EPSILONS=$(sed -n 's/^EPSILONS=//p' "$1/pipeline.env" 2>/dev/null || true)
summary=() failed=0
for seed in ${SEEDS:-1 2 3}; do
    for epsilon in ${EPSILONS:-3 8 16 inf}; do
        name="eps$epsilon-seed$seed" status=0
        echo "━━ $name"
        start=$(date +%s)
        EPSILON=$epsilon SEED=$seed "$here/two_stage.sh" --local "$1" "$runs/$name" 2>&1 | tee -a "$runs/$name.log" || status=$?
        if [ "$status" -eq 0 ]; then
            summary+=("$name: finished in $(($(date +%s) - start)) s")
        else
            failed=1
            summary+=("$name: FAILED with status $status: $(grep -v '^[[:space:]]*$' "$runs/$name.log" | tail -1)")
        fi
    done
done
printf '\n'
printf '%s\n' "${summary[@]}"
exit "$failed"
