"""memory_compressed: oracle, cases, golden values, refusals and peers."""

import dataclasses

import numpy as np

from tests.methods.cases import ALL, Case
from tests.methods.drawn import uniforms
from tests.methods.learned import F, learned_golden
from tests.methods.method import Growth, Method, Visible
from tests.methods.refused import (B, H, Hkv, Nk, Nq, D, Dv, Refused, common_refusals, zeros)
from tests.methods.traced import TracedOracle

CONVOLUTIONS = ("conv_wk", "conv_bk", "conv_wv", "conv_bv")
OWN = (*CONVOLUTIONS, "null_k", "null_v", "bias")


def factor_of(t, o):
    return next((t[name].shape[3] for name in ("conv_wk", "conv_wv") if name in t),
                o.get("factor", 3))


def is_local(o):
    return o.get("layer") == "local"


def has_null(o):
    return not is_local(o) and o.get("null", True) and not o.get("first_key", False)


class CompressedOracle(TracedOracle):
    """Cells by loops over the f rows of a window, and one boolean mask."""

    differentiable = ("q", "k", "v", *OWN)
    axes = {"bias": "B,H,Nq,C"}

    @staticmethod
    def padding(o, n, f):
        """(cells, P) of n keys."""
        if o.get("pad") == "drop":
            return n // f, 0
        return -(-n // f), -n % f if o.get("pad", "left") == "left" else 0

    def cells(self, f, t, o, of):
        """[1,Hkv,cells,D]."""
        x, width = t[of], factor_of(t, o)
        _, heads, n, D = x.shape
        letter = "k" if o.get("share_conv") else of
        tables = []
        for name, shape in ((f"conv_w{letter}", (heads, D, D, width)),
                            (f"conv_b{letter}", (heads, D))):
            tables.append(t[name] if name in t else f.num(
                uniforms(o.get("seed", 0), name, shape, (D * width) ** -0.5)))
        cells, front = self.padding(o, n, width)
        behind = max(cells * width - front - n, 0)
        rows = f.concat([np.zeros((1, heads, front, D)), x, np.zeros((1, heads, behind, D))], 2)
        every = slice(None)
        total = tables[1].reshape(1, heads, 1, D)
        for r in range(width):
            tap = f.take(tables[0], (every, every, every, r)).reshape(1, heads, D, D)
            of_tap = f.take(rows, (every, every, slice(r, cells * width, width)))
            total = total + of_tap @ tap.swapaxes(2, 3)
        return total if cells else f.take(rows, (every, every, slice(0, 0)))

    def mask(self, t, o, nq, nk, offset):
        """[nq, cells] or [nq, nk]; the null key apart."""
        p = np.arange(nq)[:, None] + offset
        if is_local(o):
            j, block = np.arange(nk), o.get("block", 256)
            seen = p // block == j // block
            return seen & (j <= p) if o.get("causal") else seen
        f = factor_of(t, o)
        cells, front = self.padding(o, nk, f)
        end = (np.arange(cells) + 1) * f - 1 - front
        if not o.get("causal"):
            return np.ones((nq, cells), bool)
        return end < p if o.get("rule") == "strict" else end <= p

    def compute(self, f, t, o, offset):
        q = t["q"]
        _, heads, nq, D = q.shape
        nk, group = t["k"].shape[2], heads // t["k"].shape[1]
        mask = self.mask(t, o, nq, nk, offset)
        if is_local(o):
            keys, values = (f.repeat_heads(t[name], group) for name in "kv")
        else:
            keys, values = (f.repeat_heads(self.cells(f, t, o, name), group) for name in "kv")
        logits = (q @ keys.swapaxes(2, 3)) * o.get("scale", D ** -0.5)
        if "bias" in t:
            bias = t["bias"]
            bias = bias.reshape(*(1,) * (4 - bias.ndim), *bias.shape)
            if bias.shape[3] > 1:
                bias = f.take(bias, (..., slice(0, mask.shape[1])))
            logits = logits + bias
        if not is_local(o) and (o.get("first_key") or has_null(o)):
            firsts = []
            for name, width in (("k", D), ("v", values.shape[3])):
                if o.get("first_key"):
                    every = slice(None)
                    firsts.append(f.repeat_heads(f.take(t[name], (every, every, slice(0, 1))),
                                                 group))
                elif f"null_{name}" in t:
                    firsts.append(t[f"null_{name}"].reshape(1, heads, 1, width))
                else:
                    firsts.append(f.num(np.zeros((1, heads, 1, width))))
            first = (q @ firsts[0].swapaxes(2, 3)) * o.get("scale", D ** -0.5)
            logits, values = f.concat([first, logits], 3), f.concat([firsts[1], values], 2)
            mask = np.concatenate([np.ones((nq, first.shape[3]), bool), mask], 1)
        out, lse = f.attention(logits, values, mask)
        return {"out": out, "lse": lse}

    def visible(self, t, o):
        """Keys that a row depends on, by themselves or in a cell."""
        seen = super().visible(t, o)
        B, _, Nq, Nk = seen.shape
        f = factor_of(t, o)
        whole = np.zeros(seen.shape, bool)
        for b in range(B):
            nk = self._lengths(t, b)[1]
            mask = self.mask(t, o, Nq, nk, Nk - Nq)
            if not is_local(o):
                cells, front = self.padding(o, nk, f)
                mask = mask.repeat(f, axis=1)[:, front:front + nk]
                mask = np.pad(mask, ((0, 0), (0, nk - mask.shape[1])))
                if o.get("first_key") and nk:
                    mask[:, 0] = True
            whole[b, :, :, :nk] = mask
        return seen & whole

    def pairs(self, t, o):
        pairs, offset = 0, t["k"].shape[2] - t["q"].shape[2]
        sent = "null_k" in t or "null_v" in t
        for b in range(len(t["q"])):
            nq, nk = self._lengths(t, b)
            pairs += self.mask(t, o, nq, nk, offset).sum()
            if not is_local(o):
                pairs += nq * (min(nk, 1) if o.get("first_key") else has_null(o) and sent)
        return int(pairs) * t["q"].shape[1]


def drawn(*letters, spread=1.0):
    def make(rng, case):
        return spread * rng.standard_normal(case.shape_of(",".join(map(str, letters))))
    return make


def convolutions(f=3, *names):
    made = {"conv_wk": drawn("Hkv", "D", "D", f, spread=0.2), "conv_bk": drawn("Hkv", "D"),
            "conv_wv": drawn("Hkv", "Dv", "Dv", f, spread=0.2), "conv_bv": drawn("Hkv", "Dv")}
    return {name: made[name] for name in names or made}


NULLS = {"null_k": drawn("H", "D"), "null_v": drawn("H", "Dv")}
ALL_MADE = convolutions() | NULLS


def fit_options(case):
    """With one convolution values are as wide as keys."""
    return dataclasses.replace(case, Dv=0) if case.options.get("share_conv") else case


CAUSAL, STRICT = {"causal": True}, {"causal": True, "rule": "strict"}
RIGHT, DROP = {"pad": "right"}, {"pad": "drop"}
LOCAL = {"layer": "local", "block": 10}
RAGGED = {"q_lengths": (0, 1, 63, 64, 65, 131), "kv_lengths": (131, 65, 64, 63, 1, 0)}
SAME = {"q_lengths": (0, 1, 63, 64, 65, 131), "kv_lengths": (0, 1, 63, 64, 65, 131)}

CASES = [
    Case("plain", dtypes=ALL, B=2, Nq=65, made=convolutions()),
    Case("drawn", dtypes=ALL, B=2, Nq=63),
    Case("seed", Nq=33, options={"seed": 2**63 + 5, "factor": 4}),
    Case("half-drawn", Nq=33, made=convolutions(4, "conv_wk", "conv_bv")),
    Case("gqa", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, Dv=7, made=ALL_MADE),
    Case("cross", dtypes=ALL, B=2, Nq=40, Nk=65, Dv=7, made=ALL_MADE),
    Case("factor-1", Nq=33, made=convolutions(1)),
    Case("factor-7", B=2, Nq=65, made=convolutions(7), options=CAUSAL),
    Case("factor-longer", Nq=5, made=convolutions(8) | NULLS),
    Case("factor-longer-right", Nq=5, made=convolutions(8), options=RIGHT),
    Case("factor-longer-drop", Nq=5, made=convolutions(8), options=DROP),
    Case("many-cells", H=1, Nq=400, D=8, made=convolutions(), options=CAUSAL),
    Case("causal", dtypes=ALL, B=2, H=4, Hkv=2, Nq=131, made=ALL_MADE, options=CAUSAL),
    Case("causal-without-nulls", dtypes=ALL, B=2, Nq=131, made=convolutions(), options=CAUSAL),
    Case("causal-no-null", dtypes=ALL, B=2, Nq=131, made=convolutions(),
         options=CAUSAL | {"null": False}),
    Case("null-k", Nq=40, made=convolutions() | {"null_k": drawn("H", "D")}, options=CAUSAL),
    Case("null-v", Nq=40, made=convolutions() | {"null_v": drawn("H", "Dv")}, options=STRICT),
    Case("strict", dtypes=ALL, B=2, Nq=131, made=ALL_MADE, options=STRICT),
    Case("strict-no-null", Nq=70, made=convolutions(), options=STRICT | {"null": False}),
    Case("right", dtypes=ALL, B=2, Nq=65, made=ALL_MADE, options=RIGHT),
    Case("right-causal", B=2, Nq=131, made=convolutions(), options=RIGHT | CAUSAL),
    Case("right-strict", B=2, Nq=131, made=ALL_MADE, options=RIGHT | STRICT),
    Case("drop", dtypes=ALL, B=2, Nq=65, made=ALL_MADE, options=DROP),
    Case("drop-causal", B=2, Nq=131, made=convolutions(), options=DROP | CAUSAL),
    Case("tensor2tensor", dtypes=ALL, B=2, H=4, Hkv=2, Nq=131, made=convolutions(),
         options=DROP | STRICT | {"first_key": True}),
    Case("first-key", B=2, Nq=40, Dv=7, made=convolutions(), options={"first_key": True}),
    Case("first-key-no-null", Nq=40, options={"first_key": True, "null": False, "causal": True}),
    Case("first-key-lengths", B=3, H=4, Hkv=2, Nq=40, made=convolutions(),
         ints={"kv_lengths": (0, 13, 40)}, options=CAUSAL | {"first_key": True}),
    Case("share", dtypes=ALL, B=2, Nq=65, made=convolutions(3, "conv_wk", "conv_bk"),
         options=CAUSAL | {"share_conv": True}),
    Case("share-drawn", Nq=65, options={"share_conv": True, "factor": 5}),
    Case("more-keys", Nq=33, Nk=67, made=ALL_MADE, options=CAUSAL),
    Case("more-queries", Nq=67, Nk=33, made=ALL_MADE, options=CAUSAL),
    Case("more-queries-strict", Nq=67, Nk=33, made=convolutions(),
         options=STRICT | RIGHT | {"null": False}),
    Case("lengths", dtypes=ALL, B=6, Nq=131, ints=RAGGED, made=ALL_MADE),
    Case("lengths-causal", dtypes=ALL, B=6, H=4, Hkv=2, Nq=131, ints=SAME, made=ALL_MADE,
         options=CAUSAL),
    Case("lengths-right", B=6, Nq=131, ints=RAGGED, made=convolutions(), options=RIGHT | CAUSAL),
    Case("lengths-drop", B=6, Nq=131, ints=RAGGED, made=convolutions(),
         options=DROP | STRICT | {"null": False}),
    Case("lengths-share", B=3, Nq=40, ints={"kv_lengths": (0, 7, 40)},
         options={"share_conv": True, "causal": True}),
    Case("keys-whole-cells", dtypes=ALL, B=3, Nq=42, ints={"kv_lengths": (0, 9, 42)},
         made=convolutions()),
    Case("bias", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, made=ALL_MADE,
         floats={"bias": "B,H,Nq,22"}),
    Case("bias-causal", B=2, Nq=65, made=convolutions(), options=CAUSAL,
         floats={"bias": "1,H,1,22"}),
    Case("bias-drop", B=2, Nq=65, made=convolutions(), options=DROP, floats={"bias": "Nq,21"}),
    Case("bias-lengths", B=3, Nq=40, ints={"kv_lengths": (0, 13, 40), "q_lengths": (40, 13, 7)},
         made=ALL_MADE, floats={"bias": "B,1,Nq,14"}, options=CAUSAL),
    Case("bias-first-key", Nq=40, made=convolutions(), floats={"bias": "1,H,Nq,14"},
         options={"first_key": True}),
    Case("scale", Nq=33, made=ALL_MADE, options={"scale": 0.7}),
    Case("local", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, Dv=7, options=LOCAL),
    Case("local-causal", dtypes=ALL, B=2, Nq=131, options=LOCAL | CAUSAL),
    Case("local-default", H=1, Nq=600, D=8, options={"layer": "local", "causal": True}),
    Case("local-lengths", dtypes=ALL, B=6, Nq=131, ints=RAGGED, options=LOCAL),
    Case("local-cross-causal", Nq=33, Nk=67, options=LOCAL | CAUSAL),
    Case("local-more-queries", Nq=67, Nk=33, options=LOCAL),
    Case("local-bias", B=2, Nq=40, options=LOCAL, floats={"bias": "B,1,Nq,Nk"}),
    Case("n0", Nq=0, Nk=3, made=ALL_MADE, options=CAUSAL, grad_lse=False),
    Case("nk0", Nq=3, Nk=0, made=ALL_MADE),
    Case("nk0-sink", Nq=3, Nk=0, made=convolutions()),
    Case("nk0-no-null", Nq=3, Nk=0, made=convolutions(), options={"null": False}),
    Case("nk0-first-key", Nq=3, Nk=0, made=convolutions(), options={"first_key": True}),
    Case("nk0-local", Nq=3, Nk=0, options=LOCAL),
    Case("n1", dtypes=ALL, Nq=1, D=1, Dv=1, made=ALL_MADE),
    Case("n1-strict", Nq=1, D=1, Dv=1, made=ALL_MADE, options=STRICT),
    Case("mqa", H=4, Hkv=1, Nq=65, made=ALL_MADE, options=CAUSAL),
    Case("bnhd", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, layout="BNHD", made=ALL_MADE),
    Case("bnhd-causal", B=2, Nq=65, layout="BNHD", made=convolutions(), options=CAUSAL),
    Case("bnhd-lengths", B=3, Nq=40, layout="BNHD", made=ALL_MADE, options=CAUSAL,
         ints={"kv_lengths": (0, 13, 40), "q_lengths": (40, 13, 7)}),
    Case("strided", B=2, H=4, Hkv=2, Nq=65, strided=True, made=ALL_MADE, options=CAUSAL),
    Case("strided-bnhd", dtypes=ALL, B=2, Nq=65, strided=True, layout="BNHD",
         made=convolutions()),
    Case("local-bnhd", dtypes=ALL, B=2, Nq=65, layout="BNHD", options=LOCAL),
]


def golden(id, options, *figures):
    made = {"conv_wk": F((2, 4, 4, 3), 0.37, 0.1) / 2, "conv_wv": F((2, 4, 4, 3), 0.47, 0.2) / 2,
            "conv_bk": F((2, 4), 0.3, 0.1), "conv_bv": F((2, 4), 0.4, 0.2),
            "null_k": np.zeros((2, 4)), "null_v": np.zeros((2, 4))}
    return learned_golden(id, options, *figures, more=made)


OTHERS = ("q_lengths", "kv_lengths", *OWN)


def refuse(id, options, reasons, **change):
    reasons = [reasons] if isinstance(reasons, str) else reasons
    return Refused(id, options, reasons, change=change)


W = zeros(Hkv, D, D, 3)

REFUSED = [
    refuse("layer", {"layer": "global"}, 'layer must be one of memory, local, got "global"'),
    refuse("factor", {"factor": 0}, "factor must be in 1..1073741824, got 0"),
    refuse("block", {"layer": "local", "block": 0}, "block must be >= 1, got 0"),
    refuse("pad", {"pad": "both"}, 'pad must be one of left, right, drop, got "both"'),
    refuse("rule", {"rule": "lax"}, 'rule must be one of inclusive, strict, got "lax"'),
    refuse("null", {"null": 1}, "null must be a bool, got 1"),
    refuse("first-key", {"first_key": 1}, "first_key must be a bool, got 1"),
    refuse("share-conv", {"share_conv": "yes"}, 'share_conv must be a bool, got "yes"'),
    refuse("scale-0", {"scale": 0.0}, "scale must be > 0 and <= 1e+30, got 0"),
    refuse("factor-differs", {"factor": 2}, "factor must be that of conv_wk, 3, got 2", conv_wk=W),
    refuse("factors-differ", {}, "conv_wv shape must be [Hkv,Dv,Dv,f] with f = 3, got [2,5,5,2]",
           conv_wk=W, conv_wv=zeros(Hkv, Dv, Dv, 2)),
    refuse("factor-0", {}, "conv_wv shape must have f in 1..1073741824, got [2,5,5,0]",
           conv_wv=zeros(Hkv, Dv, Dv, 0)),
    refuse("weight-shape", {}, "conv_wk shape must be [Hkv,D,D,f] with Hkv = 2, got [4,3,3,3]",
           conv_wk=zeros(H, D, D, 3)),
    refuse("null-shape", {}, "null_k shape must be [H,D] with H = 4, got [2,3]",
           null_k=zeros(Hkv, D)),
    refuse("local-tensors", {"layer": "local"},
           [f"{name} needs layer memory, got local" for name in ("conv_wk", "conv_bv", "null_k")],
           conv_wk=W, conv_bv=zeros(Hkv, Dv), null_k=zeros(H, D)),
    refuse("no-null", {"null": False},
           "null_v needs null without first_key, got null = false, first_key = false",
           null_v=zeros(H, Dv)),
    refuse("null-and-first-key", {"first_key": True},
           "null_k needs null without first_key, got null = true, first_key = true",
           null_k=zeros(H, D)),
    refuse("share-widths", {"share_conv": True}, "Dv must be D = 3 with share_conv, got 5"),
    refuse("share-and-weights", {"share_conv": True},
           ["conv_wv needs share_conv = false, got true",
            "conv_bv needs share_conv = false, got true"],
           v=zeros(B, Hkv, Nk, D), conv_wv=W, conv_bv=zeros(Hkv, D)),
    refuse("bias-shape", {}, "bias shape must be broadcastable to [B,H,Nq,C] with C = "
           "ceil(Nk / f) = 3, got [6,7]", bias=zeros(Nq, Nk)),
    refuse("bias-shape-drop", DROP, "bias shape must be broadcastable to [B,H,Nq,C] with C = "
           "floor(Nk / f) = 2, got [6,3]", bias=zeros(Nq, 3)),
    refuse("bias-shape-local", {"layer": "local"}, "bias shape must be broadcastable to "
           "[B,H,Nq,C] with C = Nk = 7, got [6,3]", bias=zeros(Nq, 3)),
    refuse("drawn", {"factor": 2**30},
           ["conv_wk must be sent where it has more than 16777216 elements, got 19327352832",
            "conv_wv must be sent where it has more than 16777216 elements, got 53687091200"]),
]


def refusals():
    """Those of every method; rows of 4097 are too wide for a drawn convolution, too."""
    wide = "conv_wk must be sent where it has more than 16777216 elements, got 100712454"
    for row in common_refusals({}, (), OTHERS):
        more = [wide] if row.id == "d-4097" else []
        yield dataclasses.replace(row, reasons=row.reasons + more)


METHOD = Method(
    id="memory_compressed",
    oracle=CompressedOracle(),
    options={"layer": "enum", "factor": "int", "block": "int", "pad": "enum", "rule": "enum",
             "null": "bool", "first_key": "bool", "share_conv": "bool", "scale": "float",
             "causal": "bool", "seed": "int"},
    tensors={"q", "k", "v", *OTHERS},
    differentiable=["q", "k", "v", *OWN],
    peers=[
        "memory-compressed-attention MemoryCompressedAttention (needs PyTorch)",
        "tensor2tensor multihead_self_attention_reduced (needs TensorFlow)",
    ],
    cases=CASES,
    batches=[
        {},
        CAUSAL,
        STRICT | RIGHT | {"null": False, "factor": 4},
        DROP | CAUSAL | {"first_key": True},
        {"share_conv": True, "factor": 2, "causal": True},
        LOCAL | CAUSAL,
    ],
    tensor_batches=[
        Case("tables", made=ALL_MADE, options=CAUSAL),
        Case("bias-of-cells", made=convolutions(2), floats={"bias": "1,H,Nq,1"}),
    ],
    fit_options=fit_options,
    perf=[{}, CAUSAL],
    growth=[Growth({}, 2, 1), Growth({"layer": "local"}, 1, 1)],
    visible=[
        Visible("cells", 12, 12, {}, 12 * 4),
        # Cells end at 1, 4, 7 and 10.
        Visible("causal", 11, 11, {"causal": True}, 10 + 7 + 4 + 1),
        Visible("strict", 11, 11, {"causal": True, "rule": "strict"}, 9 + 6 + 3),
        # At 2, 5 and 8; the last cell would end at 11.
        Visible("right", 11, 11, {"causal": True, "pad": "right"}, 9 + 6 + 3),
        Visible("local", 12, 12, {"layer": "local", "block": 5}, 25 + 25 + 4),
        Visible("local-causal", 12, 12, {"layer": "local", "block": 5, "causal": True},
                15 + 15 + 3),
    ],
    golden=[
        golden("cells", {}, 45.096870570, 0.991415032, -0.114399266, 23.199647743),
        golden("causal", {"causal": True}, 39.720259744, 0, -0.114399266, 14.715697121),
        golden("strict", {"causal": True, "rule": "strict"}, 33.821788536, 0, -0.025218173,
               11.320820126),
        golden("drop", {"pad": "drop"}, 23.765089880, 0.517646301, -0.161190645, 18.683566753),
    ],
    refused=[*refusals(), *REFUSED],
)
