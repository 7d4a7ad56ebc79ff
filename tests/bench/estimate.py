"""How far predicted seconds are from measured ones: `Estimate` of a server, then the call itself.

The ratio is the larger of predicted / measured and measured / predicted, goal 2, on a machine that
is as idle as at the server's start, when it measures its speed. The median of a second of calls
counts. Prints one JSON line a case. Usage: estimate.py [--quick] [method ...]
"""

import argparse
import json
import pathlib
import statistics
import tempfile

import numpy as np

import attnd
from tests.bench import density
from tests.e2e.server_process import Server

HEADS, D = 2, 64
SECONDS = 1.0


def cases(n):
    yield "softmax", "dense", {}, {}
    yield "softmax", "causal", {"causal": True}, {}
    yield "linear_attention", "full", {}, {}
    yield "linear_attention", "causal", {"causal": True}, {}
    for method, name, options, tensors, _ in density.cases(n):
        yield method, name, options, tensors


def measured(call):
    call()  # builds the pattern
    seconds = []
    while sum(seconds) < SECONDS and len(seconds) < 1000:
        seconds.append(call().stats.compute_seconds)
    return statistics.median(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="N 4096 only")
    parser.add_argument("methods", nargs="*", help="ids; default: all")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    server = Server(pathlib.Path(tempfile.mkdtemp()))
    try:
        with attnd.Client(server.target, timeout=60) as client:
            for n in (4096,) if args.quick else (4096, 16384):
                q, k, v = (rng.standard_normal((1, HEADS, n, D), np.float32) for _ in range(3))
                for method, name, options, tensors in cases(n):
                    if args.methods and method not in args.methods:
                        continue
                    send = {"method": method, "options": options, "tensors": tensors}
                    for backward in (False, True):
                        predicted = client.estimate(
                            *[q.shape] * 3, backward=backward, **send).seconds
                        seconds = measured(
                            (lambda: client.backward(q, k, v, v, **send)) if backward
                            else (lambda: client.forward(q, k, v, **send)))
                        way = "backward" if backward else "forward"
                        print(json.dumps({
                            "case": f"estimate {method} {name} N {n} {way}: predicted / measured",
                            "value": predicted / seconds, "unit": "",
                            "ratio": max(predicted / seconds, seconds / predicted),
                            "goal": "<= 2"}), flush=True)
    finally:
        server.kill()


if __name__ == "__main__":
    main()
