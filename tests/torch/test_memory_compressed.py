"""memory_compressed against memory-compressed-attention, whose convolution serves keys and values
and whose scale is that of the model's width. Block-local layers are PyTorch's attention with a
mask."""

import pytest
import torch
import torch.nn.functional as F

from tests.torch import public
from tests.torch.compared import compare, qkv

B, H, D = 2, 3, 16


def learned(N, f):
    t = qkv(B=B, H=H, Nq=N, D=D, conv_wk=(H, D, D, f), conv_bk=(H, D), null_k=(H, D),
            null_v=(H, D))
    t["conv_wk"] *= (D * f) ** -0.5
    return t


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("N, f", [(60, 3), (61, 3), (62, 3), (61, 7), (5, 9), (40, 1)])
def test_memory_compressed(N, f, causal):
    pytest.importorskip("memory_compressed_attention")
    options = {"share_conv": True, "scale": (H * D) ** -0.5, "causal": causal}
    cells = -(-N // f)
    ends = [(c + 1) * f - 1 - (cells * f - N) for c in range(cells)]
    pairs = sum(1 + (sum(end <= i for end in ends) if causal else cells) for i in range(N))
    compare("memory_compressed", options, learned(N, f), public.memory_compressed(H, D, f, causal),
            pairs=B * H * pairs)


@pytest.mark.parametrize("causal", [False, True])
def test_blocks(causal):
    block = torch.arange(61) // 20
    mask = block[:, None] == block
    if causal:
        mask = mask.tril()

    def peer(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    compare("memory_compressed", {"layer": "local", "block": 20, "causal": causal},
            qkv(B=B, H=H, Nq=61, D=D), peer, pairs=B * H * int(mask.sum()))
