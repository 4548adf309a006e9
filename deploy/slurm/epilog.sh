#!/bin/sh
# Slurm's Epilog: as root, on each node of a job, after it. What fails here drains the node.
# slurm.conf: Epilog=/usr/share/openmps/slurm/epilog.sh
set -eu
. "$(dirname "$0")/common.sh"
[ -n "${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-}" ] || [ -d "$pipe/groups/$group" ] || exit 0
lock
running || exit 0
# Processes of the job may be ending still.
tries=0
until control group remove "$group" >/dev/null 2>&1 || [ ! -d "$pipe/groups/$group" ]; do
    tries=$((tries + 1))
    if [ "$tries" -ge 20 ]; then
        echo "openmps: job $SLURM_JOB_ID still has clients on GPU $gpu" >&2
        exit 1
    fi
    sleep 0.5
done
# The last job's end is the daemon's, so that the GPU can be given as a whole.
case $(control group list) in
*slurm-*) ;;
*) control quit -t 5 >&2 ;;
esac
