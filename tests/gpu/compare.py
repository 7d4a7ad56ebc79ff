"""One table of cuda_bench and its peers, and how far the goals of tests/bench/README.md are:
compare.py bench.jsonl peers.jsonl. A ratio above 1: we are faster."""

import json
import sys

CAUSAL = "causal bfloat16 D128 N4096 BH64"
DENSE, SPARSE = (f"attend forward {part}bfloat16 D64 N4096 BH64" for part in ("", "density 0.1 "))
SHORT = 2048  # linear attention should be as fast as dense from here on
# The least TFLOP/s of a case, by own kernels or with libraries.
LEAST = [
    (f"attend forward {CAUSAL}", True, 591),
    (f"attend backward in any order {CAUSAL}", True, 474),
    (f"attend backward {CAUSAL}", False, 379),
    ("attend forward bfloat16 D128 N4096 BH64", False, 300),
    ("attend forward float32 D128 N2048 BH64", False, 40),
]


def lines(path):
    with open(path) as file:
        return [json.loads(line) for line in file if line.startswith("{")]


def goals(rows, bandwidth, served):
    """(what, value, "at least" or "at most", goal) of each; value None: not measured. `rows` by case
    and whether libraries served; `bandwidth` of the device in GB/s; `served`: of tests/bench/served.py."""
    def number(case, libraries, key):
        row = rows.get((case, libraries))
        return row and row[key]

    def quotient(a, b):
        return a / b if a and b else None

    for case, libraries, least in LEAST:
        kernels = "with libraries" if libraries else "own kernels"
        yield f"{case}, {kernels}, TFLOP/s", number(case, libraries, "tflops"), "at least", least
    # Both are credited with visible pairs alone.
    yield ("block-sparse, time / (density x dense)",
           quotient(number(DENSE, False, "tflops"), number(SPARSE, False, "tflops")), "at most", 1.2)
    for dtype in ("bfloat16", "float32"):
        yield (f"linear attention, {dtype}, share of the device's bandwidth",
               quotient(number(f"scan causal N8192 D64 H64 {dtype}", False, "gbps"), bandwidth),
               "at least", 0.5)
    for libraries in (False, True):
        yield (f"dense causal at {SHORT} tokens ({'cuDNN' if libraries else 'own kernels'}) / linear",
               quotient(number(f"attend forward causal bfloat16 D64 N{SHORT} BH64", libraries, "seconds"),
                        number(f"scan causal N{SHORT} D64 H64 bfloat16", False, "seconds")),
               "at least", 1.0)
    long = [row for row in served if row["in_process_seconds"] >= 1e-3]
    for row in long:
        yield f"served rate / in-process rate, {row['served']}", row["ratio"], "at least", 0.9
    if not long:
        yield "served rate / in-process rate", None, "at least", 0.9


def main():
    peers = {}
    for row in lines(sys.argv[2]):
        if "seconds" in row:
            peers.setdefault(row["case"], {})[row["peer"]] = row["seconds"]
    measured = lines(sys.argv[1])
    devices = [row for row in measured if "device" in row and "gbps" in row]
    served = [row for row in measured if "served" in row]
    failed = [row["case"] for row in measured if "failed" in row]
    measured = [row for row in measured if "case" in row and "seconds" in row]
    print(f"{'case':58} {'ms':>9} {'TFLOP/s':>8} {'GB/s':>6}  peer's time / ours")
    for row in measured:
        peer_case = row["case"].replace("in any order ", "")
        ratios = ", ".join(f"{peer} {seconds / row['seconds']:.2f}"
                           for peer, seconds in peers.get(peer_case, {}).items())
        if "hidden" in row:
            ratios = f"{row['hidden']:.0%} of the shorter of both is hidden"
        name = row["case"] + (" (libraries)" if row["libraries"] else "")
        print(f"{name:58} {row['seconds'] * 1e3:9.3f} {row['tflops']:8.1f} "
              f"{row['gbps']:6.0f}  {ratios}")
    for case in failed:
        print(f"{case:58} FAILED")
    print()
    rows = {(row["case"], row["libraries"]): row for row in measured}
    met = known = 0
    for what, value, bound, goal in goals(rows, devices[0]["gbps"] if devices else None, served):
        says = "not measured"
        if value is not None:
            known += 1
            is_met = value >= goal if bound == "at least" else value <= goal
            met += is_met
            says = f"{value:.3g}, {'met' if is_met else 'MISSED'}"
        print(f"goal: {what}: {bound} {goal}: {says}")
    print(f"goals: {met} of {known} measured ones are met")


if __name__ == "__main__":
    main()
