"""PyTorch's times of the cases of cuda_bench on the same machine: one JSON object a line."""

import json

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

torch.backends.cuda.matmul.allow_tf32 = False


def seconds(run):
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    samples = []
    for _ in range(7):
        start.record()
        for _ in range(10):
            run()
        end.record()
        torch.cuda.synchronize()
        samples.append(start.elapsed_time(end) / 10 * 1e-3)
    return sorted(samples)[3]


def tell(case, peer, run):
    try:
        print(json.dumps({"case": case, "peer": peer, "seconds": seconds(run)}), flush=True)
    except RuntimeError as error:
        print(json.dumps({"case": case, "peer": peer, "error": str(error)[:200]}), flush=True)


def attend(dtype, N, D):
    name = {torch.bfloat16: "bfloat16", torch.float32: "float32"}[dtype]
    q, k, v, grad = (torch.randn(1, 64, N, D, device="cuda", dtype=dtype) for _ in range(4))
    for tensor in (q, k, v):
        tensor.requires_grad_(True)
    backends = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
    if dtype == torch.float32:
        backends = {"efficient": SDPBackend.EFFICIENT_ATTENTION}
    for causal in (False, True):
        case = f"{'causal ' if causal else ''}{name} D{D} N{N} BH64"
        for peer, backend in backends.items():
            with sdpa_kernel(backend):
                forward = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)
                with torch.no_grad():
                    tell(f"attend forward {case}", peer, forward)
                try:
                    out = forward()
                except RuntimeError:
                    continue
                tell(f"attend backward {case}", peer,
                     lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True))


def main():
    for dtype in (torch.bfloat16, torch.float32):
        for D in (64, 128):
            attend(dtype, 2048 if dtype == torch.float32 else 4096, D)
    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float32, "float32")):
        a, b = (torch.randn(4096, 4096, device="cuda", dtype=dtype) for _ in range(2))
        tell(f"matmul 4096 {name}", "cublas", lambda: a @ b)
    a, b = (torch.randn(64, 1 << 10, 1 << 10, device="cuda") for _ in range(2))
    tell("add 64M float32", "torch", lambda: torch.add(a, b))


if __name__ == "__main__":
    main()
