#!/bin/sh
# Slurm's TaskProlog: as the user, before each task. What it prints as `export` the task gets.
# slurm.conf: TaskProlog=/usr/share/openmps/slurm/task_prolog.sh
set -eu
[ -n "${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-}" ] || exit 0
. "$(dirname "$0")/common.sh"
# Here CUDA_VISIBLE_DEVICES counts the job's GPUs, not the node's; the job's directory says which it is.
for folder in "$base"/mps_*/groups/"$group"; do
    [ -d "$folder" ] || continue
    echo "export CUDA_MPS_PIPE_DIRECTORY=$folder"
    # The daemon of GPU 1 has one device, its 0.
    echo "export CUDA_VISIBLE_DEVICES=0"
    echo "export LD_LIBRARY_PATH=$library${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
done
