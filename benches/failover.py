#!/usr/bin/env python3
"""What it costs that sessions can be taken over, and how long clients pause when they are. Both under two daemons of the software
GPU, or of the engine that OPENMPS_ENGINE names, in turn; they print the tables of docs/benchmarks.md.

    cargo build --release -p openmps --bin openmps -p benches --bin launch_cost
    benches/failover.py [PAIRS]          launch_cost with and without --failover; 20 pairs unless said otherwise
    benches/failover.py pauses [PAIRS]   the longest round of 8 clients whose server is killed, without a standby and with one
    benches/failover.py faults [PAIRS]   the same where a ninth one's kernel writes to an address that there is not, and what the logs say;
                                         of an NVIDIA GPU alone, which that stops

Each pair is one run under each daemon, the one that comes first by turns. The ratio of a pair compares two runs next to
each other; the table has the median of all ratios, and the range of the middle half. OPENMPS names another build.

The clients of a pause fill a word of their memory and read it back, again and again, with a break of a millisecond: half of them wait
for the fill, the others ask whether it is done. BYTES is how much memory each of them has, 64 MiB unless it is set. With the driver of
engine-nvidia/tests/fake, DEATH is the file of which that dies.
"""

import ctypes
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
OPENMPS = os.environ.get("OPENMPS", os.path.join(ROOT, "target/release/openmps"))
PROGRAM = os.path.join(ROOT, "target/release/launch_cost")
CLIENTS = 8
BREAK = 0.001

KERNEL = b"""\
.version 7.0
.target sm_70
.address_size 64
.visible .entry set(.param .u64 to, .param .u32 value)
{
    .reg .b64 %d<2>;
    .reg .b32 %r<2>;
    ld.param.u64 %d1, [to];
    ld.param.u32 %r1, [value];
    st.global.u32 [%d1], %r1;
    ret;
}
"""


