"""flex_attention against softmax, local and random: all terms of the common core."""

import numpy as np
import pytest
import torch

from tests.torch.flex import Case


def everything(at):
    return at.j >= 0


def window(left, right):
    return lambda at: (at.j >= at.p - left) & (at.j <= at.p + right)


def look(block, back, ahead):
    return lambda at: ((at.j // block >= at.p // block - back)
                       & (at.j // block <= at.p // block + ahead))


def int32(*values):
    return np.array(values, np.int32)


def random_keys(*shape, Nk, seed=3):
    """Some entries are not keys: below 0 or beyond Nk."""
    return np.random.default_rng(seed).integers(-2, Nk + 2, shape, dtype=np.int32)


def counts(keys, Nk):
    """[...,Nq,Nk] how often a row lists a key."""
    return torch.tensor((keys[..., None] == np.arange(Nk)).sum(-2))


def random_case(id, options, keys, Nk, **more):
    listed = counts(keys, Nk).expand(more["sizes"]["B"], more["sizes"]["H"], -1, -1)
    if options.get("duplicates") == "multiset":
        more["weight"] = lambda at: torch.log(listed[at.b, at.h, at.i, at.j].clamp(min=1))
    own = options.get("include_self", False)
    return Case(id, "random", options, lambda at:
                (listed[at.b, at.h, at.i, at.j] > 0) | (own & (at.j == at.p)),
                fixed={"rand_keys": keys} | more.pop("fixed", {}), **more)


ALL_TERMS = {"bias": (1, 4, 61, 73), "alibi_slopes": (2, 4), "sink_logits": (4,)}
GQA = {"B": 2, "H": 4, "Hkv": 2}
LENGTHS = {"q_lengths": int32(61, 20), "kv_lengths": int32(40, 73)}
SEGMENTS = {
    "segment_ids_q": np.repeat([[0, 1, -1], [5, 0, 3]], [20, 21, 20], axis=1).astype(np.int32),
    "segment_ids_kv": np.repeat([[0, 1, -1], [5, 5, 3]], [33, 20, 20], axis=1).astype(np.int32),
}
# The second sequence has queries only, the third keys only.
PACKED = {"cu_seqlens_q": int32(0, 20, 31, 31, 61), "cu_seqlens_k": int32(0, 20, 20, 40, 73)}

CASES = [
    Case("full", "softmax", {}, everything, {"D": 64, "Nq": 129}),
    Case("causal-more-keys", "softmax", {"causal": True}, everything, {"Nq": 30, "Nk": 50}),
    # The first 20 rows see nothing: out 0, lse -inf.
    Case("causal-more-queries", "softmax", {"causal": True}, everything, {"Nq": 50, "Nk": 30}),
    Case("gqa-dv-scale", "softmax", {"scale": 0.4}, everything, GQA | {"D": 24, "Dv": 7}),
    Case("soft-cap", "softmax", {"logit_softcap": 1.5}, everything, GQA),
    Case("bias-of-all-heads", "softmax", {}, everything, {"B": 2, "bias": (2, 1, 37, 37)}),
    Case("standard-slopes-6-heads", "softmax", {"alibi": True}, everything, {"H": 6}),
    Case("slopes-causal", "softmax", {"causal": True}, everything, {"H": 3, "alibi_slopes": (3,)}),
    Case("sinks", "softmax", {"causal": True}, everything,
         {"Nq": 40, "Nk": 30, "sink_logits": (2,)}),
    # flex_attention prescribes no order of cap, bias and slopes: score_mod is written here.
    Case("all-terms", "softmax", {"logit_softcap": 2.0, "causal": True}, everything,
         GQA | {"Nq": 61, "Nk": 73} | ALL_TERMS, LENGTHS),
    Case("offsets", "softmax", {"causal": True}, everything, {"B": 3, "Nq": 40, "Nk": 50},
         {"causal_offset": int32(-20, 3, 49)}),
    Case("segments", "softmax", {"causal": True}, everything, {"B": 2, "Nq": 61, "Nk": 73},
         SEGMENTS),
    Case("packed", "softmax", {"causal": True}, everything,
         {"H": 4, "Hkv": 2, "Nq": 61, "Nk": 73, "bias": (4, 61, 73), "sink_logits": (4,)}, PACKED),
    Case("causal", "local", {"window_left": 5, "causal": True}, window(5, 0), {"Nq": 130}),
    Case("both-sides", "local", {"window_left": 9, "window_right": 2}, window(9, 2), {"Nq": 130}),
    Case("unlimited-left", "local", {"window_left": -1, "window_right": 3}, window(10**6, 3)),
    Case("all-terms", "local", {"window_left": 20, "window_right": 5, "logit_softcap": 2.0},
         window(20, 5), GQA | {"Nq": 61, "Nk": 73} | ALL_TERMS, LENGTHS),
    Case("offsets", "local", {"window_left": 4}, window(4, 4), {"B": 3, "Nq": 40, "Nk": 50},
         {"causal_offset": int32(-20, 3, 49)}),
    Case("segments", "local", {"window_left": 9}, window(9, 9), {"B": 2, "Nq": 61, "Nk": 73},
         SEGMENTS),
    Case("packed", "local", {"window_left": 7, "causal": True}, window(7, 0),
         {"Nq": 61, "Nk": 73}, PACKED),
    Case("block", "local", {"granularity": "block", "block": 8}, look(8, 1, 1), {"Nq": 61}),
    # Negative positions: blocks are floor divisions.
    Case("block-more-queries", "local", {"granularity": "block", "block": 7, "look_forward": 2},
         look(7, 1, 2), {"Nq": 61, "Nk": 40}),
    Case("block-causal", "local", {"granularity": "block", "block": 8, "look_backward": 2,
                                   "causal": True}, look(8, 2, 0), {"Nq": 61, "Nk": 73}),
    Case("block-packed", "local", {"granularity": "block", "block": 6}, look(6, 1, 1),
         {"Nq": 61, "Nk": 73}, PACKED),
    random_case("per-head", {}, random_keys(4, 61, 5, Nk=73), 73, sizes=GQA | {"Nq": 61, "Nk": 73}),
    random_case("by-row", {"causal": True}, random_keys(2, 1, 61, 9, Nk=61), 61,
                sizes=GQA | {"Nq": 61}),
    random_case("multiset", {"duplicates": "multiset"}, random_keys(1, 61, 20, Nk=9), 9,
                sizes=GQA | {"Nq": 61, "Nk": 9, "sink_logits": (4,)}),
    random_case("with-self", {"include_self": True}, random_keys(4, 61, 3, Nk=50), 50,
                sizes=GQA | {"Nq": 61, "Nk": 50}),
    random_case("all-terms", {"logit_softcap": 2.0, "causal": True},
                random_keys(4, 61, 9, Nk=73), 73,
                sizes=GQA | {"Nq": 61, "Nk": 73} | ALL_TERMS, fixed=LENGTHS),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.method}-{case.id}")
def test_flex_attention(case):
    case.run()
