#!/bin/sh
# OpenMPS beside NVIDIA's MPS beside the driver alone (time slices), on one GPU and in one run.
#
#   benches/gpu.sh pack FOLDER     builds the programs here and puts all that is needed into FOLDER
#   FOLDER/gpu.sh run [OPTIONS]    on the machine with the GPU: prints the table; builds nothing
#   FOLDER/gpu.sh managed [MiB [ROUNDS]]
#                                  what each scheme for memory of host and device costs, natively and through
#                                  OpenMPS: one table
#   FOLDER/gpu.sh host             what page-locked and registered memory costs, natively and through OpenMPS: one
#                                  table
#   FOLDER/gpu.sh calls [DIR]      wrong arguments: which calls OpenMPS answers otherwise than the driver of this
#                                  machine; both lists of answers go to DIR
#   FOLDER/gpu.sh limits           on how many multiprocessors one graph's kernel runs while its client's limits
#                                  change, and others' beside what it has reserved
#   FOLDER/gpu.sh soak [CLIENTS [SECONDS [MODE]]]
#                                  random words copied back and compared, by 16 clients for 60 seconds; with `reads` as
#                                  MODE from a table, and not written by a kernel before each copy
#   FOLDER/gpu.sh trace [ROUNDS [SECONDS]]
#                                  launches a second with recording off and on, in turn, and n-body's kernels in its
#                                  time line beside its own events
#
# Options of `run`: --rounds N (at most; 3), --json FILE, --only TEXT (figures whose name has TEXT),
# --against OPENMPS (that program of another build instead of NVIDIA's MPS and the driver alone).
# It starts and ends the daemons itself, NVIDIA's as this user, and changes no setting of the card.
# FOLDER/completion, fetches and driver_calls are for the driver alone; their sources say how to run them.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
programs="openmps nbody gpu_bench gpu_client launch_cost copies calls"

