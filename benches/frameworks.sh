#!/bin/sh
# PyTorch, CuPy, JAX, Numba and cuda-python on the driver alone and through OpenMPS: what runs, and whether it gives the
# same bits.
#
#   benches/frameworks.sh pack FOLDER          builds OpenMPS here and puts all that is needed into FOLDER
#   FOLDER/frameworks.sh run OUT [--only TEXT] on the machine with the GPU and the frameworks: prints the table of
#                                              docs/frameworks.md; logs go to OUT
#   FOLDER/frameworks.sh figures               there too: what PyTorch gets done on the driver alone, under NVIDIA's MPS and
#                                              through OpenMPS, one process and several, as one table
#   FOLDER/frameworks.sh survivors [ROUNDS]    there: how many PyTorch servers live through a fault of a neighbour's kernel
#   FOLDER/frameworks.sh tails                 likewise: an inference server beside training of lower priority, and a
#                                              training that starts beside another
#
# TEXT is a group of cases or a part of their names; the group `two` wants two GPUs and is not run without being named. It
# starts and ends its own daemon and changes no setting of the card.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

# NVIDIA's daemon and ours, with these options, both ended with the script. What is run under them begins with $theirs or $ours.
start_daemons() {
    directory=$(mktemp -d)
    mkdir -p "$directory/mps/log" "$directory/mps/pipe" "$directory/ours/log" "$directory/ours/pipe"
    theirs="env CUDA_MPS_PIPE_DIRECTORY=$directory/mps/pipe CUDA_MPS_LOG_DIRECTORY=$directory/mps/log"
    ours="env CUDA_MPS_PIPE_DIRECTORY=$directory/ours/pipe CUDA_MPS_LOG_DIRECTORY=$directory/ours/log"
    trap 'echo quit | $theirs nvidia-cuda-mps-control >/dev/null; $ours "$here/openmps" control quit >/dev/null; rm -rf "$directory"' EXIT
    $theirs nvidia-cuda-mps-control -d
    OPENMPS_ENGINE="${OPENMPS_ENGINE:-nvidia}" $ours "$here/openmps" control -d "$@"
}

case ${1:-} in
pack)
    folder=${2:?the folder to fill}
    cd "$here/.."
    cargo build --release --package openmps
    mkdir -p "$folder"
    cp target/release/openmps "$folder/"
    strip "$folder/openmps"
    cp benches/frameworks.sh benches/frameworks/*.py "$folder/"
    ;;
run)
    out=${2:?a folder for logs}
    shift 2
    directory=$(mktemp -d)
    mkdir "$directory/pipe" "$directory/log"
    mkdir -p "$out"
    export CUDA_MPS_LOG_DIRECTORY="$directory/log" OPENMPS_ENGINE="${OPENMPS_ENGINE:-nvidia}"
    trap 'CUDA_MPS_PIPE_DIRECTORY="$directory/pipe" "$here/openmps" control quit >/dev/null; cp "$directory"/log/* "$out/"; rm -rf "$directory"' EXIT
    CUDA_MPS_PIPE_DIRECTORY="$directory/pipe" "$here/openmps" control -d
    python3 "$here/run.py" "$out" "native=env CUDA_MPS_PIPE_DIRECTORY=/nonexistent" \
        "OpenMPS=env CUDA_MPS_PIPE_DIRECTORY=$directory/pipe OPENMPS_CLIENT_LOG=$out/client.log $here/openmps run --" "$@"
    ;;
figures | tails)
    tails=
    [ "$1" = figures ] || tails=--tails
    start_daemons
    python3 "$here/figures.py" $tails "native=env CUDA_MPS_PIPE_DIRECTORY=/nonexistent" "NVIDIA MPS=$theirs" \
        "OpenMPS=$ours $here/openmps run --"
    ;;
survivors)
    start_daemons --failover
    python3 "$here/survivors.py" --rounds "${2:-25}" "OpenMPS --failover=$ours $here/openmps run --"
    python3 "$here/survivors.py" --rounds 2 "NVIDIA MPS=$theirs"
    ;;
*)
    sed -n '2,16s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
