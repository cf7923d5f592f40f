#!/usr/bin/env python3
"""Draws docs/images/context-length.svg, speed against context length, from the committed figures in docs/numbers.

    bench/plot_context.py            writes the chart
    bench/plot_context.py --check    exit status 1 if the committed chart is not what this script makes of the committed figures

Left: plain decoding of llama.cpp and of SpecExtend with two threads (x86/two-cores-medians-135m.jsonl). Right: tokens per pass of the target with the small draft,
its cache at the positions of the text as other engines have it, and with retrieval (acceptance/policies_*.txt); solid over the whole
text, dotted over the passes before the text began to loop. Nothing but the standard library, and no dates: the same figures give
the same bytes.
"""
import argparse
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
NUMBERS = ROOT / "docs/numbers"
CHART = ROOT / "docs/images/context-length.svg"
GREY, BLUE, ORANGE = "#6b7280", "#1d5fae", "#c2540a"
WIDTH, HEIGHT, TOP, BOTTOM = 960, 360, 64, 300
PANELS = {"left": (70, 420), "right": (560, 910)}


def decode_speeds():
    """{name: [(context, tokens per second)]} of plain decoding."""
    speeds = {"llama.cpp": [], "SpecExtend": []}
    for line in (NUMBERS / "x86/two-cores-medians-135m.jsonl").read_text().splitlines():
        row = json.loads(line)
        found = re.fullmatch(r"decode @ (\d+)", row["test"])
        if not found or row["threads"] != 2:
            continue
        speeds["llama.cpp"].append((int(found[1]), 1000 / row["llama_cpp_ms"]))
        speeds["SpecExtend"].append((int(found[1]), 1000 / row["ours_ms"]))
    if not speeds["SpecExtend"]:
        sys.exit("plot_context: x86/two-cores-medians-135m.jsonl has no rows 'decode @ CONTEXT' with two threads")
    return {name: sorted(points) for name, points in speeds.items()}


def tokens_per_pass(configuration):
    """[(context, whole text, before loops)] of one configuration of the acceptance benchmark."""
    points = []
    for file in NUMBERS.glob("acceptance/policies_*.txt"):
        for line in file.read_text().splitlines():
            # name  tokens/round ±error  from first row ±error  before loops ±error ...
            found = re.match(rf"{re.escape(configuration)}\s+([\d.]+) ±[\d.]+\s+[+-][\d.]+ ±[\d.]+\s+([\d.]+) ±", line)
            if found:
                points.append((int(file.stem.split("_")[1]), float(found[1]), float(found[2])))
    if not points:
        sys.exit(f"plot_context: no acceptance/policies_*.txt has the configuration '{configuration}'")
    return sorted(points)


def looping_shares():
    """Smallest and largest share of the benchmark's text that lies after it began to loop, in percent."""
    shares = [int(re.search(r"(\d+)% of them after the text began to repeat itself", file.read_text())[1])
              for file in NUMBERS.glob("acceptance/policies_*.txt")]
    return min(shares), max(shares)


def number(x):
    return f"{x:.1f}".rstrip("0").rstrip(".")


def context_name(context):
    """1024 is 1K, 8064 is 8K, 7500 is 7.5K, as docs/numbers.md has them."""
    whole = round(context / 1024)
    return "0" if context == 0 else f"{whole}K" if abs(context / 1024 - whole) < 0.15 else f"{number(context / 1000)}K"


