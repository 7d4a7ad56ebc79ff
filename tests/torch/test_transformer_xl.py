"""transformer_xl against the published layer, whose relative shift moves scores where the library
looks distances up. The packages that had it (transformers up to 4.35) have dropped it, so that
tests/torch/public.py writes it down from kimiyoung/transformer-xl."""

import pytest
import torch

from tests.torch import public, service
from tests.torch.compared import compare, normal, qkv

B, H, D = 2, 3, 16
LEARNED = {"u": (H, D), "v_bias": (H, D)}


def of_memory(rows):
    return {name: (B, H, rows, D) for name in ("mem_k", "mem_v")}


@pytest.mark.parametrize("rows", [0, 5, 70])
def test_rel_k(rows):
    t = qkv(B=B, H=H, Nq=37, D=D, rel_k=(H, rows + 37, D), **LEARNED, **of_memory(rows))

    def peer(q, k, v, u, v_bias, rel_k, mem_k, mem_v):
        return public.relative_attention(
            q, torch.cat([mem_k, k], 2), torch.cat([mem_v, v], 2), rel_k.flip(1), u, v_bias)

    compare("transformer_xl", {"grad_memory": True}, t, peer)


@pytest.mark.parametrize("clamp", [-1, 20])
def test_sinusoids(clamp):
    """Its embedding clamps places to clamp_len."""
    rows, size = 30, H * D
    t = qkv(B=B, H=H, Nq=37, D=D, w_r=(H, D, size), **LEARNED, **of_memory(rows))
    t["w_r"] /= 8

    def peer(q, k, v, u, v_bias, w_r, mem_k, mem_v):
        e = public.sinusoids(rows + 37, size)
        if clamp > 0:
            e = e[(rows + 37 - 1 - torch.arange(rows + 36, -1, -1).clamp(max=clamp))]
        return public.relative_attention(
            q, torch.cat([mem_k, k], 2), torch.cat([mem_v, v], 2),
            torch.einsum("rm,hdm->hrd", e, w_r), u, v_bias)

    compare("transformer_xl", {"grad_memory": True, "clamp_len": clamp}, t, peer)


def test_training_over_segments(attention_service):
    """Hidden states are the memory, as published: keys and values of it are projected anew, and
    their gradients reach the projections."""
    n, mem_len, C = 12, 20, H * D
    shapes = {f"w_{name}": (C, C) for name in "qkvo"} | LEARNED | {"w_r": (H, D, C)}
    start = {name: x / 8 for name, x in normal(1, **shapes).items()}
    segments = normal(2, x=(6, B, n, C), y=(6, B, n, C))

    def published(t, mem_k, mem_v):
        r = torch.einsum("rm,hdm->hrd", public.sinusoids(mem_k.shape[2] + n, C), t["w_r"])
        return public.relative_attention(
            t["q"], torch.cat([mem_k, t["k"]], 2), torch.cat([mem_v, t["v"]], 2), r, t["u"],
            t["v_bias"])[0]

    def served(t, mem_k, mem_v):
        return service.call(attention_service, "transformer_xl", {"grad_memory": True},
                            t | {"mem_k": mem_k, "mem_v": mem_v})["out"]

    def train(attention):
        weights = {name: torch.tensor(x, dtype=torch.float64, requires_grad=True)
                   for name, x in start.items()}
        optimizer = torch.optim.SGD(weights.values(), lr=5.0)
        memory = torch.zeros(B, 0, C, dtype=torch.float64)
        for x, y in zip(*(torch.tensor(segments[name], dtype=torch.float64) for name in "xy")):
            def projected(name, of):
                return public.heads(of @ weights[name], H)

            t = {name: projected(f"w_{name}", x) for name in "qkv"}
            t |= {name: weights[name] for name in ("u", "v_bias", "w_r")}
            out = attention(t, projected("w_k", memory), projected("w_v", memory))
            loss = ((x + public.flat(out) @ weights["w_o"] - y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            memory = torch.cat([memory, x], 1)[:, -mem_len:]
            yield loss.item(), {name: w.detach().clone() for name, w in weights.items()}

    for (loss, weights), (want_loss, want) in zip(train(served), train(published)):
        assert loss == pytest.approx(want_loss, rel=1e-5)
        for name, w in weights.items():
            assert (w - want[name]).norm() < 1e-5 * want[name].norm(), name
    assert (weights["w_v"] - torch.tensor(start["w_v"])).norm() > 1e-2 * weights["w_v"].norm()
