"""How many PyTorch inference servers live through a fault of a neighbour's kernel, on several sides.

    survivors.py [--rounds N] [--pause SECONDS] "MPS=env CUDA_MPS_PIPE_DIRECTORY=..." "OpenMPS=openmps run --"

A side is a name and what is put before each command. In each round some servers work a third of the time each, and a program
that they know nothing of writes to an address that there is not. A server has lived if it goes on and each of its results is
to the bit what the first one was; one that has not is started again. Before each fault there is a pause, as a standby needs two
seconds to be there again. Prints one table.
"""

import argparse
import json
import select
import subprocess
import sys
import time

SERVERS = 4
ROUNDS = 25
# Seconds from when all servers work to the next fault.
PAUSE = 3.0
# Results that a server gives after a fault before the next round.
RESULTS = 10
SECONDS = 60


# ---------------------------------------------------------------- in a server


def server():
    import figures

    step = figures.bert_inference()
    for _ in range(8):
        step()
    expected = step()
    counts = {"results": 0, "wrong": 0, "longest": 0.0}
    print(json.dumps(counts), flush=True)
    while True:
        begun = time.perf_counter()
        result = step()
        took = time.perf_counter() - begun
        counts["results"] += 1
        counts["wrong"] += result != expected
        counts["longest"] = max(counts["longest"], took)
        time.sleep(2 * min(took, 0.01))
        if select.select([sys.stdin], [], [], 0)[0]:
            if not sys.stdin.readline():
                return
            print(json.dumps(counts), flush=True)
            counts["longest"] = 0.0


FAULT = b"""
.version 7.0
.target sm_50
.address_size 64
.visible .entry fault() {
    .reg .b64 %to;
    .reg .b32 %value;
    mov.u64 %to, 8;
    mov.u32 %value, 1;
    st.global.u32 [%to], %value;
    ret;
}
"""


def guilty():
    """Ends with the error that it is told, less 700."""
    import ctypes

    cuda = ctypes.CDLL("libcuda.so.1")
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    for code in (
        cuda.cuInit(0),
        cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0),
        cuda.cuModuleLoadData(ctypes.byref(module), FAULT),
        cuda.cuModuleGetFunction(ctypes.byref(function), module, b"fault"),
        cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None),
    ):
        if code:
            sys.exit(f"the guilty program could not begin: error {code}")
    code = cuda.cuCtxSynchronize()
    print(code, flush=True)


# ---------------------------------------------------------------- beside them


class Server:
    def __init__(self, prefix):
        command = [*prefix.split(), sys.executable, __file__, "server"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def counts(self):
        """What it has done, or None if it has ended or does not answer."""
        if not select.select([self.process.stdout], [], [], SECONDS)[0]:
            self.process.kill()
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def asked(self):
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        return self.counts()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def goes_on(server, before):
    """What it has done when it has given some results more, or None if it ends before."""
    until = time.monotonic() + SECONDS
    while (counts := server.asked()) and counts["results"] < before["results"] + RESULTS:
        before["longest"] = max(before["longest"], counts["longest"])
        if time.monotonic() > until:
            return None
        time.sleep(0.05)
    if counts:
        counts["longest"] = max(before["longest"], counts["longest"])
    return counts


def side(prefix, rounds, pause):
    servers = [Server(prefix) for _ in range(SERVERS)]
    ready = [server.counts() for server in servers]
    if None in ready:
        raise RuntimeError("a server did not start")
    lived = ended = wrong = 0
    pauses, usual = [], []
    begun = time.monotonic()
    for number_of_round in range(1, rounds + 1):
        time.sleep(pause)
        before = [server.asked() for server in servers]
        if None in before:
            raise RuntimeError("a server ended without a fault")
        usual += [counts["longest"] for counts in before]
        for counts in before:
            counts["longest"] = 0.0
        done = subprocess.run([*prefix.split(), sys.executable, __file__, "guilty"], capture_output=True, text=True)
        if done.stdout.strip() == "":
            raise RuntimeError(done.stderr)
        started = []
        for number, server in enumerate(servers):
            counts = goes_on(server, before[number])
            if counts and counts["wrong"] == 0:
                lived += 1
                pauses.append(counts["longest"])
                continue
            ended += counts is None
            wrong += counts is not None
            server.process.kill()
            server.process.wait()
            servers[number] = Server(prefix)
            started.append(servers[number])
        if None in [server.counts() for server in started]:
            raise RuntimeError("a server did not start again")
        # Should the run be ended before its table.
        said = f"round {number_of_round} of {rounds}, {time.monotonic() - begun:.0f} s: {lived} lived, {ended} ended, {wrong} wrong"
        print(f"{said}, longest request of who lived {max(pauses, default=0) * 1e3:.0f} ms", file=sys.stderr)
    for server in servers:
        server.end()
    pauses.sort()
    return {
        "lived": f"{lived} of {rounds * SERVERS}",
        "ended with an error": ended,
        "wrong results": wrong,
        "told to the guilty": done.stdout.strip(),
        "longest request of who lived, median, ms": round(pauses[len(pauses) // 2] * 1e3) if pauses else "",
        "the same, longest, ms": round(pauses[-1] * 1e3) if pauses else "",
        "longest request without a fault, median, ms": round(sorted(usual)[len(usual) // 2] * 1e3),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--pause", type=float, default=PAUSE)
    parser.add_argument("sides", nargs="+")
    arguments = parser.parse_args()
    results = {}
    for argument in arguments.sides:
        name, _, prefix = argument.partition("=")
        try:
            results[name] = side(prefix, arguments.rounds, arguments.pause)
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr)
            results[name] = {}
    rows = max(results.values(), key=len)
    print("| | " + " | ".join(results) + " |")
    print("|---|" + "---:|" * len(results))
    for row in rows:
        print(f"| {row} | " + " | ".join(str(figures.get(row, "failed")) for figures in results.values()) + " |")


if __name__ == "__main__":
    {"server": server, "guilty": guilty}.get(sys.argv[1] if sys.argv[1:] else "", main)()
