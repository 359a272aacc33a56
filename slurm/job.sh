# shellcheck shell=bash
# What every job does first and last; sourced by the .sbatch files, which start its tasks:
#   sbatch OPTIONS slurm/KIND.sbatch RUN STEP PYTHON… cli.py WORDS…
# The code is what was copied for the run (DOPPEL_CODE), or the folder from which sbatch was called by hand; the other
# variables come from slurm/site.yaml. Task i of an array is for the run of line i of DOPPEL_POINTS, from 0 on, whose name
# takes the place of {point}.
umask 077
code=${DOPPEL_CODE:-$SLURM_SUBMIT_DIR} job=$SLURM_JOB_ID
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
    job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    point=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" "$DOPPEL_POINTS")
    set -- "${@//\{point\}/$point}"
fi
run=$1 name=$2 python=()
shift 2
while [[ $1 != *cli.py ]]; do python+=("$1") && shift; done
command=("$@") tasks=${SLURM_NTASKS_PER_NODE:-1}

set +u
if [ -n "${DOPPEL_MODULES:-}" ]; then
    for file in /etc/profile.d/{modules,lmod,z00_lmod}.sh /usr/share/lmod/lmod/init/bash; do
        # shellcheck disable=SC1090
        if ! command -v module > /dev/null && [ -f "$file" ]; then source "$file"; fi
    done
    # shellcheck disable=SC2086
    module load $DOPPEL_MODULES
fi
eval "${DOPPEL_SETUP:-}"
set -u

mkdir -p "$run/slurm"
export PYTHONPATH="$code${PYTHONPATH:+:$PYTHONPATH}" WANDB_SILENT=${WANDB_SILENT:-true} DOPPEL_RUN=1
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
export DOPPEL_AGAIN=$run/slurm/.$name-$job.again # a task makes it that wants to go on later: a container has no scontrol
export DOPPEL_TASKS=$run/slurm/.$name-$job.tasks # on which the first of several tasks tells the others what to do
rm -f "$DOPPEL_AGAIN" "$DOPPEL_TASKS"
srun_args=(--kill-on-bad-exit=1) container=()
[ -z "${DOPPEL_SRUN_ARGS:-}" ] || mapfile -t -O 1 srun_args <<< "$DOPPEL_SRUN_ARGS"
[ -z "${DOPPEL_CONTAINER:-}" ] || mapfile -t container <<< "$DOPPEL_CONTAINER"
if [[ ${DOPPEL_CONTAINER:-} == -* ]]; then srun_args+=("${container[@]}") container=(); fi # options of srun's own, as pyxis has
# Until the program listens, the signal that asks it to save must not end it: the job would fail, and nothing requeue it.
# shellcheck disable=SC2016
launch=(sh -c 'trap "" USR1 USR2; exec "$@"' task "${container[@]}")

on_nodes() { srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpus-per-task=1 "$@"; }
if [ -n "${DOPPEL_SCRATCH:-}" ]; then
    scratch=$DOPPEL_SCRATCH/doppel-$job
    on_nodes mkdir -p "$scratch"
    export TMPDIR=$scratch
fi

keep() { # keep begin|end …: the run folder's record of this step; its status is this function's
    srun "${srun_args[@]}" --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 "${launch[@]}" \
        "${python[@]}" -P -m commands.run.execution.in_job "$1" "$kind" "$run" "$name" "${@:2}" "${command[@]}"
}

begin() { # begin KIND
    kind=$1
    if [ -e "$run/.done/$name" ]; then
        echo "── $name: done already, skipped"
        exit 0
    fi
    echo "── $name"
    keep begin || leave $?
    per_task=() # of the scripts
    # shellcheck disable=SC2034
    if [ $((tasks * SLURM_JOB_NUM_NODES)) -gt 1 ]; then
        per_task=(--open-mode=append --output="${run//%/%%}/slurm/$name-${job}_%t.out")
        echo "   its tasks write to $run/slurm/$name-${job}_*.out"
    fi
    SECONDS=0
}

end() { # after the tasks
    local seconds=$SECONDS told=$status
    status=0
    keep end "$told" "$seconds" || status=$?
    rm -f "$DOPPEL_AGAIN" "$DOPPEL_TASKS"
    leave "$status"
}

leave() { # leave STATUS: 75 goes back into the queue, unless somebody has cancelled the job
    [ -z "${scratch:-}" ] || on_nodes rm -rf "$scratch"
    if [ "$1" -eq 75 ] && [ "$(squeue --noheader --format=%T --jobs="$job")" = RUNNING ]; then scontrol requeue "$job"; fi
    exit "$1"
}
