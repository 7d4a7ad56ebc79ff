"""softmax, local, random and axial against xformers 0.0.28, the last release with `components`. It
is installed without its C++ extension, which needs one certain release of PyTorch: masks of
fmha.attn_bias are materialised, components compute densely."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.torch.compared import compare, qkv

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    components = pytest.importorskip("xformers.components.attention")
    patterns = pytest.importorskip("xformers.components.attention.attention_patterns")
    bias = pytest.importorskip("xformers.ops.fmha.attn_bias")
# Sparse masks are the extension's: without it their type has no name and masks must stay dense.
components.core.SparseCS = components._sputnik_sparse.SparseCS
components.local.maybe_sparsify = components.random.maybe_sparsify = lambda mask: mask
GQA = {"B": 2, "H": 4, "Hkv": 2}


def check(method, options, mask, sizes, fixed=None):
    """`mask`: bool [Nq,Nk]."""
    B, H = sizes.get("B", 1), sizes["H"]
    compare(method, options, qkv(**sizes),
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask,
                                                           enable_gqa=True),
            fixed, pairs=B * H * int(mask.sum()))


def shown(mask, Nq, Nk):
    return mask.materialize((Nq, Nk)) == 0


def component(module):
    """Components take [B*H,N,D]."""

    def peer(q, k, v):
        return module(*(x.flatten(0, 1) for x in (q, k, v))).unflatten(0, q.shape[:2])

    return peer


# --- fmha.attn_bias ---


@pytest.mark.parametrize("Nq, Nk", [(61, 61), (40, 61), (61, 40)])
class TestMasks:
    def test_causal(self, Nq, Nk):
        check("softmax", {"causal": True},
              shown(bias.LowerTriangularFromBottomRightMask(), Nq, Nk), GQA | {"Nq": Nq, "Nk": Nk})

    def test_window(self, Nq, Nk):
        mask = bias.LocalAttentionFromBottomRightMask(window_left=9, window_right=3)
        check("local", {"window_left": 9, "window_right": 3}, shown(mask, Nq, Nk),
              GQA | {"Nq": Nq, "Nk": Nk})

    def test_causal_window(self, Nq, Nk):
        """Its window counts the query's own key."""
        mask = bias.LowerTriangularFromBottomRightMask().make_local_attention(8)
        check("local", {"window_left": 7, "causal": True}, shown(mask, Nq, Nk),
              GQA | {"Nq": Nq, "Nk": Nk})


QUERIES, KEYS = [20, 11, 30], [20, 33, 30]
PACKED = {"cu_seqlens_q": np.cumsum([0, *QUERIES], dtype=np.int32),
          "cu_seqlens_k": np.cumsum([0, *KEYS], dtype=np.int32)}
PACKED_SIZES = {"H": 4, "Hkv": 2, "Nq": 61, "Nk": 83}


def test_packed():
    mask = bias.BlockDiagonalMask.from_seqlens(QUERIES, KEYS)
    check("softmax", {}, shown(mask, 61, 83), PACKED_SIZES, PACKED)


def test_packed_causal():
    mask = bias.BlockDiagonalMask.from_seqlens(QUERIES, KEYS).make_causal_from_bottomright()
    check("softmax", {"causal": True}, shown(mask, 61, 83), PACKED_SIZES, PACKED)


def test_packed_causal_window():
    mask = bias.BlockDiagonalMask.from_seqlens(QUERIES, KEYS).make_local_attention_from_bottomright(
        8)
    check("local", {"window_left": 7, "causal": True}, shown(mask, 61, 83), PACKED_SIZES, PACKED)


# --- components ---


@pytest.mark.parametrize("w", [1, 7, 31])
def test_local(w):
    compare("local", {"window_left": (w - 1) // 2}, qkv(B=2, H=3, Nq=61),
            component(components.LocalAttention(window_size=w)))


@pytest.mark.parametrize("w", [1, 6, 31])
def test_local_causal(w):
    """One key more than the bidirectional form: window_left = w, not w - 1."""
    compare("local", {"window_left": w, "causal": True}, qkv(B=2, H=3, Nq=61),
            component(components.LocalAttention(window_size=w, causal=True)))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_random(causal):
    """A Bernoulli mask shared by all heads and rows of the batch, read after the first call. Under
    a causal one rows are empty, which is undefined there: their own key is added."""
    torch.manual_seed(1)
    module = components.RandomAttention(0.0, causal=causal, r=0.2, constant_masking=True)
    module(*(torch.zeros(1, 61, 16) for _ in "qkv"))
    mask = module.rand_attention_mask
    if causal:
        mask |= torch.eye(61, dtype=torch.bool)
    assert mask.any(-1).all()
    # Unused slots are -1.
    most = int(mask.sum(-1).max())
    keys = np.full((1, 61, most), -1, np.int32)
    for row, seen in enumerate(mask):
        listed = torch.nonzero(seen)[:, 0]
        keys[0, row, : len(listed)] = listed
    compare("random", {"causal": causal}, qkv(B=2, H=3, Nq=61), component(module),
            {"rand_keys": keys}, pairs=6 * int(mask.sum()))


@pytest.mark.parametrize("grid", [(5, 9), (3, 4, 5)], ids=["5x9", "3x4x5"])
def test_axial(grid):
    mask = patterns.axial_nd_pattern(*grid)
    check("axial", {"grid": list(grid), "mode": "union"}, mask,
          GQA | {"Nq": torch.Size(grid).numel()})
