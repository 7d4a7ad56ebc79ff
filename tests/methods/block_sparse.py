"""Blocks that a layout switches on: oracle in float64 from the pattern specification (Common core,
block_sparse), cases, golden sums, refusals."""

import dataclasses

import numpy as np

from tests.methods.cases import ALL, Case
from tests.methods.golden import pattern_golden
from tests.methods.method import Growth, Visible
from tests.methods.pattern_core import PatternOracle
from tests.methods.pattern_method import pattern_method
from tests.methods.random import counted
from tests.methods.refused import INT, Refused, zeros


def counts(o, Nq, Nk):
    """The numbers of query blocks and of key blocks."""
    return -(-Nq // o.get("block_q", 64)), -(-Nk // o.get("block_k", 64))


def from_lists(indptr, indices, nbk):
    """[H or 1,nbq,nbk] how often each block is listed."""
    count = np.zeros((len(indptr), indptr.shape[1] - 1, nbk), int)
    for h, ends in enumerate(indptr):
        for t in range(len(ends) - 1):
            np.add.at(count[h, t], indices[ends[t]:ends[t + 1]], 1)
    return count


def sees(seq):
    nbk = counts(seq.o, seq.Nq, seq.Nk)[1]
    if "layout" in seq.t:
        layout = seq.t["layout"]
        on = (layout[seq.b] if layout.ndim == 4 else layout) != 0
    else:
        on = from_lists(seq.t["indptr"], seq.t["indices"], nbk)
    own = seq.i // seq.o.get("block_q", 64)
    return counted(on[:, own, seq.j // seq.o.get("block_k", 64)].astype(int), seq.o)


def tiles(bq, bk, **more):
    return {"block_q": bq, "block_k": bk} | more


def layout(heads="H", share=0.4):
    """Marks a share of all blocks, with random numbers other than 0."""
    def make(rng, case):
        shape = (*case.shape_of(heads), *counts(case.options, case.Nq, case.keys))
        return np.where(rng.random(shape) < share, rng.integers(1, 256, shape), 0).astype(np.uint8)
    return {"layout": make}


def band(rng, case):
    """Each row of blocks and those before and after it."""
    nbq, nbk = counts(case.options, case.Nq, case.keys)
    return (abs(np.arange(nbq)[:, None] - np.arange(nbk)) <= 1).astype(np.uint8)[None]


def lists(heads="H", most=4):
    """Up to `most` blocks for each row, some of them twice, in no order."""
    def pattern(case):
        rng = np.random.default_rng(case.Nq + 1000 * case.keys)
        nbq, nbk = counts(case.options, case.Nq, case.keys)
        sizes = rng.integers(0, most + 1 if nbk else 1, (*case.shape_of(heads), nbq))
        sums = np.concatenate([[0], sizes.cumsum()])
        starts = np.arange(len(sizes))[:, None] * nbq + np.arange(nbq + 1)
        return sums[starts].astype(INT), rng.integers(0, max(nbk, 1), sums[-1]).astype(INT)
    return {"indptr": lambda rng, case: pattern(case)[0],
            "indices": lambda rng, case: pattern(case)[1]}


def fit_options(case):
    """The layout that a request needs."""
    if case.made.keys() & {"layout", "indptr"}:
        return case
    return dataclasses.replace(case, made=case.made | {"layout": band})


MULTISET = {"duplicates": "multiset"}


def checkers(rng, case):
    """The blocks (t + c + h) mod 2."""
    nbq, nbk = counts(case.options, case.Nq, case.keys)
    t, c = np.arange(nbq)[:, None], np.arange(nbk)
    return ((t + c + np.arange(case.H)[:, None, None]) % 2).astype(np.uint8)


SHAPES = "layout shape must be [H,nbq,nbk] or [1,nbq,nbk] or [B,H,nbq,nbk] or [B,1,nbq,nbk]"
WITH_LISTS = {"layout": None, "indptr": np.array([[0, 1]], INT), "indices": np.array([0], INT)}


def of_lists(indptr, indices):
    return {"layout": None, "indptr": np.array(indptr, INT), "indices": np.array(indices, INT)}


def on(*shape):
    return {"layout": np.ones(shape, np.uint8)}


METHOD = pattern_method(
    id="block_sparse",
    oracle=PatternOracle(sees),
    options={"block_q": "int", "block_k": "int"},
    own=("layout", "indptr", "indices"),
    lacks=("packed",),
    good_options={},
    # With N = 6 and 7 and blocks of 64 there is one of each.
    good_tensors={"layout": zeros(1, 1, 1, dtype=np.uint8) + np.uint8(1)},
    plans_pairs=lambda t, o: False,
    peers=[
        "DeepSpeed sparsity_config make_layout, through a dense mask (needs PyTorch)",
        "flex_attention with BlockMask.from_kv_blocks (needs PyTorch)",
        "FlashInfer BlockSparseAttentionWrapper.plan(indptr, indices, ...) (needs a GPU)",
    ],
    fit_options=fit_options,
    cases=[
        Case("b8", dtypes=ALL, B=2, Nq=65, options=tiles(8, 8), made=layout()),
        Case("b16-gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=131, options=tiles(16, 16), made=layout()),
        Case("defaults", H=2, Nq=261, D=8, made=layout()),
        Case("defaults-for-all-heads", H=3, Nq=200, Nk=330, D=8, made=layout("1")),
        Case("b4-b7", Nq=63, options=tiles(4, 7), made=layout()),
        Case("b63-b65", H=1, Nq=200, Nk=131, options=tiles(63, 65), made=layout(share=0.7)),
        Case("b128-b64", H=1, Nq=261, D=8, options=tiles(128, 64), made=layout(share=0.7)),
        Case("b64-b128-causal", H=1, Nq=261, D=8, options=tiles(64, 128, causal=True),
             made=layout(share=0.7)),
        Case("b96-b160", H=2, Nq=200, Nk=330, D=8, options=tiles(96, 160), made=layout(share=0.6)),
        Case("b1", Nq=33, options=tiles(1, 1), made=layout()),
        Case("b1-b64", Nq=33, Nk=200, options=tiles(1, 64), made=layout()),
        Case("b512", Nq=65, options=tiles(512, 512), made=layout(share=1)),
        Case("b512-b3", Nq=65, options=tiles(512, 3), made=layout()),
        Case("default-q", Nq=131, options={"block_k": 5}, made=layout()),
        Case("nothing", Nq=65, options=tiles(8, 8), made=layout(share=0)),
        Case("nothing-with-sinks", Nq=65, options=tiles(8, 8), made=layout(share=0),
             floats={"sink_logits": "H"}),
        Case("all", Nq=65, Nk=70, options=tiles(16, 8), made=layout(share=1)),
        Case("by-row", dtypes=ALL, B=3, H=4, Hkv=2, Nq=65, options=tiles(8, 16),
             made=layout("B,H")),
        Case("by-row-for-all-heads", B=3, H=4, Nq=65, Nk=40, options=tiles(8, 8),
             made=layout("B,1")),
        Case("causal", dtypes=ALL, Nq=131, options=tiles(16, 16, causal=True), made=layout()),
        Case("causal-b5-b11", Nq=65, options=tiles(5, 11, causal=True), made=layout(share=0.8)),
        Case("lists", dtypes=ALL, B=2, H=4, Hkv=2, Nq=131, options=tiles(8, 8), made=lists()),
        Case("lists-for-all-heads", B=2, H=3, Nq=65, Nk=131, options=tiles(16, 8), made=lists("1")),
        Case("lists-causal", Nq=131, options=tiles(10, 7, causal=True), made=lists(most=9)),
        Case("lists-of-64", Nq=200, Nk=261, D=8, made=lists()),
        Case("lists-of-pairs-over-many-tiles", H=2, Hkv=1, Nq=900, D=8, options=tiles(1, 1),
             made=lists(most=12)),
        Case("lists-empty", Nq=65, options=tiles(8, 8), made=lists(most=0)),
        Case("lists-twice", dtypes=ALL, Nq=65, options=tiles(8, 32), made=lists(most=9)),
        Case("multiset", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, options=tiles(8, 32, **MULTISET),
             made=lists(most=9)),
        Case("multiset-of-64", Nq=200, D=8,
             options=MULTISET | {"causal": True, "logit_softcap": 0.8}, made=lists("1", most=9)),
        Case("multiset-layout", Nq=65, options=tiles(8, 8, **MULTISET), made=layout()),
        Case("n1", Nq=1, options=tiles(8, 8), made=layout(share=1)),
        Case("n0", Nq=0, Nk=3, options=tiles(8, 8), made=layout(), grad_lse=False),
        Case("nk0", Nq=3, Nk=0, options=tiles(8, 8), made=layout()),
        Case("nk0-lists", Nq=3, Nk=0, options=tiles(8, 8), made=lists()),
        Case("n0-lists", Nq=0, Nk=3, options=tiles(8, 8), made=lists(), grad_lse=False),
        Case("more-keys-causal", Nq=64, Nk=131, options=tiles(8, 16, causal=True), made=layout()),
        # Blocks count from the first query, positions from the last.
        Case("more-queries", dtypes=ALL, Nq=131, Nk=65, options=tiles(16, 8), made=layout()),
        Case("more-queries-causal", Nq=131, Nk=63, options=tiles(16, 8, causal=True),
             made=layout()),
        Case("offset", B=3, Nq=65, Nk=70, options=tiles(8, 8, alibi=True), made=layout(),
             ints={"causal_offset": (-66, 2, 69)}),
        Case("offset-causal", B=3, Nq=65, Nk=70, options=tiles(8, 8, causal=True),
             made=layout("B,H"), ints={"causal_offset": (-30, 5, 40)}),
        Case("offset-extreme", B=2, Nq=33, options=tiles(8, 8, causal=True), made=layout(),
             ints={"causal_offset": (2**31 - 1, -(2**31))}),
        Case("lengths", dtypes=ALL, B=6, H=1, Nq=131, options=tiles(16, 8), made=layout(),
             ints={"q_lengths": (131, 65, 64, 63, 1, 0), "kv_lengths": (0, 1, 63, 64, 65, 131)}),
        Case("scale-dv", Nq=65, D=5, Dv=33, options=tiles(8, 8, scale=0.7), made=layout()),
        Case("bnhd", B=2, Nq=65, layout="BNHD", options=tiles(8, 8, causal=True), made=layout()),
        Case("strided", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, strided=True, options=tiles(8, 16),
             made=layout()),
        Case("all-terms", dtypes=ALL, B=2, H=4, Hkv=2, Nq=131, Nk=150, D=33, Dv=17,
             options=tiles(16, 32, logit_softcap=3.0), made=layout(),
             floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "H", "sink_logits": "H"},
             ints={"q_lengths": (131, 40), "kv_lengths": (50, 150)}),
        Case("all-terms-lists", B=2, H=4, Hkv=2, Nq=65, strided=True, layout="BNHD",
             options=tiles(8, 8, causal=True, logit_softcap=3.0, **MULTISET), made=lists(most=7),
             floats={"bias": "B,1,1,Nk", "alibi_slopes": "B,H", "sink_logits": "H"}),
        Case("bias-hides", Nq=65, options=tiles(8, 8), made=layout(share=0.7), hidden_bias=True,
             floats={"bias": "1,1,Nq,Nk"}),
        Case("segments", dtypes=ALL, B=2, Nq=131, segments="runs", options=tiles(16, 16),
             made=layout()),
        Case("segments-mixed", B=2, H=4, Nq=131, Nk=65, segments="mixed",
             options=tiles(8, 8, causal=True), made=lists(most=6)),
    ],
    batches=[tiles(8, 8, causal=True), tiles(16, 32), {}],
    tensor_batches=[
        Case("terms", options=tiles(8, 16, logit_softcap=2.0), made=layout(),
             floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "B,H", "sink_logits": "H"}),
        Case("by-row", options=tiles(16, 16), made=layout("B,H")),
        Case("lists", options=tiles(8, 8, **MULTISET), made=lists(most=6)),
        Case("segments", options=tiles(16, 16), made=layout(), segments="mixed"),
    ],
    preset={"layout": "band_layout(Nq, Nk)"},
    perf=[{}, tiles(16, 16)],
    growth=[Growth(tiles(128, 128), 1, 1)],
    # With one head: blocks of even t + c are off.
    visible=[
        Visible("checkers", 16, 16, tiles(4, 4), 128, made={"layout": checkers}),
        Visible("checkers-causal", 16, 16, tiles(4, 4, causal=True), 4 * 16,
                made={"layout": checkers}),
        Visible("short-last-blocks", 6, 7, tiles(4, 4), 4 * 3 + 2 * 4, made={"layout": checkers}),
    ],
    golden=[
        pattern_golden("checkers-of-4", tiles(4, 4), 256, -0.2150976444, -3.5340084985,
                       -1.2785862642, 1.3608362814, 0.2158145835,
                       {"layout": checkers(None, Case("golden", H=2, Nq=16, options=tiles(4, 4)))}),
    ],
    refused=[
        Refused("block-q-0", {"block_q": 0}, ["block_q must be in 1..512, got 0"]),
        Refused("block-k-513", {"block_k": 513}, ["block_k must be in 1..512, got 513"]),
        Refused("block-type", {"block_q": 1.5}, ["block_q must be an integer, got 1.5"]),
        Refused("no-layout", {}, ["layout or indptr with indices is required, got none"],
                change={"layout": None}),
        Refused("both", {}, ["layout must not be sent with indptr, got [1,1,1]"],
                change=WITH_LISTS | on(1, 1, 1)),
        Refused("indptr-alone", {}, ["layout must not be sent with indptr, got [1,1,1]",
                                     "indptr and indices must be sent together, got indptr alone"],
                change={"indptr": np.array([[0, 1]], INT)}),
        Refused("indices-alone", {},
                ["indptr and indices must be sent together, got indices alone"],
                change={"indices": np.array([0], INT)}),
        Refused("layout-rank", {}, [f"{SHAPES}, got [2,2]"], change=on(2, 2)),
        Refused("layout-heads", {}, [f"{SHAPES} with H = 4, got [2,1,1]"], change=on(2, 1, 1)),
        Refused("layout-rows", {}, ["layout shape must be [..,nbq,nbk] with nbq = 1, got [4,2,1]"],
                change=on(4, 2, 1)),
        Refused("layout-columns", tiles(2, 4),
                ["layout shape must be [..,nbq,nbk] with nbk = 2, got [2,4,3,3]"],
                change=on(2, 4, 3, 3)),
        Refused("layout-dtype", {}, ["layout dtype must be uint8, got int32"],
                change={"layout": zeros(1, 1, 1, dtype=INT)}),
        Refused("indptr-rank", {}, ["indptr shape must be [H,n] or [1,n], got [3]"],
                change=of_lists([0, 1, 1], [0])),
        Refused("indptr-heads", {}, ["indptr shape must be [H,n] or [1,n] with H = 4, got [2,2]"],
                change=of_lists([[0, 1], [1, 1]], [0])),
        Refused("indptr-rows", {}, ["indptr shape must be [..,n] with n = nbq + 1 = 2, got [1,3]"],
                change=of_lists([[0, 1, 1]], [0])),
        Refused("indices-rank", {}, ["indices shape must be [nnz], got [2,2]"],
                change=of_lists([[0, 4]], [[0, 0], [0, 0]])),
        Refused("indptr-dtype", {}, ["indptr dtype must be int32, got float32"],
                change=WITH_LISTS | {"indptr": zeros(1, 2)}),
        Refused("lists-start", {}, ["indptr[0,0] must be 0, got 1"],
                change=of_lists([[1, 1]], [0]), values=True),
        Refused("lists-of-heads", {}, ["indptr[1,0] must be indptr[0,nbq] = 3, got 4"],
                change=of_lists([[0, 3], [4, 4], [4, 5], [5, 5]], [0] * 5), values=True),
        Refused("lists-descend", tiles(2, 4), ["indptr[0,2] must be >= indptr[0,1] = 2, got 1"],
                change=of_lists([[0, 2, 1, 3]], [0] * 3), values=True),
        Refused("lists-end", tiles(3, 4), ["indptr[0,2] must be the size of indices, 5, got 6"],
                change=of_lists([[0, 2, 6]], [0] * 5), values=True),
        Refused("lists-index", tiles(3, 4), ["indices[3] must be in 0..nbk-1 = 0..1, got 2"],
                change=of_lists([[0, 2, 4]], [0, 1, 1, 2]), values=True),
        Refused("lists-negative", {}, ["indices[0] must be in 0..nbk-1 = 0..0, got -1"],
                change=of_lists([[0, 1]], [-1]), values=True),
        Refused("everything-at-once", tiles(0, 600, scale=float("nan")),
                ["block_q must be in 1..512, got 0", "block_k must be in 1..512, got 600",
                 "scale must be finite, got nan"]),
    ],
)
