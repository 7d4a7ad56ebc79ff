"""Synthesizer: oracle in float64 from the low-rank specification (R1, R2, R5, R6, synthesizer),
cases, golden values, refusals."""

import dataclasses
import math

import numpy as np

from tests.methods.cases import ALL, Case
from tests.methods.drawn import philox, uniforms
from tests.methods.golden import lowrank_golden, wave
from tests.methods.method import Growth, Method, Visible
from tests.methods.refused import Refused, common_refusals, zeros
from tests.methods.traced import TracedOracle

COMPONENTS = ["dense", "random", "factorized_random", "factorized_dense", "dot"]
TABLES = ["w_dense", "b_dense", "r", "r1", "r2", "f_a", "f_b", "fa_b", "fb_b"]
OTHERS = ("q_lengths", "kv_lengths", "bias", *TABLES, "mix_logits")


def normals(seed, name, shape, deviation):
    """N(0, deviation^2), rounded to float32 once."""
    n = int(np.prod(shape))
    u = (philox(seed, name, -(-n // 4)).astype(np.float64) + 0.5) / 2**32
    radius = np.sqrt(-2 * np.log(u[:, ::2]))
    angle = 2 * math.pi * u[:, 1::2]
    x = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).ravel()[:n]
    return (deviation * x).reshape(shape).astype(np.float32).astype(np.float64)


class SynthesizerOracle(TracedOracle):
    differentiable = ("q", "k", "v", "bias", *TABLES, "mix_logits")
    axes = {"bias": "B,H,Nq,Nk"}

    def visible(self, t, o):
        Nq = (t["q"] if "q" in t else t["v"]).shape[2]
        B, _, Nk, _ = t["v"].shape
        seen = np.ones((B, 1, Nq, Nk), bool)
        if o.get("causal", False):
            seen &= np.tri(Nq, Nk, Nk - Nq, dtype=bool)
        for b in range(B):
            nq, nk = self._lengths(t, b)
            seen[b, :, nq:] = seen[b, :, :, nk:] = False
        return seen

    def heads(self, t):
        first = next((name for name in ("r", "r1") if name in t), None)
        return t["q"].shape[1] if "q" in t else t[first].shape[0] if first else t["v"].shape[1]

    def pairs(self, t, o):
        return int(self.visible(t, o).sum()) * self.heads(t)

    def _sequence(self, tape, t, o, b):
        # Drawn tables are those of the whole request; without a q its tensors do not show nq.
        self.Nk, self.nq = t["v"].shape[2], self._lengths(t, b)[0]
        return super()._sequence(tape, t, o, b)

    def drawn(self, f, t, o, name):
        seed, H, D, Nk = o.get("seed", 0), self.heads(t), self.D, self.Nk
        rank = t["r1"].shape[2] if "r1" in t else t["r2"].shape[2] if "r2" in t else o.get("rank", 8)
        a = t["f_a"].shape[-1] if "f_a" in t else o.get("a", math.ceil(math.sqrt(Nk)))
        if name == "r":
            x = uniforms(seed, name, (H, Nk, Nk), math.sqrt(6 / (2 * Nk)))
        elif name in ("r1", "r2"):
            x = uniforms(seed, name, (H, Nk, rank), math.sqrt(6 / (Nk + rank)))
        else:
            columns = {"w_dense": Nk, "f_a": a, "f_b": math.ceil(Nk / a)}[name]
            x = normals(seed, name, (D, columns), D ** -0.5)
        return f.num(x)

    def table(self, f, t, o, name, rank):
        """With its head axis, [1|H,..]."""
        x = t[name] if name in t else self.drawn(f, t, o, name)
        return x if x.ndim == rank else x.reshape(1, *x.shape)

    def logits(self, f, t, o, name, offset, nq, nk):
        causal = o.get("causal", False)
        rho = o.get("row_offset", offset if causal else 0)
        rows = np.clip(np.arange(nq) + rho, 0, None)
        if name == "dot":
            k = f.repeat_heads(t["k"], t["q"].shape[1] // t["k"].shape[1])
            return f.matmul(t["q"], k.swapaxes(2, 3)) * o.get("scale", self.D ** -0.5)
        if name == "dense":
            w = f.take(self.table(f, t, o, "w_dense", 3), (slice(None), slice(None), slice(0, nk)))
            x = f.matmul(f.relu(t["q"]), w)
            if "b_dense" in t:
                b = f.take(self.table(f, t, o, "b_dense", 2), (slice(None), slice(0, nk)))
                x = x + b.reshape(1, b.shape[0], 1, nk)
            return x
        if name == "random":
            x = f.take(self.table(f, t, o, "r", 3), (slice(None), rows, slice(0, nk)))
            return x.reshape(1, *x.shape)
        if name == "factorized_random":
            r1 = f.take(self.table(f, t, o, "r1", 3), (slice(None), rows))
            r2 = f.take(self.table(f, t, o, "r2", 3), (slice(None), slice(0, nk)))
            x = f.matmul(r1, r2.swapaxes(1, 2))
            return x.reshape(1, *x.shape)
        factors = []
        for weights, bias in (("f_a", "fa_b"), ("f_b", "fb_b")):
            x = f.matmul(t["q"], self.table(f, t, o, weights, 3))
            if bias in t:
                b = self.table(f, t, o, bias, 2)
                x = x + b.reshape(1, b.shape[0], 1, b.shape[1])
            factors.append(x)
        a, j = factors[0].shape[3], np.arange(nk)
        every = (slice(None),) * 3
        return f.take(factors[0], (*every, j % a)) * f.take(factors[1], (*every, j // a))

    def compute(self, f, t, o, offset):
        nq, nk = self.nq, t["v"].shape[2]
        self.D = t["q"].shape[3] if "q" in t else t["v"].shape[3]
        names = o.get("components", ["dense"])
        weights = None
        if o.get("mix", "sum") == "softmax":
            logits = t["mix_logits"] if "mix_logits" in t else f.num(np.zeros(len(names)))
            weights = f.softmax(logits)
        total = f.num(np.zeros((1, self.heads(t), nq, nk)))
        for i, name in enumerate(names):
            x = self.logits(f, t, o, name, offset, nq, nk)
            total = total + (x if weights is None else x * f.take(weights, (slice(i, i + 1),)))
        mask = np.tri(nq, nk, offset, dtype=bool) if o.get("causal", False) else True
        if "bias" in t:
            mask = mask & (np.broadcast_to(t["bias"].x, (1, *total.shape[1:])) > -np.inf)
            total = total + f.where(t["bias"].x > -np.inf, t["bias"])
        group = self.heads(t) // t["v"].shape[1]
        out, lse = f.attention(total, f.repeat_heads(t["v"], group), mask)
        return {"out": out, "lse": lse}


def p(shape, c, scale=0.5):
    return scale * wave(np.cos, shape, 0.3, c)


def golden(id, options, tensors, *figures):
    made = lowrank_golden(id, options, *figures)
    return dataclasses.replace(made, tensors=made.tensors | tensors)


def drawing(*letters):
    """A function that makes a table of this shape, in letters of the case."""
    def make(rng, case):
        return rng.standard_normal(case.shape_of(",".join(letters)))
    return make


def only(name, **more):
    return {"components": [name], **more}


W = {"w_dense": drawing("D", "Nk")}
RANDOM = {"r": drawing("H", "80", "80")}
FACTORS = {"r1": drawing("H", "80", "5"), "r2": drawing("H", "70", "5")}
LENGTHS = {"q_lengths": (0, 1, 33, 65), "kv_lengths": (65, 33, 1, 0)}
EVERY = {"w_dense": drawing("H", "D", "70"), "b_dense": drawing("H", "70"),
         **RANDOM, **FACTORS, "f_a": drawing("H", "D", "9"), "f_b": drawing("D", "8"),
         "fa_b": drawing("9"), "fb_b": drawing("H", "8"), "mix_logits": drawing("5")}
NAMES = ", ".join(COMPONENTS)


def refused(id, options, reasons, **change):
    reasons = [reasons] if isinstance(reasons, str) else reasons
    return Refused(id, options, reasons, change=change)


METHOD = Method(
    id="synthesizer",
    oracle=SynthesizerOracle(),
    options={"components": "enums", "mix": "enum", "rank": "int", "a": "int", "row_offset": "int",
             "scale": "float", "causal": "bool", "seed": "int"},
    tensors={"q", "k", "v", *OTHERS},
    required=frozenset("v"),
    differentiable=["q", "k", "v", "bias", *TABLES, "mix_logits"],
    peers=["leaderj1001 SynthesizerDense: one head (needs PyTorch)"],
    cases=[
        Case("dense", dtypes=ALL, B=2, Nq=63, made=W),
        Case("dense-drawn", B=2, Nq=65, options={"seed": 7}),
        Case("dense-heads-bias", dtypes=ALL, B=2, Nq=65, D=5, Dv=7,
             made={"w_dense": drawing("H", "D", "70"), "b_dense": drawing("H", "70")}),
        Case("dense-shared-bias", Nq=33, made={**W, "b_dense": drawing("40")}),
        Case("dense-causal-gqa", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, made=W,
             options={"causal": True}),
        Case("dense-cross", Nq=40, Nk=65, made=W),
        Case("dense-causal-more-queries", Nq=65, Nk=40, made=W, options={"causal": True}),
        Case("dense-lengths", dtypes=ALL, B=4, Nq=65, ints=LENGTHS, made=W),
        Case("n0", Nq=0, Nk=3, grad_lse=False),
        Case("nk0", Nq=3, Nk=0, made={"w_dense": drawing("D", "4")}),
        Case("n1", dtypes=ALL, Nq=1, D=1, Dv=1, made=W),
        Case("random", dtypes=ALL, B=2, Nq=65, options=only("random"), made=RANDOM),
        Case("random-drawn", B=2, H=2, Nq=33, options=only("random", seed=3)),
        Case("random-without-q", B=2, H=4, Hkv=2, Nq=65, absent=("q", "k"),
             options=only("random"), made=RANDOM),
        Case("random-lengths-without-q", B=4, Nq=65, absent=("q", "k"), ints=LENGTHS,
             options=only("random"), made=RANDOM),
        Case("random-causal", B=2, Nq=40, Nk=65, options=only("random", causal=True), made=RANDOM),
        Case("random-causal-more-queries", B=2, Nq=65, Nk=40, options=only("random", causal=True),
             made=RANDOM),
        Case("random-row-offset", Nq=40, options=only("random", row_offset=17, causal=True),
             made=RANDOM),
        Case("random-lengths", B=4, H=4, Hkv=2, Nq=65, ints=LENGTHS, options=only("random"),
             made=RANDOM),
        Case("random-bias", B=2, Nq=33, options=only("random"), made=RANDOM,
             floats={"bias": "B,1,1,Nk"}),
        Case("factorized-random", dtypes=ALL, B=2, Nq=65, options=only("factorized_random"),
             made=FACTORS),
        Case("factorized-random-drawn", H=4, Nq=33, absent=("q", "k"),
             options=only("factorized_random", rank=3)),
        Case("factorized-random-half-drawn", Nq=33, options=only("factorized_random"),
             made={"r1": drawing("H", "40", "3")}),
        Case("factorized-random-lengths-causal", B=3, Nq=65, made=FACTORS,
             ints={"q_lengths": (65, 20, 0), "kv_lengths": (65, 20, 0)},
             options=only("factorized_random", causal=True)),
        Case("factorized-dense", dtypes=ALL, B=2, Nq=65, options=only("factorized_dense"),
             made={"f_a": drawing("D", "9"), "f_b": drawing("D", "8")}),
        Case("factorized-dense-biases", B=2, Nq=65, options=only("factorized_dense"),
             made={name: EVERY[name] for name in ("f_a", "f_b", "fa_b", "fb_b")}),
        Case("factorized-dense-drawn", Nq=33, options=only("factorized_dense")),
        Case("factorized-dense-a", Nq=33, options=only("factorized_dense", a=4)),
        Case("factorized-dense-lengths", B=4, Nq=65, ints=LENGTHS,
             options=only("factorized_dense"),
             made={"f_a": drawing("D", "9"), "f_b": drawing("H", "D", "8")}),
        Case("dot", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, options=only("dot")),
        Case("dot-scale-bias", Nq=40, Nk=65, options=only("dot", scale=0.1, causal=True),
             floats={"bias": "H,Nq,Nk"}, hidden_bias=True),
        Case("sum-of-all", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65,
             options={"components": COMPONENTS},
             made={name: x for name, x in EVERY.items() if name != "mix_logits"}),
        Case("mix-of-all", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, made=EVERY,
             options={"components": COMPONENTS[::-1], "mix": "softmax"}),
        Case("mix-lengths-causal", B=4, H=4, Hkv=2, Nq=65, ints=LENGTHS, made=EVERY,
             floats={"bias": "B,H,Nq,Nk"},
             options={"components": COMPONENTS, "mix": "softmax", "causal": True}),
        Case("mix-without-logits", Nq=33, options={"components": ["dot", "dense"],
                                                   "mix": "softmax"}),
        Case("shared-bias-lengths", B=4, Nq=65, ints=LENGTHS, made=W,
             floats={"bias": "H,Nq,Nk"}),
        Case("bnhd", B=2, Nq=65, layout="BNHD", options={"components": ["dense", "dot"]}),
        Case("strided-bnhd", dtypes=ALL, B=2, Nq=65, strided=True, layout="BNHD", made=W),
    ],
    batches=[
        only("dot"),
        {},
        {"components": ["dense", "dot"], "causal": True},
        {"components": ["factorized_dense", "dot"], "mix": "softmax"},
    ],
    perf=[{}, only("random")],
    growth=[Growth({}, 2, 2)],
    visible=[
        Visible("causal", 16, 16, {"causal": True}, 136),
        Visible("nq5-nk9-causal", 5, 9, {"causal": True}, 35),
    ],
    golden=[
        golden("dense", {}, {"w_dense": p((4, 12), 0)}, 0.064784702, -0.071280987, -0.050304724,
               4.260193411, 2.484906650),
        golden("random", only("random"), {"r": p((2, 12, 12), 1)}, 0.103156107, -0.100311401,
               -0.052144034, 5.024393329, 2.679530778),
        golden("random-causal", only("random", causal=True), {"r": p((2, 12, 12), 1)}, 0.909297427,
               -0.100311401, -0.126906520, 12.134257562, 2.227299612),
        golden("factorized-random", only("factorized_random", rank=2),
               {"r1": p((2, 12, 2), 0), "r2": p((2, 12, 2), 1)}, 0.078905678, -0.071661029,
               -0.053921572, 4.586095291, 2.526560858),
        golden("factorized-dense", only("factorized_dense", a=3),
               {"f_a": p((4, 3), 0), "f_b": p((4, 4), 1)}, 0.074761639, -0.082934673, -0.044732122,
               4.888632110, 2.566550342),
        golden("random-and-dot", {"components": ["dot", "random"], "mix": "softmax", "scale": 0.5},
               {"r": p((2, 12, 12), 1), "mix_logits": np.array([0.0, 1.0])}, 0.249622399,
               -0.097901039, -0.188888074, 9.648792984, 2.655674750),
    ],
    refused=common_refusals(only("random"), (), OTHERS, lacks=("q",)) + [
        refused("components-unknown", {"components": ["dense", "sparse"]},
                f'components[1] must be one of {NAMES}, got "sparse"'),
        refused("components-twice", {"components": ["dot", "dense", "dot"]},
                'components[2] must not repeat a name, got "dot"'),
        refused("components-type", {"components": "dense"},
                'components must be a list of names, got "dense"'),
        # Later rules skip a refused list.
        refused("component-and-table", {"components": ["randon"]},
                f'components[0] must be one of {NAMES}, got "randon"', r=zeros(4, 7, 7), q=None),
        refused("mix", {"mix": "max"}, 'mix must be one of sum, softmax, got "max"'),
        refused("heads-without-k", only("dense"),
                "H must be a multiple of Hkv, got H = 3 and Hkv = 2", q=zeros(2, 3, 6, 3), k=None),
        refused("rank-0", only("factorized_random", rank=0), "rank must be in 1..1024, got 0"),
        refused("rank-1025", only("factorized_random", rank=1025),
                "rank must be in 1..1024, got 1025"),
        refused("rank-differs", only("factorized_random", rank=3),
                "rank must be that of r1 and r2, 2, got 3", r1=zeros(4, 7, 2), r2=zeros(4, 7, 2)),
        refused("ranks-differ", only("factorized_random"),
                "r2 shape must be [H,L,R] with R = rank = 2, got [4,7,3]", r1=zeros(4, 7, 2),
                r2=zeros(4, 7, 3)),
        refused("row-offset", {"row_offset": -1}, "row_offset must be >= 0, got -1"),
        refused("scale-0", {"scale": 0.0}, "scale must be > 0 and <= 1e+30, got 0"),
        refused("a-0", only("factorized_dense", a=0), "a must be >= 1, got 0"),
        refused("a-above-nk", only("factorized_dense", a=8), "a must be in 1..Nk = 1..7, got 8"),
        refused("a-differs", only("factorized_dense", a=4), "a must be that of f_a, 3, got 4",
                f_a=zeros(3, 3)),
        refused("a-b", only("factorized_dense"), "a * b must be >= Nk = 7, got 2 * 3",
                f_a=zeros(3, 2), f_b=zeros(4, 3, 3)),
        refused("fa-b", only("factorized_dense"),
                "fa_b shape must be [a] or [H,a] with a = 3, got [4,2]", fa_b=zeros(4, 2)),
        refused("no-q", {}, "q is required with the components dense, factorized_dense and dot, "
                "got none", q=None),
        refused("no-k", only("dot"), "k is required with the component dot, got none", k=None),
        refused("table-without-component", only("dot"),
                ["w_dense needs the component dense, got [3,7]",
                 "r needs the component random, got [4,7,7]"],
                w_dense=zeros(3, 7), r=zeros(4, 7, 7)),
        refused("mix-logits-without-mix", only("dot"),
                "mix_logits needs mix = softmax, got [1]", mix_logits=zeros(1)),
        refused("mix-logits-count", only("dot", mix="softmax"),
                "mix_logits shape must be [C] with C = number of components = 1, got [2]",
                mix_logits=zeros(2)),
        refused("w-short", {}, "w_dense shape must have L >= Nk = 7, got [3,6]",
                w_dense=zeros(3, 6)),
        refused("r-short", only("random", row_offset=3),
                "r shape must have L >= max(Nk, Nq + row_offset) = 9, got [4,8,8]",
                r=zeros(4, 8, 8)),
        refused("r-not-square", only("random"), "r shape must be [H,L,L], got [4,7,8]",
                r=zeros(4, 7, 8)),
        refused("r-drawn-short", only("random", row_offset=2),
                "r must be sent where Nq + row_offset > Nk = 7, got 8"),
        refused("heads-of-r", only("random"), "H must be a multiple of Hkv, got H = 3 and Hkv = 2",
                q=None, k=None, r=zeros(3, 7, 7)),
    ],
)
