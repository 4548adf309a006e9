#!/bin/sh
# Runs the packed corpus on this machine's own driver and, through the openmps that lies beside it, once
# more as clients of one daemon on the same device. One table: both results, and whether the outputs agree.
# usage: run-all.sh [FOLDER]     FOLDER gets recorded.txt (what each program printed on the driver, in the
#                                form of tests/programs/recorded.txt), errors, and the daemon's logs
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$(mktemp -d)}
mkdir -p "$folder/native" "$folder/openmps" "$folder/log"
export LD_LIBRARY_PATH="$here${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export CUDA_MPS_PIPE_DIRECTORY=/tmp/openmps-corpus-$$ CUDA_MPS_LOG_DIRECTORY="$folder/log"
devices=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
passed=0 failed=0 skipped=0
trap 'OPENMPS_ENGINE=nvidia "$here/openmps" control quit >/dev/null; rm -rf "$CUDA_MPS_PIPE_DIRECTORY"' EXIT
OPENMPS_ENGINE=nvidia "$here/openmps" control -d || exit 2
: >"$folder/recorded.txt"

# run PLACE COMMAND…: sets `result`, and `seconds`
run() {
    place=$1 out="$folder/$1/$name"
    shift
    start=$(date +%s%N)
    # shellcheck disable=SC2086 # several assignments
    env $environment timeout -k 2 "$limit" "$@" >"$out" 2>"$out.err" </dev/null
    code=$?
    took=$(($(date +%s%N) - start))
    seconds=$((took / 1000000000)).$(printf '%02d' $((took / 10000000 % 100)))
    last=$(tail -n 1 "$out")
    if [ $code = 0 ] && [ "$last" = PASS ]; then
        result=pass
    elif [ $code = 124 ]; then
        result="no end within $limit s"
    else
        result="exit $code: $last $(tail -n 1 "$out.err")"
    fi
}

printf '%-24s %7s %7s  %s\n' program native openmps result
while IFS='|' read -r name needs limit environment; do
    case " $needs " in
    *" peer "*) [ "$devices" -ge 2 ] || why="needs two devices" ;;
    *" mpi "*) command -v mpirun >/dev/null || why="needs mpirun" ;;
    esac
    if [ -n "$why" ]; then
        printf '%-24s %7s %7s  %s\n' "$name" "" "" "skipped: $why"
        skipped=$((skipped + 1)) why=
        continue
    fi
    CUDA_MPS_PIPE_DIRECTORY=/nonexistent run native "$here/$name"
    native=$seconds verdict=$result
    if [ "$result" = pass ]; then
        { echo "== $name"; cat "$folder/native/$name"; } >>"$folder/recorded.txt"
        run openmps "$here/openmps" run -- "$here/$name"
        verdict=$result
        if [ "$result" = pass ] && ! cmp -s "$folder/native/$name" "$folder/openmps/$name"; then
            verdict="FAIL: the outputs differ"
        fi
    else
        verdict="native: $result" seconds=
    fi
    case $verdict in
    pass) passed=$((passed + 1)) ;;
    *) failed=$((failed + 1)) ;;
    esac
    printf '%-24s %7s %7s  %s\n' "$name" "$native" "$seconds" "$verdict"
done <"$here/programs.txt"
echo "$passed agree, $failed do not, $skipped skipped"
[ "$failed" = 0 ]
