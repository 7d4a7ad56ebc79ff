"""PyTorch and this library on the same calls, same threads, in turns. One JSON object a line: case,
value (ms of a call, ours), peer_ms, ratio (peer / ours), goal. Usage: compare.py calls_bench [case]"""

import json
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

H = 8
BUDGET = 2.0  # seconds a case, and at least ROUNDS rounds
ROUNDS = 7


def attention(n, d, causal, dtype, backward):
    """A call of PyTorch's fused attention or of its gradient."""
    q, k, v, g = (torch.randn(1, H, n, d).to(dtype) for _ in range(4))
    if not backward:
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*inputs, is_causal=causal)
    return lambda: torch.autograd.grad(out, inputs, g, retain_graph=True)


def product(batch, m, n, k):
    a, b = torch.rand(batch, m, k), torch.rand(batch, k, n)
    out = torch.empty(batch, m, n)
    return lambda: torch.bmm(a, b, out=out)


def transform(n, m):
    x = torch.rand(n, m)
    return lambda: torch.fft.fft2(x).real


def cases():
    """(line for calls_bench, peer, goal by threads)"""
    for direction in ("forward", "backward"):
        for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
            for n in (1024, 4096):
                for d in (64, 128):
                    for causal in (0, 1):
                        goal = {1: 1.4, 2: 2.0}
                        if name == "bf16":
                            goal = dict.fromkeys((1, 2), 1.6 if direction == "forward" else 4.0)
                        yield (f"{direction} {n} {d} {causal} {name}",
                               lambda n=n, d=d, c=causal, t=dtype, b=direction == "backward":
                               attention(n, d, bool(c), t, b), goal)
    even = {1: 1.0, 2: 1.0}
    for sizes in ((1, 2048, 2048, 2048), (8, 4096, 64, 64), (8, 64, 4096, 64), (8, 64, 64, 4096),
                  (1, 1, 4096, 4096)):
        yield f"matmul {' '.join(map(str, sizes))}", lambda s=sizes: product(*s), even
    yield "fft 4096 768", lambda: transform(4096, 768), even


def seconds(call):
    start, calls = time.perf_counter(), 0
    while True:
        call()
        calls += 1
        now = time.perf_counter()
        if now - start >= 1e-3:
            return (now - start) / calls


def compare(line, peer, threads, ours):
    """Medians of both sides. A pause before each turn: the threads of the other side spin a little
    when they have nothing to do."""
    times, peers, start = [], [], time.perf_counter()
    peer()
    while len(times) < ROUNDS + 1 or time.perf_counter() - start < BUDGET:
        time.sleep(0.01)
        ours.stdin.write(f"{threads} {line}\n")
        ours.stdin.flush()
        times.append(float(ours.stdout.readline()))
        time.sleep(0.01)
        peers.append(seconds(peer))
    return statistics.median(times[1:]), statistics.median(peers[1:])


def main():
    wanted = sys.argv[2] if len(sys.argv) > 2 else ""
    with subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as ours:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for line, make, goal in cases():
                if wanted not in line:
                    continue
                mine, theirs = compare(line, make(), threads, ours)
                print(json.dumps({
                    "case": f"{line} T{threads}", "value": round(mine * 1e3, 4), "unit": "ms",
                    "peer": f"PyTorch {torch.__version__}", "peer_ms": round(theirs * 1e3, 4),
                    "ratio": round(theirs / mine, 3), "goal": f">= {goal[threads]}"}), flush=True)
        ours.stdin.close()


if __name__ == "__main__":
    main()
