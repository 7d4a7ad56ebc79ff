"""Rectangles of queries with a flange of neighbours: oracle in float64 from the pattern
specification (Common core, image_local_2d), cases, golden sums, refusals."""

from tests.methods import axial
from tests.methods.cases import ALL, Case
from tests.methods.golden import pattern_golden
from tests.methods.method import Growth, Visible
from tests.methods.pattern_core import PatternOracle
from tests.methods.pattern_method import pattern_method
from tests.methods.refused import Refused


def sizes(o, name):
    # No coordinate comes near 2^40: larger options act alike when cut to it. Sums fit int64.
    return [min(x, 2**40) for x in o.get(name) or (8, 16)]


def sees(seq):
    (qh, qw), (mh, mw) = sizes(seq.o, "query_shape"), sizes(seq.o, "memory_flange")
    w = seq.o["grid"][1]
    (y, x), (v, u) = divmod(seq.i, w), divmod(seq.j, w)
    by, bx = y // qh * qh, x // qw * qw
    wide = (bx - mw <= u) & (u < bx + qw + mw)
    if not seq.o.get("causal", False):
        return (by - mh <= v) & (v < by + qh + mh) & wide
    top = (by - mh <= v) & (v < by) & wide
    in_rows = (by <= v) & (v < by + qh)
    left = in_rows & (bx - mw <= u) & (u < bx)
    block = in_rows & (bx <= u) & (u < bx + qw)
    return top | left | (block & ((v - by) * qw + (u - bx) <= (y - by) * qw + (x - bx)))


def image(h, w, block=None, flange=None, **more):
    named = {"query_shape": block, "memory_flange": flange}
    return {"grid": [h, w]} | {name: list(x) for name, x in named.items() if x is not None} | more


