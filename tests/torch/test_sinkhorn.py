"""sinkhorn against sinkhorn-transformer, where its results are those of the paper. Without SortCut
its sorted values are made from the sorted keys: one tensor stands for both here. Its causal form
rotates the second half of the heads: only the first half counts. It draws noise in any case, and
takes means over padding, so that lengths have no peer."""

import numpy as np
import pytest
import torch

from tests.torch import public
from tests.torch.compared import compare, normal

pytest.importorskip("sinkhorn_transformer")
B, H, D, N, BLOCK = 2, 3, 16, 48, 8
BLOCKS = N // BLOCK


def check_tied(options, more, noise=None, n_k=N, **settings):
    """With the keys as values, which the peer has in mind."""
    module = public.sinkhorn(H, D, N, BLOCK, **settings)
    kv = (B, H, n_k, D)
    given = None if noise is None else torch.tensor(noise.astype(np.float64))

    def peer(q, kv, **others):
        return module(q, kv, kv, noise=given, **others)

    fixed = {} if noise is None else {"gumbel_noise": noise}
    compare("sinkhorn", {"block_size": BLOCK} | options, normal(1, q=(B, H, N, D), kv=kv) | more,
            peer, fixed, tied={"kv": {"k": kv, "v": kv}})


def gumbel(columns=BLOCKS):
    return np.random.default_rng(2).gumbel(size=(B, H, BLOCKS, columns)).astype(np.float32)


@pytest.mark.parametrize("iters, temperature", [(7, 0.75), (5, 1.5), (1, 0.75)])
def test_sinkhorn(iters, temperature):
    check_tied({"gumbel": True, "iters": iters, "temperature": temperature}, {}, gumbel(),
               non_permutative=False, sinkhorn_iter=iters, temperature=temperature)


def test_without_noise():
    check_tied({}, {}, non_permutative=False)


def test_linear_sort_net():
    weight = normal(3, sort_w=(H, 2 * D, BLOCKS))
    check_tied({"gumbel": True, "sort_net": "linear", "temperature": 2.0}, weight, gumbel(),
               non_permutative=False, use_simple_sort_net=True, temperature=2.0)


@pytest.mark.parametrize("n_top", [1, 2, 5, 50])
def test_topk(n_top):
    check_tied({"sort": "topk", "n_top": n_top}, {}, n_top_buckets=n_top)


def test_blocks_of_keys():
    """No local block where there are more blocks of keys than of queries."""
    check_tied({"sort": "topk", "n_top": 2, "kv_block_size": 4}, {}, n_k=32, kv_bucket_size=4,
               n_top_buckets=2)


def qkv(seed, **shapes):
    return normal(seed, q=(B, H, N, D), k=(B, H, N, D), v=(B, H, N, D), **shapes)


@pytest.mark.parametrize("n", [1, 2, 6])
def test_sortcut_of_the_best_blocks(n):
    peer = public.sinkhorn(H, D, N, BLOCK, n_sortcut=n)
    compare("sinkhorn", {"block_size": BLOCK, "sortcut": n, "sort": "topk", "local": True}, qkv(4),
            peer)


@pytest.mark.parametrize("n_top, temperature", [(2, 1.0), (1, 1.0), (3, 0.6)])
def test_causal(n_top, temperature):
    """Every head beside a copy of it, which is left out."""
    module = public.sinkhorn(2 * H, D, N, BLOCK, causal=True, n_top_buckets=n_top,
                             temperature=temperature)

    def peer(**leaves):
        twice = {name: torch.cat([x, x], 0 if name.startswith("null") else 1)
                 for name, x in leaves.items()}
        return module(**twice)[:, :H]

    compare("sinkhorn", {"block_size": BLOCK, "causal": True, "n_top": n_top,
                         "temperature": temperature}, qkv(6, null_k=(H, D), null_v=(H, D)), peer)