class Daemon:
    def __init__(self, folder, options):
        self.folder = folder
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

    def control(self, *line):
        return subprocess.run(
            [OPENMPS, "control", *line], env=self.environment, capture_output=True, text=True
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


class Crowd(Daemon):
    """A daemon with clients whose rounds are measured."""

    def __init__(self, folder, standby, how):
        self.standby, self.how = standby, how
        super().__init__(folder, ["--failover", f"--standby={standby}"])

    def start_clients(self):
        run = [OPENMPS, "run", "--", sys.executable, os.path.abspath(__file__), "client"]
        return [
            subprocess.Popen(
                [*run, ("waits", "asks")[number % 2]],
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(CLIENTS)
        ]

    def wait_for_standby(self):
        while "STANDBY" not in self.control("get_server_list", "--json").stdout:
            time.sleep(0.05)

    def fault(self):
        """Another client's, which stops the device."""
        run = [OPENMPS, "run", "--", sys.executable, os.path.abspath(__file__), "client", "guilty"]
        environment = self.environment | {"SERVER": self.server()}
        subprocess.run(run, env=environment, stderr=subprocess.DEVNULL)

    def server(self):
        return self.control("get_server_list").stdout.strip()

    def said(self, which):
        return Said(os.path.join(self.folder, "log", which + ".log"))

    def settled_clients(self):
        """New clients at work, with a standby if there is to be one; what they needed until then does not count."""
        clients = self.start_clients()
        longest(clients)
        if self.standby != "never":
            self.wait_for_standby()
        time.sleep(0.5)
        longest(clients)
        return clients

    def figures_of_fault(self):
        clients = self.settled_clients()
        server, control = self.said("server"), self.said("control")
        self.fault()
        time.sleep(4)
        rounds = longest(clients)
        end(clients)
        lost = server.when("A device was lost")[0]
        went_on = server.when("taken over from a server that ended")
        alive = [one for one in rounds if one is not None]
        return {
            "longest round of those that live": max(alive, default=0),
            "clients that were told the error, of 8, not ms": rounds.count(None),
            "from the driver's word until the former process has ended": control.when("exited with status")[0] - lost,
            "until the first goes on": min(went_on, default=lost) - lost,
            "until the last goes on": max(went_on, default=lost) - lost,
        }

    def figures(self):
        """What the end of the server has cost new clients, in ms, by name: who was taken over some times in a minute is not
        again."""
        if self.how == "faults":
            return self.figures_of_fault()
        clients = self.settled_clients()
        control = self.said("control")
        os.kill(int(self.server()), 9)
        time.sleep(1.5)
        rounds = longest(clients)
        end(clients)
        text = control.text()
        figures = {
            "longest round of those that wait": max(rounds[0::2]),
            "longest round of those that ask": max(rounds[1::2]),
        }
        for name, line in (
            ("from the end of the process until all sessions are handed over", "was handed"),
            ("until all are welcomed", "has welcomed"),
        ):
            found = re.search(rf"{line} the last of \d+ clients of server \d+, ([\d.]+) ms", text)
            figures[name] = float(found[1])
        return figures


class Said:
    """What a log says from here on."""

    def __init__(self, path):
        self.path, self.begin = path, os.path.getsize(path)

    def text(self):
        with open(self.path) as log:
            log.seek(self.begin)
            return log.read()

    def when(self, text):
        """When something is said, each time, in ms."""
        times = [line[1:24] for line in self.text().splitlines() if text in line]
        return [datetime.datetime.fromisoformat(time).timestamp() * 1e3 for time in times]


def longest(clients):
    """The longest round of each client since the last time, in ms; nothing of one that has ended."""
    for client in clients:
        if client.poll() is None:
            print(file=client.stdin, flush=True)
    rounds = [client.stdout.readline() for client in clients]
    return [float(line) if line else None for line in rounds]


def end(clients):
    for client in clients:
        client.stdin.close()
        client.wait()


def client(how):
    """Fills and reads a word until standard input ends; says the longest time that took whenever a line comes. One that is guilty has
    a kernel write to an address that there is not."""
    import select

    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        status = getattr(cuda, name)(*arguments)
        if status not in (0, 600):
            sys.exit(f"{name}: {status}")
        return status

    context, stream, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    size = int(os.environ.get("BYTES", 64 << 20))
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    if how == "guilty":
        module, kernel, value = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint32(1)
        # Kernels of the tests' driver that have no address do not end.
        death = os.environ.get("DEATH")
        to = ctypes.c_uint64(0 if death else 16)
        call("cuModuleLoadData", ctypes.byref(module), KERNEL)
        call("cuModuleGetFunction", ctypes.byref(kernel), module, b"set")
        parameters = (ctypes.c_void_p * 2)(ctypes.addressof(to), ctypes.addressof(value))
        call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
        if death:
            with open(death, "w") as file:
                file.write(os.environ["SERVER"])
        call("cuCtxSynchronize")
        return
    call("cuStreamCreate", ctypes.byref(stream), 1)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size))
    call("cuMemsetD32_v2", memory, 1, ctypes.c_size_t(size // 4))
    value, longest = 0, 0
    read = ctypes.c_uint32()
    while True:
        value += 1
        began = time.monotonic()
        call("cuMemsetD32Async", memory, value, ctypes.c_size_t(1), stream)
        if how == "waits":
            call("cuStreamSynchronize", stream)
        while call("cuStreamQuery", stream) == 600:
            time.sleep(BREAK / 4)
        call("cuMemcpyDtoH_v2", ctypes.byref(read), memory, ctypes.c_size_t(4))
        if read.value != value:
            sys.exit(f"{read.value} in the place of {value}")
        longest = max(longest, time.monotonic() - began)
        if select.select([sys.stdin], [], [], BREAK)[0]:
            if not sys.stdin.readline():
                return
            print(longest * 1e3, flush=True)
            longest = 0


def compare(names, unit, daemons, pairs):
    """Prints a table of what two daemons' runs give, in turn."""
    runs = []
    for number in range(pairs):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        pair = {which: daemons[which].figures() for which in order}
        runs.append((pair[0], pair[1]))
    for daemon in daemons:
        daemon.end()
    print(f"| | {names[0]}, {unit} | {names[1]}, {unit} | ratio of pairs (middle half) |")
    print("|---|---|---|---|")
    for name in runs[0][0]:
        one = statistics.median(pair[0][name] for pair in runs)
        other = statistics.median(pair[1][name] for pair in runs)
        # Of what both have.
        ratios = [pair[1][name] / pair[0][name] for pair in runs if pair[0][name]]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (0, 0, 0)
        print(f"| {name} | {one:.2f} | {other:.2f} | {middle:.3f} ({low:.3f}–{high:.3f}) |")


def main():
    words = sys.argv[1:]
    if words[:1] == ["client"]:
        return client(words[1])
    pauses = words[:1] in (["pauses"], ["faults"])
    pairs = int(words[-1]) if words[pauses:] else 20
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        if pauses:
            names = ("without a standby", "with one")
            daemons = [Crowd(one, "never", words[0]), Crowd(other, "always", words[0])]
            compare(names, "ms", daemons, pairs)
            return
        daemons = [Daemon(one, []), Daemon(other, ["--failover", "--standby=never"])]
        for daemon in daemons:
            # The server is warm.
            daemon.figures()
        compare(("without", "with `--failover`"), "µs", daemons, pairs)


main()