# CUDA's compiler: that of the path, or what `cargo xtask corpus` has fetched.
compiler() {
    command -v nvcc || ls target/cuda/*/nvidia/cu13/bin/nvcc 2>/dev/null | tail -n 1
}

# Runs a program on this machine's own driver: in a directory where no daemon is.
natively() {
    CUDA_MPS_PIPE_DIRECTORY=/nonexistent "$@"
}

# Starts a daemon for this script's clients; it ends with the script.
start_daemon() {
    directory=$(mktemp -d)
    mkdir "$directory/pipe" "$directory/log"
    export CUDA_MPS_PIPE_DIRECTORY="$directory/pipe" CUDA_MPS_LOG_DIRECTORY="$directory/log"
    export OPENMPS_ENGINE="${OPENMPS_ENGINE:-nvidia}"
    trap '"$here/openmps" control quit >/dev/null; rm -rf "$directory"' EXIT
    "$here/openmps" control -d
}

case ${1:-} in
pack)
    folder=${2:?the folder to fill}
    cd "$here/.."
    nvcc=$(compiler)
    : "${nvcc:?no compiler of CUDA; \`cargo xtask corpus --filter vector_add\` fetches one}"
    cargo build --release --package openmps --package nbody --package benches --package tests --bins
    mkdir -p "$folder"
    for program in $programs; do
        cp "target/release/$program" "$folder/"
        strip "$folder/$program"
    done
    for source in benches/gpu/*.cu; do
        # Our library stands in for the driver's, which this machine may not have.
        "$nvcc" -O2 -std=c++20 -gencode arch=compute_75,code=compute_75 \
            -o "$folder/$(basename "$source" .cu)" "$source" -Ltarget/embedded/release -lcuda
    done
    cp benches/gpu.sh tests/calls/wrong_arguments.txt "$folder/"
    ;;
run)
    shift
    exec "$here/gpu_bench" "$here" "$@"
    ;;
managed)
    mebibytes=${2:-256} rounds=${3:-5}
    natively "$here/managed" "$mebibytes" "$rounds" native || echo "(not on this machine's driver)"
    start_daemon
    # Its rows go on with the same table.
    "$here/openmps" run -- "$here/managed" "$mebibytes" "$rounds" OpenMPS | tail -n +3
    ;;
host)
    natively "$here/host_memory" native || echo "(not on this machine's driver)"
    start_daemon
    # Its rows go on with the same table.
    "$here/openmps" run -- "$here/host_memory" OpenMPS | tail -n +3
    ;;
calls)
    out=${2:-$(mktemp -d)}
    mkdir -p "$out"
    natively "$here/calls" --record "$here/wrong_arguments.txt" >"$out/native.txt" || {
        echo "(no driver on this machine: the recorded answers stand for its own)"
        cp "$here/wrong_arguments.txt" "$out/native.txt"
    }
    echo "== the driver's answers (>) that differ from the recorded ones (<)"
    diff "$here/wrong_arguments.txt" "$out/native.txt" && echo "none"
    start_daemon
    "$here/openmps" run -- "$here/calls" --record "$here/wrong_arguments.txt" >"$out/openmps.txt"
    echo "== OpenMPS' answers that are neither the driver's nor explained in the file; all: diff $out/native.txt $out/openmps.txt"
    "$here/openmps" run -- "$here/calls" --either "$out/native.txt"
    ;;
limits)
    start_daemon
    mkfifo "$directory/go"
    "$here/openmps" run -- "$here/resized" <"$directory/go" >"$directory/counts" &
    client=$!
    exec 3>"$directory/go"
    launched=0
    # Launches the graph once more; prints what was done before, the graph's count, and a new client's.
    launch() {
        echo >&3
        launched=$((launched + 1))
        until [ "$(wc -l <"$directory/counts")" -ge $launched ]; do
            kill -0 $client || { cat "$directory/counts" >&2; exit 1; }
            sleep 0.01
        done
        other=$(echo | "$here/openmps" run -- "$here/resized")
        printf '%-24s %4s %4s\n' "$1" "$(tail -n 1 "$directory/counts")" "$other"
    }
    printf '%-24s %4s %4s\n' "multiprocessors" "graph" "another client"
    launch "at first"
    for limit in "25" "100" "50 --reserved" "25 --reserved" "100 --reserved" "100 --no-reserved"; do
        # shellcheck disable=SC2086 # several words
        "$here/openmps" limit set --client $client --percentage $limit >/dev/null
        launch "$limit"
    done
    exec 3>&-
    wait $client
    ;;
soak)
    clients=${2:-16} seconds=${3:-60} mode=${4:-soak}
    start_daemon
    begun=
    for client in $(seq "$clients"); do
        "$here/openmps" run -- "$here/gpu_client" "$mode" --for "$seconds" >"$directory/$client" &
        begun="$begun $!"
    done
    for client in $begun; do
        wait "$client"
    done
    cat "$directory"/[0-9]* | awk -F '[:,}]' '{ copies += $2; words += $4 } END { printf "%.0f copies, %.0f words, all right\n", copies, words }'
    ;;
trace)
    rounds=${2:-5} seconds=${3:-2}
    start_daemon
    # Launches a second of one client, recorded as its first word says.
    rate() {
        how=$1
        case $how in
        itself) set -- env OPENMPS_TRACE="$directory/own.%p" ;;
        *) set -- env ;;
        esac
        if [ "$how" = for-others ]; then
            "$here/openmps" trace --all-processes -o "$directory/all.%p" 2>"$directory/said" &
            recorder=$!
            until grep -q recording "$directory/said"; do sleep 0.01; done
            sleep 0.2
        fi
        "$@" "$here/openmps" run -- "$here/gpu_client" rate 0 --for "$seconds" |
            tr -dc '0-9.\n' >>"$directory/rates.$how"
        if [ "$how" = for-others ]; then
            kill -INT $recorder
            wait $recorder
            grep missing "$directory/said" >&2 || true
        fi
        rm -f "$directory"/own.* "$directory"/all.*
    }
    for round in $(seq "$rounds"); do
        # Each comes first as often as the others.
        case $((round % 3)) in
        0) order="off itself for-others" ;;
        1) order="itself for-others off" ;;
        2) order="for-others off itself" ;;
        esac
        for how in $order; do rate "$how"; done
    done
    printf '%-12s %12s %12s %12s\n' "launches/s" median least most
    for how in off itself for-others; do
        sort -n "$directory/rates.$how" |
            awk -v how="$how" '{ rate[NR] = $1 } END { printf "%-12s %12.0f %12.0f %12.0f\n", how, rate[int((NR + 1) / 2)], rate[1], rate[NR] }'
    done
    steps=${OPENMPS_BENCH_STEPS:-200}
    OPENMPS_TRACE="$directory/nbody" "$here/openmps" run -- "$here/nbody" -benchmark \
        ${OPENMPS_BENCH_BODIES:+-numbodies="$OPENMPS_BENCH_BODIES"} -i="$steps" >"$directory/printed"
    own=$(sed -n 's/.*total time for .* iterations: \(.*\) ms/\1/p' "$directory/printed")
    # Warming up launches the same kernel: the mean is of all launches, times the steps of the benchmark.
    "$here/openmps" trace summary --csv "$directory/nbody" |
        awk -F, -v own="$own" -v steps="$steps" '/"GPU activities"/ && !/CUDA mem/ && $5 > 0 && $4 >= steps {
            sum = $5 * steps / 1e6
            printf "n-body: %s kernels, %d x mean %.3f ms; its own events %.3f ms; %+.2f %%\n", $4, steps, sum, own, (sum / own - 1) * 100 }'
    ;;
*)
    sed -n '2,27s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
