"""Fast weights: oracle in float64 from the low-rank specification (R1, R2, fast_weights), cases,
golden values, refusals. The oracle follows the recurrence key by key."""

import dataclasses

import numpy as np

from tests.methods.cases import ALL, Case
from tests.methods.golden import lowrank_golden, wave
from tests.methods.method import Growth, Method, Visible
from tests.methods.refused import Refused, common_refusals, zeros
from tests.methods.traced import TracedOracle

TENSORS = ("q_lengths", "kv_lengths", "beta_logits", "state_s", "state_z")


def silu(f, x):
    return x * f.sigmoid(x)


def dpfp(f, x, nu):
    r = f.concat([f.relu(x), f.relu(-x)], -1)
    width = r.shape[-1]
    every = (slice(None),) * (r.ndim - 1)
    rolled = [f.take(r, (*every, (np.arange(width) - j) % width)) for j in range(1, nu + 1)]
    return f.concat([r * x for x in rolled], -1)


def features(f, x, o):
    name = o.get("feature_map", "dpfp")
    if name == "dpfp":
        x = dpfp(f, x, o.get("nu", 2))
    elif name == "elu_plus_one":
        x = f.where(x.x > 0, x + 1.0, f.exp(f.where(x.x > 0, f.num(np.zeros(1)), x)))
    elif name == "relu":
        x = f.relu(x)
    elif name == "silu":
        x = silu(f, x)
    norm = o.get("feature_norm", "sum")
    if norm == "sum":
        total = x.sum(-1, keepdims=True)
        return f.where(total.x != 0, x / f.where(total.x != 0, total, 1.0))
    if norm == "l2":
        return x / f.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)
    return x


