"""Dilated windows and global tokens: oracle in float64 from the pattern specification (Common core,
longformer), cases, golden sums, refusals."""

import numpy as np

from tests.methods.cases import ALL, Case, fill_padding
from tests.methods.golden import pattern_golden
from tests.methods.method import Growth, Visible
from tests.methods.pattern_core import Kind, PatternOracle
from tests.methods.pattern_method import pattern_method
from tests.methods.refused import FLOAT, Refused, ints, zeros


def global_keys(seq):
    """[Nk] bools of this sequence."""
    if "global_mask" not in seq.t:
        return np.zeros(seq.Nk, bool)
    mask = seq.t["global_mask"] != 0
    return mask if mask.ndim == 1 else mask[seq.b]


def is_global(seq):
    """[Nq]: whether the position of a query is global; none is outside of the keys."""
    p, known = seq.p[:, 0], np.append(global_keys(seq), False)
    return known[np.where((p >= 0) & (p < seq.Nk), p, seq.Nk)]


def sees(seq):
    """[H,Nq,Nk]; options as large as 2^63 - 1 reach no farther than 2^62."""
    w, dilation = seq.o.get("window", 256), seq.o.get("dilation") or [1]
    delta = seq.p - seq.j
    heads = []
    for d in dilation:
        reach, step = min(w * d, 2**62), min(d, 2**62)
        heads.append((abs(delta) <= reach) & (delta % step == 0))
    return np.array(heads) | global_keys(seq) | is_global(seq)[:, None]


GLOBAL_NAMES = {"q": "q_global", "k": "k_global", "v": "v_global"}


# --- tensors of cases ---


def mask_of(holds, rank=2):
    """A mask of the positions j (< Nk) of sequence b for which holds(b, j, Nk). Any value but 0
    marks."""

    def make(rng, case):
        b, j = np.arange(case.B)[:, None], np.arange(case.keys)[None]
        mask = np.where(holds(b, j, case.keys), 1 + j * 127 % 255, 0).astype(np.uint8)
        return mask[0] if rank == 1 else mask

    return make


def at(*places, rank=2):
    return mask_of(lambda b, j, N: np.isin(j, places) & (b >= 0), rank)


scattered = mask_of(lambda b, j, N: (5 * j + 3 * b) % 17 == 0)
last = mask_of(lambda b, j, N: (j >= N - 3) & (b >= 0))
everywhere = mask_of(lambda b, j, N: (j >= 0) & (b >= 0))
nowhere = mask_of(lambda b, j, N: (j < 0) & (b >= 0))
# No global token in the first sequence.
uneven = mask_of(lambda b, j, N: (j % 9 < b) & (b > 0))


def q_global(rng, case):
    """NaN in rows that are not global, which must not be read."""
    x = rng.standard_normal((case.B, case.H, case.Nq, case.D))
    mask = case.made["global_mask"](None, case) if "global_mask" in case.made else np.zeros(1)
    mask = np.broadcast_to(mask, (case.B, case.keys))
    offsets = case.ints.get("causal_offset", (case.keys - case.Nq,) * case.B)
    # The bounds of packed sequences are drawn elsewhere.
    for b, offset in enumerate(offsets if not case.packed else ()):
        p = np.arange(case.Nq) + offset
        x[b, :, ~np.isin(p, np.flatnonzero(mask[b]))] = np.nan
    return x


def k_global(rng, case):
    return fill_padding(rng.standard_normal((case.B, case.heads_kv, case.keys, case.D)),
                        case.ints.get("kv_lengths"))


def v_global(rng, case):
    return fill_padding(rng.standard_normal((case.B, case.heads_kv, case.keys, case.Dv or case.D)),
                        case.ints.get("kv_lengths"))


def own(mask, *names):
    """`mask` and the tensors of global rows: all three, or those named."""
    makers = {"q_global": q_global, "k_global": k_global, "v_global": v_global}
    return {"global_mask": mask} | {name: makers[name] for name in names or makers}


def token(window, *dilation, **more):
    return {"window": window} | ({"dilation": [*dilation]} if dilation else {}) | more


MASK = "global_mask shape must be [B,Nk] or [Nk]"


def mask_zeros(*shape):
    return zeros(*shape, dtype=np.uint8)


