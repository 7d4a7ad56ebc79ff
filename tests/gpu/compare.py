"""One table of cuda_bench and its peers: compare.py bench.jsonl peers.jsonl. A ratio above 1: we are
faster. Goals are those of tests/bench/README.md."""

import json
import sys

# The least TFLOP/s of a case, whose name begins so.
GOALS = {
    "attend forward causal bfloat16 D128": 591,
    "attend backward causal bfloat16 D128": 474,
    "attend forward bfloat16 D128": 300,
    "attend forward float32": 40,
}


def lines(path):
    with open(path) as file:
        return [json.loads(line) for line in file if line.startswith("{")]


def main():
    peers = {}
    for row in lines(sys.argv[2]):
        if "seconds" in row:
            peers.setdefault(row["case"], {})[row["peer"]] = row["seconds"]
    print(f"{'case':58} {'ms':>9} {'TFLOP/s':>8} {'GB/s':>6}  goal  peer's time / ours")
    for row in lines(sys.argv[1]):
        goal = next((str(least) for name, least in GOALS.items() if row["case"].startswith(name)), "")
        ratios = ", ".join(f"{peer} {seconds / row['seconds']:.2f}"
                           for peer, seconds in peers.get(row["case"], {}).items())
        if "hidden" in row:
            ratios = f"{row['hidden']:.0%} of the shorter of both is hidden"
        name = row["case"] + (" (libraries)" if row["libraries"] else "")
        print(f"{name:58} {row['seconds'] * 1e3:9.3f} {row['tflops']:8.1f} "
              f"{row['gbps']:6.0f}  {goal:>4}  {ratios}")


if __name__ == "__main__":
    main()
