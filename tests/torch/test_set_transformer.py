"""set_transformer against isab-pytorch, which has no residual; its heads are 64 wide. Pooling by
seeds is PyTorch's attention of the seeds."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.torch import public
from tests.torch.compared import compare, qkv

B, H, D, M = 2, 3, 64, 7


def learned(Nq=40, Nk=61, **shapes):
    t = qkv(B=B, H=H, Nq=Nq, Nk=Nk, D=D, inducing=(H, M, D), **shapes)
    for name in ("w_k2", "w_v2"):
        if name in t:
            t[name] *= (H * D) ** -0.5
    return t


def test_isab():
    pytest.importorskip("isab_pytorch")
    compare("set_transformer", {}, learned(), public.isab(H, M), pairs=B * H * M * (40 + 61))


def test_isab_of_one_set():
    """As in the module: queries, keys and values are one tensor."""
    pytest.importorskip("isab_pytorch")
    peer = public.isab(H, M)
    t = learned(61, 61)
    one = {name: t[name] for name in ("q", "inducing")}
    shape = t["q"].shape
    compare("set_transformer", {}, one, lambda q, inducing: peer(q, q, q, inducing),
            tied={"q": {"q": shape, "k": shape, "v": shape}})


def test_weights():
    pytest.importorskip("isab_pytorch")
    wide = (H * D, H * D)
    compare("set_transformer", {}, learned(w_k2=wide, w_v2=wide), public.isab(H, M))


def test_lengths():
    """More queries than keys: all of them are valid."""
    pytest.importorskip("isab_pytorch")
    lengths = np.array([17, 61], np.int32)
    peer, mask = public.isab(H, M), torch.arange(61) < torch.tensor(lengths)[:, None]
    compare("set_transformer", {}, learned(), lambda **t: peer(**t, mask=mask),
            {"kv_lengths": lengths})


def test_seeds():
    t = qkv(B=B, H=4, Hkv=2, Nq=61, D=16, Dv=12, seeds=(4, 5, 16), bias=(B, 1, 1, 61))
    del t["q"]

    def peer(k, v, seeds, bias):
        k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
        return F.scaled_dot_product_attention(seeds.expand(B, -1, -1, -1), k, v, attn_mask=bias)

    compare("set_transformer", {"mode": "pma"}, t, peer)
