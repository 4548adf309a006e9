# What prolog, epilog and task prolog know together. Sourced, not run.
#
# Each GPU has a daemon of its own while jobs with gres/mps are on it, and each job is a group of that
# daemon's, so that all processes of the job together have the job's percentage.

openmps=${OPENMPS:-/usr/bin/openmps}
# Not in /tmp, where any user could be there first.
base=${OPENMPS_SLURM_DIRECTORY:-/run/openmps-slurm}
# The package's, or the one that containers get.
library=/var/lib/openmps/lib
[ ! -e /usr/lib/openmps/libcuda.so.1 ] || library=/usr/lib/openmps
library=${OPENMPS_LIBRARY_DIRECTORY:-$library}

# The node's number of the job's GPU; gres/mps gives a job one.
gpu=${CUDA_VISIBLE_DEVICES:-${SLURM_JOB_GPUS:-0}}
gpu=${gpu%%,*}
pipe="$base/mps_$gpu"
log="$base/log_$gpu"
group="slurm-${SLURM_JOB_ID:?is set by Slurm}"

control() {
    # Slurm numbers GPUs by the bus, as their files are. A node without its GPU is not to go on with the
    # software GPU.
    env -u CUDA_MPS_ACTIVE_THREAD_PERCENTAGE -u CUDA_MPS_PINNED_DEVICE_MEM_LIMIT \
        OPENMPS_ENGINE="${OPENMPS_ENGINE:-nvidia}" CUDA_DEVICE_ORDER=PCI_BUS_ID \
        CUDA_MPS_PIPE_DIRECTORY="$pipe" CUDA_MPS_LOG_DIRECTORY="$log" CUDA_VISIBLE_DEVICES="$gpu" \
        "$openmps" control "$@" 9>&-
}

# A command without which the job cannot run.
must() {
    told=$(control "$@" 2>&1) || fail "control $*: $told" "$log/server.log and control.log say more"
}

# What goes wrong, and what to do: Slurm writes it to slurmd's log.
fail() {
    echo "openmps: job $SLURM_JOB_ID, GPU $gpu: $1" >&2
    echo "  -> $2" >&2
    exit 1
}

running() {
    control get_default_active_thread_percentage >/dev/null 2>&1
}

# One prolog or epilog of a GPU at a time.
lock() {
    umask 022
    mkdir -p "$base"
    exec 9>"$base/lock_$gpu"
    flock 9
}
