"""ReLU and other activations in place of softmax: oracle in float64 from the pattern specification
(Common core, relu_attention), cases, golden sums, refusals."""

import math

import numpy as np

from tests.methods.cases import ALL, Case, ints
from tests.methods.golden import pattern_golden
from tests.methods.method import Growth, Visible
from tests.methods.pattern_core import Core, PatternOracle
from tests.methods.pattern_method import pattern_method
from tests.methods.refused import Refused, zeros

erfc = np.vectorize(math.erfc, otypes=[np.float64])


def sigmoid(s):
    return 1 / (1 + np.exp(-s))


def cdf(s):
    """That of the normal distribution; erfc keeps the digits of its tail."""
    return erfc(-s / math.sqrt(2)).astype(s.dtype) / 2


def pdf(s):
    return np.exp(-s * s / 2) / math.sqrt(2 * math.pi)


def one(s):
    return np.ones_like(s)


# name -> (phi, its derivative, bounds of the derivative's size and of that of the second one for
# scores of size a, {where the derivative jumps: by how much})
ACTIVATIONS = {
    "relu": (lambda s: np.maximum(s, 0), lambda s: (s > 0) * one(s), lambda a: 1, 0, {0: 1}),
    "relu_squared": (lambda s: np.maximum(s, 0) ** 2, lambda s: 2 * np.maximum(s, 0),
                     lambda a: 2 * a, 2, {}),
    "gelu": (lambda s: s * cdf(s), lambda s: cdf(s) + s * pdf(s), lambda a: 1.2, 1, {}),
    "softplus": (lambda s: np.logaddexp(s, s.dtype.type(0)), sigmoid, lambda a: 1, 0.25, {}),
    "identity": (lambda s: s, one, lambda a: 1, 0, {}),
    "relu6": (lambda s: np.clip(s, 0, 6), lambda s: ((s > 0) & (s < 6)) * one(s), lambda a: 1, 0,
              {0: 1, 6: 1}),
    "sigmoid": (sigmoid, lambda s: sigmoid(s) * (1 - sigmoid(s)), lambda a: 0.25, 0.1, {}),
}


class ReluCore(Core):
    """Weights W in place of P; no sum of a row is needed, so there is no lse."""

    def weigh(self):
        dtype = self.dtype
        self.s = np.where(self.seen, self.scores(), dtype(0))
        self.phi, self.slope, self.steepest, self.bend, self.jumps = ACTIVATIONS[
            self.o.get("activation", "relu")]
        self.factor = np.where(self.seen, self.length_factor(), 0).astype(dtype)
        self.P = self.factor * self.phi(self.s).astype(dtype)
        self.lse = np.where(self.valid, 0, -np.inf)  # rows of padding have no gradient

    def length_factor(self):
        """[B,H,Nq,1]: L^-alpha; where L is 0 nothing is seen."""
        norm, nk = self.o.get("length_norm", "nk"), self.t["k"].shape[2]
        nk = np.array([ints(self.t, "kv_lengths", b, nk) for b in range(len(self.seqs))])
        L = {"nk": nk, "avg": (nk + 1) / 2, "none": np.ones(len(nk))}.get(norm)
        L = self.seen.sum(axis=3)[..., None] if norm == "visible" else L.reshape(-1, 1, 1, 1)
        if "length_value" in self.o:
            L = np.full_like(L, self.o["length_value"], dtype=float)
        return np.where(L > 0, L, 1) ** -float(self.o.get("alpha", 1.0))

    def backward(self, store):
        dO, _ = self.incoming()
        dS = self.factor * self.slope(self.s).astype(self.dtype) * (dO @ self.v.swapaxes(2, 3))
        return self.flows(dS, self.through_cap, self.P, dO)

    def amplification(self):
        """A rounding of a score changes its weight by as much for any weight: see rounded()."""
        return 0.0

    def rounded(self):
        """Sizes of what is added up in a weight and in the derivative: with themselves, what
        roundings of their scores bring in. Near a jump either side may be taken: one whole jump, in
        units of the eight roundings that every bound allows."""
        size = self.size_of_scores()
        near = sum(jump * (abs(self.s - at) <= 2.0**-20 * size) for at, jump in self.jumps.items())
        return (self.factor * (abs(self.phi(self.s)) + self.steepest(size) * size),
                self.factor * (abs(self.slope(self.s)) + self.bend * size + near * 2.0**21))

    def magnitude_of_out(self):
        return self.rounded()[0] @ abs(self.v)

    def magnitude(self):
        dO = abs(self.incoming()[0])
        P, slope = self.rounded()
        whole = self.flows(slope * (dO @ abs(self.v).swapaxes(2, 3)), 1, P, dO, size=abs)
        return whole, {name: 0 for name in whole}


def act(activation, **more):
    return {"activation": activation} | more


