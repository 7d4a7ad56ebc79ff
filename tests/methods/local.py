"""Sliding windows and block look-around: oracle in float64 from the pattern specification (Common
core, local), cases, golden sums, refusals."""

from tests.methods.cases import ALL, Case
from tests.methods.golden import pattern_golden
from tests.methods.method import Growth, Visible
from tests.methods.pattern_core import PatternOracle
from tests.methods.pattern_method import pattern_method
from tests.methods.refused import Refused


def sees(seq):
    """In Python's integers: options may be as large as 2^63 - 1."""
    o, p, j = seq.o, seq.p.astype(object), seq.j.astype(object)
    causal = o.get("causal", False)
    if o.get("granularity", "token") == "block":
        W = o["block"]
        back, ahead = o.get("look_backward", 1), o.get("look_forward", 0 if causal else 1)
        p, j = p // W, j // W
        return ((p - back <= j) & (j <= p + ahead)).astype(bool)
    left = o["window_left"]
    right = o.get("window_right", left)
    return ((left == -1) | (p - left <= j)).astype(bool) & (
        (right == -1) | (j <= p + right)).astype(bool)


def token(left, right=None, **more):
    return {"window_left": left} | ({} if right is None else {"window_right": right}) | more


def block(W, **more):
    return {"granularity": "block", "block": W} | more


