#!/usr/bin/env bash
# Many runs of one experiment: every ε with every seed.
#
#   slurm/grid.sh [--submit] CONFIG_DIR RUNS_DIR [POINT…]    as one SLURM job array, a task for each run
#   slurm/grid.sh --local CONFIG_DIR RUNS_DIR [POINT…]       here, one after the other
#   slurm/grid.sh --dry-run CONFIG_DIR RUNS_DIR [POINT…]     print what would be submitted, and write nothing
#
# Runs slurm/two_stage.sh into RUNS_DIR/eps3-seed1, … A finished run is skipped, an interrupted one goes on, and the
# runs after a failed one still take place; then the summary names it and the exit status is 1.
#
# Variables: EPSILONS (default: those of CONFIG_DIR/pipeline.env, or "3 8 16 inf"), SEEDS ("1 2 3"), and those of
# slurm/two_stage.sh. THROTTLE (4) tasks of an array run at a time. A POINT is a run of another list, a name and
# variables, quoted for the shell: "eps3-lr1e-3 EPSILON=3 FIT_ARGS=--model.init_args.optimizer.init_args.lr=1e-3".
# `python cli.py results RUNS_DIR` gathers the reports into tables.
set -euo pipefail
# shellcheck source=slurm/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

{ # read to the end before it runs, so that an edit of this file does not reach a running grid
if mode_of "$@"; then shift; fi
[ "$mode" != check ] || fail "a grid is checked when it is submitted; slurm/two_stage.sh --check does it alone"
[ $# -ge 2 ] || { usage >&2; fail "give CONFIG_DIR and RUNS_DIR, after --submit (the default), --local or --dry-run"; }
places "$1" "$2"
shift 2
points=("$@")
if [ ${#points[@]} -eq 0 ]; then
    [ -n "${EPSILONS:-}" ] || EPSILONS=$(sed -n 's/^EPSILONS=//p' "$present/pipeline.env")
    for seed in ${SEEDS:-1 2 3}; do
        for epsilon in ${EPSILONS:-3 8 16 inf}; do points+=("eps$epsilon-seed$seed EPSILON=$epsilon SEED=$seed"); done
    done
fi

summary=() failed=0 waiting=() names=() point=()
for line in "${points[@]}"; do
    eval "point=($line)"
    name=${point[0]} status=0
    if [ "$mode" = local ]; then
        echo "━━ $name"
        start=$(date +%s)
        env "${point[@]:1}" "$tree/slurm/two_stage.sh" --local "$present" "$run/$name" 2>&1 | tee -a "$run/$name.log" || status=$?
        if [ "$status" -eq 0 ]; then
            summary+=("$name: finished in $(($(date +%s) - start)) s")
        else
            failed=1
            summary+=("$name: FAILED with status $status: $(grep -v '^[[:space:]]*$' "$run/$name.log" | tail -1)")
        fi
    elif ! list=$(env "${point[@]:1}" "$tree/slurm/two_stage.sh" --dry-run "$present" "$run/$name" 2>&1); then
        failed=1
        summary+=("$name: NOT SUBMITTED: $(tail -1 <<< "$list")")
    elif ! grep '^JOB_' <<< "$list" | grep -qv '^JOB_report='; then
        summary+=("$name: finished already")
    elif queued "$name"; then
        summary+=("$name: job $id is in the queue already")
    else
        waiting+=("$line") names+=("$name")
    fi
done

if [ ${#waiting[@]} -gt 0 ]; then # a run has one task, and a task one run: their folders are never shared
    resources fit
    sbatch+=("--array=0-$((${#waiting[@]} - 1))%${THROTTLE:-4}" --job-name=grid "--output=$run/slurm/%x-%A_%a.out")
    command=("${code}slurm/array.sbatch" "$experiment" "$run" "${waiting[@]}")
    if [ "$mode" = dry-run ]; then
        echo "# code, configuration and the site's settings are first copied to ${code%/}"
        printf '%s' "$(quoted "${sbatch[@]}") $(quoted "${command[@]:0:3}")"
        for line in "${waiting[@]}"; do printf ' \\\n    %s' "$(quoted "$line")"; done
        echo
    else
        if [ "${CHECK:-1}" != 0 ]; then # of one point: the others differ in values
            eval "point=(${waiting[0]})"
            env "${point[@]:1}" "$tree/slurm/two_stage.sh" --check "$present" "$run/${point[0]}"
        fi
        snapshot
        mkdir -p "$run/slurm"
        submit grid "${command[@]}"
        for index in "${!names[@]}"; do
            echo "${id}_$index" > "$run/slurm/${names[$index]}.job"
            summary+=("${names[$index]}: task ${id}_$index")
        done
    fi
fi
if [ "$mode" = dry-run ]; then summary=("${summary[@]/#/# }"); else printf '\n'; fi
[ ${#summary[@]} -eq 0 ] || printf '%s\n' "${summary[@]}"
exit "$failed"
}
