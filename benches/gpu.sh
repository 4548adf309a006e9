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
#   FOLDER/gpu.sh watch [ROUNDS [SECONDS]]
#                                  what watching costs: launches a second without accounts, with them, and recorded, in
#                                  turn; and how long n-body waits for another, by the accounts and by its own events
#
#   FOLDER/gpu.sh sharing          a block and an event that one program shares with another, in one context and in two of
#                                  an underlay: whether all is right, and how long it takes to open and close a block
#
# Options of `run`: --rounds N (at most; 3), --json FILE, --only TEXT (figures whose name has TEXT; again for more),
# --against OPENMPS (that program of another build instead of NVIDIA's MPS and the driver alone).
# It starts and ends the daemons itself, NVIDIA's as this user, and changes no setting of the card.
# FOLDER/completion, fetches and driver_calls are for the driver alone; their sources say how to run them.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
programs="openmps nbody gpu_bench gpu_client launch_cost copies calls exchange exchange_pair"

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
    "$here/openmps" control -d "$@"
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
sharing)
    start_daemon --underlay=auto --contexts=2
    echo "start_server -uid $(id -u)" | "$here/openmps" control >/dev/null
    tries=0
    until "$here/openmps" control underlay | grep -q "2 of 2 contexts"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { "$here/openmps" control underlay; exit 1; }
        sleep 0.1
    done
    "$here/openmps" run -- "$here/exchange_pair"
    grep "opened in this one only\|no client of its user" "$CUDA_MPS_LOG_DIRECTORY/server.log" || true
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
watch)
    rounds=${2:-8} seconds=${3:-1}
    start_daemon
    # Another daemon, whose server counts nothing.
    mkdir "$directory/uncounted" "$directory/uncounted/pipe" "$directory/uncounted/log"
    uncounted() {
        CUDA_MPS_PIPE_DIRECTORY="$directory/uncounted/pipe" CUDA_MPS_LOG_DIRECTORY="$directory/uncounted/log" \
            OPENMPS_ACCOUNTS=off "$@"
    }
    trap '"$here/openmps" control quit >/dev/null; uncounted "$here/openmps" control quit >/dev/null; rm -rf "$directory"' EXIT
    uncounted "$here/openmps" control -d
    # Launches a second of one client, watched as the first word says.
    rate() {
        set -- "$1" "$here/openmps" run -- "$here/gpu_client" rate 0 --for "$seconds"
        how=$1
        shift
        case $how in
        nothing) uncounted "$@" ;;
        accounts) "$@" ;;
        itself) OPENMPS_TRACE="$directory/own.%p" "$@" ;;
        for-others)
            "$here/openmps" trace --all-processes -o "$directory/all.%p" 2>"$directory/said" &
            recorder=$!
            until grep -q recording "$directory/said"; do sleep 0.01; done
            "$@"
            kill -INT $recorder
            wait $recorder
            grep missing "$directory/said" >&2 || true
            ;;
        esac >"$directory/rate"
        tr -dc '0-9.\n' <"$directory/rate" >>"$directory/rates.$how"
        rm -f "$directory"/own.* "$directory"/all.*
    }
    for how in nothing accounts; do rate $how; done
    rm "$directory"/rates.*
    for round in $(seq "$rounds"); do
        # Each comes first as often as the others.
        case $((round % 4)) in
        0) order="nothing accounts itself for-others" ;;
        1) order="for-others itself accounts nothing" ;;
        2) order="accounts nothing for-others itself" ;;
        3) order="itself for-others nothing accounts" ;;
        esac
        for how in $order; do rate "$how"; done
    done
    echo "empty kernels a second, one client, $rounds rounds of $seconds s"
    printf '%-12s %10s %10s %10s %8s\n' watched median least most lost
    for how in nothing accounts itself for-others; do
        # What recording costs is beside accounts, which are always there.
        base=$directory/rates.nothing
        case $how in itself | for-others) base=$directory/rates.accounts ;; esac
        beside=$(sort -n "$base" | awk '{ rate[NR] = $1 } END { print rate[int((NR + 1) / 2)] }')
        sort -n "$directory/rates.$how" |
            awk -v how="$how" -v beside="$beside" '{ rate[NR] = $1 } END { median = rate[int((NR + 1) / 2)]
                printf "%-12s %10.0f %10.0f %10.0f %6.1f %%\n", how, median, rate[1], rate[NR], (1 - median / beside) * 100 }'
    done

    steps=${OPENMPS_BENCH_STEPS:-400}
    # In a process of its own, which becomes the program's.
    body() {
        exec "$here/openmps" run -- "$here/nbody" -benchmark ${OPENMPS_BENCH_BODIES:+-numbodies="$OPENMPS_BENCH_BODIES"} \
            -i="$steps" >"$directory/$1"
    }
    events() { sed -n 's/.*total time for .* iterations: \(.*\) ms/\1/p' "$directory/$1"; }
    # What the accounts said last of each client: process, kernels' seconds, seconds waited.
    looks() {
        while [ ! -e "$directory/enough" ]; do
            "$here/openmps" top --json --interval 0.3 | tr ',{' '\n\n' | tr -d ' "' | awk -F: '
                $1 == "pid" { pid = $2 }
                $1 == "kernel_seconds" { kernels[pid] = $2 }
                $1 == "waited_seconds" { waited[pid] = $2 }
                END { for (pid in waited) print pid, kernels[pid], waited[pid] }' >>"$directory/looks"
        done
    }
    (body alone)
    looks &
    looking=$!
    body first &
    first=$!
    # The first has been alone for a while: its kernel's time is known.
    sleep "${OPENMPS_BENCH_APART:-1.2}"
    body second &
    second=$!
    wait $first $second
    touch "$directory/enough"
    wait $looking
    alone=$(events alone)
    echo "n-body, $steps steps; alone $alone ms by its events. Waiting, as a part of the time in which it had kernels:"
    part() {
        said=$(awk -v pid="$2" '$1 == pid && $2 > 0 { said = sprintf("%.1f %%", $3 / $2 * 100) } END { print said }' "$directory/looks")
        events "$1" | awk -v name="$1" -v alone="$alone" -v said="$said" '{
            printf "%-12s %10.1f ms by its events: waits %5.1f %%; by the accounts %s\n", name, $1, (1 - alone / $1) * 100, said }'
    }
    part first $first
    part second $second
    ;;
*)
    sed -n '2,30s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
