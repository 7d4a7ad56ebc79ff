"""Measures attnd's transport against its peers; see ../transport, which starts this."""

import argparse
import json
import pathlib
import signal
import statistics
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import cases
import machine
import report
from measure import FOREIGN_LIMIT, Bench, progress

SUITES = ("small", "bulk", "python", "health")
QUICK_MOST_BYTES = 8 * cases.MB


def parse_arguments():
    parser = argparse.ArgumentParser(prog="tests/bench/transport")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=SUITES)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--flight-python", type=pathlib.Path)
    return parser.parse_args()


def measure(options, log):
    """(results of goals, rows of the report, readings)."""
    known = cases.variants(options.build, HERE, sys.executable, options.flight_python)
    bench = (Bench(rounds=1, scale=0.2, patience=0, log=log) if options.quick
             else Bench(rounds=7, scale=1, patience=240, log=log))
    results, rows, readings = [], [], []
    try:
        for suite in (options.only,) if options.only else SUITES:
            for group in cases.groups(known):
                if group.suite != suite or (
                        options.quick and group.tensor_bytes > QUICK_MOST_BYTES):
                    continue
                progress(f"== {group.name}")
                measured = bench.run(group)
                for name, found in measured.items():
                    rows.append(report.row(group, name, found))
                    readings += found
                    progress(f"   {report.summary(rows[-1])}")
                results += [cases.result_of(goal, measured)
                            for goal in cases.GOALS if goal.fits(group)]
            bench.stop()
    finally:
        bench.stop()
    return [line for line in results if line], rows, readings


def main():
    options = parse_arguments()
    # So that a terminated run ends its processes, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench/transport: terminated"))
    facts = machine.describe()
    with tempfile.TemporaryFile() as log:
        try:
            results, rows, readings = measure(options, log)
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace"))
            raise
    foreign = {
        "case": "foreign CPU, median of the slices",
        "value": statistics.median(reading.foreign for reading in readings),
        "unit": "cores",
        "slices": len(readings),
        "slices_repeated": sum(reading.discarded for reading in readings),
        "slices_noisy": sum(reading.foreign > FOREIGN_LIMIT for reading in readings),
        "flight": options.flight_python is not None,
        **facts,
    }
    report.show(foreign, results, rows)
    if options.json:
        lines = [foreign, *results, *rows]
        options.json.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
