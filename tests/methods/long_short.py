"""long_short: oracle, cases, golden values, refusals and peers."""

import numpy as np

from tests.methods.cases import ALL, Case
from tests.methods.drawn import uniforms
from tests.methods.golden import lowrank_golden, wave
from tests.methods.method import Growth, Method, Visible
from tests.methods.refused import (B, H, Hkv, Nk, Nq, D, Dv, Refused, common_refusals, qkv, zeros)
from tests.methods.traced import TracedOracle

NORMS = {f"ln_{place}_{of}_{kind}": f"Hkv,{'D' if of == 'k' else 'Dv'}"
         for place in ("local", "global") for of in "kv" for kind in ("weight", "bias")}
RANKED = ("dyn_weight", "dyn_bias", "dyn_logits")


def rank_of(t, o):
    sent = [t[name].shape[-1] for name in RANKED if name in t]
    return o.get("rank", sent[0] if sent else 1 if o.get("causal") else 32)


class LongShortOracle(TracedOracle):
    """One boolean mask over near and compressed keys."""

    differentiable = ("q", "k", "v", *RANKED, *NORMS, "bias_local", "bias_global")
    axes = {"dyn_logits": "B,Hkv,Nk,r", "bias_local": "B,H,Nq,Nk", "bias_global": "B,H,Nq,R"}

    @staticmethod
    def near(o, Nq, Nk, offset):
        """[Nq, Nk]: the window."""
        causal = o.get("causal", False)
        w = o.get("window", 512 if causal else 8)
        mode = o.get("window_mode", "sliding" if causal else "segment")
        p, j = np.arange(Nq)[:, None] + offset, np.arange(Nk)
        if w == -1:
            return np.zeros((Nq, Nk), bool)
        if mode == "sliding":
            seen = (p - w < j) & (j <= p) if causal else abs(p - j) <= w // 2
        elif mode == "blocks":
            seen = abs(j // w - p // w) <= 1
        elif w == 0:
            seen = p == j
        else:
            e = max(w // 2, 1)
            seen = (p // w * w - e <= j) & (j < (p // w + 1) * w + e)
        return seen & (j <= p) if causal else seen

    @staticmethod
    def far(o, r, Nq, Nk, offset):
        """[Nq, S r]: the compressed keys of the S segments with a valid row."""
        p = np.arange(Nq)[:, None] + offset
        if not o.get("causal"):
            return np.ones((Nq, r if Nk else 0), bool)
        l = o.get("segment_len", 16)
        t = np.arange(-(-Nk // l))
        seen = (p >= (t + 1) * l - 1 if o.get("segment_visibility") == "completed"
                else t < p // l)
        return np.repeat(seen, r, axis=1)

    def norm(self, f, t, o, x, name):
        if not o.get("dual_ln", True):
            return x
        of_head = o.get("ln_scope") == "head"
        weight, bias = (t[f"ln_{name}_{kind}"].reshape(1, x.shape[1], 1, x.shape[3])
                        if f"ln_{name}_{kind}" in t else default
                        for kind, default in (("weight", 1.0), ("bias", 0.0)))
        return f.layer_norm(x, (-1,) if of_head else (-3, -1), weight, bias, o.get("ln_eps", 1e-5))

    def logits(self, f, t, o, r):
        if "dyn_logits" in t:
            return t["dyn_logits"]
        k = t["k"]
        Hkv, D = k.shape[1], k.shape[3]
        if "dyn_weight" in t:
            W = t["dyn_weight"]
        else:
            W = f.num(uniforms(o.get("seed", 0), "dyn_weight", (Hkv, D, r), D**-0.5))
        L = k @ W.reshape(1, -1, D, r)
        return L + t["dyn_bias"].reshape(1, Hkv, 1, r) if "dyn_bias" in t else L

    def compute(self, f, t, o, offset):
        q, k, v = t["q"], t["k"], t["v"]
        Nq, Nk, r = q.shape[2], k.shape[2], rank_of(t, o)
        near, far = self.near(o, Nq, Nk, offset), self.far(o, r, Nq, Nk, offset)
        R, group = far.shape[1], q.shape[1] // k.shape[1]
        kl, vl = self.norm(f, t, o, k, "local_k"), self.norm(f, t, o, v, "local_v")
        keys, values = [kl], [vl]
        if R:
            nested = o.get("ln_order") == "nested"
            src_k, src_v = (kl, vl) if nested else (k, v)
            L = self.logits(f, t, o, r)
            l = o.get("segment_len", 16) if o.get("causal") else Nk
            kg, vg = [], []
            for start in range(0, Nk, l):
                at = (slice(None), slice(None), slice(start, start + l))
                P = f.softmax(f.take(L, at).swapaxes(2, 3))
                kg.append(P @ f.take(src_k, at))
                vg.append(P @ f.take(src_v, at))
            keys.append(self.norm(f, t, o, f.concat(kg, 2), "global_k"))
            values.append(self.norm(f, t, o, f.concat(vg, 2), "global_v"))
        keys, values = (f.repeat_heads(f.concat(x, 2), group) for x in (keys, values))
        scores = (q @ keys.swapaxes(2, 3)) * o.get("scale", q.shape[3] ** -0.5)
        mask = np.concatenate([near, far], 1)
        biases = []
        for name, n in (("bias_local", Nk), ("bias_global", R)):
            bias = t[name] if name in t else f.num(np.zeros((1, 1, 1, n)))
            bias = f.take(bias, (..., slice(0, n)))
            biases.append(f.expand(bias, (1, q.shape[1], Nq, n)))
        out, lse = f.attention(scores + f.concat(biases, 3), values, mask)
        return {"out": out, "lse": lse}

    def visible(self, t, o):
        """Keys that a row depends on, by themselves or in a compressed key. A layer norm makes rows
        of equal numbers 0 and mixes heads: every key then counts as seen."""
        seen = super().visible(t, o)
        if o.get("dual_ln", True):
            return seen
        Nq, Nk = seen.shape[2:]
        far = np.ones((Nq, Nk), bool)
        if o.get("causal"):
            far = self.far(o, 1, Nq, Nk, Nk - Nq).repeat(o.get("segment_len", 16), axis=1)[:, :Nk]
        near = self.near(o, Nq, Nk, Nk - Nq)
        return seen & (near | far if rank_of(t, o) else near)

    def pairs(self, t, o):
        pairs, offset = 0, t["k"].shape[2] - t["q"].shape[2]
        for b in range(len(t["q"])):
            n = self._lengths(t, b)
            pairs += self.near(o, *n, offset).sum() + self.far(o, rank_of(t, o), *n, offset).sum()
        return int(pairs) * t["q"].shape[1]


def drawn(*letters, spread=1.0, shift=0.0):
    """For Case.made: a float tensor of the shape that `letters` give, sizes of the case or
    numbers."""
    def make(rng, case):
        return spread * rng.standard_normal(case.shape_of(",".join(map(str, letters)))) + shift
    return make


def norms(*names):
    return {name: drawn("Hkv", "D" if "_k_" in name else "Dv", spread=0.3,
                        shift=1.0 if "weight" in name else 0.0) for name in names or NORMS}


CAUSAL = {"causal": True, "window": 5, "segment_len": 4, "rank": 2}
RAGGED = {"q_lengths": (0, 1, 63, 64, 65, 131), "kv_lengths": (131, 65, 64, 63, 1, 0)}
SAME = {"q_lengths": (0, 1, 63, 64, 65, 131), "kv_lengths": (0, 1, 63, 64, 65, 131)}
TABLES = {"dyn_weight": drawn("Hkv", "D", 3), "dyn_bias": drawn("Hkv", 3)} | norms()

CASES = [
    Case("plain", dtypes=ALL, B=2, Nq=63),
    Case("causal", dtypes=ALL, B=2, Nq=131, options=CAUSAL),
    Case("defaults-causal", H=1, Nq=600, D=8, options={"causal": True}),
    Case("tables", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, Dv=7, made=TABLES),
    Case("tables-causal", dtypes=ALL, B=2, H=4, Hkv=2, Nq=66, Dv=7, made=TABLES,
         options={"causal": True, "window": 9, "segment_len": 11}),
    Case("tables-nested", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, made=TABLES,
         options={"ln_order": "nested"}),
    Case("tables-head", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, made=TABLES,
         options={"ln_scope": "head"}),
    Case("tables-nested-head-causal", dtypes=ALL, B=2, H=4, Hkv=2, Nq=67, Dv=5, made=TABLES,
         options={"ln_scope": "head", "ln_order": "nested", "causal": True, "window": 8,
                  "segment_len": 8}),
    Case("no-ln", dtypes=ALL, B=2, Nq=65, options={"dual_ln": False, "rank": 4}),
    Case("no-ln-causal", dtypes=ALL, B=2, Nq=65, options=CAUSAL | {"dual_ln": False}),
    Case("shared-weight", Nq=65, H=4, Hkv=2, made={"dyn_weight": drawn("D", 5)}),
    Case("bias-of-drawn-weight", Nq=33, made={"dyn_bias": drawn("Hkv", 3)}),
    Case("seed", Nq=33, options={"seed": 2**63 + 5, "rank": 3}),
    Case("logits", dtypes=ALL, B=2, Nq=65, H=4, Hkv=2, made={"dyn_logits": drawn("B", "Hkv", "Nk", 3)}),
    Case("logits-causal", B=2, Nq=70, made={"dyn_logits": drawn("B", "Hkv", "Nk", 2)},
         options={"causal": True, "window": 3, "segment_len": 4}),
    Case("lengths", dtypes=ALL, B=6, Nq=131, ints=RAGGED, options={"rank": 4, "window": 6}),
    Case("lengths-causal", dtypes=ALL, B=6, H=4, Hkv=2, Nq=131, ints=SAME, options=CAUSAL),
    Case("lengths-completed", B=6, H=1, Nq=131, ints=RAGGED,
         options=CAUSAL | {"segment_visibility": "completed"}),
    Case("lengths-logits", B=3, Nq=40, ints={"kv_lengths": (0, 7, 40)},
         made={"dyn_logits": drawn("B", "Hkv", "Nk", 3)}),
    Case("lengths-tables-nested", B=3, Nq=40, ints={"kv_lengths": (0, 7, 40),
                                                    "q_lengths": (40, 7, 0)},
         made=TABLES, options={"ln_order": "nested"}),
    Case("lengths-no-ln", B=3, Nq=40, ints={"kv_lengths": (0, 7, 40)},
         options={"dual_ln": False, "rank": 3}),
    Case("completed", dtypes=ALL, Nq=67,
         options=CAUSAL | {"segment_visibility": "completed"}),
    Case("completed-whole", Nq=64, options=CAUSAL | {"segment_visibility": "completed"}),
    Case("more-keys", Nq=33, Nk=67, options=CAUSAL),
    Case("more-queries", Nq=67, Nk=33, options=CAUSAL),
    Case("more-queries-completed-blocks", Nq=67, Nk=33, options=CAUSAL | {
        "segment_visibility": "completed", "window_mode": "blocks"}),
    Case("more-queries-segment", Nq=41, Nk=20, options=CAUSAL | {"window_mode": "segment"}),
    Case("far-alone", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, Nk=30, options={"window": -1, "rank": 5}),
    Case("far-alone-causal", Nq=65, Nk=80, options=CAUSAL | {"window": -1}),
    Case("far-alone-nested", Nq=30, made=TABLES, options={"window": -1, "ln_order": "nested"}),
    Case("far-alone-lengths", B=3, Nq=65, Nk=30, options={"window": -1, "rank": 5},
         ints={"kv_lengths": (0, 13, 30), "q_lengths": (65, 64, 1)}),
    Case("near-alone", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, options={"rank": 0},
         made=norms("ln_local_k_weight", "ln_local_v_bias")),
    Case("near-alone-no-ln", dtypes=ALL, Nq=65, options={"rank": 0, "dual_ln": False}),
    Case("near-alone-causal", Nq=65, options=CAUSAL | {"rank": 0}),
    Case("window-0", Nq=65, options={"window": 0, "rank": 3}),
    Case("window-0-causal", Nq=65, options=CAUSAL | {"window": 0, "window_mode": "segment"}),
    Case("window-1", Nq=65, options={"window": 1, "rank": 3}),
    Case("segment-causal", Nq=131, options=CAUSAL | {"window": 7, "window_mode": "segment"}),
    Case("sliding", dtypes=ALL, Nq=65, options={"window_mode": "sliding", "window": 5, "rank": 3}),
    Case("sliding-0", Nq=33, options={"window_mode": "sliding", "window": 0, "rank": 3}),
    Case("blocks", Nq=131, options={"window_mode": "blocks", "window": 10, "rank": 3}),
    Case("blocks-causal", Nq=131, options=CAUSAL | {"window_mode": "blocks", "window": 10}),
    Case("segment-len-1", Nq=33, options=CAUSAL | {"segment_len": 1}),
    Case("segment-longer", Nq=33, options=CAUSAL | {"segment_len": 65536}),
    Case("many-segments", H=1, Nq=400, D=8, options=CAUSAL | {"segment_len": 3, "window": 2}),
    Case("rank-1024", H=1, Nq=20, D=4, options={"rank": 1024}),
    Case("bias-local", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, floats={"bias_local": "B,H,Nq,Nk"}),
    Case("bias-global", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, floats={"bias_global": "1,H,Nq,32"}),
    Case("biases", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, floats={
        "bias_local": "1,1,Nq,Nk", "bias_global": "B,1,Nq,32"}),
    Case("biases-causal", B=2, H=4, Hkv=2, Nq=66, options=CAUSAL, floats={
        "bias_local": "B,H,Nq,Nk", "bias_global": "B,H,Nq,34"}),
    Case("biases-lengths", B=3, Nq=66, options=CAUSAL, floats={
        "bias_local": "B,H,Nq,Nk", "bias_global": "B,H,Nq,34"},
         ints={"kv_lengths": (0, 13, 66), "q_lengths": (66, 13, 65)}),
    Case("bias-global-alone", Nq=30, Nk=40, options={"window": -1, "rank": 3},
         floats={"bias_global": "1,1,Nq,3"}),
    Case("scale", Nq=33, options={"scale": 0.7, "ln_eps": 0.1}),
    Case("n0", Nq=0, Nk=3, options=CAUSAL, grad_lse=False),
    Case("nk0", Nq=3, Nk=0, options=CAUSAL),
    Case("nk0-far-alone", Nq=3, Nk=0, options={"window": -1}),
    Case("n1", dtypes=ALL, Nq=1, D=1, Dv=1),
    Case("n1-causal", Nq=1, D=1, Dv=1, options=CAUSAL),
    Case("mqa", H=4, Hkv=1, Nq=65, options=CAUSAL),
    Case("bnhd", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, layout="BNHD"),
    Case("bnhd-causal", B=2, Nq=65, layout="BNHD", options=CAUSAL),
    Case("strided", B=2, H=4, Hkv=2, Nq=65, strided=True, options=CAUSAL),
    Case("strided-bnhd", dtypes=ALL, B=2, Nq=65, strided=True, layout="BNHD"),
]


def golden(id, options, *figures):
    weight = 0.5 * wave(np.cos, (2, 4, options["rank"]), 0.3, 0.0)
    return lowrank_golden(id, options, *figures, more={"dyn_weight": weight})


OTHERS = ("q_lengths", "kv_lengths", *RANKED, *NORMS, "bias_local", "bias_global")
SQUARE = qkv(Nq)  # Nk = Nq


def refuse(id, options, reasons, **change):
    reasons = [reasons] if isinstance(reasons, str) else reasons
    return Refused(id, options, reasons, change=change)


REFUSED = [
    refuse("rank", CAUSAL | {"rank": 1025}, "rank must be in 0..1024, got 1025"),
    refuse("window-low", CAUSAL | {"window": -2}, "window must be in -1..65536, got -2"),
    refuse("window-high", CAUSAL | {"window": 65537}, "window must be in -1..65536, got 65537"),
    refuse("mode", CAUSAL | {"window_mode": "token"},
           'window_mode must be one of segment, sliding, blocks, got "token"'),
    refuse("segment-len-0", CAUSAL | {"segment_len": 0}, "segment_len must be in 1..65536, got 0"),
    refuse("segment-len", CAUSAL | {"segment_len": 65537},
           "segment_len must be in 1..65536, got 65537"),
    refuse("visibility", CAUSAL | {"segment_visibility": "lax"},
           'segment_visibility must be one of strict, completed, got "lax"'),
    refuse("scope", CAUSAL | {"ln_scope": "all"}, 'ln_scope must be one of model, head, got "all"'),
    refuse("order", CAUSAL | {"ln_order": "post"},
           'ln_order must be one of paper, nested, got "post"'),
    refuse("dual-ln", CAUSAL | {"dual_ln": 1}, "dual_ln must be a bool, got 1"),
    refuse("eps", CAUSAL | {"ln_eps": 0.0}, "ln_eps must be >= 1e-30 and <= 1e+30, got 0"),
    refuse("window-0-blocks", {"window": 0, "window_mode": "blocks"},
           "window must be -1 or >= 1 with window_mode blocks, got 0", **SQUARE),
    refuse("window-0-sliding", CAUSAL | {"window": 0},
           "window must be -1 or >= 1 with window_mode sliding and causal, got 0"),
    refuse("cross", {}, "Nk must be Nq = 6 unless causal or window = -1, got 7"),
    refuse("nothing-seen", CAUSAL | {"rank": 0, "window": -1},
           "rank must be >= 1 with window = -1, got 0"),
    refuse("rank-of-weight", CAUSAL | {"rank": 3},
           "dyn_weight shape must be [Hkv,D,r] or [D,r] with r = rank = 3, got [3,2]",
           dyn_weight=zeros(D, 2)),
    refuse("weight-heads", CAUSAL,
           "dyn_weight shape must be [Hkv,D,r] or [D,r] with Hkv = 2, got [4,3,2]",
           dyn_weight=zeros(H, D, 2)),
    refuse("ranks-differ", {"causal": True},
           "dyn_bias shape must be [Hkv,r] with r = 4, got [2,3]",
           dyn_weight=zeros(D, 4), dyn_bias=zeros(Hkv, 3)),
    refuse("rank-of-logits", CAUSAL,
           "dyn_logits shape must be [B,Hkv,Nk,r] with r = rank = 2, got [2,2,7,3]",
           dyn_logits=zeros(B, Hkv, Nk, 3)),
    refuse("sent-rank-0", {"causal": True}, "dyn_bias shape must have r in 1..1024, got [2,0]",
           dyn_bias=zeros(Hkv, 0)),
    refuse("sent-rank-1025", {"causal": True},
           "dyn_weight shape must have r in 1..1024, got [3,1025]", dyn_weight=zeros(D, 1025)),
    refuse("weight-and-logits", CAUSAL,
           ["dyn_weight must not be sent with dyn_logits, got [3,2]",
            "dyn_bias must not be sent with dyn_logits, got [2,2]"],
           dyn_weight=zeros(D, 2), dyn_bias=zeros(Hkv, 2), dyn_logits=zeros(B, Hkv, Nk, 2)),
    refuse("norm-without-dual-ln", CAUSAL | {"dual_ln": False},
           ["ln_local_k_weight needs dual_ln, got dual_ln = false",
            "ln_global_v_bias needs dual_ln, got dual_ln = false"],
           ln_local_k_weight=zeros(Hkv, D), ln_global_v_bias=zeros(Hkv, Dv)),
    refuse("unused-with-rank-0", CAUSAL | {"rank": 0},
           [f"{name} needs rank >= 1, got rank = 0" for name in
            ("dyn_weight", "dyn_bias", "ln_global_k_bias", "bias_global")],
           dyn_weight=zeros(D, 2), dyn_bias=zeros(Hkv, 2), ln_global_k_bias=zeros(Hkv, D),
           bias_global=zeros(Nq, 4)),
    refuse("unused-with-window--1", CAUSAL | {"window": -1},
           ["bias_local needs window >= 0, got window = -1",
            "ln_local_v_weight needs window >= 0 or ln_order nested, got window = -1 and ln_order "
            "= paper"],
           bias_local=zeros(Nq, Nk), ln_local_v_weight=zeros(Hkv, Dv)),
    refuse("norm-shape", CAUSAL,
           "ln_global_v_bias shape must be [Hkv,Dv] with Dv = 5, got [2,3]",
           ln_global_v_bias=zeros(Hkv, D)),
    refuse("norm-dtype", CAUSAL, "ln_local_k_bias dtype must be float32, got float16",
           ln_local_k_bias=zeros(Hkv, D, dtype=np.float16)),
    refuse("bias-local-shape", CAUSAL,
           "bias_local shape must be broadcastable to [B,H,Nq,Nk] with Nk = 7, got [6,6]",
           bias_local=zeros(Nq, Nq)),
    refuse("bias-global-shape", CAUSAL,
           "bias_global shape must be broadcastable to [B,H,Nq,R] with R = "
           "ceil(Nk / segment_len) r = 4, got [6,7]", bias_global=zeros(Nq, Nk)),
    refuse("drawn-weight", {"causal": True, "rank": 1024},
           "dyn_weight must be sent where it has more than 16777216 elements, got 20971520",
           q=zeros(1, 5, 1, 4096), k=zeros(1, 5, 1, 4096), v=zeros(1, 5, 1, 4)),
    refuse("compressed-keys", {"causal": True, "rank": 1024, "segment_len": 1},
           "rank must be at most 268435456 / ceil(Nk / segment_len) = 1023, got 1024",
           q=zeros(1, 1, 1, 1), k=zeros(1, 1, 2**18 + 1, 1), v=zeros(1, 1, 2**18 + 1, 1)),
    refuse("bias-global-shape-of-all", {},
           "bias_global shape must be broadcastable to [B,H,Nq,R] with R = r = 32, got [6,7]",
           bias_global=zeros(Nq, Nk), **SQUARE),
]

METHOD = Method(
    id="long_short",
    oracle=LongShortOracle(),
    options={"rank": "int", "window": "int", "window_mode": "enum", "segment_len": "int",
             "segment_visibility": "enum", "dual_ln": "bool", "ln_scope": "enum",
             "ln_order": "enum", "ln_eps": "float", "scale": "float", "causal": "bool",
             "seed": "int"},
    tensors={"q", "k", "v", *OTHERS},
    differentiable=["q", "k", "v", *RANKED, *NORMS, "bias_local", "bias_global"],
    peers=[
        "transformer-ls AttentionLS, ChunkedLSAttention (GitHub only, need PyTorch)",
        "long-short-transformer LongShortAttention (needs PyTorch)",
    ],
    cases=CASES,
    batches=[
        CAUSAL,
        {"causal": True, "window": 16},
        CAUSAL | {"window": -1},
        CAUSAL | {"dual_ln": False, "segment_visibility": "completed"},
        CAUSAL | {"rank": 0},
        CAUSAL | {"ln_order": "nested", "ln_scope": "head"},
    ],
    perf=[{}, {"causal": True}],
    growth=[Growth({}, 1, 1)],
    visible=[
        # 32 compressed keys each, and windows of 12, 16 and 12 keys of 8 queries each.
        Visible("segment", 24, 24, {}, 24 * 32 + 8 * (12 + 16 + 12)),
        # Two for each of the segments before that of p, and the last 3 keys.
        Visible("causal", 12, 12, {"causal": True, "window": 3, "segment_len": 4, "rank": 2},
                4 * 2 + 4 * 4 + 1 + 2 + 10 * 3),
        # The segments end at 3, 7 and 11.
        Visible("completed", 12, 12, {"causal": True, "window": 3, "segment_len": 4, "rank": 1,
                                      "segment_visibility": "completed"},
                9 + 5 + 1 + 1 + 2 + 10 * 3),
    ],
    golden=[
        golden("window-4", {"rank": 2, "window": 4}, 1.257466533, -0.104685041, -0.812897590,
               45.266694181, 3.106582630),
        golden("head-nested", {"rank": 2, "window": 4, "ln_scope": "head", "ln_order": "nested"},
               0.398494165, -0.310626647, -0.275205432, 34.341033940, 2.438807686),
        golden("causal", {"rank": 1, "window": 3, "segment_len": 4, "causal": True}, 1.862461990,
               -0.570948363, -0.427824335, 45.774843383, 1.968181515),
        golden("causal-completed", {"rank": 1, "window": 3, "segment_len": 4, "causal": True,
                                    "segment_visibility": "completed"}, 1.862461990,
               -0.586965406, -0.427824335, 45.173806139, 1.968181515),
    ],
    refused=common_refusals({"window": -1}, (), OTHERS) + REFUSED,
)
