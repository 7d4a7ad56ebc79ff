"""Checks beyond the compiler's: includes go down only, files keep their formatting and size,
links of documents are valid, no two files define classes of one name.

server -> kernels/engine -> methods -> method -> ops -> pattern -> device -> core. A device (cpu)
implements kernels/device and is included by those that create it: the C interface and the server.
Server and C++ client share the wire codec (proto/wire) and do not include each other.
"""

import pathlib
import re
import shutil
import subprocess
import sys

import odr

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
BARE_INCLUDE = re.compile(r'^#include "([^"/]+)"', re.M)
# The C++ client is a separate project, whose includes are relative to its folder.
# Includes of the emulator stand for CUDA's own headers.
BARE_INCLUDES = ("client/cpp/", "tests/client_cpp/", "tests/cuda/emulator/", "kernels/cuda/simt.h")
MAX_LINES = 400
MAX_README_LINES = 160
READMES = ("README.md", "client/python/README.md", "deploy/README.md", "kernels/README.md",
           "tests/bench/README.md", "tests/data/README.md")
# The time of day may jump: deadlines, patience and measurements use the steady clock. Only these
# use the time of day: dates of log lines, and deadlines that gRPC takes as a date.
WALL_CLOCK = re.compile(r"system_clock|CLOCK_REALTIME|gettimeofday|\btime\(nullptr\)")
DATES = {"server/log.cc", "server/probe.cc", "server/transport.cc"}
# What no file of the server may reach by any chain of includes: formulas and their tape.
HIDDEN_FROM_SERVER = ("kernels/ops/ops.h", "kernels/ops/tape.h")

CORE = ["kernels/core/"]
DEVICE = ["kernels/device/", *CORE]
PATTERN = ["kernels/pattern/", *DEVICE]
OPS = ["kernels/ops/", *PATTERN]
METHOD = ["kernels/method/", *OPS]

# What methods share, a folder each.
FAMILIES = ("pattern", "linear", "lowrank", "long_short", "memory", "memory_compressed", "mixing",
            "performer", "reformer", "routing", "sinkhorn", "synthesizer")

# Not among the tests on a device (tests/gpu/CMakeLists.txt).
EMULATED_ALONE = {"tests/cuda/row_sizes_cuda_test.cc"}
# What the files of a folder may include, as prefixes. The first folder that matches counts.
ALLOWED = [
    ("kernels/core/", CORE),
    ("kernels/device/", DEVICE),
    ("kernels/pattern/base/", ["kernels/pattern/base/", *DEVICE]),
    ("kernels/pattern/predicates/", ["kernels/pattern/predicates/", "kernels/pattern/base/",
                                     *DEVICE]),
    ("kernels/pattern/shapes/", PATTERN),
    ("kernels/pattern/", PATTERN),
    ("kernels/ops/", OPS),
    ("kernels/cpu/simd/", ["kernels/cpu/simd/", *DEVICE]),
    ("kernels/cpu/", ["kernels/cpu/", *DEVICE]),
    ("kernels/cuda/", ["kernels/cuda/", *DEVICE]),
    ("kernels/no_cuda.cc", ["kernels/cuda/cuda.h"]),
    ("kernels/method/", METHOD),
    ("kernels/methods/", [*(f"kernels/methods/{family}/" for family in FAMILIES), *METHOD]),
    ("kernels/engine/devices", ["kernels/engine/", "kernels/cpu/cpu.h", "kernels/cuda/cuda.h",
                                *METHOD]),
    ("kernels/engine/", ["kernels/engine/", *METHOD]),
    ("server/", ["kernels/engine/engine.h", "kernels/engine/devices.h", "kernels/engine/self_test.h",
                 "kernels/method/", *DEVICE, "server/", "proto/wire/", "attn/v1/", "grpc/"]),
    ("proto/wire/", ["proto/wire/", *CORE]),
    ("client/cpp/", ["client/cpp/", "proto/wire/", "attn/v1/", "grpc/", *CORE]),
]


def our_includes(text):
    ours = ("kernels/", "server/", "client/", "tests/", "proto/", "attn/", "grpc/")
    return [i for i in INCLUDE.findall(text) if i.startswith(ours)]


