"""compressive against compressive-transformer-pytorch. It has no u and v_bias, and its memories are
hidden states: with keys and values that are the hidden states themselves both keep the same rows.
Its convolution mixes heads; ours is one block a head."""

import numpy as np
import pytest
import torch

from tests.torch import public, service
from tests.torch.compared import compare, normal, qkv

B, H, D = 2, 3, 16
NO_BIASES = {"u": np.zeros((H, D), np.float32), "v_bias": np.zeros((H, D), np.float32)}


def rows(**counts):
    return {name: (B, H, n, D) for name, n in counts.items()}


@pytest.mark.parametrize("mem, cmem", [(0, 0), (20, 0), (20, 5)])
def test_attention(mem, cmem):
    pytest.importorskip("compressive_transformer_pytorch")
    before = rows(mem_k=mem, mem_v=mem) if mem else {}
    before |= rows(cmem_k=cmem, cmem_v=cmem) if cmem else {}
    t = qkv(B=B, H=H, Nq=37, D=D, rel_k=(H, mem + cmem + 40, D), **before)
    compare("compressive", {"grad_memory": True}, t, public.compressive(H, D, 37, 40, 10),
            fixed=NO_BIASES)


def test_training_over_segments(attention_service):
    """Step by step from the same weights. The memory keeps one segment, so that its loss, which
    compares with the whole memory, is ours. The convolution's other blocks are held at zero."""
    package = pytest.importorskip(
        "compressive_transformer_pytorch.compressive_transformer_pytorch")
    n, cmem_len, rate, C, steps = 12, 7, 4, H * D, 7
    L = n + n + cmem_len
    start = normal(1, to_q=(C, C), pos_emb=(H, L, D), to_out=(C, C), out_bias=(C,),
                   conv=(C, C, rate), conv_bias=(C,))
    start = {name: torch.tensor(x / 7, dtype=torch.float64) for name, x in start.items()}
    block = torch.block_diag(*[torch.ones(D, D, dtype=torch.float64)] * H)[..., None]
    start["conv"] *= block
    segments = normal(2, x=(steps, B, n, C), y=(steps, B, n, C))

    def loop(weights, attention, masked):
        optimizer = torch.optim.SGD(weights.values(), lr=2.0)
        memory = None
        for x, y in zip(*(torch.tensor(segments[name], dtype=torch.float64) for name in "xy")):
            out, memory, aux = attention(x, memory)
            loss = ((x + out - y) ** 2).mean() + aux
            optimizer.zero_grad()
            loss.backward()
            if masked.grad is not None:
                masked.grad *= block
            optimizer.step()
            yield loss.item(), memory, {n: w.detach().clone() for n, w in weights.items()}

    def peer():
        module = package.SelfAttention(C, n, n, cmem_len, rate, heads=H).double().train()
        conv = module.compress_mem_fn.conv
        places = torch.nn.Parameter(start["pos_emb"].clone())
        weights = {"to_q": module.to_q.weight, "pos_emb": places, "to_out": module.to_out.weight,
                   "out_bias": module.to_out.bias, "conv": conv.weight, "conv_bias": conv.bias}
        with torch.no_grad():
            for name, w in weights.items():
                w.copy_(start[name])
            module.to_kv.weight.copy_(torch.cat([torch.eye(C)] * 2))

        def attention(x, memory):
            out, memory, aux = module(x, memories=memory, pos_emb=places)
            return out, tuple(m.detach() for m in memory), aux.sum()

        return loop(weights, attention, conv.weight)

    def ours():
        weights = {name: w.clone().requires_grad_() for name, w in start.items()}
        options = {"mem_len": n, "cmem_len": cmem_len, "rate": rate, "compression": "conv",
                   "return_memory": True, "aux_loss": True}
        zeros = {name: torch.tensor(x) for name, x in NO_BIASES.items()}

        def attention(x, memory):
            hidden = public.heads(x, H)
            conv = torch.stack([weights["conv"][h * D:(h + 1) * D, h * D:(h + 1) * D]
                                for h in range(H)])
            bias = weights["conv_bias"].unflatten(0, (H, D))
            t = {"q": public.heads(x @ weights["to_q"].T, H), "k": hidden, "v": hidden,
                 "rel_k": weights["pos_emb"].flip(1), "conv_wk": conv, "conv_wv": conv,
                 "conv_bk": bias, "conv_bv": bias, **zeros, **(memory or {})}
            made = service.call(attention_service, "compressive", options, t)
            out = public.flat(made["out"]) @ weights["to_out"].T + weights["out_bias"]
            kept = {name: m for name, m in made.items() if name.startswith(("mem_", "cmem_"))}
            return out, kept, made["aux"].sum()

        return loop(weights, attention, weights["conv"])

    for (loss, memory, weights), (want_loss, want_memory, want) in zip(ours(), peer()):
        assert loss == pytest.approx(want_loss, rel=1e-5)
        for name, kept in zip(("mem", "cmem"), want_memory):
            assert (memory[f"{name}_lengths"] == kept.shape[1]).all()
            for of in "kv":
                got = public.flat(memory[f"{name}_{of}"])
                assert got.shape == kept.shape
                np.testing.assert_allclose(got, kept, atol=1e-5)
        for name, w in weights.items():
            assert (w - want[name]).norm() < 1e-5 * want[name].norm(), name
    for name, w in weights.items():
        assert (w - start[name]).norm() > 1e-3 * w.norm(), name
