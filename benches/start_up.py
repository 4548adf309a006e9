"""What the first calls of a CUDA program cost, here and there.

    cargo xtask corpus --filter start_up          # builds target/corpus/static/start_up
    python3 benches/start_up.py "OpenMPS=openmps run -- PROGRAM measure" "native=PROGRAM measure"

Runs each command in turn, 101 times after 5 to warm up, and prints medians in milliseconds (with the 10th
and 90th percentile): of the steps, of the whole process, and of its processor time, which a busy machine
bends less. Have a daemon with a warm server. Where no driver is found the program ends at its first call,
and what is left is the price of the program itself.
"""

import os
import statistics
import subprocess
import sys
import time

ROUNDS, WARM_UP = 101, 5
STEPS = ("devices", "context", "allocation", "launch", "copy")


def once(command):
    start = time.perf_counter()
    child = subprocess.Popen(command.split(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    lines = child.stdout.read().splitlines()
    _, _, used = os.wait4(child.pid, 0)
    whole = (time.perf_counter() - start) * 1e3
    steps = {name: float(took) / 1e3 for name, took in (line.split(": ") for line in lines)}
    return whole, (used.ru_utime + used.ru_stime) * 1e3, steps


def spread(values, digits):
    tenths = statistics.quantiles(values, n=10)
    return f"{tenths[4]:.{digits}f} ({tenths[0]:.{digits}f}–{tenths[8]:.{digits}f})"


def main():
    commands = [argument.split("=", 1) for argument in sys.argv[1:]]
    results = {name: [] for name, _ in commands}
    for turn in range(WARM_UP + ROUNDS):
        for name, command in commands:
            result = once(command)
            if turn >= WARM_UP:
                results[name].append(result)
    print("| median ms | " + " | ".join(STEPS) + " | whole process | its CPU time |")
    print("|---|" + "---|" * (len(STEPS) + 2))
    for name, runs in results.items():
        cells = []
        for step in STEPS:
            took = [steps[step] for _, _, steps in runs if step in steps]
            cells.append(spread(took, 2) if took else "–")
        cells.append(spread([whole for whole, _, _ in runs], 1))
        cells.append(f"{statistics.median(used for _, used, _ in runs):.1f}")
        print(f"| {name} | " + " | ".join(cells) + " |")


main()