def anchors(text):
    """The anchors of the headings of a Markdown file."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    heads = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", head).lower().replace(" ", "-") for head in heads}


def document_problems():
    """README.md is short and finished, and every link of a README has its target."""
    problems = []
    readme = (ROOT / "README.md").read_text()
    if "@@" in readme:
        problems.append("README.md: a place holder (@@) is left")
    if readme.count("\n") > MAX_README_LINES:
        problems.append(f"README.md: {readme.count(chr(10))} lines, {MAX_README_LINES} at most")
    for name in READMES:
        text = (ROOT / name).read_text()
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            file, _, anchor = target.partition("#")
            path = (ROOT / name).parent / file if file else ROOT / name
            if "://" in target:
                continue
            if not path.exists():
                problems.append(f"{name}: links to {target}, which does not exist")
            elif anchor and anchor not in anchors(path.read_text()):
                problems.append(f"{name}: links to {target}, which has no such heading")
    return problems


def include_circles(texts):
    """Headers that include themselves by way of others. `texts`: by name."""
    done, path, circles = set(), [], []

    def visit(name):
        if name in path:
            circles.append(" -> ".join([*path[path.index(name):], name]))
        elif name not in done and name in texts:
            path.append(name)
            for include in our_includes(texts[name]):
                visit(include)
            path.pop()
            done.add(name)

    for name in texts:
        visit(name)
    return circles


def closure(name, texts):
    """The headers that a file includes, by way of others too, itself among them."""
    found, open_ones = set(), [name]
    while open_ones:
        name = open_ones.pop()
        if name not in found and name in texts:
            found.add(name)
            open_ones += our_includes(texts[name])
    return found


def contract_problems(texts):
    """Contracts of devices include no Abseil, those of primitives (launch.h) no locks either: CUDA
    files include them. `texts`: by name."""
    problems = []
    for name in texts:
        if name.startswith("kernels/device/"):
            problems += [f"{name}: includes Abseil ({header})" for header in sorted(closure(name, texts))
                         if re.search(r'^#include ["<]absl/', texts[header], re.M)]
    launch = closure("kernels/device/launch.h", texts)
    problems += [f"kernels/device/launch.h: includes {header}" for header in sorted(launch)
                 if header == "kernels/core/mutex.h" or re.search(r"^#include <mutex>", texts[header], re.M)]
    return problems


def folder_circles(texts):
    """Folders that include each other, directly or by way of others. `texts`: by name."""
    arrows, names = {}, {}
    for name, text in texts.items():
        for include in our_includes(text):
            ends = (name.rpartition("/")[0], include.rpartition("/")[0])
            if ends[0] != ends[1]:
                arrows.setdefault(ends[0], set()).add(ends[1])
                names.setdefault(ends, f"{name} includes {include}")

    def reached(folder):
        seen, todo = set(), [folder]
        while todo:
            new = arrows.get(todo.pop(), set()) - seen
            seen |= new
            todo += new
        return seen

    reach = {folder: reached(folder) for folder in arrows}
    return [f"{folder} and {other}: {names[folder, other]}"
            for folder in sorted(arrows) for other in sorted(arrows[folder])
            if folder in reach.get(other, ())]


def defined_elsewhere(path, text):
    """The functions that a header declares and the .cc of its name does not define."""
    text = re.sub(r"//.*", "", text)
    declared = re.findall(r"^(?!using |template|typedef )\w[\w:<>,*& ]* [*&]?(\w+)\([^;{}]*\);", text,
                          re.M)
    source = path.with_suffix(".cc")
    source = source.read_text() if source.exists() else ""
    return [name for name in sorted(set(declared))
            if not re.search(rf"^\w[\w:<>,*& ]* [*&]?{name}\([^;{{}}]*\) {{", source, re.M)]


def main():
    problems = []
    sources = sorted(
        p for d in ("kernels", "server", "tests", "client", "proto") for e in ("*.h", "*.cc", "*.cuh", "*.cu")
        for p in (ROOT / d).rglob(e))
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sources}
    for path in sources:
        name = path.relative_to(ROOT).as_posix()
        text = texts[name]
        if not name.startswith(BARE_INCLUDES):
            for include in BARE_INCLUDE.findall(text):
                problems.append(f"{name}: includes {include} without its folder")
        if text.count("\n") > MAX_LINES:
            problems.append(f"{name}: {text.count(chr(10))} lines, {MAX_LINES} at most")
        if name.startswith(("server/", "kernels/", "proto/")) and name not in DATES:
            if found := WALL_CLOCK.search(text):
                problems.append(f"{name}: may not use the time of day ({found[0]})")
        for prefix, allowed in ALLOWED:
            if name.startswith(prefix):
                for include in our_includes(text):
                    if not include.startswith(tuple(allowed)):
                        problems.append(f"{name}: may not include {include}")
                break
    headers = {p.relative_to(ROOT).as_posix(): p.read_text()
               for p in sorted((ROOT / "kernels").rglob("*.h"))}
    problems += [f"headers include each other: {circle}" for circle in include_circles(headers)]
    problems += contract_problems(headers)
    problems += [f"{name}: includes kernels/cuda/simt.h, which only nvcc and the emulator compile; "
                 "tests on a device are C++" for name in texts if name.endswith("_cuda_test.cc")
                 and name not in EMULATED_ALONE and "kernels/cuda/simt.h" in closure(name, texts)]
    problems += [f"folders include each other: {circle}" for circle in folder_circles(texts)]
    for name in texts:
        if name.startswith("server/"):
            problems += [f"{name}: must not reach {hidden} by its includes"
                         for hidden in HIDDEN_FROM_SERVER if hidden in closure(name, texts)]
    for name, text in headers.items():
        if name.startswith("kernels/pattern/"):
            for function in defined_elsewhere(ROOT / name, text):
                problems.append(f"{name}: {function} is not defined in the .cc of that name")
    for method in sorted((ROOT / "kernels/methods").glob("*.cc")):
        if not (ROOT / "tests/methods" / f"{method.stem}.py").exists():
            problems.append(f"tests/methods/{method.stem}.py: missing, every method has its oracle")
    problems += document_problems()
    problems += odr.problems(odr.FOLDERS)
    if shutil.which("clang-format"):
        for path in sources:
            check = subprocess.run(["clang-format", "--dry-run", "-Werror", str(path)],
                                   capture_output=True, cwd=ROOT)
            if check.returncode:
                problems.append(f"{path.relative_to(ROOT)}: not formatted (clang-format -i)")
    else:
        print("layout: clang-format is not installed, formatting was not checked")
    print("\n".join(problems) or f"layout: {len(sources)} files are in order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
