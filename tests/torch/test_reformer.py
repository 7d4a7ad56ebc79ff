"""reformer against reformer-pytorch and transformers, with the rotations that they draw.

Both count a key once for each slot that shows it (dedup false), unless reformer-pytorch is told
not to; then it also counts pairs of a chunk that wraps into another round, where it adds 20.7 to
their scores, so that with it other buckets are hidden. Both count chunks over N: their sequences
are full."""

import pytest
import torch

from tests.torch import public
from tests.torch.compared import compare, qkv

B, H, D, SEED = 2, 3, 16, 5


def tensors(N):
    t = qkv(B=B, H=H, Nq=N, D=D)
    del t["k"]
    return t


def rotations(*shape):
    """Drawn as float64, as the peers do on float64."""
    return {"rotations": public.reformer_rotations(SEED, shape, torch.float64).float().numpy()}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_hashes", [1, 4])
def test_reformer_pytorch(n_hashes, causal):
    pytest.importorskip("reformer_pytorch")
    N, chunk = 96, 8
    options = {"chunk_len": chunk, "n_hashes": n_hashes, "n_buckets": [N // chunk], "dedup": False,
               "key_norm": "unit", "causal": causal}
    peer = public.reformer(chunk, n_hashes, SEED, causal=causal)
    compare("reformer", options, tensors(N), peer, rotations(1, D, n_hashes, N // chunk // 2))


@pytest.mark.parametrize("dedup", [False, True])
def test_reformer_pytorch_within_buckets(dedup):
    pytest.importorskip("reformer_pytorch")
    N, chunk, n_hashes = 64, 8, 3
    options = {"chunk_len": chunk, "n_hashes": n_hashes, "n_buckets": [N // chunk], "dedup": dedup,
               "key_norm": "unit", "attend_across_buckets": False}
    peer = public.reformer(chunk, n_hashes, SEED, allow_duplicate_attention=not dedup,
                           attend_across_buckets=False)
    compare("reformer", options, tensors(N), peer, rotations(1, D, n_hashes, N // chunk // 2))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("before, after", [(1, 0), (1, 1), (2, 0)])
@pytest.mark.parametrize("n_buckets", [12, [4, 6]], ids=str)
def test_transformers(n_buckets, before, after, causal):
    pytest.importorskip("transformers.models.reformer.modeling_reformer")
    N, chunk, n_hashes = 96, 8, 2
    factors = n_buckets if isinstance(n_buckets, list) else [n_buckets]
    options = {"chunk_len": chunk, "n_hashes": n_hashes, "n_buckets": factors, "dedup": False,
               "chunks_before": before, "chunks_after": after, "causal": causal}
    peer = public.reformer_transformers(H, D, chunk, n_hashes, n_buckets, SEED, before, after,
                                        causal)
    compare("reformer", options, tensors(N), peer, rotations(H, D, n_hashes, sum(factors) // 2))
