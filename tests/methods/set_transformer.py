"""set_transformer: oracle, cases, golden values, refusals and peers."""

import dataclasses

import numpy as np

from tests.methods.cases import ALL, Case
from tests.methods.drawn import uniforms
from tests.methods.learned import F, learned_golden
from tests.methods.method import Growth, Method, Visible
from tests.methods.refused import (B, H, Hkv, Nk, Nq, D, Dv, Refused, common_refusals, zeros)
from tests.methods.traced import TracedOracle

OWN = ("inducing", "seeds", "w_k2", "w_v2", "bias")


def is_pma(o):
    return o.get("mode") == "pma"


class SetOracle(TracedOracle):
    """Each attention over whole matrices, one sequence after the other."""

    differentiable = ("q", "k", "v", *OWN)
    axes = {"inducing": "B,H,M,D", "bias": "B,1,1,Nk"}

    def _sequence(self, tape, t, o, b):
        self.o, self.t = o, t
        return super()._sequence(tape, t, o, b)

    def _lengths(self, t, b):
        nq, nk = super()._lengths(t, b)
        if "q" in t and "q_lengths" not in t and t["q"].shape[2] == t["k"].shape[2]:
            nq = nk
        return nq, nk

    def _index(self, name, shape, b, lengths):
        if is_pma(self.o) and name in ("grad_out", "grad_lse"):
            return (slice(b, b + 1),)
        return super()._index(name, shape, b, lengths)

    def _whole(self, name, t, made, b, pick, whole):
        if not is_pma(self.o):
            return super()._whole(name, t, made, b, pick, whole)
        whole[name] = np.concatenate([*([whole[name]] if b else []), pick(made)])

    def heads(self, t):
        return (t["q"].shape[1] if "q" in t else t["seeds"].shape[0] if "seeds" in t
                else t["v"].shape[1])

    def rows(self, f, t, o):
        """I or S, [1,H,M,D]."""
        name, option, usual = (("seeds", "num_seeds", 1) if is_pma(o)
                               else ("inducing", "num_inducing", 32))
        if name in t:
            return t[name].reshape(1, *t[name].shape[-3:])
        shape = (self.heads(t), o.get(option, usual), t["k"].shape[3])
        limit = (6 / ((shape[1] + 1) * shape[0] * shape[2])) ** 0.5
        return f.num(uniforms(o.get("seed", 0), name, shape, limit)[None])

    @staticmethod
    def mapped(C, w):
        if w is None:
            return C
        if w.ndim == 3:
            return C @ w.reshape(1, *w.shape)
        _, H, M, _ = C.shape
        return (C.swapaxes(1, 2).reshape(1, M, -1) @ w).reshape(1, M, H, -1).swapaxes(1, 2)

    def compute(self, f, t, o, offset):
        rows, residual = self.rows(f, t, o), o.get("residual", False)
        H, scale, n = rows.shape[1], o.get("scale", rows.shape[3] ** -0.5), t["k"].shape[2]

        def attend(q, k, v, bias=None):
            logits, mask = (q @ k.swapaxes(2, 3)) * scale, True
            if bias is not None:
                mask = bias.x > -np.inf
                logits = logits + f.where(mask, bias)
            out, lse = f.attention(logits, v, mask)
            return (out + q if residual else out), lse

        k, v = (f.repeat_heads(t[name], H // t[name].shape[1]) for name in "kv")
        bias = t.get("bias")
        bias = bias if bias is None else bias.reshape(1, 1, 1, bias.shape[-1])
        C, lse = attend(rows, k, v, bias)
        if not is_pma(o):
            seen = slice(0, rows.shape[2] if n else 0)  # an empty set has gathered nothing
            k2, v2 = (f.take(self.mapped(C, t.get(name)), (slice(None), slice(None), seen))
                      for name in ("w_k2", "w_v2"))
            C, lse = attend(t["q"], k2, v2)
        return {"out": C, "lse": lse}

    def visible(self, t, o):
        if "q" in t:
            return super().visible(t, o)
        return super().visible(t | {"q": t["v"]}, o)

    def pairs(self, t, o):
        M = next((t[name].shape[-2] for name in ("inducing", "seeds") if name in t),
                 o.get("num_seeds", 1) if is_pma(o) else o.get("num_inducing", 32))
        pairs = 0
        for b in range(len(t["v"])):
            nq, nk = self._lengths(t, b)
            pairs += M * nk + (0 if is_pma(o) or nk == 0 else nq * M)
        return pairs * self.heads(t)


def drawn(*letters, spread=1.0):
    def make(rng, case):
        return spread * rng.standard_normal(case.shape_of(",".join(map(str, letters))))
    return make


def weights(*names):
    made = {"w_k2": drawn("H", "Dv", "D", spread=0.5), "w_v2": drawn("H", "Dv", "Dv", spread=0.5)}
    return {name: made[name] for name in names or made}


def whole_weights(rng_spread=0.3):
    """Of all heads."""
    def make(last):
        def of(rng, case):
            _, heads, _, width = case.shape_of(f"B,H,Nq,{last}")
            rows = case.H * (case.Dv or case.D)
            return rng_spread * rng.standard_normal((rows, heads * width))
        return of
    return {"w_k2": make("D"), "w_v2": make("Dv")}


def fit_options(case):
    """pma has rows of seeds; with residual and without w_k2 values are as wide as keys."""
    if case.options.get("residual"):
        case = dataclasses.replace(case, Dv=0)
    if is_pma(case.options):
        return dataclasses.replace(case, out_rows=case.options.get("num_seeds", 1))
    if (case.Dv or case.D) != case.D and "w_k2" not in case.made:
        return dataclasses.replace(case, made=case.made | weights("w_k2"))
    return case


def pma(seeds=1, **more):
    return {"options": {"mode": "pma", "num_seeds": seeds} | more, "out_rows": seeds}


I = {"inducing": drawn("H", 5, "D")}
RAGGED = {"q_lengths": (0, 1, 63, 64, 65, 131), "kv_lengths": (131, 65, 64, 63, 1, 0)}
KEYS = {"kv_lengths": (131, 65, 64, 63, 1, 0)}
ADD = {"residual": True}

CASES = [
    Case("plain", dtypes=ALL, B=2, Nq=65, made=I),
    Case("drawn", dtypes=ALL, B=2, Nq=63),
    Case("seed", Nq=33, options={"seed": 2**63 + 5, "num_inducing": 3}),
    Case("many-rows", H=1, Nq=70, options={"num_inducing": 300}),
    Case("one-row", Nq=40, options={"num_inducing": 1}),
    Case("latents", dtypes=ALL, B=3, Nq=65, made={"inducing": drawn("B", "H", 7, "D")}),
    Case("latents-gqa-lengths", B=3, H=4, Hkv=2, Nq=40, made={"inducing": drawn("B", "H", 7, "D")},
         ints={"kv_lengths": (0, 7, 40)}),
    Case("gqa", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, made=I),
    Case("cross", dtypes=ALL, B=2, Nq=40, Nk=65, made=I),
    Case("weights", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, Dv=7, made=I | weights()),
    Case("weight-k", B=2, Nq=65, Dv=7, made=I | weights("w_k2")),
    Case("weight-v", B=2, Nq=65, made=I | weights("w_v2")),
    Case("whole-weights", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, Dv=7, made=I | whole_weights()),
    Case("whole-and-own-weights", B=2, Nq=33, made=I | whole_weights() | weights("w_v2")),
    Case("residual", dtypes=ALL, B=2, Nq=65, made=I, options=ADD),
    Case("residual-weights-gqa", B=2, H=4, Hkv=2, Nq=65, made=I | weights(), options=ADD),
    Case("residual-lengths", dtypes=ALL, B=6, Nq=131, ints=RAGGED, made=I, options=ADD),
    Case("residual-keys-lengths", B=6, Nq=131, ints={**KEYS, "q_lengths": KEYS["kv_lengths"]},
         made=I | whole_weights(), options=ADD),
    Case("lengths", dtypes=ALL, B=6, Nq=131, ints=RAGGED, made=I),
    Case("lengths-weights", B=6, H=4, Hkv=2, Nq=131, ints=RAGGED, made=I | weights()),
    Case("cross-lengths", B=3, Nq=40, Nk=65, ints={"kv_lengths": (0, 33, 65)}, made=I),
    Case("bias", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, made=I, floats={"bias": "B,1,1,Nk"}),
    Case("bias-lengths", B=3, Nq=40, made=I, ints={"kv_lengths": (0, 13, 40)},
         floats={"bias": "1,1,1,Nk"}),
    Case("bias-of-keys", Nq=40, made=I, floats={"bias": "Nk"}),
    Case("hidden-keys", Nq=40, made=I, floats={"bias": "B,1,1,Nk"}, hidden_bias=True),
    Case("scale", Nq=33, made=I, options={"scale": 0.7}),
    Case("n0", Nq=0, Nk=3, made=I, grad_lse=False),
    Case("nk0", Nq=3, Nk=0, made=I),
    Case("nk0-residual", Nq=3, Nk=0, made=I, options=ADD),
    Case("n1", dtypes=ALL, Nq=1, D=1, Dv=1, made=I),
    Case("mqa", H=4, Hkv=1, Nq=65, made=I),
    Case("bnhd", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, layout="BNHD", made=I),
    Case("bnhd-residual", dtypes=ALL, B=2, Nq=65, layout="BNHD", made=I, options=ADD),
    Case("strided", B=2, H=4, Hkv=2, Nq=65, strided=True, made=I),
    Case("strided-bnhd", dtypes=ALL, B=2, Nq=65, strided=True, layout="BNHD", made=I,
         options=ADD),
    Case("pma", dtypes=ALL, B=2, Nq=65, made={"seeds": drawn("H", 5, "D")}, **pma(5)),
    Case("pma-drawn", B=2, Nq=65, Dv=7, **pma()),
    Case("pma-70", B=2, H=4, Hkv=2, Nq=65, Nk=40, **pma(70, seed=3)),
    Case("pma-residual", dtypes=ALL, B=2, Nq=65, **pma(3, residual=True)),
    Case("pma-lengths", dtypes=ALL, B=6, Nq=131, Dv=7, ints=RAGGED, **pma(4)),
    Case("pma-residual-lengths", B=6, Nq=131, ints=KEYS | {"q_lengths": KEYS["kv_lengths"]},
         **pma(4, residual=True)),
    Case("pma-bias", B=2, Nq=65, floats={"bias": "B,1,1,Nk"}, **pma(4)),
    Case("pma-without-q", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, absent=("q",), Dv=7,
         made={"seeds": drawn("H", 5, "D")}, **pma(5)),
    Case("pma-drawn-without-q", B=2, Nq=65, absent=("q",), **pma(2)),
    Case("pma-nk0", Nq=3, Nk=0, **pma(2)),
    Case("pma-nk0-residual", Nq=3, Nk=0, **pma(2, residual=True)),
    Case("pma-bnhd", dtypes=ALL, B=2, Nq=65, layout="BNHD", **pma(3)),
    Case("pma-bnhd-residual", B=2, Nq=65, strided=True, layout="BNHD", **pma(3, residual=True)),
]

OTHERS = ("q_lengths", "kv_lengths", *OWN)
INDUCING = F((2, 3, 4), 0.6, 0.4)
GOOD_W = zeros(H, Dv, D)


def refuse(id, options, reasons, backward=False, **change):
    reasons = [reasons] if isinstance(reasons, str) else reasons
    return Refused(id, options, reasons, change=change, backward=backward)


def refusals():
    """Those of every method, but for what follows from w_k2, which the good request has, and from
    q, which pma does without."""
    w = "w_k2 shape must be [H,Dv,D] or [H*Dv,H*D] with"
    got = "got [4,5,3]"
    more = {
        "nothing": ["k is required, got none", "q is required with mode isab, got none"],
        "rank": [f"{w} H = 2, {got}"],
        "k-shape": [],
        "heads": [f"{w} H = 3, {got}"],
        "all-at-once": [f"{w} H = 3, {got}"],
        "d-0": [f"{w} D = 0, {got}"],
        "d-4097": [f"{w} D = 4097, {got}"],
        "dv-0": [f"{w} Dv = 0, {got}"],
    }
    changed = {
        "grad-out-shape": ["grad_out shape must be [B,H,Nq,Dv] or [B,H,S,Dv] with Dv = 5, got "
                           "[2,4,6,3]"],
    }
    for row in common_refusals({}, (), OTHERS, lacks=("q", "causal")):
        reasons = changed.get(row.id, row.reasons + more.get(row.id, []))
        yield dataclasses.replace(row, reasons=reasons)


POOL = {"mode": "pma"}
POOLED = {"w_k2": None}

REFUSED = [
    refuse("mode", {"mode": "sab"}, 'mode must be one of isab, pma, got "sab"'),
    refuse("num-inducing", {"num_inducing": 0}, "num_inducing must be in 1..1073741824, got 0"),
    refuse("num-seeds", POOL | {"num_seeds": 0}, "num_seeds must be in 1..1073741824, got 0",
           **POOLED),
    refuse("residual-type", {"residual": 1}, "residual must be a bool, got 1"),
    refuse("scale-0", {"scale": 0.0}, "scale must be > 0 and <= 1e+30, got 0"),
    refuse("no-q", {}, "q is required with mode isab, got none", q=None, w_k2=zeros(Hkv, Dv, D)),
    refuse("seeds-with-isab", {}, "seeds needs mode pma, got isab", seeds=zeros(H, 2, D)),
    refuse("isab-tensors-with-pma", POOL,
           [f"{name} needs mode isab, got pma" for name in ("inducing", "w_k2", "w_v2")],
           inducing=zeros(H, 2, D), w_v2=zeros(H, Dv, Dv)),
    refuse("inducing-shape", {}, "inducing shape must be [H,M,D] or [B,H,M,D] with H = 4, got "
           "[3,2,3]", inducing=zeros(3, 2, D)),
    refuse("inducing-batch", {}, "inducing shape must be [H,M,D] or [B,H,M,D] with B = 2, got "
           "[3,4,2,3]", inducing=zeros(3, H, 2, D)),
    refuse("no-inducing", {}, "inducing shape must have M in 1..1073741824, got [4,0,3]",
           inducing=zeros(H, 0, D)),
    refuse("no-seeds", POOL, "seeds shape must have S in 1..1073741824, got [4,0,3]",
           seeds=zeros(H, 0, D), **POOLED),
    refuse("num-inducing-differs", {"num_inducing": 3},
           "num_inducing must be that of inducing, 2, got 3", inducing=zeros(H, 2, D)),
    refuse("num-seeds-differs", POOL | {"num_seeds": 3},
           "num_seeds must be that of seeds, 2, got 3", seeds=zeros(H, 2, D), **POOLED),
    refuse("drawn-inducing", {"num_inducing": 2**30},
           "inducing must be sent where it has more than 16777216 elements, got 12884901888"),
    refuse("whole-weight", {}, "w_k2 shape must be [H,Dv,D] or [H*Dv,H*D] with H*Dv = 20, got "
           "[12,12]", w_k2=zeros(H * D, H * D)),
    refuse("whole-weight-v", {}, "w_v2 shape must be [H,Dv,Dv] or [H*Dv,H*Dv] with H*Dv = 20, got "
           "[20,12]", w_v2=zeros(H * Dv, H * D)),
    refuse("widths", {}, "Dv must be D = 3 without w_k2, got 5", w_k2=None),
    refuse("residual-widths", ADD, "Dv must be D = 3 with residual, got 5"),
    refuse("residual-widths-pma", POOL | ADD, "Dv must be D = 3 with residual, got 5", **POOLED),
    refuse("bias-shape", {}, "bias shape must be broadcastable to [B,1,1,Nk], got [2,4,1,7]",
           bias=zeros(B, H, 1, Nk)),
    refuse("bias-heads-and-keys", {}, "bias shape must be broadcastable to [B,1,1,Nk] with Nk = 7, "
           "got [2,4,1,6]", bias=zeros(B, H, 1, Nq)),
    refuse("bias-keys", {}, "bias shape must be broadcastable to [B,1,1,Nk] with Nk = 7, got [6]",
           bias=zeros(Nq)),
    refuse("grad-of-pma", POOL, [
        "grad_out shape must be [B,H,S,Dv] with S = 1, got [2,4,6,5]",
        "grad_lse shape must be [B,H,S] with S = 1, got [2,4,6]"], backward=True, **POOLED),
    refuse("grad-of-isab", {}, "grad_out shape must be [B,H,Nq,Dv] with Nq = 6, got [2,4,1,5]",
           backward=True, grad_out=zeros(B, H, 1, Dv)),
    refuse("heads-of-seeds", POOL, "H must be a multiple of Hkv, got H = 3 and Hkv = 2",
           q=None, seeds=zeros(3, 1, D), **POOLED),
    refuse("width-of-seeds", POOL, "seeds shape must be [H,S,D] with D = 3, got [4,1,5]",
           q=None, seeds=zeros(H, 1, Dv), **POOLED),
    refuse("no-width", POOL, "D must be in 1..4096, got 0", q=None, k=zeros(B, Hkv, Nk, 0),
           **POOLED),
]

W = {"w_k2": F((2, 4, 4), 0.17, 0.1), "w_v2": F((2, 4, 4), 0.27, 0.2)}

METHOD = Method(
    id="set_transformer",
    oracle=SetOracle(),
    options={"mode": "enum", "num_inducing": "int", "num_seeds": "int", "residual": "bool",
             "scale": "float", "seed": "int"},
    tensors={"q", "k", "v", *OTHERS},
    required=frozenset("kv"),
    differentiable=["q", "k", "v", *OWN],
    peers=[
        "isab-pytorch ISAB (needs PyTorch)",
        "juho-lee/set_transformer MAB (GitHub only, needs PyTorch)",
    ],
    cases=CASES,
    batches=[
        {"num_inducing": 5},
        {"residual": True, "num_inducing": 70},
        {"mode": "pma", "num_seeds": 3},
        {"mode": "pma", "residual": True},
    ],
    tensor_batches=[
        Case("latents", made={"inducing": drawn("B", "H", 7, "D")} | weights()),
        Case("whole-weights", made=I | whole_weights(), options=ADD, floats={"bias": "B,1,1,Nk"}),
    ],
    fit_options=fit_options,
    good_tensors={"w_k2": GOOD_W},
    perf=[{}, {"residual": True}],
    growth=[Growth({}, 1, 1)],
    visible=[
        Visible("isab", 8, 5, {"num_inducing": 3}, 3 * 5 + 8 * 3),
    ],
    golden=[
        learned_golden("isab", {}, 0.966893178, 0.190094131, 0.145848627, 17.880594946,
                       {"inducing": INDUCING}),
        learned_golden("weights", {}, 29.495791311, 0.329061317, 0.397256908, 17.806484073,
                       {"inducing": INDUCING} | W),
        learned_golden("pma", {"mode": "pma"}, 0.362552335, 0.188829104, 0.146394595, 13.436081517,
                       {"seeds": INDUCING, "grad_out": np.ones((1, 2, 3, 4))}),
    ],
    refused=[*refusals(), *REFUSED],
)
