"""Turns the benchmarks' JSON lines into one Markdown table, goals beside figures.

A line: case, value, unit, and where they apply: peak (the bound, in `unit`), ratio (value / peak or
against a peer), peer, goal (text such as ">= 0.65") that `ratio` or else `value` is held to.
"""

import json
import platform
import re
import sys


def meets(line):
    match = re.fullmatch(r"(>=|<=)\s*([0-9.eE+-]+)", str(line.get("goal", "")))
    if not match:
        return ""
    figure = line["ratio"] if line.get("ratio") is not None else line["value"]
    bound = float(match[2])
    return "yes" if (figure >= bound if match[1] == ">=" else figure <= bound) else "**no**"


def number(x):
    return "" if x is None else f"{x:.4g}"


def cpu():
    with open("/proc/cpuinfo") as info:
        names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.machine()


def main():
    lines = [json.loads(line) for line in open(sys.argv[1]) if line.startswith("{")]
    print(f"Machine: {cpu()}\n")
    print("| case | figure | unit | bound | ratio | goal | met |")
    print("|---|---|---|---|---|---|---|")
    for line in lines:
        print(f"| {line['case']} | {number(line['value'])} | {line.get('unit', '')} | "
              f"{number(line.get('peak'))} | {number(line.get('ratio'))} | {line.get('goal', '')} | "
              f"{meets(line)} |")


if __name__ == "__main__":
    main()
