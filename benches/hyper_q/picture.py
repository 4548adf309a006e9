"""Draws what `hyper_q measure` recorded, and prints its table.

    python3 benches/hyper_q/picture.py "software GPU=FILE.csv" [NAME=FILE.csv …] > docs/hyper-q.svg

The picture goes to standard output, the table (Markdown) to standard error.
"""

import csv
import sys
from collections import defaultdict

# What is drawn; the table has all.
DRAWN = [
    ("streams", "1"),
    ("streams", "4"),
    ("streams", "32"),
    ("threads", "32"),
    ("processes", "default"),
]
SHADES = ["#1b4965", "#3d84a8", "#7cc0d8", "#b8dfe6"]
WIDTH, LEFT, TOP, LANE, GAP = 960, 60, 40, 6, 40


def read(path):
    """Kernels of each panel: (lane, place in the chain, SM, begin, end), in nanoseconds from its start."""
    panels = defaultdict(list)
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            numbers = (int(row[name]) for name in ("lane", "kernel", "sm", "begin", "end"))
            panels[row["kind"], row["connections"]].append(tuple(numbers))
    for key, kernels in panels.items():
        start = min(kernel[3] for kernel in kernels)
        panels[key] = [(*kernel[:3], kernel[3] - start, kernel[4] - start) for kernel in kernels]
    return panels


def most_at_once(kernels):
    changes = sorted([(k[3], 1) for k in kernels] + [(k[4], -1) for k in kernels])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def table(name, panels):
    lines = [
        f"| {name}: kernels of | CUDA_DEVICE_MAX_CONNECTIONS | most at once | on average | SMs | ms for all |",
        "|---|---|---|---|---|---|",
    ]
    for (kind, connections), kernels in panels.items():
        lanes = len({k[0] for k in kernels})
        total = max(k[4] for k in kernels)
        average = sum(k[4] - k[3] for k in kernels) / total
        machines = len({k[2] for k in kernels})
        lines.append(
            f"| {lanes} {kind} | {connections} | {most_at_once(kernels)} | {average:.1f} "
            f"| {machines} | {total / 1e6:.1f} |"
        )
    return "\n".join(lines)


def column(name, panels, left, width, out):
    """One machine's panels, one below the other, on one scale of time."""
    drawn = [(key, panels[key]) for key in DRAWN if key in panels]
    longest = max(kernel[4] for _, kernels in drawn for kernel in kernels)
    top = TOP
    out.append(f'<text x="{left}" y="18" font-weight="bold">{name}</text>')
    for (kind, connections), kernels in drawn:
        lanes = len({k[0] for k in kernels})
        limit = "" if connections == "default" else f", {connections} connection" + "s" * (connections != "1")
        total = max(k[4] for k in kernels) / 1e6
        out.append(f'<text x="{left}" y="{top - 4}">{lanes} {kind}{limit}: {total:.1f} ms</text>')
        for lane, place, _, begin, end in kernels:
            x, wide = left + begin / longest * width, (end - begin) / longest * width
            shade = SHADES[place % len(SHADES)]
            out.append(
                f'<rect x="{x:.1f}" y="{top + lane * LANE}" width="{max(wide, 0.5):.1f}" '
                f'height="{LANE - 1}" fill="{shade}"/>'
            )
        top += lanes * LANE + GAP
    return top


def main():
    machines = [argument.split("=", 1) for argument in sys.argv[1:]]
    machines = [(name, read(path)) for name, path in machines]
    width = (WIDTH - LEFT) / len(machines)
    body = []
    bottom = max(
        column(name, panels, LEFT / 2 + number * width, width - 30, body)
        for number, (name, panels) in enumerate(machines)
    )
    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom - GAP / 2:.0f}" '
        'font-family="sans-serif" font-size="12">'
    )
    print('<rect width="100%" height="100%" fill="white"/>')
    print("\n".join(body))
    print("</svg>")
    print("\n\n".join(table(name, panels) for name, panels in machines), file=sys.stderr)


main()
