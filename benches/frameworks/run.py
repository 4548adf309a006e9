"""Runs the cases of cases.py on several sides and prints one table.

    run.py OUT native= "OpenMPS=openmps run --"       [--only TEXT]

A side is a name and what is put before each command. The first one is what the others are compared with. OUT is a
folder for logs. A process that dies or hangs takes only its own case with it: the rest of its group is started again.
"""

import concurrent.futures
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = os.path.join(HERE, "cases.py")
# Seconds that one case may take; a first use of torch.compile is the slowest.
LIMIT = 150
# Processes at a time on one side.
AT_ONCE = 6
# How often a case with other bits is run again on the side that the others are compared with, each time in a process of its own.
REPEATS = 6


def listed(only):
    text = subprocess.run([sys.executable, CASES, "--list"], capture_output=True, text=True, check=True).stdout
    groups = {}
    for line in text.splitlines():
        name, group, environment = line.split("\t")
        # Those for two GPUs are run when they are asked for.
        if only == group or (only in name and group != "two"):
            key = (name if group == "own" else group, environment)
            groups.setdefault(key, []).append(name)
    return [(key[0], json.loads(key[1]), names) for key, names in groups.items()]


def run_group(side, prefix, out, group, environment, names):
    """Results of a group's cases, by name."""
    results, left = {}, list(names)
    while left:
        log = open(os.path.join(out, f"{side}.{group}.log"), "a")
        command = [*prefix.split(), sys.executable, CASES, "--run", *left]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **environment}, start_new_session=True
        )
        try:
            text, _ = process.communicate(timeout=LIMIT + 20 * len(left))
            end = f"the process ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            text, _ = process.communicate()
            end = "the process hung"
        for line in text.splitlines():
            if line.startswith("RESULT "):
                result = json.loads(line[7:])
                results[result["case"]] = result
                log.write(result.get("trace", ""))
        left = [name for name in left if name not in results]
        if left:
            results[left[0]] = {"case": left[0], "error": end}
            left = left[1:]
    return results


def verdict(base, result):
    if "error" in base:
        return "not native" if "error" in result else "better"
    if "error" in result:
        return "FAILED"
    if base["digest"] != base["again"]:
        return "runs"  # Nothing to compare bit for bit: not even native repeats itself.
    return "same" if result["digest"] == base["digest"] else "OTHER"


def digests(side, prefix, out, group, environment, name):
    """What a case gives in further processes of a side."""
    again = [run_group(side, prefix, out, group, environment, [name])[name] for _ in range(REPEATS)]
    return {result["digest"] for result in again if "digest" in result}


def main():
    arguments = sys.argv[1:]
    only = ""
    if "--only" in arguments:
        at = arguments.index("--only")
        only = arguments[at + 1]
        del arguments[at : at + 2]
    out, sides = arguments[0], [side.split("=", 1) for side in arguments[1:]]
    os.makedirs(out, exist_ok=True)
    results = {}
    # All sides at once: nothing is timed here.
    pools = {side: concurrent.futures.ThreadPoolExecutor(AT_ONCE) for side, _ in sides}
    done = {side: [pools[side].submit(run_group, side, prefix, out, *group) for group in listed(only)] for side, prefix in sides}
    for side, _ in sides:
        results[side] = {name: result for one in done[side] for name, result in one.result().items()}
        with open(os.path.join(out, f"{side}.json"), "w") as file:
            json.dump(results[side], file, indent=1)
    base, *others = [side for side, _ in sides]
    # Where a side has other bits, those that the first has from process to process: a library may choose by the clock.
    native = {}
    for group, environment, names in listed(only):
        for name in names:
            first = results[base][name]
            if any(verdict(first, results[side][name]) == "OTHER" for side in others):
                native[name] = {first["digest"]} | digests(base, sides[0][1], out, group, environment, name)
    print(f"| case | {base} | " + " | ".join(others) + " |")
    print("|---|---|" + "---|" * len(others))
    counts = {}
    for name, first in results[base].items():
        row = [("ok" if first["digest"] == first["again"] else "does not repeat") if "digest" in first else first["error"][:90]]
        for side in others:
            result = results[side][name]
            word = verdict(first, result)
            if word == "OTHER" and result["digest"] in native[name]:
                word = "as another native process"
            elif word == "OTHER" and len(native[name]) > 1:
                word = f"varies natively, {len(native[name])} ways seen"
            counts[side, word] = counts.get((side, word), 0) + 1
            row.append(word + (": " + result["error"].replace("\n", " ").replace("|", "/")[:160] if "error" in result else ""))
        print(f"| {name} | " + " | ".join(row) + " |")
    native = sum("digest" in result for result in results[base].values())
    print(f"\n{base}: {native} of {len(results[base])} ran")
    for (side, word), count in sorted(counts.items()):
        print(f"{side}: {count} {word}")


if __name__ == "__main__":
    main()
