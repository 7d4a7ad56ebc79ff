"""local and sparse_fixed against the masks that transformers builds for its models, through
scaled_dot_product_attention."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.torch.compared import compare, qkv

masks = pytest.importorskip("transformers.masking_utils")
GQA = {"B": 2, "H": 4, "Hkv": 2}


def check(method, options, function, Nq, Nk, q_offset=0, fixed=None, padding=None):
    mask = masks.sdpa_mask(2, Nq, Nk, q_offset, mask_function=function, attention_mask=padding,
                           allow_is_causal_skip=False)
    compare(method, options, qkv(**GQA, Nq=Nq, Nk=Nk),
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask,
                                                           enable_gqa=True),
            fixed, pairs=4 * int(mask.expand(2, 1, Nq, Nk).sum()))


@pytest.mark.parametrize("W", [1, 7, 64, 200])
def test_causal_window(W):
    """W keys with the query's own: window_left = W - 1."""
    check("local", {"window_left": W - 1, "causal": True},
          masks.sliding_window_causal_mask_function(W), 130, 130)


def test_window_of_a_cached_prefill():
    check("local", {"window_left": 11, "causal": True},
          masks.sliding_window_causal_mask_function(12), 30, 80, q_offset=50)


def test_window_over_a_buffer_that_is_not_full():
    """Of 80 keys 50 are written; queries are 20..49. The offset is sent, as it is not Nk - Nq."""
    check("local", {"window_left": 11, "causal": True},
          masks.sliding_window_causal_mask_function(12), 30, 80, q_offset=20,
          fixed={"causal_offset": np.int32([20, 20]), "kv_lengths": np.int32([50, 50])},
          padding=torch.arange(80).expand(2, 80) < 50)


@pytest.mark.parametrize("W", [1, 7, 64, 200])
def test_bidirectional_window(W):
    """Distances up to and with W: window_left = window_right = W."""
    check("local", {"window_left": W},
          masks.sliding_window_bidirectional_mask_function(W), 130, 130)


def test_window_inside_padding():
    """The window of the last rows holds padding only: zeros, where a finite mask gives the mean."""
    check("local", {"window_left": 5, "window_right": 5},
          masks.sliding_window_bidirectional_mask_function(5), 60, 60,
          fixed={"kv_lengths": np.int32([30, 60])},
          padding=torch.arange(60) < torch.tensor([[30], [60]]))


@pytest.mark.parametrize("chunk", [8, 13])
def test_chunks(chunk):
    """Llama 4's chunks: blocks that do not look back, the segments of sparse_fixed."""
    function = masks.chunked_causal_mask_function(chunk, torch.zeros(2, dtype=torch.int64))
    check("local", {"granularity": "block", "block": chunk, "look_backward": 0, "causal": True},
          function, 61, 61)
    check("sparse_fixed", {"stride": chunk, "summary": 1, "part": "segment", "causal": True},
          function, 61, 61)


def test_packed_sequences():
    ids = torch.tensor(np.repeat([[0, 1, 2], [4, 0, 3]], [20, 11, 30], axis=1))
    segments = ids.numpy().astype(np.int32)
    check("local", {"window_left": 6, "causal": True},
          masks.and_masks(masks.sliding_window_causal_mask_function(7),
                          masks.packed_sequence_mask_function(ids)), 61, 61,
          fixed={"segment_ids_q": segments, "segment_ids_kv": segments})
