#!/bin/sh
# PyTorch, CuPy, JAX, Numba and cuda-python on the driver alone and through OpenMPS: what runs, and whether it gives the
# same bits.
#
#   benches/frameworks.sh pack FOLDER          builds OpenMPS here and puts all that is needed into FOLDER
#   FOLDER/frameworks.sh run OUT [--only TEXT] on the machine with the GPU and the frameworks: prints the table of
#                                              docs/frameworks.md; logs go to OUT
#
# TEXT is a group of cases or a part of their names. It starts and ends its own daemon and changes no setting of the card.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

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
*)
    sed -n '2,10s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
