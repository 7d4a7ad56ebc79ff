"""linformer against linformer, linformer-pytorch and xformers' component. None of them masks keys:
linformer-pytorch zeroes them, which is the same as leaving them out. Its "causal" mask takes
columns of the projection for positions and is no peer, nor is any causal form."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.torch import public
from tests.torch.compared import compare, qkv

B, H, D, K = 2, 3, 16, 12


def learned(seed=0, **shapes):
    """q, k, v and projections whose columns sum to some units."""
    t = qkv(B=B, H=H, Nq=40, Nk=61, D=D, seed=seed, **shapes)
    return {name: x / 4 if name in ("e", "f") else x for name, x in t.items()}


@pytest.mark.parametrize("length", [61, 80], ids=["whole", "first-rows"])
def test_linformer(length):
    pytest.importorskip("linformer")
    peer = public.linformer(H, D, length, K)
    compare("linformer", {}, learned(e=(length, K), f=(length, K)), peer)


def test_one_head_of_keys():
    pytest.importorskip("linformer")
    peer = public.linformer(H, D, 61, K, one_kv_head=True)
    t = qkv(B=B, H=H, Hkv=1, Nq=40, Nk=61, D=D, e=(61, K), f=(61, K))
    compare("linformer", {}, t | {"e": t["e"] / 4, "f": t["f"] / 4}, peer)


@pytest.mark.parametrize("length", [61, 80], ids=["whole", "first-rows"])
def test_xformers(length):
    pytest.importorskip("xformers.components.attention.linformer")
    t = learned(e=(length, K), f=(length, K))
    # It pads queries as it pads keys.
    t["q"] = qkv(B=B, H=H, Nq=61, D=D, seed=3)["q"]
    compare("linformer", {}, t, public.linformer_xformers(length, K))


class Projection(torch.nn.Module):
    """nn.Linear with given tensors."""

    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


def of_heads(q, k, v, make, mask=None):
    """Every head of linformer-pytorch alone. It writes its mask into k and v."""
    public_head = pytest.importorskip("linformer_pytorch.linformer_pytorch").LinearAttentionHead
    return torch.stack([
        public_head(D, 0.0, *make(h), causal_mask=None)(
            q[:, h], k[:, h].clone(), v[:, h].clone(), input_mask=mask)
        for h in range(q.shape[1])], dim=1)


@pytest.mark.parametrize("lengths", [None, [61, 17]], ids=["full", "padded"])
def test_heads_of_linformer_pytorch(lengths):
    """Its projections have a bias, ours e_bias and f_bias, and here one for each head."""
    pytest.importorskip("linformer_pytorch")
    mask = torch.arange(61) < torch.tensor(lengths)[:, None] if lengths else None
    fixed = {"kv_lengths": np.int32(lengths)} if lengths else None

    def peer(q, k, v, e, f, e_bias, f_bias):
        return of_heads(q, k, v, lambda h: (Projection(e[h].T, e_bias[h]),
                                            Projection(f[h].T, f_bias[h])), mask)

    compare("linformer", {}, learned(e=(H, 61, K), f=(H, 61, K), e_bias=(H, K), f_bias=(H, K)),
            peer, fixed)


def test_one_projection_for_keys_and_values():
    pytest.importorskip("linformer_pytorch")

    def peer(q, k, v, e, e_bias):
        shared = Projection(e.T, e_bias)
        return of_heads(q, k, v, lambda h: (shared, shared))

    t = learned(e=(61, K), e_bias=(K,))
    compare("linformer", {"sharing": "kv"}, t, peer,
            tied={"e_bias": {"e_bias": (K,), "f_bias": (K,)}})


def test_convolution():
    """The length is a multiple of the width here: the peer would drop the rest."""
    conv = pytest.importorskip("linformer_pytorch.linformer_pytorch").get_EF(
        60, 12, "convolution", D)
    assert conv.kernel_size == conv.stride == (5,)

    def convolution(weight, bias):
        return lambda x: F.conv1d(x, weight, bias, stride=conv.stride)

    def peer(q, k, v, conv_weight_k, conv_bias_k, conv_weight_v, conv_bias_v):
        return of_heads(q, k, v, lambda h: (convolution(conv_weight_k, conv_bias_k),
                                            convolution(conv_weight_v, conv_bias_v)))

    t = qkv(B=B, H=H, Nq=40, Nk=60, D=D, conv_weight_k=(D, D, 5), conv_bias_k=(D,),
            conv_weight_v=(D, D, 5), conv_bias_v=(D,))
    for name in ("conv_weight_k", "conv_weight_v"):
        t[name] /= 8
    compare("linformer", {"projection": "conv"}, t, peer)
