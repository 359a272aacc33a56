#!/usr/bin/env bash
# One stage, once: what --local runs and every job.
#
#   run_stage.sh KIND MARK COMMAND…
#
# Skips the command where MARK (RUN/.done/NAME) exists, and writes down there how many seconds it took; "-" runs it
# every time. A fit (KIND) goes on from the last checkpoint of its --run_dir, if there is one: decided now, so that a
# requeued job resumes. In a job, fit and predict run under srun, a task for each device.
# A command that fails leaves no mark; 75 is the status of one that was preempted (callbacks/preemption.py).
set -euo pipefail

{ # read to the end before it runs, so that an edit of this file does not reach a running stage
kind=$1 mark=$2 name=${2##*/}
shift 2
command=("$@") launch=()
if [ -f "$mark" ]; then
    echo "── $name: done already, skipped"
    exit
fi
[ "$mark" = - ] || echo "── $name"
start=$(date +%s)

if [ "$kind" = fit ]; then
    while [ $# -gt 1 ] && [ "$1" != --run_dir ]; do shift; done
    folder=${2:?a fit needs --run_dir}
    if [ -e "$folder/checkpoints/last.ckpt" ] || [ -L "$folder/checkpoints/last.ckpt" ]; then
        echo "   resuming from ${folder##*/}/checkpoints/last.ckpt"
        command+=(--ckpt_path last)
    fi
fi
if [ -n "${DOPPEL_SRUN:-}" ] && { [ "$kind" = fit ] || [ "$kind" = predict ]; }; then
    nodes=$SLURM_JOB_NUM_NODES tasks=${SLURM_NTASKS_PER_NODE:-1}
    [ "$kind" = fit ] || nodes=1
    launch=(srun --kill-on-bad-exit=1 "--nodes=$nodes" "--ntasks=$((nodes * tasks))" "--ntasks-per-node=$tasks"
        "--cpus-per-task=${SLURM_CPUS_PER_TASK:-1}")
    # Until the program listens, SIGUSR1 must not end it: the job would count as failed, and nothing would requeue it.
    launch+=(bash -c 'trap "" USR1; exec "$@"' task)
    command+=(--trainer.num_nodes "$nodes" --trainer.devices "$tasks")
fi

"${launch[@]}" "${command[@]}"
if [ "$mark" != - ]; then
    mkdir -p "$(dirname "$mark")"
    echo "$(($(date +%s) - start))" > "$mark.partial"
    mv "$mark.partial" "$mark"
fi
exit
}
