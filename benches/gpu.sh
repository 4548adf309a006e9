#!/bin/sh
# OpenMPS beside NVIDIA's MPS beside the driver alone (time slices), on one GPU and in one run.
#
#   benches/gpu.sh pack FOLDER     builds the programs here and puts all that is needed into FOLDER
#   FOLDER/gpu.sh run [OPTIONS]    on the machine with the GPU: prints the table; builds nothing
#
# Options of `run`: --rounds N (at most; 3), --json FILE, --only TEXT (figures whose name has TEXT).
# It starts and ends the daemons itself, NVIDIA's as this user, and changes no setting of the card.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
programs="openmps nbody gpu_bench gpu_client launch_cost copies"
case ${1:-} in
pack)
    folder=${2:?the folder to fill}
    cd "$here/.."
    cargo build --release --package openmps --package nbody --package benches
    mkdir -p "$folder"
    for program in $programs; do
        cp "target/release/$program" "$folder/"
        strip "$folder/$program"
    done
    cp benches/gpu.sh "$folder/"
    ;;
run)
    shift
    exec "$here/gpu_bench" "$here" "$@"
    ;;
*)
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
