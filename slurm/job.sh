# shellcheck shell=bash
# What every job does first; sourced by the .sbatch files. The code is what was copied for the run (DOPPEL_CODE), or the
# folder from which sbatch was called by hand. DOPPEL_MODULES and DOPPEL_SCRATCH come from slurm/site.yaml.
code=${DOPPEL_CODE:-$SLURM_SUBMIT_DIR}
umask 077
if [ -n "${DOPPEL_MODULES:-}" ]; then
    set +u
    for file in /etc/profile.d/modules.sh /etc/profile.d/lmod.sh /usr/share/lmod/lmod/init/bash; do
        # shellcheck disable=SC1090
        if ! command -v module > /dev/null && [ -f "$file" ]; then source "$file"; fi
    done
    # shellcheck disable=SC2086
    module load $DOPPEL_MODULES
    set -u
fi
if [ -n "${DOPPEL_SCRATCH:-}" ]; then
    export TMPDIR="$DOPPEL_SCRATCH/doppel-$SLURM_JOB_ID"
    mkdir -p "$TMPDIR"
fi
export WANDB_SILENT=${WANDB_SILENT:-true}
export DOPPEL_SRUN=1 # fit and predict run under srun

stage() { # stage KIND MARK PYTHON COMMAND…
    export PYTHONPATH="$code${PYTHONPATH:+:$PYTHONPATH}"
    exec "$3" -P -m commands.run.execution.execute "$@"
}
