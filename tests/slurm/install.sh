#!/usr/bin/env bash
# Installs Debian's SLURM and munge, which tests/slurm/cluster.py starts; `make test-all` runs it. Nothing is started
# and no file in /etc is written but those of the packages. Does nothing where they are there, or where it may not.
set -euo pipefail
for program in slurmctld slurmd munged sbatch; do
    command -v "$program" > /dev/null || missing=1
done
getent passwd munge > /dev/null || missing=1 # whom munged runs as
[ -n "${missing:-}" ] || exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get > /dev/null; then
    echo "SLURM is not installed, and only root on Debian installs it here: the tests marked slurm are skipped" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
apt-get update --quiet=2
apt-get install --quiet=2 --yes --no-install-recommends slurm-wlm munge > /dev/null
# The packages make it, but not where their files came by a copy of the system.
getent passwd munge > /dev/null || useradd --system --no-create-home --shell /usr/sbin/nologin munge
