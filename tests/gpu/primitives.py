"""Runs bin/cuda_device_tests of a pack in processes side by side, and each test that did not pass once
more in a process of its own: a device that one test has lost is lost to those after it, and only to
them. Prints the output of those that fail alone, too, and writes their counts as JUnit does.

    primitives.py bin/cuda_device_tests out.xml [filter]
"""

import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as tree

PROCESSES = 12
SECONDS = 120  # of a process


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


def run(program, names):
    """What became of each test ("passed", "skipped"; absent: it failed or was not reached), and the
    output."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        command = [program, "--gtest_brief=1", f"--gtest_output=xml:{report.name}",
                   f"--gtest_filter={':'.join(names)}"]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  errors="replace", timeout=SECONDS)
            output, code = done.stdout, done.returncode
        except subprocess.TimeoutExpired as late:
            output, code = f"{(late.stdout or b'').decode()}\nnot done after {SECONDS} s", 1
        results = {}
        try:
            for case in tree.parse(report.name).getroot().iter("testcase"):
                if case.find("failure") is None:
                    skipped = case.find("skipped") is not None
                    name = f"{case.get('classname')}.{case.get('name')}"
                    results[name] = "skipped" if skipped else "passed"
        except tree.ParseError:  # it ended before its report
            pass
        return results, f"{output}\nexit code {code}"


def main():
    program, out = sys.argv[1:3]
    names = tests_of(program, sys.argv[3] if len(sys.argv) > 3 else "*")
    results = {}
    with concurrent.futures.ThreadPoolExecutor(min(PROCESSES, os.cpu_count())) as pool:
        shards = [names[i::4 * PROCESSES] for i in range(min(4 * PROCESSES, len(names)))]
        for found, _ in pool.map(lambda shard: run(program, shard), shards):
            results.update(found)
        again = [name for name in names if name not in results]
        for name, (found, output) in zip(again, pool.map(lambda name: run(program, [name]), again)):
            results.update(found)
            if name not in found:
                print(f"FAILED {name}\n{output[-3000:]}\n", flush=True)
    for name in names:
        if name not in results:
            print("failed:", name)
    skipped = list(results.values()).count("skipped")
    failed = len(names) - len(results)
    suite = tree.Element("testsuite", tests=str(len(names)), failures=str(failed),
                         skipped=str(skipped))
    tree.ElementTree(suite).write(out)
    print(f"{len(names) - failed - skipped} passed, {failed} failed, {skipped} skipped,"
          f" {len(again)} run twice")
    return 1 if failed or not names else 0


if __name__ == "__main__":
    sys.exit(main())
