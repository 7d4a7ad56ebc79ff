"""What a visible pair costs: each pattern method against dense attention of the same run.

Heads 2, D 64, float32, forward and backward, N 4096 and 16384; both take turns, medians count,
first calls (which build the pattern) do not. Prints one JSON line a case. Where tiles of 64 x 64 are
the unit, ratio is time / (density x time of dense attention), goal 1.25. For token-level methods
(random, strided, dilated, 2-D) it is the inverse, their share of the dense rate on the pairs that
they see, goal 0.40.
Usage: density.py [--quick] [--threads T] [method ...]
"""

import argparse
import json
import math
import statistics

import numpy as np

from tests.methods import harness, library
from tests.methods.cases import Case, tensors

HEADS, D = 2, 64
REPEATS = 5
# How long a case takes turns.
SECONDS = 6.0


def block_layout(n, block, density):
    """A random layout with the diagonal, [1,nb,nb]."""
    nb = -(-n // block)
    seen = np.random.default_rng(0).random((nb, nb)) < density
    np.fill_diagonal(seen, True)
    return seen[None].astype(np.uint8)


def globals_at(n, count):
    """`count` tokens of the first half are global, at equal distances."""
    mask = np.zeros(n, np.uint8)
    mask[np.arange(count) * (n // (2 * count))] = 1
    return mask


def cases(n):
    """(method, name, options, tensors, whether tiles are the unit) at length n."""
    side = math.isqrt(n)
    grid = [side, n // side]
    yield "local", "window 256 each side", {"window_left": 256}, {}, True
    yield "local", "window 256 causal", {"window_left": 256, "causal": True}, {}, True
    yield "local", "blocks of 128", {"granularity": "block", "block": 128}, {}, True
    yield "relu_attention", "dense", {}, {}, True
    yield "sparse_strided", f"stride {side}", {"stride": side}, {}, False
    yield "sparse_strided", f"stride {side} causal", {"stride": side, "causal": True}, {}, False
    yield "sparse_fixed", "128, 32", {}, {}, True
    yield "sparse_fixed", "128, 32 causal", {"causal": True}, {}, True
    yield "longformer", "256, no globals", {}, {}, True
    yield "longformer", "256, 1 global", {}, {"global_mask": globals_at(n, 1)}, True
    yield "longformer", "256, 16 globals", {}, {"global_mask": globals_at(n, 16)}, True
    yield "longformer", "128, dilation 4", {"window": 128, "dilation": [4]}, {}, False
    yield "bigbird", "64", {}, {}, True
    yield "bigbird", "128", {"block_size": 128}, {}, True
    yield "etc", "64 globals, 84", {"num_global": 64}, {}, True
    yield "blockwise", "8 blocks", {"num_blocks": 8}, {}, True
    yield "block_sparse", "64, density 0.1", {}, {"layout": block_layout(n, 64, 0.1)}, True
    yield ("block_sparse", "128, density 0.1", {"block_q": 128, "block_k": 128},
           {"layout": block_layout(n, 128, 0.1)}, True)
    for axis in (0, 1):
        yield "axial", f"{side}x{side} axis {axis}", {"grid": grid, "axis": axis}, {}, True
    yield "axial", f"{side}x{side} union", {"grid": grid, "mode": "union"}, {}, True
    yield "image_local_1d", "256", {}, {}, True
    yield "image_local_1d", "256 causal", {"causal": True}, {}, True
    yield "image_local_2d", f"{side}x{side}", {"grid": grid}, {}, False
    yield "image_local_2d", f"{side}x{side} causal", {"grid": grid, "causal": True}, {}, False
    yield "random", "64 keys", {"num_random": 64}, {}, False
    yield "random", "256 keys", {"num_random": 256}, {}, False


def aligned(array):
    """The same numbers at a multiple of 64 bytes, where the server puts them."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def call_of(method, n, options, more, backward):
    case = Case(f"density-{n}", H=HEADS, Nq=n, D=D, options=options)
    t = tensors(case, "f32", gradients=backward) | more
    t = {name: aligned(array) for name, array in t.items()}
    if backward and method == "relu_attention":
        del t["grad_lse"]
    return library.Request(method, t, options, backward)


def measure(engine, ours, dense):
    """Medians of the seconds of both, in turns, and their pairs."""
    seconds = {"ours": [], "dense": []}
    calls = {"ours": ours, "dense": dense}
    replies = {name: engine.execute([call])[0] for name, call in calls.items()}
    while len(seconds["ours"]) < REPEATS and sum(map(sum, seconds.values())) < SECONDS:
        for name, call in calls.items():
            seconds[name].append(engine.execute([call])[0].seconds)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return medians["ours"], medians["dense"], replies["ours"].pairs, replies["dense"].pairs


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="N 4096 only")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("methods", nargs="*", help="ids; default: all")
    args = parser.parse_args()
    engine = harness.engine("", args.threads, poison=False)
    for n in (4096,) if args.quick else (4096, 16384):
        for backward in (False, True):
            dense = call_of("softmax", n, {}, {}, backward)
            for method, name, options, more, is_tiled in cases(n):
                if args.methods and method not in args.methods:
                    continue
                ours = call_of(method, n, options, more, backward)
                seconds, dense_seconds, pairs, all_pairs = measure(engine, ours, dense)
                cost = seconds / (pairs / all_pairs * dense_seconds)
                goal = "<= 1.25" if is_tiled else ">= 0.40"
                print(json.dumps({
                    "case": f"{method} {name} N {n} {'backward' if backward else 'forward'}: "
                            + ("time / (density x dense)" if is_tiled else "share of dense rate"),
                    "value": seconds * 1e3, "unit": "ms",
                    "ratio": cost if is_tiled else 1 / cost, "goal": goal}), flush=True)


if __name__ == "__main__":
    main()
