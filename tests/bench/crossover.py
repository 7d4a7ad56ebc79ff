"""The length from which each method is faster than exact softmax attention of this library.

One head, D 64, float32, one sequence; learned and random tables are drawn. N doubles from 64; at
each N both sides take turns and their fastest runs count, because what else runs on the machine
only adds to them. A causal case is compared with causal softmax.
"both" is a forward call and a backward call. Prints one JSON line a case: value is the N from which
the method is faster, interpolated between the last N at which it is not and the next; 64 says from
the start, null not up to the largest N. `ratios` are the times of softmax / those of the method.
Usage: crossover.py [--quick] [--threads T] [--largest N] [--all] [method ...]
"""

import argparse
import json
import math
import time

import numpy as np

from tests.methods import harness, library

D = 64
SMALLEST = 64
ROUNDS = 7
# A length takes at least ROUNDS rounds, and more until this time is over.
SECONDS = 0.3
# Twice in a row this much faster: larger N need not be measured.
CLEARLY = 1.5

# Read a table of N x N, which is drawn up to 2^24 elements.
SQUARE, LARGEST_SQUARE = {"linear_mixing", "random_mixing", "gmlp_sgu", "synthesizer"}, 4096

# (method, name, options, tensors that it reads)
CASES = [
    ("linear_attention", "elu", {}, "qkv"),
    ("linear_attention", "elu, causal", {"causal": True}, "qkv"),
    ("linear_attention", "softmax", {"feature_map": "softmax"}, "qkv"),
    ("linear_attention", "softmax, causal", {"feature_map": "softmax", "causal": True}, "qkv"),
    ("performer", "positive, 256 features", {}, "qkv"),
    ("performer", "positive, 256 features, causal", {"causal": True}, "qkv"),
    ("performer", "positive, 64 features", {"num_features": 64}, "qkv"),
    ("performer", "hyperbolic, 128 rows", {"kind": "hyperbolic", "num_features": 128}, "qkv"),
    ("performer", "trig, 128 rows", {"kind": "trig", "num_features": 128}, "qkv"),
    ("performer", "relu, 256 features", {"kind": "generalized"}, "qkv"),
    ("rfa", "trig, 64 rows", {}, "qkv"),
    ("rfa", "trig, 64 rows, causal", {"causal": True}, "qkv"),
    ("rfa", "trig, 64 rows, gated", {"causal": True, "gated": True}, "qkv"),
    ("rfa", "arccos, 64 rows", {"feature": "arccos"}, "qkv"),
    ("fast_weights", "delta rule, dpfp", {"causal": True}, "qkv"),
    ("fast_weights", "delta rule, silu",
     {"causal": True, "feature_map": "silu", "feature_norm": "l2"}, "qkv"),
    ("linformer", "k 256", {}, "qkv"),
    ("linformer", "k 64", {"k": 64}, "qkv"),
    ("linformer", "mean pooling, k 256", {"projection": "mean_pool"}, "qkv"),
    ("nystromformer", "64 landmarks", {}, "qkv"),
    ("nystromformer", "256 landmarks", {"num_landmarks": 256}, "qkv"),
    ("long_short", "window 128, rank 32", {"window": 128}, "qkv"),
    ("long_short", "window 128, causal", {"window": 128, "causal": True}, "qkv"),
    ("fnet", "", {}, "v"),
    ("linear_mixing", "", {}, "v"),
    ("random_mixing", "", {}, "v"),
    ("gmlp_sgu", "", {}, "qv"),
    ("gmlp_sgu", "causal", {"causal": True}, "qv"),
    ("mlp_mixer", "256 tokens", {}, "v"),
    ("synthesizer", "dense", {}, "qv"),
    ("synthesizer", "random", {"components": ["random"]}, "v"),
    ("synthesizer", "factorized_random", {"components": ["factorized_random"]}, "v"),
    *[("reformer", f"{rounds} rounds, chunks of {chunk}" + ", causal" * causal,
       {"n_hashes": rounds, "chunk_len": chunk, "causal": causal}, "qv")
      for causal in (False, True) for chunk in (64, 128) for rounds in (4, 8)],
    ("routing", "sqrt(N) clusters", {}, "qv"),
    ("routing", "sqrt(N) clusters, causal", {"causal": True}, "qv"),
    ("sinkhorn", "blocks of 64", {}, "qkv"),
    ("sinkhorn", "blocks of 64, topk", {"sort": "topk"}, "qkv"),
    ("set_transformer", "32 inducing rows", {}, "qkv"),
    ("memory_compressed", "cells of 3", {}, "qkv"),
]


def requests(method, options, names, n, backward):
    """The call, or both calls, of one side."""
    rng = np.random.default_rng(0)
    t = {name: rng.standard_normal((1, 1, n, D), np.float32) for name in names}
    grad = {"grad_out": rng.standard_normal((1, 1, n, D), np.float32)}
    calls = [library.Request(method, t, options)]
    return calls + [library.Request(method, t | grad, options, backward=True)] * backward


def run(engine, calls):
    return sum(engine.execute([call])[0].seconds for call in calls)


def ratio_at(engine, case, n, backward):
    """Seconds of softmax / seconds of the method, the fastest of each."""
    method, _, options, names = case
    causal = {"causal": True} if options.get("causal") else {}
    ours = requests(method, options, names, n, backward)
    exact = requests("softmax", causal, "qkv", n, backward)
    run(engine, ours), run(engine, exact)
    times, exacts, start = [], [], time.perf_counter()
    while len(times) < ROUNDS or time.perf_counter() - start < SECONDS:
        times.append(run(engine, ours))
        exacts.append(run(engine, exact))
    return min(exacts) / min(times)


def crossing(ratios):
    """The N from which the ratio is above 1 for all larger ones, or None."""
    lengths = list(ratios)
    slower = [n for n in lengths if ratios[n] <= 1]
    if not slower:
        return lengths[0]
    last = slower[-1]
    if last == lengths[-1]:
        return None
    after = lengths[lengths.index(last) + 1]
    part = -math.log(ratios[last]) / (math.log(ratios[after]) - math.log(ratios[last]))
    return round(last * (after / last) ** part)


def measure(engine, case, backward, largest, every):
    ratios, n = {}, SMALLEST
    while n <= largest:
        ratios[n] = ratio_at(engine, case, n, backward)
        if not every and min(list(ratios.values())[-2:]) > CLEARLY and len(ratios) > 1:
            break
        n *= 2
    return ratios


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="up to N 4096")
    parser.add_argument("--largest", type=int, default=16384)
    parser.add_argument("--all", action="store_true",
                        help="every length up to the largest, also where the method is clearly faster")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("methods", nargs="*", help="ids; default: all")
    args = parser.parse_args()
    engine = harness.engine("", args.threads, poison=False)
    served = library.methods_info()
    for case in CASES:
        method, name = case[:2]
        if method not in served or (args.methods and method not in args.methods):
            continue
        largest = 4096 if args.quick else args.largest
        if method in SQUARE:
            largest = min(largest, LARGEST_SQUARE)
        for backward in (False, True):
            ratios = measure(engine, case, backward, largest, args.all)
            print(json.dumps({
                "case": f"crossover {', '.join(filter(None, (method, name)))}, "
                        f"{'both' if backward else 'forward'}: N from which it beats softmax",
                "value": crossing(ratios), "unit": "tokens",
                "ratios": {n: round(ratio, 2) for n, ratio in ratios.items()}}), flush=True)


if __name__ == "__main__":
    main()
