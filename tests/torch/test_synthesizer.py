"""synthesizer against PyTorch's scaled_dot_product_attention, which gets the synthetic scores as
its additive mask. No public code computes these scores: see test_absent.py."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.torch.compared import compare, qkv

B, H, N, D = 2, 3, 45, 16


def attend(scores, v, mask=None):
    """softmax of [B or 1,H,Nq,Nk] over v, by keys and queries of zeros."""
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    nothing = torch.zeros(*v.shape[:2], scores.shape[2], 1, dtype=v.dtype)
    return F.scaled_dot_product_attention(nothing, torch.zeros_like(v[..., :1]), v,
                                          attn_mask=scores.expand(len(v), -1, -1, -1), scale=1.0)


def dense(q, w_dense, b_dense, **_):
    return q.relu() @ w_dense + b_dense[..., None, :]


def factorized_dense(q, f_a, f_b, fa_b, fb_b, **_):
    left, right = q @ f_a + fa_b[..., None, :], q @ f_b + fb_b[..., None, :]
    products = right[..., :, None] * left[..., None, :]  # [B,H,N,b,a]
    return products.flatten(3)[..., :N]


SCORES = {
    "dense": (dense, {"w_dense": (H, D, N), "b_dense": (H, N)}),
    "random": (lambda r, **_: r[None], {"r": (H, N, N)}),
    "factorized_random": (lambda r1, r2, **_: (r1 @ r2.transpose(1, 2))[None],
                          {"r1": (H, N, 5), "r2": (H, N, 5)}),
    "factorized_dense": (factorized_dense, {"f_a": (H, D, 7), "f_b": (H, D, 7), "fa_b": (H, 7),
                                            "fb_b": (H, 7)}),
    "dot": (lambda q, k, **_: 0.3 * q @ k.transpose(2, 3), {}),
}


def tensors(names, **more):
    shapes = {}
    for name in names:
        shapes |= SCORES[name][1]
    t = qkv(B=B, H=H, Nq=N, D=D, **shapes, **more)
    for name in ("w_dense", "f_a", "f_b"):
        if name in t:
            t[name] /= 4
    read = {"q" if "dense" in name else "qk" if name == "dot" else "" for name in names}
    return {name: x for name, x in t.items() if name not in "qk" or name in "".join(read)}


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("name", SCORES)
def test_one_component(name, causal):
    mask = torch.ones(N, N, dtype=torch.bool).tril() if causal else None
    compare("synthesizer", {"components": [name], "causal": causal, "scale": 0.3}, tensors([name]),
            lambda v, **t: attend(SCORES[name][0](**t), v, mask))


@pytest.mark.parametrize("mix", ["sum", "softmax"])
def test_mixtures(mix):
    names = ["dot", "random", "dense"]
    weighted = {"mix_logits": (3,)} if mix == "softmax" else {}

    def peer(v, bias, mix_logits=None, **t):
        scores = [SCORES[name][0](**t) for name in names]
        weights = [1.0] * 3 if mix_logits is None else mix_logits.softmax(0)
        return attend(sum(w * s for w, s in zip(weights, scores)) + bias, v)

    compare("synthesizer", {"components": names, "mix": mix, "scale": 0.3},
            tensors(names, bias=(1, H, N, N), **weighted), peer)


def test_lengths():
    lengths = np.int32([45, 12])
    mask = (torch.arange(N) < torch.tensor(lengths)[:, None])[:, None, None]
    compare("synthesizer", {"components": ["random"]}, tensors(["random"]),
            lambda v, r: attend(r[None].expand(B, -1, -1, -1), v, mask), {"kv_lengths": lengths})
