"""Mode perf: the measured time of each method beside the prediction of its plan.

    python -m tests.methods.perf [--isa avx2] [--threads 2] [--tokens 1024 4096] [--repeat 3]

Seconds are the median of the repeats of one request alone (4 heads, D 64, float32), the first run
not counted. "share" is of the device's measured float32 peak.
"""

import argparse
import statistics

from tests.methods import harness
from tests.methods.cases import Case, tensors

HEADS, D = 4, 64


def measure(method, options, tokens, backward, isa="", threads=2, repeat=3):
    """One row of the table as a dict."""
    case = harness.fit(method, Case(f"perf-{tokens}", H=HEADS, Nq=tokens, D=D, options=options))
    call = harness.request(method, case, tensors(case, "f32", gradients=backward), backward)
    engine = harness.engine(isa, threads, poison=False)
    seconds = []
    for _ in range(repeat + 1):
        reply = engine.execute([call])[0]
        seconds.append(reply.seconds)
    median = statistics.median(seconds[1:] or seconds)
    named = " ".join(f"{name}={value}" for name, value in options.items())
    return {
        "method": f"{method.id} {named}".strip(),
        "direction": "backward" if backward else "forward",
        "tokens": tokens,
        "seconds": median,
        "planned_seconds": reply.planned_seconds,
        "gflops": reply.flops / median / 1e9,
        "share": reply.flops / median / engine.peak_flops,
        "peak_bytes": reply.peak_bytes,
        "planned_bytes": reply.planned_bytes,
    }


def rows(tokens, **how):
    for method in harness.methods().values():
        for options in method.perf:
            for n in tokens:
                for backward in (False, True):
                    yield measure(method, options, n, backward, **how)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--isa", default="", choices=["", *harness.ISAS])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    engine = harness.engine(args.isa, args.threads, poison=False)
    print(f"{engine.description}, peak {engine.peak_flops / 1e9:.0f} GFLOP/s")
    print(f"{'method':44} {'direction':9} {'tokens':>7} {'ms':>9} {'planned':>9} {'GFLOP/s':>8} "
          f"{'share':>6} {'peak MiB':>9} {'planned':>9}")
    for row in rows(args.tokens, isa=args.isa, threads=args.threads, repeat=args.repeat):
        print(f"{row['method']:44} {row['direction']:9} {row['tokens']:7} "
              f"{row['seconds'] * 1e3:9.2f} {row['planned_seconds'] * 1e3:9.2f} "
              f"{row['gflops']:8.1f} {row['share']:6.0%} {row['peak_bytes'] / 2**20:9.2f} "
              f"{row['planned_bytes'] / 2**20:9.2f}", flush=True)


if __name__ == "__main__":
    main()
