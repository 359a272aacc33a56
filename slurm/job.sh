# shellcheck shell=bash
# What every job does first; sourced by the .sbatch files. The code is what was copied for the run (DOPPEL_CODE), or the
# folder from which sbatch was called by hand.
code=${DOPPEL_CODE:-$SLURM_SUBMIT_DIR}
# shellcheck source=slurm/lib.sh
source "$code/slurm/lib.sh"
site
umask 077
if [ -n "${MODULES:-}" ]; then
    set +u
    for file in /etc/profile.d/modules.sh /etc/profile.d/lmod.sh /usr/share/lmod/lmod/init/bash; do
        # shellcheck disable=SC1090
        if ! command -v module > /dev/null && [ -f "$file" ]; then source "$file"; fi
    done
    # shellcheck disable=SC2086
    module load $MODULES
    set -u
fi
if [ -n "${SCRATCH:-}" ]; then
    export TMPDIR="$SCRATCH/doppel-$SLURM_JOB_ID"
    mkdir -p "$TMPDIR"
fi
export DOPPEL_SRUN=1 # fit and predict run under srun