class FastOracle(TracedOracle):
    differentiable = ("q", "k", "v", "beta_logits", "state_s", "state_z")
    axes = {"beta_logits": "B,Hkv,Nk", "state_s": "B,Hkv,F,Dv", "state_z": "B,Hkv,F",
            "grad_state_s": "B,Hkv,F,Dv", "grad_state_z": "B,Hkv,F"}

    def gives_lse(self, o):
        return False

    def visible(self, t, o):
        Nq, Nk = t["q"].shape[2], t["k"].shape[2]
        return super().visible(t, o) & np.tri(Nq, Nk, Nk - Nq, dtype=bool)

    def compute(self, f, t, o, offset):
        q, k, v = features(f, t["q"], o), features(f, t["k"], o), t["v"]
        (_, H, nq, F), (_, Hkv, nk, Dv) = q.shape, v.shape
        normalize, delta = o.get("attention_normalize", False), o.get("update_rule", "delta") == "delta"
        scale, eps = o.get("scale", t["q"].shape[3] ** -0.5), o.get("eps", 1e-5)
        S = t["state_s"] if "state_s" in t else f.num(np.zeros((1, Hkv, F, Dv)))
        z = (t["state_z"] if "state_z" in t else f.num(np.zeros((1, Hkv, F)))).reshape(1, Hkv, F, 1)
        beta = f.sigmoid(t["beta_logits"]) if "beta_logits" in t else f.num(np.ones((1, Hkv, nk)))
        states = [(S, z)]
        for j in range(nk):
            at = (slice(None), slice(None), slice(j, j + 1))
            kj, vj = f.take(k, at), f.take(v, at)  # [1,Hkv,1,F] and [1,Hkv,1,Dv]
            bj = f.take(beta, at).reshape(1, Hkv, 1, 1)
            column = kj.swapaxes(2, 3)
            if delta:
                write = kj
                if normalize:
                    c = f.num(np.ones((1, Hkv, 1, 1)))
                    if j > 0 or "state_z" in t:
                        c = f.matmul(kj, z)
                    write, bj = kj / (c + eps), bj * c
                S = S + f.matmul(write.swapaxes(2, 3), bj * (vj - f.matmul(write, S)))
            else:
                S = S + f.matmul(column, vj)
            z = z + column
            states.append((S, z))
        rows = []
        for i in range(nq):
            S, z = states[min(max(i + offset + 1, 0), nk)]
            qi = f.take(q, (slice(None), slice(None), slice(i, i + 1)))
            row = f.matmul(qi, f.repeat_heads(S, H // Hkv))
            if normalize:
                row = f.normalised(row, f.matmul(qi, f.repeat_heads(z, H // Hkv)) + eps)
            rows.append(row * scale)
        made = {"out": f.concat(rows, 2) if rows else f.num(np.zeros((1, H, 0, Dv)))}
        if o.get("return_state", False):
            made["state_s"] = states[-1][0]
            if normalize:
                made["state_z"] = states[-1][1].reshape(1, Hkv, F)
        return made


def drawing(letters, scale=1.0, positive=False):
    def make(rng, case):
        x = scale * rng.standard_normal(case.shape_of(letters))
        return abs(x) if positive else x
    return make


def with_state(F, *names):
    made = {"state_s": drawing(f"B,Hkv,{F},Dv"), "state_z": drawing(f"B,Hkv,{F}", 1.0, True),
            "beta_logits": drawing("B,Hkv,Nk"),
            "grad_state_s": drawing(f"B,Hkv,{F},Dv"), "grad_state_z": drawing(f"B,Hkv,{F}")}
    return {name: made[name] for name in names}


BETA = with_state("D", "beta_logits")
ELU = {"feature_map": "elu_plus_one"}
NORM = {**ELU, "attention_normalize": True}
LENGTHS = {"q_lengths": (0, 1, 20, 40), "kv_lengths": (40, 20, 1, 0)}


def case(id, **more):
    return Case(id, **{"Nq": 33, "D": 8, "grad_lse": False, "wide_floats": True} | more)


def golden(id, options, beta, *figures):
    made = lowrank_golden(id, options | {"scale": 0.5}, *figures)
    more = {"beta_logits": 0.5 * wave(np.cos, (1, 2, 12), 0.3, 0)} if beta else {}
    return dataclasses.replace(made, tensors=made.tensors | more)


def refused(id, options, reasons, backward=False, **change):
    reasons = [reasons] if isinstance(reasons, str) else reasons
    return Refused(id, options, reasons, change=change, backward=backward)


METHOD = Method(
    id="fast_weights",
    oracle=FastOracle(),
    options={"update_rule": "enum", "feature_map": "enum", "nu": "int", "feature_norm": "enum",
             "scale": "float", "attention_normalize": "bool", "eps": "float", "chunk_size": "int",
             "causal": "bool", "return_state": "bool"},
    tensors={"q", "k", "v", *TENSORS},
    differentiable=["q", "k", "v", "beta_logits", "state_s", "state_z"],
    outputs=["state_s", "state_z"],
    peers=["flash-linear-attention delta_rule_recurrence (needs PyTorch)"],
    cases=[
        case("delta", dtypes=ALL, B=2, made=BETA),
        case("delta-no-beta", H=4, Hkv=2),
        case("nu3", D=5, Dv=7, options={"nu": 3}, made=BETA),
        case("elu", dtypes=ALL, B=2, options=ELU, made=BETA),
        case("relu", options={"feature_map": "relu"}, made=BETA),
        case("silu-l2", dtypes=ALL, options={"feature_map": "silu", "feature_norm": "l2"},
             made=BETA),
        case("identity-l2", D=16, options={"feature_map": "identity", "feature_norm": "l2"},
             made=BETA),
        case("elu-unnormed", Nq=9, D=2, spread=0.3, shift=-1.0,
             options={**ELU, "feature_norm": "none"}, made=BETA),
        case("sum", dtypes=ALL, B=2, options={**ELU, "update_rule": "sum"}),
        case("sum-dpfp-scale", options={"update_rule": "sum", "scale": 0.3}),
        case("normalized", dtypes=("f32",), B=2, options=NORM, made=BETA),
        case("normalized-gqa-cross", B=2, H=4, Hkv=2, Nq=20, Nk=33, options=NORM, made=BETA),
        case("normalized-more-queries", Nq=33, Nk=20, options=NORM, made=BETA),
        case("normalized-eps", options={**NORM, "eps": 0.1}),
        case("normalized-sum", dtypes=ALL, B=2, options={**NORM, "update_rule": "sum"}),
        case("normalized-lengths", B=4, Nq=40, ints=LENGTHS, options=NORM, made=BETA),
        case("cross", B=2, Nq=20, Nk=33, made=BETA),
        case("more-queries", B=2, H=4, Hkv=2, Nq=33, Nk=20, made=BETA),
        case("lengths", dtypes=ALL, B=4, Nq=40, ints=LENGTHS, made=BETA),
        case("n0", Nq=0, Nk=3),
        case("nk0", Nq=3, Nk=0),
        case("n1", dtypes=ALL, Nq=1, D=1, Dv=1, options=ELU),
        # Features that are all 0: such a key writes nothing, such a query reads 0.
        case("zero-features", Nq=20, D=1, options={"feature_map": "relu"}),
        case("states", B=2, H=4, Hkv=2, options={**ELU, "return_state": True},
             made=with_state("D", "beta_logits", "state_s", "grad_state_s")),
        case("states-normalized", B=2, H=4, Hkv=2, options={**NORM, "return_state": True},
             made=with_state("D", "beta_logits", "state_s", "state_z", "grad_state_s",
                             "grad_state_z")),
        case("states-normalized-lengths", B=4, Nq=40, ints=LENGTHS,
             options={**NORM, "return_state": True},
             made=with_state("D", "beta_logits", "state_s", "state_z", "grad_state_s",
                             "grad_state_z")),
        case("states-normalized-sum", B=2, options={**NORM, "update_rule": "sum",
                                                    "return_state": True},
             made=with_state("D", "state_s", "state_z", "grad_state_s", "grad_state_z")),
        case("state-z-alone", options=NORM, made=with_state("D", "state_z")),
        case("state-s-alone", Nq=33, Nk=20, options={**NORM, "eps": 0.1}, made=with_state("D", "state_s")),
        case("chunk-7", options={"chunk_size": 7, "causal": True}, made=BETA),
        case("bnhd", dtypes=ALL, B=2, layout="BNHD", made=BETA),
        case("strided", B=2, H=4, Hkv=2, strided=True, made=BETA),
    ],
    batches=[ELU, {}, NORM, {"update_rule": "sum"}],
    perf=[{}, NORM],
    growth=[Growth({}, 1, 1), Growth(NORM, 1, 1)],
    visible=[
        Visible("square", 16, 16, {}, 136),
        Visible("nq5-nk9-normalized", 5, 9, NORM, 35),
    ],
    golden=[
        golden("dpfp", {}, True, 0.030549139, -0.003748449, -0.062217843, 4.847670540),
        golden("elu", ELU, True, 0.069093550, -0.082027725, -0.044998229, 3.950636421),
        golden("elu-normalized", NORM, True, 0.282985913, -0.028284517, -0.024026467, 3.676663123),
        golden("sum", {**ELU, "update_rule": "sum"}, False, 0.111000907, -0.224297691, -0.119163326,
               8.278153688),
    ],
    refused=common_refusals({}, (), TENSORS, ("out", "state_s", "state_z")) + [
        refused("causal", {"causal": False}, "causal must be true, got false"),
        refused("update-rule", {"update_rule": "hebb"},
                'update_rule must be one of delta, sum, got "hebb"'),
        refused("feature-map", {"feature_map": "exp"}, "feature_map must be one of dpfp, "
                'elu_plus_one, relu, silu, identity, got "exp"'),
        refused("feature-norm", {"feature_norm": "max"},
                'feature_norm must be one of sum, l2, none, got "max"'),
        refused("nu-0", {"nu": 0}, "nu must be in 1..64, got 0"),
        refused("nu-above-d", {"nu": 4}, "nu must be in 1..D = 1..3, got 4"),
        refused("eps-0", {"eps": 0.0}, "eps must be >= 1e-30 and <= 1e+30, got 0"),
        refused("scale-0", {"scale": 0.0}, "scale must be > 0 and <= 1e+30, got 0"),
        refused("chunk-257", {"chunk_size": 257}, "chunk_size must be in 1..256, got 257"),
        refused("beta-of-sum", {"update_rule": "sum"},
                "beta_logits needs update_rule = delta, got [2,2,7]", beta_logits=zeros(2, 2, 7)),
        refused("beta-shape", {}, "beta_logits shape must be [B,Hkv,Nk] with Nk = 7, got [2,2,6]",
                beta_logits=zeros(2, 2, 6)),
        refused("state-shape", {}, "state_s shape must have F = 12, got [2,2,3,5]",
                state_s=zeros(2, 2, 3, 5)),
        refused("state-z-unused", ELU, "state_z needs attention_normalize = true, got [2,2,3]",
                state_z=zeros(2, 2, 3)),
        refused("grad-state", ELU, "grad_state_s needs return_state, got return_state = false",
                backward=True, grad_state_s=zeros(2, 2, 3, 5)),
        refused("grad-state-z-unused", {**ELU, "return_state": True},
                "grad_state_z needs attention_normalize = true, got [2,2,3]", backward=True,
                grad_state_z=zeros(2, 2, 3)),
    ],
)