METHOD = pattern_method(
    id="local",
    oracle=PatternOracle(sees),
    options={"granularity": "enum", "window_left": "int", "window_right": "int", "block": "int",
             "look_backward": "int", "look_forward": "int"},
    good_options=token(3),
    peers=[
        "local-attention LocalAttention(exact_windowsize=True or False) (needs PyTorch)",
        "transformers sliding_window_bidirectional (needs PyTorch)",
    ],
    cases=[
        Case("causal-wl3", dtypes=ALL, B=2, Nq=65, options=token(3, causal=True)),
        Case("wl2-wr2", Nq=63, options=token(2)),
        Case("wl5-wr0", Nq=64, options=token(5, 0)),
        Case("self-only", dtypes=ALL, Nq=65, options=token(0)),
        Case("unlimited", Nq=65, options=token(-1)),
        Case("unlimited-left-wr3", Nq=131, options=token(-1, 3)),
        Case("wl3-unlimited-right", Nq=131, options=token(3, -1)),
        Case("unlimited-left-causal", Nq=65, options=token(-1, 3, causal=True)),
        Case("wider-than-n", Nq=63, options=token(1000)),
        Case("wl64-d64", dtypes=ALL, H=1, Nq=261, D=64, options=token(64, causal=True)),
        Case("wl100-wr20", H=1, Nq=323, D=8, options=token(100, 20)),
        # 66 key tiles: the keys of a query tile are split into two parts.
        Case("split", H=1, Nq=3, Nk=4200, D=8, ratio=False, options=token(4190),
             ints={"causal_offset": (4197,)}),
        Case("n1", Nq=1, options=token(3)),
        Case("n0", Nq=0, Nk=3, options=token(3), grad_lse=False),
        Case("nk0", Nq=3, Nk=0, options=token(3)),
        Case("more-keys", Nq=65, Nk=131, options=token(7, 2)),
        Case("more-queries", dtypes=ALL, Nq=131, Nk=65, options=token(7, 2)),
        Case("more-queries-causal", Nq=131, Nk=63, options=token(7, causal=True)),
        Case("offset", B=3, Nq=65, Nk=70, options=token(4, 3),
             ints={"causal_offset": (-66, 2, 69)}),
        Case("offset-causal", B=3, Nq=65, Nk=70, options=token(4, causal=True),
             ints={"causal_offset": (-30, 5, 40)}),
        Case("lengths", dtypes=ALL, B=6, H=1, Nq=131, options=token(9, 3),
             ints={"q_lengths": (131, 65, 64, 63, 1, 0), "kv_lengths": (0, 1, 63, 64, 65, 131)}),
        Case("window-in-padding", Nq=131, options=token(9, 3), ints={"kv_lengths": (40,)}),
        Case("gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=65, options=token(10, causal=True)),
        Case("scale-dv", Nq=65, D=5, Dv=33, options=token(10, scale=0.7)),
        Case("block4-causal", dtypes=ALL, Nq=63, options=block(4, causal=True)),
        Case("block4", Nq=65, options=block(4)),
        Case("block16-lb2-lf0", Nq=131, options=block(16, look_backward=2, look_forward=0)),
        Case("block7-lb0-lf2", Nq=65, options=block(7, look_backward=0, look_forward=2)),
        Case("block64-d64", H=1, Nq=201, D=64, options=block(64)),
        Case("block1", Nq=20, options=block(1)),
        Case("block-more-queries", Nq=131, Nk=65, options=block(10)),
        Case("block-offset", B=2, Nq=33, Nk=40, options=block(8, causal=True),
             ints={"causal_offset": (-11, 3)}),
        Case("block-lengths", B=3, H=1, Nq=65, options=block(8), ints={"kv_lengths": (0, 13, 65)}),
        Case("huge-window", Nq=65, options=token(2**63 - 1, 2**63 - 1)),
        Case("huge-block", Nq=65, options=block(2**63 - 1)),
        Case("huge-look", Nq=65, options=block(16, look_backward=2**63 - 1, look_forward=2**62)),
        Case("huge-block-and-look", B=2, Nq=65, options=block(2**62, look_backward=2**62),
             ints={"causal_offset": (-40, 2**31 - 1)}),
        Case("offset-extreme", B=2, Nq=33, options=token(-1, 3),
             ints={"causal_offset": (2**31 - 1, -(2**31))}),
        Case("offset-extreme-block", B=2, Nq=33, options=block(7, look_forward=2**40),
             ints={"causal_offset": (2**31 - 1, -(2**31))}),
        Case("bnhd", B=2, Nq=65, layout="BNHD", options=token(6, causal=True)),
        Case("strided", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, strided=True, options=token(6, 1)),
        Case("all-terms", dtypes=ALL, B=2, H=4, Hkv=2, Nq=131, Nk=150, D=33, Dv=17,
             options=token(20, 5, logit_softcap=3.0),
             floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "H", "sink_logits": "H"},
             ints={"q_lengths": (131, 40), "kv_lengths": (50, 150)}),
        Case("alibi-offset", B=2, Nq=65, options=token(9, alibi=True),
             ints={"causal_offset": (-5, 70)}),
        Case("block-all-terms", B=2, Nq=65, options=block(16, causal=True, logit_softcap=3.0),
             floats={"bias": "B,1,1,Nk", "alibi_slopes": "B,H", "sink_logits": "H"}),
        Case("sinks-far-from-all-keys", B=2, Nq=65, options=token(3), floats={"sink_logits": "H"},
             ints={"causal_offset": (200, 0)}),
        Case("segments", dtypes=ALL, B=2, Nq=131, segments="runs", options=token(20, 3)),
        Case("segments-mixed", B=2, Nq=131, Nk=65, segments="mixed", options=token(9, causal=True)),
        Case("block-segments", B=2, Nq=65, segments="runs", options=block(16)),
        Case("segments-mixed-over-many-tiles", H=2, Hkv=1, Nq=900, D=8, segments="mixed",
             options=token(-1, 700)),
        Case("packed", dtypes=ALL, H=4, Hkv=2, Nq=261, packed=5, options=token(20, causal=True)),
        Case("packed-all-terms", Nq=131, Nk=99, packed=4, options=token(9, 3, logit_softcap=3.0),
             floats={"bias": "H,Nq,Nk", "alibi_slopes": "H", "sink_logits": "H"}),
        Case("block-packed", Nq=131, packed=4, options=block(10)),
        Case("strided-bnhd", dtypes=ALL, B=2, Nq=65, strided=True, layout="BNHD",
             options=block(16)),
    ],
    batches=[token(5, causal=True), token(20, 3), block(16)],
    tensor_batches=[
        Case("terms", options=token(20, 3, logit_softcap=2.0),
             floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "B,H", "sink_logits": "H"}),
        Case("segments", options=block(16), segments="mixed"),
        Case("packed", options=token(9, causal=True), packed=4),
    ],
    preset={"window_left": "64"},
    perf=[token(256, causal=True), block(128)],
    growth=[Growth(token(256, causal=True), 1, 1)],
    visible=[
        Visible("wl3-causal", 16, 16, token(3, causal=True), 58),
        Visible("wl2-wr2", 16, 16, token(2, 2), 74),
        Visible("block4-causal", 16, 16, block(4, look_backward=1, causal=True), 88),
        Visible("block4", 16, 16, block(4, look_backward=1, look_forward=1), 160),
    ],
    golden=[
        pattern_golden("wl3-causal", token(3, causal=True), 116, 5.1525781413, -7.4843923619,
                       0.6846044227, -2.5951311722, 5.1083616890),
        pattern_golden("wl2-wr2", token(2, 2), 148, 2.4584478891, -5.2519736616, -1.7820082130,
                       0.1084702018, 3.5508025011),
        pattern_golden("block4-causal", block(4, look_backward=1, causal=True), 176, 3.4924542337,
                       -11.7302017568, 0.0464069327, -2.0074410853, 1.0110024521),
    ],
    refused=[
        Refused("no-window", {}, ["window_left is required when granularity is token, got none"]),
        Refused("no-block", {"granularity": "block"},
                ["block is required when granularity is block, got none"]),
        Refused("window-left", token(-2), ["window_left must be >= -1, got -2"]),
        Refused("window-right", token(3, -2), ["window_right must be >= -1, got -2"]),
        Refused("block-0", block(0), ["block must be >= 1, got 0"]),
        Refused("look-backward", block(4, look_backward=-1),
                ["look_backward must be >= 0, got -1"]),
        Refused("look-forward", block(4, look_forward=-7), ["look_forward must be >= 0, got -7"]),
        Refused("granularity", {"granularity": "page", "window_left": 3},
                ['granularity must be one of token, block, got "page"']),
        Refused("window-type", {"window_left": 3.5}, ["window_left must be an integer, got 3.5"]),
        Refused("everything-at-once", token(-2, -3, look_backward=-1, scale=float("nan")),
                ["window_left must be >= -1, got -2", "window_right must be >= -1, got -3",
                 "look_backward must be >= 0, got -1", "scale must be finite, got nan"]),
    ],
)
