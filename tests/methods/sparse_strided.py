"""A window and a comb of every s-th key: oracle in float64 from the pattern specification (Common
core, sparse_strided), cases, golden sums, refusals."""

import numpy as np

from tests.methods.cases import ALL, Case
from tests.methods.golden import pattern_golden
from tests.methods.method import Growth, Visible
from tests.methods.pattern_core import PatternOracle
from tests.methods.pattern_method import pattern_method
from tests.methods.refused import Refused


def sees(seq):
    """In Python's integers: strides may be as large as 2^63 - 1."""
    s, part = seq.o.get("stride", 128), seq.o.get("part", "union")
    d = seq.p.astype(object) - seq.j.astype(object)
    window, comb = (abs(d) < s).astype(bool), (d % s == 0).astype(bool)
    if part == "alternate":
        even = np.arange(seq.H)[:, None, None] % 2 == 0
        return np.where(even, window, comb)
    return {"union": window | comb, "window": window, "comb": comb}[part]


def strided(s, part=None, **more):
    return {"stride": s} | ({} if part is None else {"part": part}) | more


METHOD = pattern_method(
    id="sparse_strided",
    oracle=PatternOracle(sees),
    options={"stride": "int", "part": "enum"},
    good_options=strided(3),
    peers=[
        "openai/sparse_attention get_attn_mask, the two parts joined (needs TensorFlow)",
        "long-range-arena build_mask([LocalPattern(s), StridedPattern(s)]), causal (needs JAX)",
    ],
    cases=[
        Case("s4-causal", dtypes=ALL, B=2, Nq=65, options=strided(4, causal=True)),
        Case("s4", dtypes=ALL, Nq=63, options=strided(4)),
        Case("s8", Nq=64, options=strided(8, "union")),
        Case("s12-causal", Nq=131, options=strided(12, causal=True)),
        Case("s7-window", Nq=131, options=strided(7, "window")),
        Case("s7-window-causal", dtypes=ALL, Nq=65, options=strided(7, "window", causal=True)),
        Case("s7-comb", dtypes=ALL, Nq=131, options=strided(7, "comb")),
        Case("s7-comb-causal", Nq=65, options=strided(7, "comb", causal=True)),
        Case("s9-alternate", dtypes=ALL, H=4, Nq=65, options=strided(9, "alternate")),
        Case("s9-alternate-causal-gqa", H=6, Hkv=2, Nq=131,
             options=strided(9, "alternate", causal=True)),
        Case("s63-comb", Nq=200, options=strided(63, "comb")),
        Case("s64", H=1, Nq=200, options=strided(64)),
        Case("s65-causal", H=1, Nq=200, options=strided(65, causal=True)),
        Case("s64-comb-causal-d64", H=1, Nq=261, D=64, options=strided(64, "comb", causal=True)),
        Case("default-stride", H=1, Nq=200, D=8),
        Case("s1", Nq=33, options=strided(1)),
        Case("s1-window-causal", Nq=33, options=strided(1, "window", causal=True)),
        Case("s2-comb", Nq=65, options=strided(2, "comb")),
        Case("wider-than-n", Nq=63, options=strided(1000)),
        Case("wider-than-n-comb", Nq=63, options=strided(1000, "comb")),
        Case("s-is-n-comb-causal", Nq=65, options=strided(65, "comb", causal=True)),
        Case("n1", Nq=1, options=strided(3)),
        Case("n0", Nq=0, Nk=3, options=strided(3), grad_lse=False),
        Case("nk0", Nq=3, Nk=0, options=strided(3)),
        Case("more-keys", Nq=65, Nk=131, options=strided(10)),
        Case("more-keys-comb", Nq=64, Nk=131, options=strided(10, "comb", causal=True)),
        # Residues of negative positions are not negative.
        Case("more-queries", dtypes=ALL, Nq=131, Nk=65, options=strided(10)),
        Case("more-queries-causal", Nq=131, Nk=63, options=strided(10, causal=True)),
        Case("offset", B=3, Nq=65, Nk=70, options=strided(6), ints={"causal_offset": (-66, 2, 69)}),
        Case("offset-comb", B=3, Nq=65, Nk=70, options=strided(11, "comb"),
             ints={"causal_offset": (-200, 3, 500)}),
        Case("offset-causal", B=3, Nq=65, Nk=70, options=strided(8, causal=True),
             ints={"causal_offset": (-30, 5, 40)}),
        Case("offset-extreme", B=2, Nq=33, options=strided(5, "comb"),
             ints={"causal_offset": (2**31 - 1, -(2**31))}),
        Case("offset-extreme-union", B=2, Nq=33, options=strided(2**31),
             ints={"causal_offset": (2**31 - 1, -(2**31))}),
        Case("huge-stride", Nq=65, options=strided(2**63 - 1)),
        # Weights of rows that see one key are 1 in plain code, and 1 to a rounding from an lse.
        Case("huge-stride-comb", B=2, Nq=65, options=strided(2**40, "comb"),
             ints={"causal_offset": (-3, 2**31 - 1)}, ratio=False),
        Case("huge-stride-alternate-causal", Nq=65,
             options=strided(2**63 - 1, "alternate", causal=True)),
        Case("lengths", dtypes=ALL, B=6, H=1, Nq=131, options=strided(9),
             ints={"q_lengths": (131, 65, 64, 63, 1, 0), "kv_lengths": (0, 1, 63, 64, 65, 131)}),
        Case("scale-dv", Nq=65, D=5, Dv=33, options=strided(10, scale=0.7)),
        Case("gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=65, options=strided(8, causal=True)),
        Case("bnhd", B=2, Nq=65, layout="BNHD", options=strided(6, causal=True)),
        Case("strided", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, strided=True,
             options=strided(6, "comb")),
        Case("multiset", Nq=33, options=strided(5, duplicates="multiset")),
        Case("all-terms", dtypes=ALL, B=2, H=4, Hkv=2, Nq=131, Nk=150, D=33, Dv=17,
             options=strided(16, logit_softcap=3.0),
             floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "H", "sink_logits": "H"},
             ints={"q_lengths": (131, 40), "kv_lengths": (50, 150)}),
        Case("all-terms-alternate", B=2, H=4, Hkv=2, Nq=65, strided=True, layout="BNHD",
             options=strided(8, "alternate", causal=True, logit_softcap=3.0),
             floats={"bias": "B,1,1,Nk", "alibi_slopes": "B,H", "sink_logits": "H"}),
        Case("alibi-offset", B=2, Nq=65, options=strided(9, "comb", alibi=True),
             ints={"causal_offset": (-5, 70)}),
        Case("bias-hides", Nq=65, options=strided(9), floats={"bias": "1,1,Nq,Nk"},
             hidden_bias=True),
        Case("sinks-of-empty-rows", B=2, Nq=65, options=strided(80, "comb"),
             floats={"sink_logits": "H"}, ints={"causal_offset": (100, 0)}),
        Case("segments", dtypes=ALL, B=2, Nq=131, segments="runs", options=strided(8)),
        Case("segments-mixed", B=2, H=4, Nq=131, Nk=65, segments="mixed",
             options=strided(9, "alternate", causal=True)),
        Case("packed", dtypes=ALL, H=4, Hkv=2, Nq=261, packed=5, options=strided(10, causal=True)),
        Case("packed-all-terms", Nq=131, Nk=99, packed=4, options=strided(9, logit_softcap=3.0),
             floats={"bias": "H,Nq,Nk", "alibi_slopes": "H", "sink_logits": "H"}),
        Case("packed-comb", Nq=131, packed=4, options=strided(5, "comb")),
        Case("packed-alternate", Nq=131, Nk=180, packed=3, options=strided(7, "alternate")),
    ],
    batches=[strided(8, causal=True), strided(5), strided(9, "alternate")],
    tensor_batches=[
        Case("terms", options=strided(12, logit_softcap=2.0),
             floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "B,H", "sink_logits": "H"}),
        Case("segments", options=strided(7, "comb"), segments="mixed"),
        Case("packed", options=strided(9, causal=True), packed=4),
    ],
    perf=[strided(128, causal=True), strided(64, "comb")],
    growth=[Growth(strided(256, "window", causal=True), 1, 1)],
    visible=[
        Visible("s4-causal", 16, 16, strided(4, causal=True), 82),
        Visible("s4", 16, 16, strided(4), 148),
        Visible("s4-window", 16, 16, strided(4, "window", causal=True), 58),
        Visible("s4-comb", 16, 16, strided(4, "comb", causal=True), 40),
    ],
    golden=[
        pattern_golden("s4-causal", strided(4, causal=True), 164, 2.8964025791, -11.7611515325,
                       0.1781857481, -1.6885247378, 2.1364380407),
        pattern_golden("s4", strided(4), 296, 3.1687667173, -5.8963761362, -1.0931453042,
                       -0.3125674772, -2.1840396526),
    ],
    refused=[
        Refused("stride", strided(0), ["stride must be >= 1, got 0"]),
        Refused("stride-type", {"stride": 3.5}, ["stride must be an integer, got 3.5"]),
        Refused("part", strided(3, "columns"),
                ['part must be one of union, window, comb, alternate, got "columns"']),
        Refused("everything-at-once", strided(-(2**63), "", scale=float("nan")),
                [f"stride must be >= 1, got {-(2**63)}",
                 'part must be one of union, window, comb, alternate, got ""',
                 "scale must be finite, got nan"]),
    ],
)
