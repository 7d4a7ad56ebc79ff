"""Checks the shared memory that blocks of kernels are launched with against a written budget ("shared"
in tests/cuda/budget.json): more of it means fewer blocks at once.

    tests/cuda/check_shared.py build/tests/cuda_tests TABLE            what the emulator wrote to TABLE
    tests/cuda/check_shared.py build/tests/cuda_tests TABLE --write    writes the budget anew: read the
                                                                       difference

TABLE is what tests have added to the file named by EMULATED_CUDA_SHARED_TABLE while they ran (tests/run
cuda-primitives). A kernel without a launch in it is an error: the budget would be a guess.
"""

import argparse
import json
import pathlib
import subprocess
import sys

from check_code import BUDGET, readable


def most_bytes(program, table):
    """{kernel: the most bytes of a block}, of launches of `program`."""
    by_address = {}
    for line in table.read_text().splitlines():
        address, size = line.split()
        key = int(address, 16)
        by_address[key] = max(by_address.get(key, 0), int(size))
    symbols = subprocess.run(["nm", "--defined-only", str(program)], capture_output=True, text=True,
                             check=True).stdout.splitlines()
    mangled = {}
    for line in symbols:
        place, _, name = line.rpartition(" ")
        if name.startswith("_Z") and "." not in name and place[-1:] in "tTwW":
            address = int(place.split()[0], 16)
            if address in by_address:
                mangled[name] = address
    names = readable(sorted(mangled))
    return {names[name]: by_address[address] for name, address in mangled.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("table", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    used = most_bytes(arguments.program, arguments.table)
    budget = json.loads(BUDGET.read_text())
    if arguments.write:
        budget["shared"] = dict(sorted(used.items()))
        BUDGET.write_text(json.dumps(budget, indent=1) + "\n")
    shared = budget["shared"]
    problems = [f"{kernel}: {size} bytes of shared memory, budget {shared.get(kernel, 'none')}"
                for kernel, size in sorted(used.items()) if size > shared.get(kernel, -1)]
    problems += [f"{kernel}: no test launches it" for kernel in budget["registers"]
                 if kernel not in used]
    print("\n".join(problems) or f"shared memory: {len(used)} kernels keep their budget")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
