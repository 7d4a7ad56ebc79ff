"""Checks that the kernels library needs neither gRPC nor protobuf, without compiling it twice.

`cmake -S kernels` configures it alone; its sources and their compile commands must be those of the
whole build, whose objects read no file of gRPC, protobuf, server or client. The C library, linked
from them, must not load such a library. Usage: alone.py BUILD ALONE (both configured, BUILD built).
"""

import json
import pathlib
import re
import subprocess
import sys

FOREIGN = re.compile(r"grpc|protobuf|\.pb\.h$|(^|/)(server|client|proto)/")


def commands(build, kernels):
    """{source: compile command without the build folder} of the kernels library."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        name = entry["file"].replace(str(kernels), "kernels").replace(str(build), "build")
        name = name.replace("build/kernels/registry", "build/registry")
        if name.startswith("kernels/") or name == "build/registry.cc":
            command = entry["command"].replace(str(build), "build")
            words = command.replace("build/kernels/CMakeFiles", "build/CMakeFiles").split()
            end = words.index("-o")
            # The tests compile one source again, for another device.
            if not words[end + 1].startswith("tests/"):
                found[name] = words[:end]
    return found


def main():
    build, alone = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
    kernels = pathlib.Path(__file__).resolve().parent.parent / "kernels"
    whole, apart = commands(build, kernels), commands(alone, kernels)
    problems = [f"{name}: compiled otherwise, or not at all, without the server"
                for name in sorted(whole.keys() | apart.keys()) if whole.get(name) != apart.get(name)]
    deps = subprocess.run(["ninja", "-C", str(build), "-t", "deps"], capture_output=True, text=True,
                          check=True).stdout
    objects = 0
    for block in deps.split("\n\n"):
        target, *files = block.strip().split("\n")
        if not target.startswith("kernels/"):
            continue
        objects += 1
        for file in map(str.strip, files):
            try:
                file = str((build / file).resolve().relative_to(kernels.parent))
            except ValueError:
                pass
            if FOREIGN.search(file):
                problems.append(f"{target.split(':')[0]}: reads {file}")
    if not whole or objects < len(whole):
        problems.append(f"{build}: lists dependencies of {objects} of {len(whole)} objects; "
                        "build attnd_c")
    loads = subprocess.run(["ldd", str(build / "kernels/libattnd_c.so")], capture_output=True,
                           text=True, check=True).stdout
    problems += [f"libattnd_c.so: loads {line.strip()}" for line in loads.splitlines()
                 if re.search("grpc|protobuf", line)]
    print("\n".join(problems) or f"alone: {objects} objects need neither gRPC nor protobuf")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
