"""softmax against MLX on the CPU: a peer in C++ for sinks and bottom-right causality. MLX computes
in float32, so both sides round."""

import numpy as np
import pytest

from tests.torch.compared import TOLERANCE, close, normal, ours, qkv

mx = pytest.importorskip("mlx.core")


@pytest.mark.parametrize("sinks", [False, True], ids=["plain", "sinks"])
@pytest.mark.parametrize("mask", [None, "causal"], ids=["full", "causal"])
@pytest.mark.parametrize("Nq, Nk", [(37, 37), (30, 50)])
def test_softmax(Nq, Nk, mask, sinks):
    t = qkv(B=2, H=6, Hkv=2, Nq=Nq, Nk=Nk, **({"sink_logits": (6,)} if sinks else {}))
    options = {"causal": mask is not None}

    def attend(*tensors):
        named = dict(zip(t, tensors))
        return mx.fast.scaled_dot_product_attention(
            named["q"], named["k"], named["v"], scale=16**-0.5, mask=mask,
            sinks=named.get("sink_logits"))

    grad_out = normal(7, grad_out=(2, 6, Nq, 16))
    inputs = [mx.array(x) for x in t.values()]
    (out,), grads = mx.vjp(lambda *x: [attend(*x)], inputs, [mx.array(grad_out["grad_out"])])
    close("out", ours("softmax", options, t).outputs["out"], np.array(out), 2 * TOLERANCE)
    got = ours("softmax", options, t | grad_out, backward=True).outputs
    for name, want in zip(t, grads):
        close(f"gradient of {name}", got[name], np.array(want), 2 * TOLERANCE)
