"""Draws docs/figures/*.svg from docs/figures/*.json, with Python alone.

    python3 docs/figures/plot.py            # writes each picture beside its file
    python3 docs/figures/plot.py --check    # fails if a picture is not what its file gives

A file has a title, a note, and panels; a panel has a title and bars of [name, value]. Each panel has a scale of its own. Or, in place of
panels, it has tracks over so many microseconds; a track has a name and slices of [begin, duration, kind].
"""

import json
import sys
from html import escape
from pathlib import Path

WIDTH, LEFT, RIGHT, ROW, COLUMNS = 960, 130, 90, 20, 2
COLOURS = {"OpenMPS": "#3d84a8", "NVIDIA MPS": "#d08a3c", "driver alone": "#8a8f98"}
STYLE = """text { font: 12px sans-serif; fill: #24292f } .title { font-size: 15px; font-weight: bold }
.panel { font-weight: bold } @media (prefers-color-scheme: dark) { text { fill: #d7dde4 } }"""


def spoken(value):
    """A value as it is read: thousands apart, no digits that nobody measured."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


KINDS = {"kernel": "#3d84a8", "copy or fill": "#d08a3c", "call": "#8a8f98", "call that waits": "#c9b8d8"}


def draw_tracks(figure):
    """A time line: its tracks one below the other, with the kinds of slices above and milliseconds below."""
    span, parts, y = figure["microseconds"], [], 64
    left, width = 90, WIDTH - 110
    x = left
    for kind, colour in KINDS.items():
        parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="{y}">{kind}</text>')
        x += 160
    for number, track in enumerate(figure["tracks"]):
        y += 30 if number % 2 == 0 else ROW
        parts.append(f'<text x="{left - 8}" y="{y}" text-anchor="end">{escape(track["name"])}</text>')
        for begin, duration, kind in track["slices"]:
            length = max(0.7, width * duration / span)
            parts.append(
                f'<rect x="{left + width * begin / span:.1f}" y="{y - 12}" width="{length:.1f}" height="15" '
                f'fill="{KINDS[kind]}"/>'
            )
    y += 24
    for millisecond in range(0, span // 1000 + 1, 2):
        x = left + width * millisecond * 1000 / span
        parts.append(f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{millisecond} ms</text>')
    return framed(figure, parts, y + 14)


def draw(figure):
    if "tracks" in figure:
        return draw_tracks(figure)
    panels, parts = figure["panels"], []
    width = WIDTH // COLUMNS
    top, bottom = 60, 60
    for first in range(0, len(panels), COLUMNS):
        row = panels[first : first + COLUMNS]
        for column, panel in enumerate(row):
            left, y = column * width, top
            parts.append(f'<text class="panel" x="{left + 12}" y="{y}">{escape(panel["title"])}</text>')
            most = max(value for _, value in panel["bars"])
            for name, value in panel["bars"]:
                y += ROW
                length = max(1, round((width - LEFT - RIGHT) * value / most))
                parts.append(f'<text x="{left + LEFT - 8}" y="{y}" text-anchor="end">{escape(name)}</text>')
                parts.append(
                    f'<rect x="{left + LEFT}" y="{y - 12}" width="{length}" height="15" rx="2" '
                    f'fill="{COLOURS.get(name, "#7a6fb0")}"/>'
                )
                parts.append(f'<text x="{left + LEFT + length + 6}" y="{y}">{spoken(value)}</text>')
            bottom = max(bottom, y)
        top = bottom + 40
    return framed(figure, parts, bottom + 20)


def framed(figure, parts, height):
    """A picture of its parts, with title and note."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">\n'
        f"<title>{escape(figure['title'])}</title>\n<style>{STYLE}</style>\n"
        f'<text class="title" x="12" y="22">{escape(figure["title"])}</text>\n'
        f'<text x="12" y="40">{escape(figure["note"])}</text>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


def main():
    is_check = sys.argv[1:] == ["--check"]
    wrong = []
    for source in sorted(Path(__file__).parent.glob("*.json")):
        text = draw(json.loads(source.read_text()))
        picture = source.with_suffix(".svg")
        if not is_check:
            picture.write_text(text)
        elif not picture.exists() or picture.read_text() != text:
            wrong.append(picture.name)
    if wrong:
        sys.exit(f"not what their files give: {', '.join(wrong)}; run python3 docs/figures/plot.py")


main()