def norm(length_norm, **more):
    return {"length_norm": length_norm} | more


NAMES = ", ".join(ACTIVATIONS)


METHOD = pattern_method(
    id="relu_attention",
    oracle=PatternOracle(lambda seq: np.True_, core=ReluCore, gives_lse=lambda o: False),
    options={"activation": "enum", "alpha": "float", "length_norm": "enum",
             "length_value": "float"},
    lacks=("sinks", "lse"),
    good_options={},
    peers=[
        "open_lm attention.custom_attn (needs PyTorch)",
        "rela-transformer without its norm: length_norm none (needs PyTorch)",
    ],
    cases=[
        Case("plain", dtypes=ALL, Nq=63),
        Case("n0", Nq=0, Nk=5),
        Case("nk0", Nq=5, Nk=0),
        Case("nk0-visible", Nq=5, Nk=0, options=norm("visible")),
        Case("n1", dtypes=ALL, Nq=1, D=1, Dv=1),
        Case("n64-d64", H=1, Nq=64, D=64),
        Case("n131-d128", H=1, Nq=131, D=128, options={"causal": True}),
        Case("odd-d", Nq=131, Nk=63, D=5, Dv=7),
        Case("long", H=1, Nq=70, Nk=521, D=8),
        Case("causal", dtypes=ALL, B=2, Nq=65, options={"causal": True}),
        Case("more-queries-causal", dtypes=ALL, Nq=131, Nk=65, options={"causal": True}),
        Case("causal-offset", B=3, Nq=65, Nk=70, options=norm("visible", causal=True),
             ints={"causal_offset": (-30, 5, 80)}),
        Case("offset-extreme", B=2, Nq=33, options=norm("visible", causal=True),
             ints={"causal_offset": (2**31 - 1, -(2**31))}),
        Case("gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=33, Nk=65),
        Case("relu-squared", dtypes=ALL, Nq=65, options=act("relu_squared")),
        Case("gelu", dtypes=ALL, Nq=65, options=act("gelu")),
        Case("softplus", dtypes=ALL, Nq=65, options=act("softplus", causal=True)),
        Case("identity", dtypes=ALL, Nq=65, options=act("identity", causal=True)),
        Case("relu6", dtypes=ALL, Nq=65, spread=2.0, options=act("relu6")),
        Case("sigmoid", dtypes=ALL, Nq=65, options=act("sigmoid", causal=True)),
        # Scores of some hundred: e^s is beyond float32.
        Case("gelu-far", Nq=65, spread=9.0, options=act("gelu")),
        Case("softplus-far", Nq=65, spread=9.0, options=act("softplus")),
        Case("sigmoid-far", Nq=65, spread=9.0, options=act("sigmoid")),
        Case("alpha-half", Nq=65, options={"alpha": 0.5}),
        Case("alpha-0", Nq=20, options={"alpha": 0.0}),
        Case("alpha-2", Nq=65, options=norm("visible", alpha=2.0, causal=True)),
        Case("visible", dtypes=ALL, B=2, Nq=65, options=norm("visible", causal=True)),
        Case("avg", B=2, Nq=65, options=norm("avg", causal=True), ints={"kv_lengths": (65, 30)}),
        Case("none", Nq=65, options=norm("none")),
        Case("length-value", B=2, Nq=65, options={"length_value": 512.0},
             ints={"kv_lengths": (65, 0)}),
        Case("length-value-over-visible", Nq=65,
             options=norm("visible", length_value=3.5, alpha=0.7)),
        Case("lengths", dtypes=ALL, B=6, H=1, Nq=131,
             ints={"q_lengths": (131, 65, 64, 63, 1, 0), "kv_lengths": (0, 1, 63, 64, 65, 131)}),
        Case("lengths-visible", B=6, H=1, Nq=131, options=norm("visible", causal=True),
             ints={"q_lengths": (131, 65, 64, 63, 1, 0), "kv_lengths": (0, 1, 63, 64, 65, 131)}),
        # Hidden keys must have no weight, although phi(0) is not 0 here.
        Case("sigmoid-lengths", B=3, Nq=65, options=act("sigmoid"),
             ints={"kv_lengths": (0, 40, 65)}),
        Case("scale-negative", Nq=40, options={"scale": -0.5}),
        Case("scale-zero-sigmoid", Nq=40, options=act("sigmoid", scale=0.0)),
        Case("scale-zero", Nq=40, options={"scale": 0.0}),
        Case("softcap", dtypes=ALL, Nq=65, spread=2.0,
             options=act("relu_squared", logit_softcap=1.5)),
        Case("multiset", Nq=20, options={"duplicates": "multiset"}),
        Case("alibi", H=6, Nq=65, Nk=70, options=act("softplus", alibi=True)),
        Case("alibi-offset", B=2, Nq=33, options={"alibi": True, "causal": True},
             ints={"causal_offset": (-5, 9)}),
        Case("bias", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, Nk=70, floats={"bias": "B,H,Nq,Nk"}),
        Case("bias-keys", B=2, Nq=65, floats={"bias": "B,1,1,Nk"}, options=act("gelu")),
        Case("bias-hides", B=2, Nq=65, floats={"bias": "1,1,Nq,Nk"}, hidden_bias=True,
             options=act("identity")),
        Case("bias-hides-visible", dtypes=ALL, B=2, Nq=65, floats={"bias": "B,H,Nq,Nk"},
             hidden_bias=True, options=act("sigmoid", length_norm="visible"),
             ints={"kv_lengths": (65, 40)}),
        Case("bias-hides-keys-visible", B=2, Nq=33, Nk=2, floats={"bias": "B,H,1,Nk"},
             hidden_bias=True, options=norm("visible")),
        Case("bnhd", B=2, Nq=65, Nk=33, layout="BNHD", options={"causal": True}),
        Case("strided", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, strided=True),
        Case("segments", dtypes=ALL, B=2, Nq=131, segments="runs"),
        Case("segments-ends", B=2, Nq=65, Nk=70, segments="ends"),
        Case("segments-visible", B=2, Nq=65, Nk=70, segments="mixed",
             options=norm("visible", causal=True)),
        Case("packed", dtypes=ALL, H=4, Hkv=2, Nq=261, packed=5, options={"causal": True}),
        Case("packed-visible", Nq=131, Nk=99, packed=4, options=norm("visible", causal=True)),
        Case("packed-avg", Nq=65, packed=3, options=norm("avg", alpha=0.5)),
        Case("all-terms", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, Nk=70, D=33, Dv=17, layout="BNHD",
             strided=True,
             options=act("gelu", causal=True, logit_softcap=3.0, length_norm="visible"),
             floats={"bias": "B,1,Nq,Nk", "alibi_slopes": "B,H"},
             ints={"q_lengths": (65, 40), "kv_lengths": (50, 70)}),
        Case("packed-all-terms", H=4, Hkv=2, Nq=131, Nk=99, D=9, packed=4,
             options={"logit_softcap": 3.0, "alpha": 0.8},
             floats={"bias": "H,Nq,Nk", "alibi_slopes": "H"}),
        Case("wide-floats", dtypes=("f16", "bf16"), B=2, Nq=65, wide_floats=True,
             floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "H"}),
    ],
    batches=[{}, act("sigmoid", causal=True), norm("visible", causal=True, alpha=0.5)],
    tensor_batches=[
        Case("terms", options=act("softplus", causal=True, logit_softcap=2.0),
             floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "B,H"}),
        Case("segments", options=norm("visible"), segments="mixed"),
        Case("packed", options={"causal": True}, packed=4),
    ],
    perf=[{}, {"causal": True}],
    growth=[Growth({}, 2, 1), Growth({"causal": True}, 2, 1)],
    visible=[
        Visible("nq5-nk9-causal", 5, 9, {"causal": True}, 35),
        Visible("nq9-nk5-causal", 9, 5, {"causal": True}, 15),
    ],
    golden=[
        pattern_golden("relu", {}, 512, -0.1159940688, None, -0.2559486632, 0.2382348755,
                       -0.0017002660),
        pattern_golden("relu-causal", {"causal": True}, 272, -0.0799619992, None, -0.0215127765,
                       -0.3107775851, 0.4110410877),
    ],
    refused=[
        Refused("activation", act("tanh"), [f'activation must be one of {NAMES}, got "tanh"']),
        Refused("activation-type", act(1), [f"activation must be one of {NAMES}, got 1"]),
        Refused("alpha-high", {"alpha": 3.0}, ["alpha must be >= 0 and <= 2, got 3"]),
        Refused("alpha-low", {"alpha": -0.5}, ["alpha must be >= 0 and <= 2, got -0.5"]),
        Refused("alpha-nan", {"alpha": float("nan")}, ["alpha must be finite, got nan"]),
        Refused("length-norm", norm("nq"),
                ['length_norm must be one of nk, visible, avg, none, got "nq"']),
        Refused("length-value-0", {"length_value": 0.0},
                ["length_value must be >= 1e-15 and <= 1e+15, got 0"]),
        Refused("length-value-type", {"length_value": "long"},
                ['length_value must be a number, got "long"']),
        Refused("sinks-and-more", {"alpha": 3.0, "causal": 3}, [
            "alpha must be >= 0 and <= 2, got 3", "causal must be a bool, got 3",
            'tensors must be among q, k, v, q_lengths, kv_lengths, causal_offset, segment_ids_q, '
            'segment_ids_kv, cu_seqlens_q, cu_seqlens_k, bias, alibi_slopes, got "sink_logits"'],
                change={"sink_logits": zeros(4)}),
    ],
)
