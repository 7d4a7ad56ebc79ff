"""Checks the machine code of kernels/cuda: registers and stack of every kernel against a written
budget (tests/cuda/budget.json), and that kernels hold the instructions that they are built for
(tests/cuda/instructions.json).

    tests/cuda/check_code.py build-cuda            objects of a build with -DATTND_CUDA=ON
    tests/cuda/check_code.py build-cuda --write    writes registers anew: read the difference

Registers are a bound, for every architecture: more of them mean fewer blocks at once. A stack means
registers that were spilled, or arrays that are indexed at run time: both go through memory. None is
allowed but what budget.json names with its reason, to the byte. Shared memory is dynamic: what blocks
take of it check_shared.py holds against the same file. Needs cuobjdump and nvdisasm (deploy/install-deps --test).
"""

import argparse
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
BUDGET = HERE / "budget.json"
ROUND = 8  # registers are given out in such groups
RESERVED = 1024  # bytes of shared memory that CUDA takes of each block from sm_90 on
# Instructions of a kernel, by the start of its name: tensor cores, matrices from shared memory,
# copies to shared memory behind the threads' back.
EXPECTED = json.loads((HERE / "instructions.json").read_text())


def tools():
    """The folder of cuobjdump and nvdisasm: of the wheels, else of PATH."""
    for folder in map(pathlib.Path, sys.path):
        if (folder / "nvidia/cu13/bin/cuobjdump").exists():
            return str(folder / "nvidia/cu13/bin")
    return ""


def cuobjdump(*arguments):
    environment = dict(os.environ, PATH=tools() + os.pathsep + os.environ["PATH"])
    return subprocess.run(["cuobjdump", *map(str, arguments)], capture_output=True, text=True,
                          check=True, env=environment).stdout


def readable(names):
    """Mangled names of kernels as attend::Forward<64>, without namespaces of ours and parameters."""
    text = subprocess.run(["c++filt", "-p"], input="\n".join(names), capture_output=True, text=True,
                          check=True).stdout.splitlines()
    clean = [re.sub(r"\(anonymous namespace\)::|_INTERNAL_\w+::|attnd::cuda::|attnd::|^void ", "",
                    line) for line in text]
    if len(set(clean)) < len(clean):
        sys.exit(f"kernels of one name: {sorted({n for n in clean if clean.count(n) > 1})}")
    return dict(zip(names, clean))


def resources(objects):
    """{kernel: {"sm_80": {"REG": 40, "STACK": 0, ...}}}"""
    found = {}
    for path in objects:
        arch = None
        function = None
        for line in cuobjdump("--dump-resource-usage", path).splitlines():
            if match := re.match(r"arch = (sm_\w+)", line):
                arch = match[1]
            elif match := re.match(r" *Function (\S+):", line):
                function = match[1]
            elif function and "REG:" in line:
                numbers = dict(re.findall(r"(\w+)(?:\[\d\])?:(\d+)", line))
                found.setdefault(function, {})[arch] = {k: int(v) for k, v in numbers.items()}
                function = None
    names = readable(sorted(found))
    return {names[function]: by_arch for function, by_arch in found.items()}


def instructions(objects):
    """{kernel: {"sm_80": {"HMMA", "LDSM", ...}}}"""
    found = {}
    for path in objects:
        arch = None
        kernel = None
        for line in cuobjdump("-sass", path).splitlines():
            if match := re.match(r"\s*code for (sm_\w+)", line):
                arch = match[1]
            elif match := re.match(r"\s*Function : (\S+)", line):
                kernel = found.setdefault(match[1], {}).setdefault(arch, set())
            elif kernel is not None and (match := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z0-9]+)", line)):
                kernel.add(match[1])
    names = readable(sorted(found))
    return {names[function]: by_arch for function, by_arch in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    objects = sorted(arguments.build.rglob("attnd_cuda.dir/**/*.cu.o"))
    if not objects:
        sys.exit(f"{arguments.build}: no object of a kernel (attnd_cuda.dir/**/*.cu.o)")
    used = resources(objects)
    worst = {kernel: max(numbers["REG"] for numbers in by_arch.values())
             for kernel, by_arch in sorted(used.items())}
    budget = json.loads(BUDGET.read_text())
    if arguments.write:
        budget["registers"] = {kernel: -(-registers // ROUND) * ROUND
                               for kernel, registers in worst.items()}
        BUDGET.write_text(json.dumps(budget, indent=1) + "\n")
    registers = budget["registers"]
    problems = []
    for kernel, by_arch in sorted(used.items()):
        allowed = [a["bytes"] for a in budget["stacks"]
                   if fnmatch.fnmatchcase(kernel, a["kernels"])]
        for arch, numbers in sorted(by_arch.items()):
            stack = numbers["STACK"] + numbers["LOCAL"]
            if stack > max(allowed, default=0):
                problems.append(f"{kernel} {arch}: {stack} bytes of stack, "
                                f"{max(allowed, default='none')} allowed")
            if numbers["SHARED"] > (RESERVED if arch >= "sm_90" else 0):
                problems.append(f"{kernel} {arch}: shared memory that is not dynamic")
        if kernel not in registers:
            problems.append(f"{kernel}: no budget in {BUDGET.name} (--write)")
        elif worst[kernel] > registers[kernel]:
            problems.append(f"{kernel}: {worst[kernel]} registers, budget {registers[kernel]}")
    problems += [f"{kernel}: in {BUDGET.name}, but not in the build" for kernel in registers
                 if kernel not in used]
    for allowed in budget["stacks"]:
        stacks = [numbers["STACK"] for kernel, by_arch in used.items()
                  if fnmatch.fnmatchcase(kernel, allowed["kernels"])
                  for numbers in by_arch.values()]
        if max(stacks, default=0) < allowed["bytes"]:
            problems.append(f"{BUDGET.name}: no kernel {allowed['kernels']} needs a stack of "
                            f"{allowed['bytes']} bytes")
    sass = instructions(objects)
    for start, wanted in EXPECTED.items():
        kernels = [kernel for kernel in sass if kernel.startswith(start)]
        if not kernels:
            problems.append(f"instructions.json: no kernel begins with {start}")
        for kernel in kernels:
            for arch, has in sorted(sass[kernel].items()):
                problems += [f"{kernel} {arch}: no {name}" for name in wanted if name not in has]
    print("\n".join(problems) or
          f"machine code: {len(used)} kernels keep their budget, {len(EXPECTED)} rules of "
          "instructions hold")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
