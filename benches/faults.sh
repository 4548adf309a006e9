#!/bin/sh
# The fault matrix: who lives and who is told what when a client faults, hangs or is killed, or a server or daemon is, or
# memory or the disk is full, beside neighbours whose results are checked.
#
#   benches/faults.sh soft [OPTIONS]        builds here, and runs on the software GPU: the table of docs/faults.md
#   benches/faults.sh pack FOLDER           builds here, and puts all that is needed into FOLDER
#   FOLDER/faults.sh run [OPTIONS]          on the machine with the GPU: OpenMPS, then NVIDIA's MPS of that machine
#
# Options: --wrong TEXT, --neighbours TEXT (rows and columns whose names have TEXT), --fenced (all clients of OpenMPS ask to
# be fenced; what is under NVIDIA's MPS is as without), --failover (its daemons keep sessions for other servers), --soak ROUNDS (so many wrongs at random
# under one daemon instead, one each --every SECONDS, beside --each NEIGHBOURS of each kind, of which one that has ended is started again: what everybody
# was told, and what the server had before and afterwards). A cell has a daemon of its own, NVIDIA's
# as this user; no setting of the card is changed. An endless kernel under NVIDIA's MPS lasts until its server ends.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
programs="openmps faults fault_matrix"

build() {
    (cd "$here/.." && cargo build --release --package openmps --package benches --package tests --bins)
}

case ${1:-} in
soft)
    shift
    build
    exec "$here/../target/release/fault_matrix" "$here/../target/release" --on soft "$@"
    ;;
pack)
    folder=${2:?the folder to fill}
    build
    mkdir -p "$folder"
    for program in $programs; do
        cp "$here/../target/release/$program" "$folder/"
        strip "$folder/$program"
    done
    cp "$here/faults.sh" "$folder/"
    ;;
run)
    shift
    exec "$here/fault_matrix" "$here" --on nvidia --on nvidia-mps "$@"
    ;;
*)
    sed -n '2,14s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
