#!/usr/bin/env python3
"""usage: tools/ttft_plot.py OUT.svg MACHINE TITLE=RESULT.json…

Draws the time to first token of runs of terrace-tiny-llama (its --json) as bars on a logarithmic
scale, each with its seconds and the tier that served it.
"""
import json
import math
import pathlib
import sys
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP, ROW = 760, 190, 150, 58, 34
TIER_NAMES = {"dram": "DRAM", "nvme": "NVMe", "redis": "Redis"}


def bars(runs):
    """(title, milliseconds, tier) of each run."""
    for title, run in runs:
        tier = TIER_NAMES.get(run.get("tier")) if run["reused_tokens"] else None
        yield title, run["ttft_ms"], tier


def draw(runs, machine):
    rows = list(bars(runs))
    low = 10 ** math.floor(math.log10(min(ms for _, ms, _ in rows)))
    high = 10 ** math.ceil(math.log10(max(ms for _, ms, _ in rows)))
    scale = (WIDTH - LEFT - RIGHT) / math.log10(high / low)
    height = TOP + ROW * len(rows) + 34
    tokens = runs[0][1]["prompt_tokens"]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
           f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="14">',
           f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
           f'<text x="16" y="24" font-size="16">Time to first token of a prompt of {tokens:,} '
           'tokens</text>',
           f'<text x="16" y="44" fill="#666" font-size="12">{escape(machine)}; logarithmic '
           'scale</text>']
    for power in range(round(math.log10(low)), round(math.log10(high)) + 1):
        x = LEFT + scale * (power - math.log10(low))
        label = f"{10 ** (power - 3):g} s" if power >= 3 else f"{10 ** power:g} ms"
        out.append(f'<path d="M{x:.1f} {TOP}V{height - 26}" stroke="#ddd"/>'
                   f'<text x="{x:.1f}" y="{height - 10}" fill="#666" font-size="12" '
                   f'text-anchor="middle">{label}</text>')
    for row, (title, ms, tier) in enumerate(rows):
        y = TOP + ROW * row + 6
        length = scale * math.log10(ms / low)
        told = f"{ms / 1000:.2f} s" + (f", from {tier}" if tier else ", computed")
        colour = "#2a7f62" if tier else "#b0573a"
        out.append(f'<text x="{LEFT - 10}" y="{y + 16}" text-anchor="end">{escape(title)}</text>'
                   f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="22" fill="{colour}"/>'
                   f'<text x="{LEFT + length + 8:.1f}" y="{y + 16}">{told}</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    runs = []
    for argument in sys.argv[3:]:
        title, equals, path = argument.partition("=")
        if not equals:
            sys.exit(f"tools/ttft_plot.py: '{argument}' is no TITLE=RESULT.json")
        runs.append((title, json.loads(pathlib.Path(path).read_text(encoding="utf-8"))))
    pathlib.Path(sys.argv[1]).write_text(draw(runs, sys.argv[2]), encoding="utf-8")


if __name__ == "__main__":
    main()
