"""Blocks of queries in raster order with a memory of neighbours: oracle in float64 from the pattern
specification (Common core, image_local_1d), cases, golden sums, refusals."""

from tests.methods.cases import ALL, Case
from tests.methods.golden import pattern_golden
from tests.methods.method import Growth, Visible
from tests.methods.pattern_core import PatternOracle
from tests.methods.pattern_method import pattern_method
from tests.methods.refused import Refused


def sees(seq):
    """In Python's integers: options may be as large as 2^63 - 1."""
    lq = seq.o.get("query_block", 256)
    lm = seq.o.get("memory", lq)
    first, j = seq.i.astype(object) // lq * lq, seq.j.astype(object)
    seen = first - lm <= j
    if not seq.o.get("causal", False):
        seen = seen & (j < first + lq + lm)
    return seen.astype(bool)


def blocks(lq, lm=None, **more):
    return {"query_block": lq} | ({} if lm is None else {"memory": lm}) | more


METHOD = pattern_method(
    id="image_local_1d",
    oracle=PatternOracle(sees),
    options={"query_block": "int", "memory": "int"},
    lacks=("cross", "packed"),
    good_options=blocks(4),
    peers=[
        "tensor2tensor masked_local_attention_1d, q scaled before, causal (needs TensorFlow)",
        "tensor2tensor local_attention_1d, filter_width no multiple of the block"
        " (needs TensorFlow)",
    ],
    cases=[
        Case("lq4-lm6-causal", dtypes=ALL, B=2, Nq=65, options=blocks(4, 6, causal=True)),
        Case("lq4-lm3", dtypes=ALL, Nq=63, options=blocks(4, 3)),
        Case("lq16", Nq=64, options=blocks(16)),
        Case("lq16-causal", dtypes=ALL, Nq=131, options=blocks(16, causal=True)),
        Case("lq5-lm3", Nq=131, options=blocks(5, 3)),
        Case("lq7-lm100", Nq=131, options=blocks(7, 100)),
        Case("lq7-lm100-causal", Nq=131, options=blocks(7, 100, causal=True)),
        Case("lq64-d64", dtypes=ALL, H=1, Nq=261, D=64, options=blocks(64, 32)),
        Case("lq65-lm63-causal", H=1, Nq=261, D=8, options=blocks(65, 63, causal=True)),
        Case("lq63-lm65", H=1, Nq=261, D=8, options=blocks(63, 65)),
        Case("lq1", Nq=65, options=blocks(1, 5)),
        Case("lq1-lm0", Nq=33, options=blocks(1, 0)),
        Case("lm0", Nq=65, options=blocks(10, 0)),
        Case("lm0-causal", dtypes=ALL, Nq=65, options=blocks(10, 0, causal=True)),
        Case("defaults", Nq=131, D=8),
        Case("defaults-causal", H=1, Nq=600, D=4, options={"causal": True}),
        Case("default-memory-is-block", H=1, Nq=200, D=8, options=blocks(40)),
        Case("default-block", H=1, Nq=300, D=8, options={"memory": 9}),
        Case("larger-than-n", Nq=63, options=blocks(64, 1)),
        Case("larger-than-n-causal", Nq=63, options=blocks(1000, causal=True)),
        Case("huge-block", Nq=65, options=blocks(2**63 - 1)),
        Case("huge-memory", Nq=65, options=blocks(8, 2**63 - 1)),
        Case("huge-memory-causal", Nq=65, options=blocks(8, 2**63 - 1, causal=True)),
        Case("huge-both", Nq=65, options=blocks(2**62, 2**63 - 1)),
        Case("huge-40-bits", Nq=65, options=blocks(2**40, 0)),
        Case("n1", Nq=1, options=blocks(4)),
        Case("n0", Nq=0, options=blocks(4), grad_lse=False),
        Case("lengths", dtypes=ALL, B=6, H=1, Nq=131, options=blocks(9, 4),
             ints={"q_lengths": (131, 65, 64, 63, 1, 0), "kv_lengths": (0, 1, 63, 64, 65, 131)}),
        Case("memory-in-padding", Nq=131, options=blocks(9, 4), ints={"kv_lengths": (40,)}),
        Case("scale-dv", Nq=65, D=5, Dv=33, options=blocks(10, 7, scale=0.7)),
        Case("gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=65, options=blocks(8, 5, causal=True)),
        Case("bnhd", B=2, Nq=65, layout="BNHD", options=blocks(6, causal=True)),
        Case("strided", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, strided=True, options=blocks(6, 1)),
        Case("multiset", Nq=33, options=blocks(5, duplicates="multiset")),
        Case("all-terms", dtypes=ALL, B=2, H=4, Hkv=2, Nq=131, D=33, Dv=17,
             options=blocks(16, 20, logit_softcap=3.0),
             floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "H", "sink_logits": "H"},
             ints={"q_lengths": (131, 40), "kv_lengths": (50, 131)}),
        Case("all-terms-causal", B=2, H=4, Hkv=2, Nq=65, strided=True, layout="BNHD",
             options=blocks(8, 11, causal=True, logit_softcap=3.0),
             floats={"bias": "B,1,1,Nk", "alibi_slopes": "B,H", "sink_logits": "H"}),
        Case("alibi", dtypes=ALL, Nq=65, options=blocks(9, alibi=True)),
        Case("bias-hides", Nq=65, options=blocks(9), floats={"bias": "1,1,Nq,Nk"},
             hidden_bias=True),
        Case("sinks-of-empty-rows", B=2, Nq=65, options=blocks(8, 2), floats={"sink_logits": "H"},
             ints={"kv_lengths": (20, 0)}),
        Case("segments", dtypes=ALL, B=2, Nq=131, segments="runs", options=blocks(8)),
        Case("segments-mixed", B=2, H=4, Nq=65, segments="mixed",
             options=blocks(9, 20, causal=True)),
    ],
    batches=[blocks(8, 5, causal=True), blocks(16), blocks(5, 30)],
    tensor_batches=[
        Case("terms", options=blocks(12, 20, logit_softcap=2.0),
             floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "B,H", "sink_logits": "H"}),
        Case("segments", options=blocks(7, causal=True), segments="mixed"),
    ],
    perf=[blocks(256, causal=True), blocks(128, 100)],
    growth=[Growth(blocks(256, causal=True), 1, 1)],
    visible=[
        Visible("lq4-lm6-causal", 16, 16, blocks(4, 6, causal=True), 104),
        Visible("lq4-lm3", 16, 16, blocks(4, 3), 136),
    ],
    golden=[
        pattern_golden("lq5-lm3-causal", blocks(5, 3, causal=True), 158, 2.5384709661,
                       -11.4863185454, -0.0018575699, -1.6810778605, 1.5230743831),
        pattern_golden("lq5-lm3", blocks(5, 3), 288, -0.6695221783, -7.1794994264, -1.0634854594,
                       -0.0172742041, -1.1576950109),
    ],
    refused=[
        Refused("block", blocks(0), ["query_block must be >= 1, got 0"]),
        Refused("memory", blocks(4, -1), ["memory must be >= 0, got -1"]),
        Refused("block-type", {"query_block": 3.5}, ["query_block must be an integer, got 3.5"]),
        Refused("memory-type", {"memory": True}, ["memory must be an integer, got true"]),
        Refused("everything-at-once", blocks(-3, -2, scale=float("nan")),
                ["query_block must be >= 1, got -3", "memory must be >= 0, got -2",
                 "scale must be finite, got nan"]),
    ],
)