class Panel:
    def __init__(self, name, most_x, most_y):
        self.left, self.right = PANELS[name]
        self.most_x, self.most_y = most_x, most_y
        self.parts = []

    def x(self, context):
        return self.left + (self.right - self.left) * context / self.most_x

    def y(self, value):
        return BOTTOM - (BOTTOM - TOP) * value / self.most_y

    def text(self, x, y, words, style="", anchor="middle"):
        self.parts.append(f'<text x="{number(x)}" y="{number(y)}" style="text-anchor:{anchor};{style}">{words}</text>')

    def axes(self, title, step, contexts):
        self.text(self.left, TOP - 26, title, "font-weight:600;font-size:14px", "start")
        for i in range(int(self.most_y / step) + 1):
            y = self.y(i * step)
            self.parts.append(f'<path d="M{self.left} {number(y)} H{self.right}" stroke="#d5d9de" fill="none"/>')
            self.text(self.left - 8, y + 4, number(i * step), anchor="end")
        for context in contexts:
            self.text(self.x(context), BOTTOM + 18, context_name(context))
        self.text((self.left + self.right) / 2, BOTTOM + 36, "context, tokens")

    def line(self, points, colour, label, dotted=False, above=True, values=True):
        path = " L".join(f"{number(self.x(x))} {number(self.y(y))}" for x, y in points)
        dash = ' stroke-dasharray="2 4"' if dotted else ""
        self.parts.append(f'<path d="M{path}" stroke="{colour}" stroke-width="2" fill="none"{dash}/>')
        for x, y in points:
            self.parts.append(f'<circle cx="{number(self.x(x))}" cy="{number(self.y(y))}" r="3" fill="{colour}"/>')
            if values:
                self.text(self.x(x), self.y(y) + (-9 if above else 17), f"{y:.0f}" if y >= 10 else f"{y:.2f}", f"fill:{colour}")
        x, y = points[-1]
        self.text(self.x(x), self.y(y) + (-24 if above else -12), label, f"fill:{colour};font-weight:600", "end")


def draw():
    speeds = decode_speeds()
    left = Panel("left", 8192, 250)
    left.axes("Plain decoding, tokens per second", 50, [0, 4096, 8064])
    left.line(speeds["llama.cpp"], GREY, "llama.cpp")
    left.line(speeds["SpecExtend"], BLUE, "SpecExtend")

    right = Panel("right", 8192, 6)
    original, retrieval = tokens_per_pass("small-original"), tokens_per_pass("small-retrieval-1024")
    right.axes("Tokens per target pass, chain of 5", 1, [p[0] for p in retrieval])
    right.line([(p[0], p[1]) for p in retrieval], BLUE, "retrieval cache of 1,024 cells")
    right.line([(p[0], p[2]) for p in retrieval], BLUE, "before the text loops", dotted=True)
    right.line([(p[0], p[1]) for p in original], ORANGE, "draft at original positions", above=False)
    right.line([(p[0], p[2]) for p in original], ORANGE, "", dotted=True, values=False)
    low, high = looping_shares()
    notes = ["SmolLM2-135M-Instruct Q4_1. Left: two x86-64 cores (AVX-512, AMX), two threads, llama.cpp's better of -fa 0 and -fa 1.",
             f"Right: 20 GovReport prompts per length, greedy; {low}–{high} % of that text lies after the model began to loop."]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + 20}" width="{WIDTH}" height="{HEIGHT + 20}" role="img" '
            'aria-label="Left: plain decoding speed by context length, SpecExtend above llama.cpp. Right: tokens per target pass by context '
            'length; retrieval keeps its acceptance where a draft at original positions falls to one token per pass">\n'
            '<style>text { font-family: system-ui, sans-serif; font-size: 12px; fill: #1b1f24 }</style>\n'
            f'<rect width="{WIDTH}" height="{HEIGHT + 20}" fill="#ffffff"/>\n'
            + "\n".join(left.parts + right.parts)
            + "".join(f'\n<text x="{WIDTH // 2}" y="{HEIGHT + 16 * i}" style="text-anchor:middle;font-size:11px;fill:#4a5560">{note}</text>'
                      for i, note in enumerate(notes)) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    chart = draw()
    if not parser.parse_args().check:
        CHART.write_text(chart)
        return 0
    if CHART.read_text() == chart:
        print("chart: docs/images/context-length.svg is that of the committed figures")
        return 0
    print("chart: docs/images/context-length.svg is not what bench/plot_context.py makes of docs/numbers; run it and commit the result")
    return 1


if __name__ == "__main__":
    sys.exit(main())
