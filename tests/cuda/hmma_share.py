"""Share of tensor-core products in the instructions of a dense tile of attend's forward kernel.

    tests/cuda/hmma_share.py build-cuda/.../attend_forward_bf16.cu.o build/tests/cuda_costs

The loop over tiles of keys holds code that a dense tile does not run: masks, gathered rows, exact
weights. Of all ways through the loop this takes the one of fewest instructions that has as many
products, matrices of ldmatrix, cp.async and barriers as the emulator counts for one more tile
(`cuda_costs tile`), and as many exponentials as its weights need. What runs has at least as many
instructions: the share is at most what is printed. An instruction whose predicate is false is one,
too. Needs cuobjdump (deploy/install-deps --test).
"""

import argparse
import collections
import heapq
import json
import re
import subprocess
import sys

from check_code import cuobjdump

# What a tile must have, as the starts of opcodes.
WANTED = ("LDGSTS", "HMMA", "LDSM", "BAR", "MUFU.EX2")

# As the start of an opcode.
CLASSES = {
    "products": ("HMMA",),
    "fragments of shared memory": ("LDSM",),
    "copies to shared memory": ("LDGSTS", "LDGDEPBAR", "DEPBAR"),
    "exponentials": ("MUFU",),
    "conversions to 16 bits": ("F2FP", "PRMT"),
    "float32": ("FADD", "FMUL", "FFMA", "FMNMX", "FSEL", "FSETP", "FSET", "FCHK", "CS2R"),
    "other memory, shuffles": ("LD", "ST", "SHFL", "ULDC"),
    "branches, barriers": ("BRA", "BSSY", "BSYNC", "WARPSYNC", "BAR", "CALL", "NOP", "BREAK"),
}


def programs(path):
    """{(architecture, "width x tiles of queries a block"): [(address, text)]} of the kernels of a
    dense problem without terms."""
    found = {}
    program = arch = None
    for line in cuobjdump("-sass", path).splitlines():
        if match := re.match(r"\s*code for (sm_\w+)", line):
            arch = match[1]
        elif match := re.match(r"\s*Function : (\S+)", line):
            kernel = re.search(r"AttendPlain\w+?Li(\d+)ELi(\d+)E", match[1])
            form = kernel and f"{kernel[1]} x {kernel[2]}"
            program = found.setdefault((arch, form), []) if kernel else None
        elif program is not None and (
                match := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", line)):
            program.append((int(match[1], 16), match[2]))
    return found


def opcode(text):
    return re.match(r"(?:@!?U?P\w+ )?([A-Z0-9.]+)", text)[1]


class Blocks:
    """Stretches of a program without a branch: instructions, and where they lead to."""

    def __init__(self, program, cuts):
        self.program = program
        index = {address: i for i, (address, _) in enumerate(program)}
        leads = {}
        starts = {0, *cuts}
        for i, (_, text) in enumerate(program):
            name = opcode(text)
            # What a call leads back from is no part of a loop that is worth a count; but a call
            # may also be a branch (out of a loop, on sm_80).
            is_branch = re.match(r"(BRA|CALL)\b", name) and not name.startswith("BRA.DIV")
            if is_branch and (match := re.search(r"0x([0-9a-f]+)$", text)):
                may_fall = text.startswith("@") or re.search(r"BRA\S* !?U?P\d", text)
                leads[i] = [index[int(match[1], 16)]] + ([i + 1] if may_fall else [])
            elif name.startswith(("EXIT", "RET", "BRX")) and not text.startswith("@"):
                leads[i] = []
            else:
                continue
            starts.update([i + 1, *leads[i]])
        ordered = sorted(s for s in starts if s < len(program))
        self.ends = dict(zip(ordered, ordered[1:] + [len(program)]))
        self.leads = {s: leads.get(e - 1, [e] if e < len(program) else [])
                      for s, e in self.ends.items()}

    def counts(self, start, names):
        opcodes = [opcode(text) for _, text in self.program[start:self.ends[start]]]
        return tuple(sum(o.startswith(name) for o in opcodes) for name in names)


def shortest_way(program, wanted):
    """The instructions of the shortest way around the loop that has what is wanted of each opcode."""
    waits = [i for i, (_, text) in enumerate(program) if opcode(text).startswith("DEPBAR.LE")]
    # The loop comes first; what follows computes blocks again that are not finite.
    if len(waits) < 2:
        sys.exit(f"{len(waits)} waits for copies: the loop is not what it was")
    begin = waits[0]
    blocks = Blocks(program, [begin])
    counts = {s: blocks.counts(s, wanted) for s in blocks.ends}
    goal, zero = tuple(wanted.values()), tuple(0 for _ in wanted)
    before = {}
    heap = [(0, begin, zero, None)]
    while heap:
        cost, start, got, origin = heapq.heappop(heap)
        if origin is not None:
            if (start, got) in before:
                continue
            before[start, got] = origin
            if start == begin and got == goal:
                break
        now = tuple(a + b for a, b in zip(got, counts[start]))
        if any(a > b for a, b in zip(now, goal)):
            continue
        length = blocks.ends[start] - start
        for following in blocks.leads[start]:
            if following < len(program):
                heapq.heappush(heap, (cost + length, following, now, (start, got)))
    else:
        sys.exit(f"no way around the loop has {wanted}")
    way = []
    place = before[begin, goal]
    while True:
        way.append(place[0])
        if place == (begin, zero):
            break
        place = before[place]
    return [line for start in reversed(way) for line in program[start:blocks.ends[start]]]


def class_of(name):
    return next((c for c, starts in CLASSES.items() if name.startswith(starts)),
                "integers: addresses, loops, tests")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("object")
    parser.add_argument("costs")
    parser.add_argument("--list", action="store_true", help="the instructions, too")
    arguments = parser.parse_args()
    tiles = json.loads(subprocess.run([arguments.costs, "tile"], capture_output=True, text=True,
                                      check=True).stdout)
    for (arch, form), program in sorted(programs(arguments.object).items()):
        tile = tiles[form]
        # A lane weighs 32 pairs of each tile, and the sums of its two rows before.
        wanted = dict(zip(WANTED, (tile["copies"], tile["products"], tile["ldmatrix"],
                                   tile["barriers"], 34 * int(form.split(" x ")[1]))))
        way = shortest_way(program, wanted)
        names = [opcode(text).split(".")[0] for _, text in way]
        print(f"{arch}, D {form}: {wanted['HMMA']} of at least {len(way)} instructions a tile "
              f"and warp are products: at most {wanted['HMMA'] / len(way):.1%}")
        by_class = collections.Counter(map(class_of, names))
        for name, count in by_class.most_common():
            members = collections.Counter(n for n in names if class_of(n) == name).most_common(8)
            print(f"  {count:4} {name}: " + ", ".join(f"{n} {c}" for n, c in members))
        if arguments.list:
            print("\n".join(f"    {address:05x} {text}" for address, text in way))


if __name__ == "__main__":
    main()
