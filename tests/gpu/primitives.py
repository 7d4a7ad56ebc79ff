"""Runs bin/cuda_device_tests of a pack in processes side by side, and each test that did not pass once
more in a process of its own: a device that one test has lost is lost to those after it, and only to
them. Prints the output of those that fail alone, too, and writes their counts as JUnit does, as they
come. Of kernels that a device ended (an illegal address, ...) compute-sanitizer names the line.

    primitives.py bin/cuda_device_tests out.xml [--seconds 230] [--filter '*']
"""

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as tree

PROCESSES = 12
# Tests whose arrays take gigabytes each: fewer at once.
LARGE, LARGE_PROCESSES = "FarStrides", 3
SECONDS, LARGE_SECONDS = 60, 120  # of a process
LOST = re.compile("illegal|misaligned|unspecified launch failure")
LINES_OF_LOST = 3  # tests that run once more under compute-sanitizer


def tests_of(program, chosen):
    listed = subprocess.run([program, "--gtest_list_tests", f"--gtest_filter={chosen}"],
                            capture_output=True, text=True, check=True).stdout
    names, suite = [], ""
    for line in listed.splitlines():
        name = line.split("#")[0].rstrip()
        if re.match(r"\S+\.$", name):
            suite = name
        elif name.startswith("  "):
            names.append(suite + name.strip())
    return names


def output_of(command, seconds):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=seconds)
        return f"{done.stdout}\nexit code {done.returncode}"
    except subprocess.TimeoutExpired as late:
        return f"{(late.stdout or b'').decode(errors='replace')}\nnot done after {seconds:.0f} s"


def run(program, names, end):
    """What became of each test ("passed", "skipped"; absent: it failed or was not reached), and the
    output."""
    most = LARGE_SECONDS if names[0].startswith(LARGE) else SECONDS
    seconds = min(most, end - time.monotonic())
    if seconds <= 0:
        return {}, "not begun: no time is left"
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        output = output_of([program, "--gtest_brief=1", f"--gtest_output=xml:{report.name}",
                            f"--gtest_filter={':'.join(names)}"], seconds)
        results = {}
        try:
            for case in tree.parse(report.name).getroot().iter("testcase"):
                if case.find("failure") is None:
                    skipped = case.find("skipped") is not None
                    name = f"{case.get('classname')}.{case.get('name')}"
                    results[name] = "skipped" if skipped else "passed"
        except tree.ParseError:  # it ended before its report
            pass
        return results, output


def shortened(text):
    """Its first failure and its end."""
    return text if len(text) <= 3000 else f"{text[:1500]}\n...\n{text[-1500:]}"


class Run:
    """The tests of one program, and what became of them so far."""

    def __init__(self, program, names, report, seconds):
        self.program, self.names, self.report = program, names, report
        self.end = time.monotonic() + seconds
        self.results = {}

    def write(self):
        skipped = list(self.results.values()).count("skipped")
        failed = len(self.names) - len(self.results)
        suite = tree.Element("testsuite", tests=str(len(self.names)), failures=str(failed),
                             skipped=str(skipped))
        tree.ElementTree(suite).write(self.report)
        return failed, skipped

    def each(self, shards, processes):
        """(names, output) of each shard as it ends."""
        with concurrent.futures.ThreadPoolExecutor(processes) as pool:
            begun = {pool.submit(run, self.program, shard, self.end): shard for shard in shards}
            for done in concurrent.futures.as_completed(begun):
                found, output = done.result()
                self.results.update(found)
                self.write()
                yield begun[done], output

    def all(self):
        """The number of tests that ran twice."""
        processes = min(PROCESSES, os.cpu_count())
        large = [name for name in self.names if name.startswith(LARGE)]
        small = [name for name in self.names if name not in large]
        groups = [(small, 4 * PROCESSES, processes), (large, LARGE_PROCESSES, LARGE_PROCESSES)]
        for names, count, at_once in groups:
            list(self.each([names[i::count] for i in range(min(count, len(names)))], at_once))
        twice, lost = 0, []
        for names, _, at_once in groups:
            again = [name for name in names if name not in self.results]
            twice += len(again)
            for (name,), output in self.each([[name] for name in again], at_once):
                if name not in self.results:
                    print(f"FAILED {name}\n{shortened(output)}\n", flush=True)
                    lost += [name] if LOST.search(output) else []
        sanitizer = shutil.which("compute-sanitizer")
        for name in lost[:LINES_OF_LOST] if sanitizer else []:
            rest = self.end - time.monotonic()
            if rest > 5:
                told = output_of([sanitizer, self.program, f"--gtest_filter={name}"], min(SECONDS, rest))
                print(f"compute-sanitizer of {name}\n{shortened(told)}\n", flush=True)
        return twice


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("report")
    parser.add_argument("--seconds", type=float, default=230)
    parser.add_argument("--filter", default="*")
    options = parser.parse_args()
    names = tests_of(options.program, options.filter)
    tests = Run(options.program, names, options.report, options.seconds)
    twice = tests.all()
    for name in names:
        if name not in tests.results:
            print("failed:", name)
    failed, skipped = tests.write()
    print(f"{len(names) - failed - skipped} passed, {failed} failed, {skipped} skipped,"
          f" {twice} run twice")
    return 1 if failed or not names else 0


if __name__ == "__main__":
    sys.exit(main())
