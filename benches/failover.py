#!/usr/bin/env python3
"""What it costs that sessions can be taken over: launch_cost under two daemons of the software GPU, or of the engine that
OPENMPS_ENGINE names, one of them with --failover, in turn.

    cargo build --release -p openmps --bin openmps -p benches --bin launch_cost
    benches/failover.py [PAIRS]          prints the table of docs/benchmarks.md; 20 pairs unless said otherwise

Each pair is one run under each daemon, the one that comes first by turns. The ratio of a pair compares two runs next to
each other; the table has the median of all ratios, and the range of the middle half.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
OPENMPS = os.path.join(ROOT, "target/release/openmps")
PROGRAM = os.path.join(ROOT, "target/release/launch_cost")


class Daemon:
    def __init__(self, folder, options):
        self.environment = os.environ | {
            "CUDA_MPS_PIPE_DIRECTORY": os.path.join(folder, "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": os.path.join(folder, "log"),
            "HOME": folder,
            "OPENMPS_ENGINE": os.environ.get("OPENMPS_ENGINE", "soft"),
        }
        self.process = subprocess.Popen(
            [OPENMPS, "control", "-f", *options],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for _ in range(1000):
            if self.control("get_server_list").returncode == 0:
                break
            time.sleep(0.01)
        # The server is warm.
        self.figures()

    def control(self, *line):
        return subprocess.run(
            [OPENMPS, "control", *line], env=self.environment, capture_output=True
        )

    def figures(self):
        """The medians of one run, in µs, by name."""
        run = [OPENMPS, "run", "--", PROGRAM, "--json"]
        done = subprocess.run(
            run, env=self.environment, check=True, capture_output=True, text=True
        )
        rows = map(json.loads, done.stdout.splitlines())
        return {row["name"]: row["median_us"] for row in rows}

    def end(self):
        self.control("quit", "-t", "1")
        self.process.wait()


def main():
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        daemons = [Daemon(one, []), Daemon(other, ["--failover"])]
        runs = []
        for number in range(pairs):
            order = (0, 1) if number % 2 == 0 else (1, 0)
            pair = {which: daemons[which].figures() for which in order}
            runs.append((pair[0], pair[1]))
        for daemon in daemons:
            daemon.end()
    print("| | without, µs | with `--failover`, µs | ratio of pairs (middle half) |")
    print("|---|---|---|---|")
    for name in runs[0][0]:
        without = statistics.median(pair[0][name] for pair in runs)
        armed = statistics.median(pair[1][name] for pair in runs)
        ratios = [pair[1][name] / pair[0][name] for pair in runs]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"| {name} | {without:.2f} | {armed:.2f} | {middle:.3f} ({low:.3f}–{high:.3f}) |")


main()
