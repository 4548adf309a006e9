#!/bin/sh
# Runs the packed corpus on this machine's own driver and prints the table of `cargo xtask corpus`.
# usage: run-all.sh [FILE]     FILE gets what every program printed, in the form of recorded.txt
here=$(cd "$(dirname "$0")" && pwd)
outputs=${1:-/dev/null}
export LD_LIBRARY_PATH="$here${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
devices=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
passed=0 failed=0 skipped=0
scratch=$(mktemp)
trap 'rm -f "$scratch" "$scratch.err"' EXIT
: >"$outputs"
printf '%-24s %-20s %7s  %s\n' program needs seconds result
while IFS='|' read -r name needs limit environment; do
    case " $needs " in
    *" peer "*) [ "$devices" -ge 2 ] || why="needs two devices" ;;
    *" mpi "*) command -v mpirun >/dev/null || why="needs mpirun" ;;
    esac
    if [ -n "$why" ]; then
        printf '%-24s %-20s %7s  %s\n' "$name" "$needs" "" "skipped: $why"
        skipped=$((skipped + 1)) why=
        continue
    fi
    start=$(date +%s%N)
    # shellcheck disable=SC2086 # several assignments
    env $environment timeout -k 2 "$limit" "$here/$name" >"$scratch" 2>"$scratch.err" </dev/null
    code=$?
    took=$(($(date +%s%N) - start))
    seconds=$((took / 1000000000)).$(printf '%02d' $((took / 10000000 % 100)))
    last=$(tail -n 1 "$scratch")
    if [ $code = 0 ] && [ "$last" = PASS ]; then
        result=pass passed=$((passed + 1))
        { echo "== $name"; cat "$scratch"; } >>"$outputs"
    else
        [ $code = 124 ] && last="no end within $limit s"
        result="FAIL: exit $code: ${last:-$(tail -n 1 "$scratch.err")}" failed=$((failed + 1))
    fi
    printf '%-24s %-20s %7s  %s\n' "$name" "$needs" "$seconds" "$result"
done <"$here/programs.txt"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