METHOD = pattern_method(
    id="longformer",
    oracle=PatternOracle(sees, kinds=(
        Kind(lambda seq: ~is_global(seq)), Kind(is_global, GLOBAL_NAMES))),
    options={"window": "int", "dilation": "ints"},
    own=("global_mask", *GLOBAL_NAMES.values()),
    own_differentiable=GLOBAL_NAMES.values(),
    good_options={},
    plans_pairs=lambda t, o: "global_mask" not in t,
    peers=[
        "allenai/longformer LongformerSelfAttention (needs PyTorch)",
        "transformers LongformerSelfAttention, attention_window = 2 window (needs PyTorch)",
    ],
    cases=[
        Case("no-mask", dtypes=ALL, B=2, Nq=65, options=token(5)),
        Case("default-window", Nq=65),
        Case("plain", dtypes=ALL, B=2, Nq=65, options=token(5), made=own(scattered)),
        Case("shared-projections", dtypes=ALL, B=2, Nq=65, options=token(5),
             made={"global_mask": scattered}),
        Case("causal", dtypes=ALL, B=2, Nq=65, options=token(5, causal=True), made=own(scattered)),
        Case("causal-shared", B=2, Nq=131, options=token(9, causal=True),
             made={"global_mask": scattered}),
        Case("n64", Nq=64, D=64, H=1, options=token(64), made=own(scattered)),
        Case("n131-d64", H=1, Nq=131, D=64, Dv=32, options=token(20), made=own(scattered)),
        Case("long", H=1, Nq=323, D=8, options=token(30), made=own(at(0, 1, 200))),
        Case("n1-global", Nq=1, options=token(1), made=own(at(0))),
        Case("n1", Nq=1, options=token(1), made=own(nowhere)),
        Case("n0", Nq=0, Nk=3, options=token(3), made=own(at(1)), grad_lse=False),
        Case("nk0", Nq=3, Nk=0, options=token(3), made=own(nowhere)),
        Case("first", Nq=131, options=token(9), made=own(at(0))),
        Case("last", dtypes=ALL, B=2, Nq=131, options=token(9), made=own(last)),
        Case("none", B=2, Nq=65, options=token(9), made=own(nowhere)),
        Case("all", dtypes=ALL, B=2, Nq=65, options=token(9), made=own(everywhere)),
        Case("all-causal", B=2, Nq=65, options=token(9, causal=True), made=own(everywhere)),
        Case("uneven", B=3, Nq=65, options=token(4), made=own(uneven)),
        Case("mask-of-rank-1", B=2, Nq=65, options=token(4), made=own(at(0, 7, 40, rank=1))),
        Case("q-global-only", B=2, Nq=65, options=token(4), made=own(scattered, "q_global")),
        Case("k-global-only", B=2, Nq=65, options=token(4), made=own(scattered, "k_global")),
        Case("v-global-only", dtypes=ALL, B=2, Nq=65, options=token(4),
             made=own(scattered, "v_global")),
        Case("global-tensors-without-mask", Nq=33, options=token(4),
             made={"k_global": k_global, "v_global": v_global}),
        Case("dilation-2", dtypes=ALL, Nq=65, options=token(4, 2), made=own(scattered)),
        Case("dilation-3-causal", Nq=131, options=token(7, 3, causal=True), made=own(scattered)),
        Case("dilation-of-heads", dtypes=ALL, B=2, H=4, Hkv=2, Nq=131,
             options=token(6, 1, 2, 3, 11), made=own(scattered)),
        Case("dilation-of-heads-no-mask", H=3, Nq=65, options=token(2, 5, 1, 30)),
        Case("dilation-few-queries", Nq=5, Nk=301, options=token(9, 16)),
        Case("dilation-beyond-n", Nq=65, options=token(3, 100), made=own(at(5))),
        Case("more-keys", Nq=65, Nk=131, options=token(7), made=own(scattered)),
        Case("more-queries", dtypes=ALL, Nq=131, Nk=65, options=token(7, 2), made=own(scattered)),
        Case("more-queries-causal", Nq=131, Nk=63, options=token(7, causal=True),
             made=own(scattered)),
        Case("offset", B=3, Nq=65, Nk=70, options=token(4), made=own(scattered),
             ints={"causal_offset": (-66, 2, 69)}),
        Case("offset-causal", B=3, Nq=65, Nk=70, options=token(4, 2, causal=True),
             made=own(scattered), ints={"causal_offset": (-30, 5, 40)}),
        # Tensors of global rows without a mask: no row is global, their gradients are zero.
        Case("no-mask-own-tensors", B=2, Nq=65, options=token(4), made={
            "q_global": q_global, "k_global": k_global, "v_global": v_global}),
        Case("offset-extreme", B=2, Nq=33, options=token(4), made=own(scattered),
             ints={"causal_offset": (2**31 - 1, -(2**31))}),
        Case("lengths", dtypes=ALL, B=6, H=1, Nq=131, options=token(9), made=own(scattered),
             ints={"q_lengths": (131, 65, 64, 63, 1, 0), "kv_lengths": (0, 1, 63, 64, 65, 131)}),
        Case("globals-in-padding", B=2, Nq=65, options=token(5), made=own(last),
             ints={"kv_lengths": (50, 64)}),
        Case("globals-in-all-padding", B=2, Nq=65, options=token(5), made=own(at(20, 50)),
             ints={"q_lengths": (40, 65), "kv_lengths": (40, 21)}),
        Case("gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=65, options=token(10), made=own(scattered)),
        Case("scale-dv", Nq=65, D=5, Dv=33, options=token(10, scale=0.7), made=own(scattered)),
        Case("huge-window", Nq=65, options=token(2**63 - 1), made=own(scattered)),
        Case("huge-dilation", Nq=65, options=token(2**62, 2**63 - 1, 2**40), made=own(scattered)),
        Case("multiset", Nq=33, options=token(40, duplicates="multiset"), made=own(scattered)),
        Case("sinks", dtypes=ALL, B=2, Nq=65, options=token(5), made=own(scattered),
             floats={"sink_logits": "H"}, ints={"kv_lengths": (65, 0)}),
        Case("sinks-shared", B=2, Nq=65, options=token(5, causal=True),
             made={"global_mask": scattered}, floats={"sink_logits": "H"}),
        Case("bias", B=2, Nq=65, options=token(5), made=own(scattered),
             floats={"bias": "B,H,Nq,Nk"}),
        Case("bias-hides", B=2, Nq=65, options=token(5), made=own(scattered), hidden_bias=True,
             floats={"bias": "1,1,Nq,Nk"}),
        Case("alibi", H=6, Hkv=3, Nq=65, options=token(20, alibi=True), made=own(scattered)),
        Case("softcap", Nq=65, spread=2.0, options=token(9, logit_softcap=1.5),
             made=own(scattered)),
        Case("all-terms", dtypes=ALL, B=2, H=4, Hkv=2, Nq=131, Nk=150, D=33, Dv=17,
             options=token(20, 1, 2, 1, 3, logit_softcap=3.0), made=own(scattered),
             floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "H", "sink_logits": "H"},
             ints={"q_lengths": (131, 40), "kv_lengths": (50, 150)}),
        Case("all-terms-causal-shared", B=2, H=4, Hkv=2, Nq=65,
             options=token(9, causal=True, logit_softcap=3.0), made={"global_mask": scattered},
             floats={"bias": "B,1,1,Nk", "alibi_slopes": "B,H", "sink_logits": "H"}),
        Case("wide-floats", dtypes=("f16", "bf16"), B=2, Nq=65, wide_floats=True, options=token(5),
             made=own(scattered), floats={"bias": "1,H,Nq,Nk", "sink_logits": "H"}),
        Case("segments", dtypes=ALL, B=2, Nq=131, segments="runs", options=token(20),
             made=own(scattered)),
        Case("segments-mixed", B=2, Nq=131, Nk=65, segments="mixed", options=token(9, causal=True),
             made=own(scattered)),
        Case("packed", dtypes=ALL, H=4, Hkv=2, Nq=261, packed=5, options=token(20, 2),
             made=own(scattered)),
        Case("packed-shared-rank-1", Nq=131, packed=4, options=token(9, causal=True),
             made={"global_mask": at(0, 1, 40, 100, rank=1)}),
        Case("packed-no-mask", Nq=65, packed=3, options=token(4)),
        Case("packed-all-terms", Nq=131, Nk=99, packed=4, options=token(9, 1, 3, logit_softcap=3.0),
             made=own(scattered),
             floats={"bias": "H,Nq,Nk", "alibi_slopes": "H", "sink_logits": "H"}),
        Case("bnhd", B=2, H=4, Hkv=2, Nq=65, layout="BNHD", options=token(6), made=own(scattered)),
        Case("strided", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, strided=True, options=token(6, 2),
             made=own(scattered)),
        Case("strided-lengths", B=2, H=4, Hkv=2, Nq=65, strided=True, options=token(6, 2),
             made=own(scattered), ints={"q_lengths": (65, 40), "kv_lengths": (50, 21)}),
        Case("strided-bnhd", B=2, Nq=65, strided=True, layout="BNHD", options=token(6, causal=True),
             made=own(scattered)),
    ],
    batches=[token(5), token(9, 3, causal=True)],
    tensor_batches=[
        Case("globals", options=token(7, 2), made=own(scattered)),
        Case("shared", options=token(20, causal=True), made={"global_mask": last}),
        Case("terms", options=token(20, 1, 2, 3, 1, logit_softcap=2.0), made=own(scattered),
             floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "B,H", "sink_logits": "H"}),
        Case("segments", options=token(9), segments="mixed", made=own(scattered)),
        Case("packed", options=token(9), packed=4, made=own(scattered)),
    ],
    perf=[token(256), token(64, 4, causal=True)],
    growth=[Growth(token(256), 1, 1)],
    visible=[
        Visible("w2-globals", 16, 16, token(2), 120, made={"global_mask": at(0, 7)}),
        Visible("w2-dilation2-globals", 16, 16, token(2, 2), 114, made={"global_mask": at(0, 7)}),
        # Without globals local with window_left = window_right = window.
        Visible("w2", 16, 16, token(2), 74),
    ],
    golden=[
        pattern_golden("w2-dilation-of-heads", token(2, 1, 2), 234, -0.6156640869, -4.3679680727,
                       -0.8690568554, 0.7173599850, -4.2195419756,
                       {"global_mask": np.isin(np.arange(16), (0, 7)).astype(np.uint8)}),
    ],
    refused=[
        Refused("window-0", token(0), ["window must be >= 1, got 0"]),
        Refused("window-type", {"window": 3.5}, ["window must be an integer, got 3.5"]),
        Refused("dilation-0", token(5, 1, 0, 1, 1), ["dilation[1] must be >= 1, got 0"]),
        Refused("dilation-negative", token(5, -3), ["dilation[0] must be >= 1, got -3"]),
        Refused("dilation-count", token(5, 1, 2, 3),
                ["dilation must have 1 or H = 4 values, got 3"]),
        Refused("mask-nk", {}, [f"{MASK} with Nk = 7, got [2,6]"],
                change={"global_mask": mask_zeros(2, 6)}),
        Refused("mask-b", {}, [f"{MASK} with B = 2, got [1,7]"],
                change={"global_mask": mask_zeros(1, 7)}),
        Refused("mask-rank-1", {}, [f"{MASK} with Nk = 7, got [6]"],
                change={"global_mask": mask_zeros(6)}),
        Refused("mask-rank-3", {}, [f"{MASK}, got [2,1,7]"],
                change={"global_mask": mask_zeros(2, 1, 7)}),
        Refused("mask-dtype", {}, ["global_mask dtype must be uint8, got int32"],
                change={"global_mask": ints(*[0] * 7)}),
        Refused("mask-dense", {}, ["global_mask must be dense along its dimensions, got stride 14"],
                change={"global_mask": mask_zeros(2, 14)[:, :7]}),
        Refused("q-global-heads", {},
                ["q_global shape must be [B,H,Nq,D] with H = 4, got [2,2,6,3]"],
                change={"q_global": zeros(2, 2, 6, 3)}),
        Refused("k-global-keys", {},
                ["k_global shape must be [B,Hkv,Nk,D] with Nk = 7, got [2,2,6,3]"],
                change={"k_global": zeros(2, 2, 6, 3)}),
        Refused("v-global-width", {},
                ["v_global shape must be [B,Hkv,Nk,Dv] with Dv = 5, got [2,2,7,3]"],
                change={"v_global": zeros(2, 2, 7, 3)}),
        Refused("k-global-dtype", {}, ["k_global dtype must be float32, got float16"],
                change={"k_global": zeros(2, 2, 7, 3, dtype=np.float16)}),
        Refused("k-global-rank", {}, ["k_global shape must be [B,Hkv,Nk,D], got [2,7,3]"],
                change={"k_global": zeros(2, 7, 3)}),
        Refused("everything-at-once", token(0, 1, 2, alibi=0.5), [
            "window must be >= 1, got 0", "dilation must have 1 or H = 4 values, got 2",
            "alibi must be a bool, got 0.5", "global_mask dtype must be uint8, got float32",
            f"{MASK} with Nk = 7, got [8]"],
                change={"global_mask": zeros(8, dtype=FLOAT)}),
    ],
)
