"""How each method's time and workspace grow with the sequence: exponents fitted over N.

tests/methods/<id>.py states the claim of each method (Method.growth). One head, D 64, float32,
forward and backward, N doubling from 1024 to the largest (16384 where a claim is quadratic: some
read tables of N x N floats); all lengths take turns, the median of each counts. Prints one JSON
line a case: value is the fitted exponent of log time (or of log what the workspace grows by when N
doubles) over log N, ratio its distance from the claim (goal: 0.1 or, of time, Growth.within). A
doubling that takes less workspace, since the work is done in another order, is left out.
Usage: growth.py [--largest N] [--threads T] [method ...]
"""

import argparse
import json
import math
import statistics

import numpy as np

from tests.methods import harness
from tests.methods.cases import Case, tensors

D = 64
SMALLEST = 1024
REPEATS = 5
LARGEST_QUADRATIC = 16384
# A length whose calls take longer than this runs fewer times.
SECONDS = 4.0


def exponent(lengths, values):
    return float(np.polyfit(np.log(lengths), np.log(values), 1)[0])


def measure(engine, method, options, lengths, backward):
    """Medians of seconds and the counted workspace without inputs, by length."""
    calls, seconds, bytes_ = {}, {n: [] for n in lengths}, {}
    for n in lengths:
        case = harness.fit(method, Case(f"growth-{n}", H=1, Nq=n, D=D, options=options))
        calls[n] = harness.request(method, case, tensors(case, "f32", gradients=backward), backward)
        engine.execute([calls[n]])
    for _ in range(REPEATS):
        for n in lengths:
            if sum(seconds[n]) > SECONDS:
                continue
            reply = engine.execute([calls[n]])[0]
            seconds[n].append(reply.seconds)
            bytes_[n] = reply.peak_bytes
    return {n: statistics.median(seconds[n]) for n in lengths}, bytes_


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--largest", type=int, default=65536)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("methods", nargs="*", help="ids; default: all that claim something")
    args = parser.parse_args()
    engine = harness.engine("", args.threads, poison=False)
    for method in harness.methods().values():
        if args.methods and method.id not in args.methods:
            continue
        for claim in method.growth:
            largest = args.largest if claim.time < 2 else min(args.largest, LARGEST_QUADRATIC)
            lengths = [SMALLEST << i for i in range(int(math.log2(largest // SMALLEST)) + 1)]
            named = " ".join(f"{name}={value}" for name, value in claim.options.items())
            for backward in (False, True):
                seconds, peak = measure(engine, method, claim.options, lengths, backward)
                direction = "backward" if backward else "forward"
                grown = {n: peak[2 * n] - peak[n] for n in lengths[:-1] if peak[2 * n] > peak[n]}
                for what, at, values, claimed, within in (
                        ("time", lengths, [seconds[n] for n in lengths], claim.time, claim.within),
                        ("workspace", list(grown), list(grown.values()), claim.workspace, 0.1)):
                    if len(at) < 2:
                        raise SystemExit(f"growth: --largest {args.largest}: too few lengths")
                    fitted = exponent(at, values)
                    print(json.dumps({
                        "case": f"growth of {what} {method.id} {named} {direction} "
                                f"{lengths[0]}..{lengths[-1]} (claim {claimed})",
                        "value": fitted, "unit": "exponent", "ratio": abs(fitted - claimed),
                        "goal": f"<= {within}"}), flush=True)


if __name__ == "__main__":
    main()
