"""Checks what the compiler does not: includes go down only, files keep their formatting and size,
links of documents lead somewhere, no two files define classes of one name.

server -> kernels/engine -> methods -> method -> ops -> pattern -> device -> core. A device (cpu)
implements kernels/device and is known to those that create it: the C interface and the server. The
wire codec (proto/wire) is shared by server and C++ client, which know nothing of each other.
"""

import pathlib
import re
import shutil
import subprocess
import sys

import odr

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
MAX_LINES = 400
MAX_README_LINES = 160
READMES = ("README.md", "client/python/README.md", "deploy/README.md", "kernels/README.md",
           "tests/bench/README.md", "tests/data/README.md")
# The time of day may jump: deadlines, patience and measurements use the steady clock. Dates of log
# lines and deadlines that gRPC wants as a date are all that is left.
WALL_CLOCK = re.compile(r"system_clock|CLOCK_REALTIME|gettimeofday|\btime\(nullptr\)")
DATES = {"server/log.cc", "server/probe.cc", "server/transport.cc"}

CORE = ["kernels/core/"]
DEVICE = ["kernels/device/", *CORE]
PATTERN = ["kernels/pattern/", *DEVICE]
OPS = ["kernels/ops/", *PATTERN]
METHOD = ["kernels/method/", *OPS]

# What the files of a folder may include, as prefixes. The first folder that matches counts.
ALLOWED = [
    ("kernels/core/", CORE),
    ("kernels/device/", DEVICE),
    ("kernels/pattern/predicates/", ["kernels/pattern/predicates/", "kernels/pattern/builder.h",
                                     "kernels/pattern/key.h", "kernels/pattern/tiles.h",
                                     "kernels/pattern/window.h", *DEVICE]),
    ("kernels/pattern/shapes/", PATTERN),
    ("kernels/pattern/", PATTERN),
    ("kernels/ops/", OPS),
    ("kernels/cpu/", ["kernels/cpu/", *DEVICE]),
    ("kernels/method/", METHOD),
    ("kernels/methods/", ["kernels/methods/pattern/", *METHOD]),
    ("kernels/engine/devices", ["kernels/engine/", "kernels/cpu/cpu.h", *METHOD]),
    ("kernels/engine/", ["kernels/engine/", *METHOD]),
    ("server/", ["kernels/engine/engine.h", "kernels/engine/devices.h", "kernels/method/", *DEVICE,
                 "server/", "proto/wire/", "attn/v1/", "grpc/"]),
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
    """README.md is short and finished, and no link of a README leads nowhere."""
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
    """The headers that a header includes, by way of others too, itself among them."""
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


def lacks_source(path, text):
    """Whether a header declares functions, but has no .cc of its name where they are defined."""
    declares = re.search(r"^(?!using |  |//|#|}|template)[\w:<>,*& ]+ \w+\([^;{]*\);", text, re.M)
    return declares is not None and not path.with_suffix(".cc").exists()


def main():
    problems = []
    sources = sorted(
        p for d in ("kernels", "server", "tests", "client", "proto") for e in ("*.h", "*.cc", "*.cuh", "*.cu")
        for p in (ROOT / d).rglob(e))
    for path in sources:
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text()
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
    for name, text in headers.items():
        if name.startswith("kernels/pattern/") and lacks_source(ROOT / name, text):
            problems.append(f"{name}: has no .cc of its name for what it declares")
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
