#!/bin/sh
# What clients of one GPU lose by their neighbours: OpenMPS with one context and with several on the underlay, beside NVIDIA's MPS
# beside the driver alone (time slices).
#
#   benches/neighbours.sh pack FOLDER       builds here, and puts all that is needed into FOLDER
#   FOLDER/neighbours.sh run [OPTIONS]      on the machine with the GPU: prints the table of docs/neighbours.md
#
# Options, as of gpu.sh: --rounds N (at most; 3), --json FILE, --only TEXT (figures whose name has TEXT; again for more).
# It starts and ends the daemons itself, NVIDIA's as this user, and changes no setting of the card.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

case ${1:-} in
pack)
    folder=${2:?the folder to fill}
    "$here/gpu.sh" pack "$folder"
    cp "$here/neighbours.sh" "$folder/"
    ;;
run)
    shift
    exec "$here/gpu_bench" "$here" --neighbours "$@"
    ;;
*)
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
