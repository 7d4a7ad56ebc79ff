"""Readings as lines for tests/bench/table.py, and as text."""

import statistics

import cases
import table
from measure import FOREIGN_LIMIT


def row(group, name, readings):
    """One variant of one group: medians over the rounds."""

    def median(figure):
        return cases.median_of(readings, figure)

    def faults(end):
        return statistics.median(reading.minor_faults[end] / reading.calls for reading in readings)

    return {
        "case": f"{group.name}: {name}",
        "value": median("goodput"),
        "unit": "GB/s",
        "calls_per_second": median("rate"),
        "p50_us": median("p50_us"),
        "p99_us": median("p99_us"),
        "cpu_seconds_per_gb": median("cpu_per_gb"),
        "client_faults_per_call": faults(0),
        "server_faults_per_call": faults(1),
        "foreign_cores": median("foreign"),
        "goodputs": [reading.goodput for reading in readings],
    }


def summary(line):
    return (f"{line['case'].rpartition(': ')[2]}: {line['value']:.3g} GB/s, "
            f"{line['calls_per_second']:.0f} calls/s, p50 {line['p50_us']:.0f} us")


def show(foreign, results, rows):
    """Prints the machine, the goals and every row as Markdown."""
    print(f"\n{foreign['cpu']}, kernel {foreign['kernel']}, "
          f"TCP congestion control {foreign['congestion_control']}.\n"
          f"Foreign CPU: {foreign['value']:.3f} cores (median of {foreign['slices']} slices); "
          f"{foreign['slices_repeated']} slices above {FOREIGN_LIMIT} repeated, "
          f"{foreign['slices_noisy']} kept in spite of it.")
    for line in results:
        if line["beyond_limit"]:
            print(f"Not to be believed: {line['case']} is beyond its limit, {line['ratio']:.2f}.")
    if not foreign["flight"]:
        print("Arrow Flight was not measured: pyarrow is not installed.")
    if results:
        print("\n| goal | figure | unit | peer | ratio | goal | met |\n|---|---|---|---|---|---|---|")
    for line in results:
        print(f"| {line['case']} | {table.number(line['value'])} | {line['unit']} | "
              f"{table.number(line.get('peak'))} | {table.number(line.get('ratio'))} | "
              f"{line['goal']} | {table.meets(line)}{' (noisy)' if line['noisy'] else ''} |")
    print("\n| case | GB/s | calls/s | p50 us | p99 us | CPU s/GB | faults a call, client | server |"
          "\n|---|---|---|---|---|---|---|---|")
    for line in rows:
        print(f"| {line['case']} | {line['value']:.3g} | {line['calls_per_second']:.0f} | "
              f"{line['p50_us']:.0f} | {line['p99_us']:.0f} | {line['cpu_seconds_per_gb']:.2f} | "
              f"{line['client_faults_per_call']:.1f} | {line['server_faults_per_call']:.1f} |")
