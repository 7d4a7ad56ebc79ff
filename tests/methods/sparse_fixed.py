"""Segments of s keys and summary columns at their ends: oracle in float64 from the pattern
specification (Common core, sparse_fixed), cases, golden sums, refusals."""

import numpy as np

from tests.methods.cases import ALL, Case
from tests.methods.golden import pattern_golden
from tests.methods.method import Growth, Visible
from tests.methods.pattern_core import PatternOracle
from tests.methods.pattern_method import pattern_method
from tests.methods.refused import Refused


def in_summary(seq, x):
    """[H,...] whether positions x are summary positions. In Python's integers."""
    s, c = seq.o.get("stride", 128), seq.o.get("summary", 32)
    sub_block = (np.arange(seq.H) % seq.o.get("num_verts", 1)).astype(object)[:, None, None]
    first = s - (sub_block + 1) * c
    own = (first <= x % s) & (x % s < first + c)
    n = seq.Nk
    if seq.o.get("tail_summary", False) and n % s != 0:
        tail = n // s
        start = np.maximum(0, np.minimum(tail * s + first, n - c))
        own = np.where(x // s == tail, False, own) | ((start <= x) & (x < start + c))
    return own.astype(bool)


def sees(seq):
    """In Python's integers: strides may be as large as 2^63 - 1."""
    s, part = seq.o.get("stride", 128), seq.o.get("part", "union")
    p, j = seq.p.astype(object), seq.j.astype(object)
    segment, summary = (p // s == j // s).astype(bool), in_summary(seq, j)
    if part == "alternate":
        even = np.arange(seq.H)[:, None, None] % 2 == 0
        return np.where(even, segment, summary)
    seen = {"union": segment | summary, "segment": segment, "summary": summary}[part]
    return seen | in_summary(seq, p) if seq.o.get("horizontal", False) else seen


def fixed(s, c, verts=None, **more):
    return {"stride": s, "summary": c} | ({} if verts is None else {"num_verts": verts}) | more


PARTS = "part must be one of union, segment, summary, alternate"


METHOD = pattern_method(
    id="sparse_fixed",
    oracle=PatternOracle(sees),
    options={"stride": "int", "summary": "int", "num_verts": "int", "part": "enum",
             "horizontal": "bool", "tail_summary": "bool"},
    good_options=fixed(3, 1),
    peers=[
        "openai/sparse_attention get_blocksparse_obj, mode fixed (needs TensorFlow)",
        "DeepSpeed FixedSparsityConfig(different_layout_per_head=True), its layout (needs PyTorch)",
    ],
    cases=[
        Case("s4-c1-causal", dtypes=ALL, B=2, Nq=65, options=fixed(4, 1, causal=True)),
        Case("s16-c4", Nq=64, options=fixed(16, 4)),
        Case("s16-c4-verts4-causal", dtypes=ALL, H=6, Hkv=2, Nq=131,
             options=fixed(16, 4, 4, causal=True)),
        Case("s15-c4-verts3", H=4, Nq=131, options=fixed(15, 4, 3)),
        Case("s10-c3-segment", Nq=131, options=fixed(10, 3, part="segment")),
        Case("s40-segment", Nq=131, options={"stride": 40, "part": "segment"}),
        Case("s10-c3-segment-causal", dtypes=ALL, Nq=65,
             options=fixed(10, 3, part="segment", causal=True)),
        Case("s10-c3-summary", dtypes=ALL, Nq=131, options=fixed(10, 3, part="summary")),
        Case("s10-c3-summary-causal", Nq=65, options=fixed(10, 3, part="summary", causal=True),
             floats={"sink_logits": "H"}),
        Case("s12-c2-alternate", dtypes=ALL, H=4, Nq=65, options=fixed(12, 2, part="alternate")),
        Case("s12-c2-verts5-alternate-causal", H=6, Hkv=3, Nq=131,
             options=fixed(12, 2, 5, part="alternate", causal=True)),
        Case("s64-c16", H=1, Nq=200, D=32, options=fixed(64, 16)),
        Case("s65-c64", H=1, Nq=200, options=fixed(65, 64)),
        Case("s63-c1-causal", H=1, Nq=200, options=fixed(63, 1, causal=True)),
        Case("defaults", H=1, Nq=261, D=8),
        Case("summary-is-segment", Nq=65, options=fixed(8, 8, part="summary", causal=True)),
        Case("wider-than-n", Nq=63, options=fixed(1000, 10)),
        Case("wider-than-n-summary", Nq=63, options=fixed(70, 20, part="summary")),
        Case("horizontal", dtypes=ALL, B=2, Nq=65, options=fixed(9, 2, horizontal=True)),
        Case("horizontal-verts", H=4, Hkv=2, Nq=131, options=fixed(16, 5, 3, horizontal=True)),
        Case("horizontal-offset", B=2, Nq=65, Nk=70, options=fixed(8, 2, horizontal=True),
             ints={"causal_offset": (-50, 40)}),
        # Segments of 16: the last one holds 3 of 131, 1 of 65, 15 of 63.
        Case("tail", dtypes=ALL, H=4, Nq=131, options=fixed(16, 5, 3, tail_summary=True)),
        Case("tail-causal", Nq=65, options=fixed(16, 4, tail_summary=True, causal=True)),
        Case("tail-summary", H=4, Hkv=2, Nq=63,
             options=fixed(16, 6, 2, part="summary", tail_summary=True)),
        Case("tail-horizontal", H=4, Nq=131,
             options=fixed(16, 5, 3, tail_summary=True, horizontal=True)),
        Case("tail-alternate-more-keys", H=4, Nq=65, Nk=70,
             options=fixed(16, 8, 2, part="alternate", tail_summary=True)),
        Case("tail-larger-than-n", Nq=9, options=fixed(16, 12, tail_summary=True, part="summary")),
        Case("tail-lengths", B=2, Nq=70, options=fixed(16, 4, tail_summary=True, part="summary"),
             ints={"kv_lengths": (40, 69)}),
        Case("tail-packed", H=2, Nq=131, packed=4,
             options=fixed(16, 4, tail_summary=True, horizontal=True)),
        Case("n1", Nq=1, options=fixed(3, 1)),
        Case("n0", Nq=0, Nk=3, options=fixed(3, 1), grad_lse=False),
        Case("nk0", Nq=3, Nk=0, options=fixed(3, 1, tail_summary=True)),
        Case("more-keys", Nq=65, Nk=131, options=fixed(10, 2)),
        Case("more-keys-causal", Nq=64, Nk=131, options=fixed(10, 2, causal=True)),
        # Segments and residues of negative positions are those of floor division.
        Case("more-queries", dtypes=ALL, Nq=131, Nk=65, options=fixed(10, 2, horizontal=True)),
        Case("more-queries-causal", Nq=131, Nk=63, options=fixed(10, 2, causal=True)),
        Case("offset", B=3, Nq=65, Nk=70, options=fixed(6, 1),
             ints={"causal_offset": (-66, 2, 69)}),
        Case("offset-causal", B=3, Nq=65, Nk=70, options=fixed(8, 3, 2, causal=True),
             ints={"causal_offset": (-30, 5, 40)}),
        Case("offset-extreme", B=2, Nq=33, options=fixed(5, 2, horizontal=True),
             ints={"causal_offset": (2**31 - 1, -(2**31))}),
        Case("offset-extreme-summary-causal", B=2, Nq=65, Nk=100,
             options=fixed(50, 41, part="summary", causal=True),
             ints={"causal_offset": (2**31 - 1, -(2**31))}),
        Case("offset-extreme-union", B=2, Nq=65, Nk=100, options=fixed(50, 11),
             ints={"causal_offset": (2**31 - 1, -(2**31))}),
        Case("huge-stride", Nq=65, options=fixed(2**63 - 1, 2**62)),
        Case("huge-stride-verts", B=2, H=4, Nq=65, options=fixed(2**63 - 1, 2**61, 3),
             ints={"causal_offset": (-40, 2**31 - 1)}),
        Case("huge-summary", Nq=65, options=fixed(2**63 - 1, 2**63 - 1, part="summary")),
        Case("horizontal-huge", Nq=66, Nk=9, options=fixed(10**13, 13, 5, horizontal=True)),
        Case("huge-tail", H=4, Nq=65,
             options=fixed(2**63 - 1, 2**61, 3, part="summary", tail_summary=True)),
        Case("lengths", dtypes=ALL, B=6, H=1, Nq=131, options=fixed(9, 2),
             ints={"q_lengths": (131, 65, 64, 63, 1, 0), "kv_lengths": (0, 1, 63, 64, 65, 131)}),
        Case("scale-dv", Nq=65, D=5, Dv=33, options=fixed(10, 4, scale=0.7)),
        Case("bnhd", B=2, Nq=65, layout="BNHD", options=fixed(6, 2, causal=True)),
        Case("strided", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, strided=True, options=fixed(6, 1, 6)),
        Case("multiset", Nq=33, options=fixed(5, 1, duplicates="multiset")),
        Case("all-terms", dtypes=ALL, B=2, H=4, Hkv=2, Nq=131, Nk=150, D=33, Dv=17,
             options=fixed(16, 4, 2, logit_softcap=3.0),
             floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "H", "sink_logits": "H"},
             ints={"q_lengths": (131, 40), "kv_lengths": (50, 150)}),
        Case("all-terms-alternate", B=2, H=4, Hkv=2, Nq=65, strided=True, layout="BNHD",
             options=fixed(8, 2, 3, part="alternate", causal=True, logit_softcap=3.0),
             floats={"bias": "B,1,1,Nk", "alibi_slopes": "B,H", "sink_logits": "H"}),
        Case("alibi-offset", B=2, Nq=65, options=fixed(9, 2, alibi=True),
             ints={"causal_offset": (-5, 70)}),
        Case("bias-hides", Nq=65, options=fixed(9, 3), floats={"bias": "1,1,Nq,Nk"},
             hidden_bias=True),
        Case("segments", dtypes=ALL, B=2, Nq=131, segments="runs", options=fixed(8, 2)),
        Case("segments-ends", B=2, Nq=131, segments="ends", options=fixed(8, 2)),
        Case("segments-mixed", B=2, H=4, Nq=131, Nk=65, segments="mixed",
             options=fixed(9, 3, 3, causal=True)),
        Case("packed", dtypes=ALL, H=4, Hkv=2, Nq=261, packed=5, options=fixed(10, 3, causal=True)),
        Case("packed-all-terms", Nq=131, Nk=99, packed=4, options=fixed(9, 2, 2, logit_softcap=3.0),
             floats={"bias": "H,Nq,Nk", "alibi_slopes": "H", "sink_logits": "H"}),
        Case("packed-alternate", Nq=131, Nk=180, packed=3, options=fixed(7, 1, part="alternate")),
    ],
    batches=[
        fixed(8, 2, causal=True),
        fixed(16, 4, 4, tail_summary=True, horizontal=True),
        fixed(9, 3, part="alternate"),
    ],
    tensor_batches=[
        Case("terms", options=fixed(12, 3, 2, logit_softcap=2.0),
             floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "B,H", "sink_logits": "H"}),
        Case("segments", options=fixed(7, 2, part="summary"), segments="mixed"),
        Case("packed", options=fixed(9, 2, tail_summary=True, causal=True), packed=4),
    ],
    perf=[fixed(128, 32, 4, causal=True), fixed(128, 8)],
    growth=[Growth(fixed(256, 32, part="segment", causal=True), 1, 1)],
    visible=[
        Visible("s4-c1-causal", 16, 16, fixed(4, 1, causal=True), 64),
        Visible("s4-c1", 16, 16, fixed(4, 1), 112),
        # Summary rows 3, 7, 11 and 15 see all 16, the other twelve their segment and 3 summaries.
        Visible("s4-c1-horizontal", 16, 16, fixed(4, 1, horizontal=True), 4 * 16 + 12 * 7),
        # Of 14 keys 3, 7, 11 and, for the last segment of two, 13.
        Visible("s4-c1-tail", 14, 14, fixed(4, 1, part="summary", tail_summary=True), 14 * 4),
        Visible("s4-c1-no-tail", 14, 14, fixed(4, 1, part="summary"), 14 * 3),
    ],
    golden=[
        pattern_golden("s4-c1-verts2-causal", fixed(4, 1, 2, causal=True), 128, 5.8046525976,
                       -8.1766625378, 1.8784986045, -1.8075770427, 4.2671075806),
    ],
    refused=[
        Refused("stride", fixed(0, 1), ["stride must be >= 1, got 0"]),
        Refused("summary", fixed(16, 32), ["summary must be in 1..stride = 1..16, got 32"]),
        Refused("verts", fixed(16, 4, 5), ["num_verts must be in 1..stride/summary = 1..4, got 5"]),
        Refused("verts-rounded-down", fixed(16, 5, 4),
                ["num_verts must be in 1..stride/summary = 1..3, got 4"]),
        Refused("horizontal-causal", fixed(4, 1, horizontal=True, causal=True),
                ["horizontal must be false when causal, got true"]),
        Refused("horizontal-part", fixed(4, 1, horizontal=True, part="segment"),
                ["horizontal must be false unless part is union, got true"]),
        Refused("part", fixed(4, 1, part="window"), [f'{PARTS}, got "window"']),
        Refused("stride-type", {"stride": 3.5, "summary": 1},
                ["stride must be an integer, got 3.5"]),
        Refused("tail-type", fixed(4, 1, tail_summary=1), ["tail_summary must be a bool, got 1"]),
        Refused("everything-at-once",
                fixed(16, 32, 9, horizontal=True, causal=True, part="summary", scale=float("nan")),
                ["summary must be in 1..stride = 1..16, got 32",
                 "horizontal must be false when causal, got true",
                 "horizontal must be false unless part is union, got true",
                 "scale must be finite, got nan"]),
    ],
)
