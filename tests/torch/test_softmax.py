"""softmax against PyTorch's scaled_dot_product_attention and the eager attention of transformers'
gpt-oss (sinks), Gemma 2 (soft cap) and BLOOM (ALiBi). None of these returns an lse."""

import math
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right

from tests.torch.compared import TOLERANCE, compare, qkv

GQA = {"B": 2, "H": 6, "Hkv": 2}


def bottom_right(Nq, Nk):
    """Bool [Nq,Nk]. is_causal of PyTorch aligns at the top left."""
    return torch.ones(Nq, Nk, dtype=torch.bool).tril(Nk - Nq)


def additive(mask):
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -math.inf)


@pytest.mark.parametrize("Nq, Nk", [(37, 37), (30, 50), (50, 30), (1, 65), (129, 129)])
def test_causal(Nq, Nk):
    """With more queries than keys the first rows see nothing: PyTorch zeroes them, too."""
    compare("softmax", {"causal": True}, qkv(**GQA, Nq=Nq, Nk=Nk, D=24),
            lambda q, k, v: F.scaled_dot_product_attention(
                q, k, v, attn_mask=bottom_right(Nq, Nk), enable_gqa=True),
            pairs=2 * 6 * int(bottom_right(Nq, Nk).sum()))


def test_causal_lower_right():
    # The bias object has a special kernel only for as many heads of keys as of queries.
    compare("softmax", {"causal": True}, qkv(Nq=30, Nk=50),
            lambda q, k, v: F.scaled_dot_product_attention(
                q, k, v, attn_mask=causal_lower_right(30, 50)))


@pytest.mark.parametrize("shape", [(2, 6, 40, 50), (1, 6, 1, 50), (2, 1, 40, 50), (40, 50)])
def test_bias(shape):
    """Its gradient is summed over broadcast dimensions on both sides."""
    compare("softmax", {"scale": 0.3}, qkv(**GQA, Nq=40, Nk=50, Dv=9, bias=shape),
            lambda q, k, v, bias: F.scaled_dot_product_attention(
                q, k, v, attn_mask=bias, scale=0.3, enable_gqa=True))


def test_lengths():
    lengths = {"kv_lengths": np.int32([50, 13, 0]), "q_lengths": np.int32([40, 40, 7])}
    keys, rows = (torch.arange(n) < torch.tensor(lengths[name])[:, None]
                  for n, name in ((50, "kv_lengths"), (40, "q_lengths")))
    mask = rows[:, None, :, None] & keys[:, None, None, :]
    compare("softmax", {}, qkv(B=3, H=4, Hkv=2, Nq=40, Nk=50),
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask,
                                                           enable_gqa=True), lengths)


# --- transformers ---


def module(**fields):
    return types.SimpleNamespace(training=False, num_key_value_groups=3, **fields)


@pytest.mark.parametrize("Nq, Nk", [(37, 37), (30, 50), (50, 30)])
def test_gpt_oss(Nq, Nk):
    """Learned sinks. Rows that see nothing give all their weight to the sink: zeros."""
    eager = pytest.importorskip(
        "transformers.models.gpt_oss.modeling_gpt_oss").eager_attention_forward

    def peer(q, k, v, sink_logits):
        mask = additive(bottom_right(Nq, Nk))
        out, _ = eager(module(sinks=sink_logits), q, k, v, mask, 16**-0.5)
        return out.transpose(1, 2)

    compare("softmax", {"causal": True}, qkv(**GQA, Nq=Nq, Nk=Nk, sink_logits=(6,)), peer)


def test_gemma_2():
    """Cap, then mask. The peer's softmax is float32 for any inputs, which makes its own
    roundings as many as ours."""
    eager = pytest.importorskip(
        "transformers.models.gemma2.modeling_gemma2").eager_attention_forward

    def peer(q, k, v):
        out, _ = eager(module(), q, k, v, additive(bottom_right(40, 50)), scaling=0.25, softcap=1.5)
        return out.transpose(1, 2)

    compare("softmax", {"causal": True, "scale": 0.25, "logit_softcap": 1.5},
            qkv(**GQA, Nq=40, Nk=50), peer, tolerance=2 * TOLERANCE)


@pytest.mark.parametrize("H", [8, 6, 3])
def test_bloom_slopes(H):
    """`alibi` alone: the standard slopes, also for heads that are no power of two. BLOOM's term is
    slope * j without -slope * p, which moves the lse of a causal row and not its weights."""
    build = pytest.importorskip("transformers.models.bloom.modeling_bloom").build_alibi_tensor
    bias = build(torch.ones(1, 45), H, torch.float64).reshape(1, H, 1, 45)
    compare("softmax", {"causal": True, "alibi": True}, qkv(H=H, Nq=45),
            lambda q, k, v: F.scaled_dot_product_attention(
                q, k, v, attn_mask=bias + additive(bottom_right(45, 45))))