METHOD = pattern_method(
    id="image_local_2d",
    # Block-raster order: j <= p is not required.
    oracle=PatternOracle(sees, causal=lambda o: False),
    options={"grid": "ints", "query_shape": "ints", "memory_flange": "ints"},
    lacks=("cross", "packed", "alibi"),
    good_options=image(2, 3),
    peers=[
        "tensor2tensor local_attention_2d, mh = mw, q scaled before (needs TensorFlow)",
        "tensor2tensor masked_local_attention_nd, flange a multiple of the block"
        " (needs TensorFlow)",
    ],
    fit_options=axial.fit_grid,
    fit_sizes=axial.fit_sizes,
    cases=[
        Case("6x7", dtypes=ALL, B=2, Nq=42, options=image(6, 7, (2, 3), (1, 2))),
        Case("6x7-causal", dtypes=ALL, B=2, Nq=42,
             options=image(6, 7, (2, 3), (1, 2), causal=True)),
        Case("8x8", Nq=64, options=image(8, 8, (4, 4), (2, 2))),
        Case("8x8-causal", Nq=64, options=image(8, 8, (4, 4), (4, 4), causal=True)),
        Case("5x13", Nq=65, options=image(5, 13, (2, 4), (3, 1))),
        Case("13x5-causal", Nq=65, options=image(13, 5, (4, 2), (3, 1), causal=True)),
        Case("7x9-ragged-causal", dtypes=ALL, Nq=63,
             options=image(7, 9, (4, 4), (2, 3), causal=True)),
        Case("one-row", Nq=131, options=image(1, 131, (2, 8), (3, 5))),
        Case("one-row-causal", Nq=131, options=image(1, 131, (2, 8), (3, 5), causal=True)),
        Case("one-column", Nq=131, options=image(131, 1, (8, 2), (5, 3))),
        Case("one-column-causal", Nq=131, options=image(131, 1, (8, 2), (5, 3), causal=True)),
        Case("blocks-of-64", H=1, Nq=256, D=8, options=image(16, 16, (8, 8), (8, 8))),
        Case("blocks-of-64-causal", H=1, Nq=256, D=8,
             options=image(16, 16, (8, 8), (4, 8), causal=True)),
        Case("defaults", H=1, Nq=420, D=8, options=image(12, 35)),
        Case("defaults-causal", H=1, Nq=425, D=8, options=image(25, 17, causal=True)),
        Case("default-flange", H=1, Nq=198, D=8, options=image(22, 9, (3, 4))),
        Case("default-block", H=1, Nq=252, D=8, options=image(12, 21, None, (1, 2), causal=True)),
        Case("no-flange", dtypes=ALL, Nq=63, options=image(7, 9, (3, 4), (0, 0))),
        Case("no-flange-causal", Nq=63, options=image(7, 9, (3, 4), (0, 0), causal=True)),
        Case("flange-up-only", Nq=63, options=image(7, 9, (3, 4), (2, 0), causal=True)),
        Case("flange-aside-only", Nq=63, options=image(7, 9, (3, 4), (0, 3), causal=True)),
        Case("flange-of-all", Nq=63, options=image(7, 9, (2, 2), (10, 10))),
        Case("flange-of-all-causal", Nq=63, options=image(7, 9, (2, 2), (10, 10), causal=True)),
        Case("pixels", Nq=63, options=image(7, 9, (1, 1), (1, 1))),
        Case("pixels-causal", Nq=63, options=image(7, 9, (1, 1), (2, 1), causal=True)),
        Case("rows", Nq=63, options=image(7, 9, (1, 9), (2, 0), causal=True)),
        Case("columns", Nq=63, options=image(7, 9, (7, 1), (0, 2), causal=True)),
        Case("larger-than-image", Nq=63, options=image(7, 9, (20, 30), (1, 1))),
        Case("larger-than-image-causal", Nq=63, options=image(7, 9, (20, 30), (1, 1), causal=True)),
        Case("huge", Nq=63, options=image(7, 9, (2**63 - 1, 2**63 - 1), (2**63 - 1, 2**63 - 1))),
        Case("huge-causal", Nq=63,
             options=image(7, 9, (2**62, 2**40), (2**63 - 1, 2**40), causal=True)),
        Case("huge-flange-causal", Nq=63,
             options=image(7, 9, (2, 3), (2**63 - 1, 2**62), causal=True)),
        Case("huge-height", Nq=63,
             options=image(7, 9, (2**63 - 1, 3), (1, 2**63 - 1), causal=True)),
        Case("n1", Nq=1, options=image(1, 1, (2, 2), (1, 1))),
        Case("n1-causal", Nq=1, options=image(1, 1, (2, 2), (1, 1), causal=True)),
        Case("lengths", dtypes=ALL, B=6, H=1, Nq=132, options=image(11, 12, (3, 5), (2, 4)),
             ints={"q_lengths": (132, 65, 64, 63, 1, 0), "kv_lengths": (0, 1, 63, 64, 65, 132)}),
        Case("lengths-causal", B=2, Nq=63, options=image(7, 9, (4, 4), (2, 3), causal=True),
             ints={"kv_lengths": (40, 5)}),
        Case("scale-dv", Nq=65, D=5, Dv=33, options=image(5, 13, (2, 4), (1, 2), scale=0.7)),
        Case("gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=65,
             options=image(13, 5, (4, 3), (2, 2), causal=True)),
        Case("bnhd", B=2, Nq=65, layout="BNHD", options=image(5, 13, (2, 4), (1, 2), causal=True)),
        Case("strided", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, strided=True,
             options=image(5, 13, (2, 4), (1, 2))),
        Case("strided-lengths", B=2, H=4, Hkv=2, Nq=65, strided=True,
             options=image(5, 13, (2, 4), (1, 2)),
             ints={"q_lengths": (65, 40), "kv_lengths": (50, 21)}),
        Case("multiset", Nq=42, options=image(6, 7, (2, 3), (1, 2), duplicates="multiset")),
        Case("all-terms", dtypes=ALL, B=2, H=4, Hkv=2, Nq=132, D=33, Dv=17,
             options=image(12, 11, (4, 5), (3, 2), logit_softcap=3.0),
             floats={"bias": "1,H,Nq,Nk", "sink_logits": "H"},
             ints={"q_lengths": (132, 40), "kv_lengths": (50, 132)}),
        Case("all-terms-causal", B=2, H=4, Hkv=2, Nq=63, strided=True, layout="BNHD",
             options=image(7, 9, (3, 4), (2, 4), causal=True, logit_softcap=3.0),
             floats={"bias": "B,1,1,Nk", "sink_logits": "H"}),
        Case("bias-hides", Nq=63, options=image(7, 9, (3, 4), (2, 4)), floats={"bias": "1,1,Nq,Nk"},
             hidden_bias=True),
        Case("sinks-of-empty-rows", B=2, Nq=63, options=image(7, 9, (2, 2), (1, 1)),
             floats={"sink_logits": "H"}, ints={"kv_lengths": (20, 0)}),
        Case("segments", dtypes=ALL, B=2, Nq=132, segments="runs",
             options=image(12, 11, (4, 4), (2, 3))),
        Case("segments-mixed", B=2, H=4, Nq=63, segments="mixed",
             options=image(7, 9, (3, 4), (2, 4), causal=True)),
    ],
    batches=[
        image(8, 16, (4, 4), (2, 3), causal=True),
        image(11, 12, (4, 8), (4, 4)),
        image(9, 14, (2, 14), (1, 0)),
    ],
    tensor_batches=[
        Case("terms", options=image(12, 11, (4, 4), (2, 3), logit_softcap=2.0),
             floats={"bias": "1,H,Nq,Nk", "sink_logits": "H"}),
        Case("segments", options=image(9, 14, (3, 5), (2, 3), causal=True), segments="mixed"),
    ],
    preset={"grid": "grid(Nq)"},
    perf=[image(64, 64, causal=True), image(64, 64)],
    growth=[Growth(image(16, 64, (8, 16), (8, 16), causal=True), 1, 1)],
    visible=[
        Visible("6x7", 42, 42, image(6, 7, (2, 3), (1, 2)), 720),
        Visible("6x7-causal", 42, 42, image(6, 7, (2, 3), (1, 2), causal=True), 375),
    ],
    golden=[
        pattern_golden("4x4-causal", image(4, 4, (2, 3), (1, 2), causal=True), 188, 4.6560878771,
                       -11.4467297365, 0.0882904547, -1.4425189565, 1.7954771825),
        pattern_golden("4x4", image(4, 4, (2, 3), (1, 2)), 360, 0.2343987326, -4.0468959806,
                       -0.7229708925, -0.1668589769, 0.2336914683),
    ],
    refused=[
        Refused("no-grid", {}, ["grid is required, got none"]),
        Refused("grid-count", {"grid": [1, 2, 3]}, ["grid must have 2 values, got 3"]),
        Refused("block-count", image(2, 3, (4,)), ["query_shape must have 2 values, got 1"]),
        Refused("flange-count", image(2, 3, None, (1, 2, 3)),
                ["memory_flange must have 2 values, got 3"]),
        Refused("grid-extent", image(0, 6), ["grid[0] must be >= 1, got 0"]),
        Refused("block-extent", image(2, 3, (4, 0)), ["query_shape[1] must be >= 1, got 0"]),
        Refused("flange-extent", image(2, 3, None, (-1, 2)),
                ["memory_flange[0] must be >= 0, got -1"]),
        Refused("grid-product", image(2, 4), ["grid must multiply to N = 6, got [2,4]"]),
        # The product is 6 modulo 2^64.
        Refused("grid-huge", image(9, 6148914691236517206),
                ["grid must multiply to N = 6, got [9,6148914691236517206]"]),
        Refused("everything-at-once", image(2, 4, (0, 0), (-1,), scale=float("nan")),
                ["grid must multiply to N = 6, got [2,4]", "query_shape[0] must be >= 1, got 0",
                 "query_shape[1] must be >= 1, got 0", "memory_flange must have 2 values, got 1",
                 "scale must be finite, got nan"]),
    ],
)
