#!/bin/sh
# Slurm's Prolog: as root, on each node of a job, before it.
# slurm.conf: Prolog=/usr/share/openmps/slurm/prolog.sh PrologFlags=Alloc
set -eu
. "$(dirname "$0")/common.sh"
lock
if [ -z "${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-}" ]; then
    # A job with gres/gpu, or without a GPU. A GPU is the one or the other at a time, so a daemon that
    # an epilog could not end has nobody left.
    if [ -n "${CUDA_VISIBLE_DEVICES:-}" ] && running; then
        control quit -t 5 >&2
    fi
    exit 0
fi
[ -e "$library/libcuda.so.1" ] ||
    fail "no libcuda.so.1 in $library, so that the job would run past the daemon" \
        "put it there: $openmps cdi generate --output - --library-directory $library"
if ! running; then
    mkdir -p "$pipe" "$log"
    # Several users may share a GPU.
    control -d -M >&2
fi
# The same job, started anew after a failure of the node, begins anew.
control group remove "$group" >/dev/null 2>&1 || true
must group add "$group" --percentage "$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
# One that is there already is well.
must start_server -uid "${SLURM_JOB_UID:-0}"
