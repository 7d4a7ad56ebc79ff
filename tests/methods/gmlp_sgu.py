"""Spatial gating unit of gMLP: oracle from the low-rank specification (R1, R4, R5, gmlp_sgu), cases,
golden values, refusals."""

import dataclasses

import numpy as np

from tests.methods import drawn
from tests.methods.cases import ALL, Case
from tests.methods.method import Growth, Method, Visible
from tests.methods.mixing_core import MixingOracle, golden, mixing_refusals, table, without_q
from tests.methods.refused import Refused, zeros

TABLES = ("weight", "bias", "norm_weight", "norm_bias")


class GmlpOracle(MixingOracle):
    differentiable = ("q", "v", *TABLES, "gate_residual")
    axes = {"gate_residual": "B,Hkv,Nk,Dg"}

    def _cut(self, t, b):
        return super()._cut(t, b) | {"rows": np.array(t["v"].shape[2])}

    def compute(self, f, t, o, offset):
        v, n = t["v"], t["v"].shape[2]
        half = v.shape[3] // 2
        u, z = (t["q"], v) if "q" in t else (v[..., :half], v[..., half:])
        scope = o.get("norm_scope", "model")
        if scope != "none":
            scale = t["norm_weight"].reshape(1, -1, 1, z.shape[3]) if "norm_weight" in t else 1.0
            shift = t["norm_bias"].reshape(1, -1, 1, z.shape[3]) if "norm_bias" in t else 0.0
            axes = (-3, -1) if scope == "model" else (-1,)
            z = f.layer_norm(z, axes, scale, shift, o.get("norm_eps", 1e-5))
        rows = int(t["rows"])
        weight = t["weight"] if "weight" in t else f.num(
            drawn.uniforms(o.get("seed", 0), "weight", (rows, rows), 1e-3 / max(rows, 1)))
        weight = weight[..., :n, :n]
        if o.get("causal", False):
            weight = f.where(np.tri(n, dtype=bool), weight)
        gate = weight @ z
        if "bias" in t:
            bias = t["bias"][..., :n]
            gate = gate + bias.reshape(1, *((-1,) if bias.ndim == 2 else (1,)), n, 1)
        else:
            gate = gate + 1.0
        if "gate_residual" in t:
            gate = gate + t["gate_residual"]
        gate = {"identity": lambda x: x, "tanh": f.tanh, "sigmoid": f.sigmoid}[
            o.get("act", "identity")](gate)
        return {"out": u * gate}


def halves(case):
    """v holds both halves; q and k are absent."""
    return dataclasses.replace(without_q(case), out_dim=(case.Dv or case.D) // 2)


CAUSAL = {"causal": True}
PLAIN = {"norm_scope": "none"}
W = {"weight": table("N", "N", scale=0.3)}
W_OF_HEADS = {"weight": table("H", "N+2", "N+2", scale=0.3)}
BIAS = {"bias": table("N+2")}
NORM = {"norm_weight": table("H", "Dv"), "norm_bias": table("H", "Dv")}
NORM_HALF = {"norm_weight": table("H", "Dg"), "norm_bias": table("H", "Dg")}


def residual(width):
    """NaN in rows beyond the lengths."""

    def make(rng, case):
        x = table("B", "H", "N", width)(rng, case)
        for b, n in enumerate(case.ints.get("kv_lengths", ())):
            x[b, :, n:] = np.nan
        return x

    return {"gate_residual": make}


V_ALONE = {"q": None, "k": None, "grad_out": np.ones((1, 2, 12, 2))}  # the golden rows
LENGTHS = {"kv_lengths": (0, 1, 63, 64, 65, 131), "q_lengths": (0, 1, 63, 64, 65, 131)}


def alone(id, options, reason, backward=False, **change):
    """A refusal of the request of v alone, Dv = 6."""
    good = {"q": None, "k": None, "v": zeros(2, 4, 6, 6)}
    if backward:
        good["grad_out"] = zeros(2, 4, 6, 3)
    return Refused(id, options, [reason], change=good | change, backward=backward)


def refusals():
    """Those of the family as they read where D is Dv = 5, too."""
    rows = []
    for row in mixing_refusals((*TABLES, "gate_residual")):
        # D and Dv alone cannot be wrong; grad_out has rows of its own.
        if row.id in ("d-0", "d-4097", "dv-0", "grad-out-shape", "grad-without-q",
                      "k-without-q"):
            continue
        change = {name: np.resize(x, (*x.shape[:-1], 5))
                  if name in ("q", "k") and x is not None and x.shape[-1] == 3 else x
                  for name, x in row.change.items()}
        if row.id == "last-stride":
            change["q"] = zeros(2, 4, 6, 10)[..., ::2]
        reasons = [reason.replace("D = 3", "D = 5").replace("got [2,6,3]", "got [2,6,5]")
                   for reason in row.reasons]
        rows.append(dataclasses.replace(row, change=change, reasons=reasons))
    return rows


def fit_sizes(case):
    """D = Dv where q is sent, else out has half of Dv. With a weight: drawn ones are as small as
    1e-3 / Nk, and none is drawn for many rows."""
    width = case.Dv or case.D
    case = dataclasses.replace(case, made=W | case.made)
    if "q" in case.absent:
        return dataclasses.replace(case, Dv=width, out_dim=width // 2)
    return dataclasses.replace(case, D=width, Dv=width)


METHOD = Method(
    id="gmlp_sgu",
    oracle=GmlpOracle(),
    options={"norm_scope": "enum", "norm_eps": "float", "act": "enum", "causal": "bool",
             "seed": "int"},
    tensors={"q", "k", "v", "q_lengths", "kv_lengths", *TABLES, "gate_residual"},
    required=frozenset("v"),
    differentiable=["q", "v", *TABLES, "gate_residual"],
    square=True,
    gqa=False,
    good_tensors={"q": zeros(2, 4, 6, 5), "k": zeros(2, 4, 6, 5)},
    fit_options=fit_sizes,
    peers=["g-mlp-pytorch SpatialGatingUnit (needs PyTorch)", "timm SpatialGatingUnit"],
    cases=[
        Case("plain", dtypes=ALL, B=2, Nq=65, made=W | BIAS | NORM),
        halves(Case("halves", dtypes=ALL, B=2, Nq=65, made=W | BIAS | NORM_HALF)),
        halves(Case("halves-odd", B=2, H=3, Nq=63, D=10, made=W)),
        Case("drawn", dtypes=ALL, B=2, Nq=65),
        Case("seed", Nq=20, options={"seed": 2**40 + 7}),
        Case("one-channel", B=2, H=3, Nq=20, D=1, options={"causal": True}, made=W | BIAS | NORM),
        Case("n0", Nq=0),
        Case("n1", dtypes=ALL, Nq=1, D=3, made=W | BIAS),
        Case("long", H=1, Nq=1031, D=8, made=W, ratio=False),
        Case("lengths", dtypes=ALL, B=6, Nq=131, D=8, ints=LENGTHS, made=W | BIAS | NORM),
        halves(Case("halves-lengths", B=3, Nq=40, D=8, made=W | BIAS | NORM_HALF | residual("Dg"),
                    ints={"kv_lengths": (40, 0, 13)}, options={"act": "tanh"})),
        Case("residual", dtypes=ALL, B=2, Nq=65, made=W | residual("Dv")),
        Case("residual-lengths", B=3, Nq=40, made=W | BIAS | residual("Dv"),
             ints={"kv_lengths": (0, 17, 40), "q_lengths": (0, 17, 40)}),
        Case("tanh", dtypes=ALL, B=2, Nq=65, made=W | BIAS, options={"act": "tanh"}),
        Case("sigmoid", dtypes=ALL, B=2, Nq=33, made=W | BIAS, options={"act": "sigmoid"}),
        Case("norm-head", dtypes=ALL, B=2, Nq=65, made=W | BIAS | NORM,
             options={"norm_scope": "head"}),
        Case("norm-head-eps", B=2, Nq=33, made=W, options={"norm_scope": "head", "norm_eps": 0.5}),
        Case("norm-none", dtypes=ALL, B=2, Nq=65, made=W | BIAS, options=PLAIN),
        Case("weight-of-heads", dtypes=ALL, B=2, H=3, Nq=33, D=6,
             made=W_OF_HEADS | NORM | {"bias": table("H", "N+2")}),
        Case("bias-of-heads", B=2, H=3, Nq=33, D=6, made=W | {"bias": table("H", "N")}),
        Case("weight-of-heads-lengths", B=3, H=2, Nq=40, D=6, made=W_OF_HEADS | BIAS,
             ints={"kv_lengths": (1, 40, 23)}, options=CAUSAL),
        Case("causal", dtypes=ALL, B=2, Nq=65, made=W | BIAS | NORM, options=CAUSAL),
        Case("causal-lengths", dtypes=ALL, B=6, Nq=131, D=8, made=W | BIAS | NORM, options=CAUSAL,
             ints=LENGTHS),
        halves(Case("causal-halves", B=2, H=3, Nq=65, D=10, made=W, options=CAUSAL | PLAIN)),
        Case("bnhd", dtypes=ALL, B=2, Nq=65, layout="BNHD", made=W | BIAS | NORM),
        Case("strided", B=2, Nq=65, strided=True, made=W | BIAS),
        halves(Case("strided-halves", B=2, Nq=33, strided=True, layout="BNHD", made=W,
                    options=CAUSAL)),
    ],
    batches=[{}, CAUSAL | PLAIN, {"norm_scope": "head", "act": "sigmoid"}],
    tensor_batches=[Case("tables", options=CAUSAL | PLAIN, made=W | BIAS),
                    Case("tables-of-heads", made=W_OF_HEADS | NORM | residual("Dv"))],
    perf=[{}, CAUSAL],
    growth=[Growth({}, 2, 2)],
    visible=[Visible("all", 6, 6, {}, 36), Visible("causal", 16, 16, CAUSAL, 136)],
    golden=[
        golden("default", {}, 0.592789855, -0.708449536, -0.761418816, 32.436946472,
               {"weight": (0, (12, 12))}, **V_ALONE),
        golden("causal", CAUSAL, 1.155043244, -0.708449536, -0.709911658, 31.650465928,
               {"weight": (0, (12, 12))}, **V_ALONE),
    ],
    refused=refusals() + [
        Refused("d-is-not-dv", {}, ["D must be Dv = 5, got 3"],
                change={"q": zeros(2, 4, 6, 3), "k": None}),
        alone("odd-v", {}, "Dv must be even without q, got 5", v=zeros(2, 4, 6, 5)),
        Refused("grad-out-width", {},
                ["grad_out shape must be [B,H,Nq,Dg] with Dg = Dv = 5, got [2,4,6,3]"],
                change={"grad_out": zeros(2, 4, 6, 3)}, backward=True),
        alone("grad-out-half", {}, "grad_out shape must be [B,H,Nq,Dg] with Dg = Dv/2 = 3, got "
              "[2,4,6,6]", backward=True, grad_out=zeros(2, 4, 6, 6)),
        Refused("norm-scope", {"norm_scope": "all"},
                ['norm_scope must be one of model, head, none, got "all"']),
        Refused("act", {"act": "relu"}, ['act must be one of identity, tanh, sigmoid, got "relu"']),
        Refused("eps", {"norm_eps": 0.0}, ["norm_eps must be >= 1e-30 and <= 1e+30, got 0"]),
        Refused("short-weight", {}, ["weight shape must have L >= Nk = 6, got [5,5]"],
                change={"weight": zeros(5, 5)}),
        Refused("uneven-weight", {}, ["weight shape must be [L,L] or [Hkv,L,L], got [4,6,7]"],
                change={"weight": zeros(4, 6, 7)}),
        Refused("weight-heads", {},
                ["weight shape must be [L,L] or [Hkv,L,L] with Hkv = 4, got [3,6,6]"],
                change={"weight": zeros(3, 6, 6)}),
        Refused("short-bias", {}, ["bias shape must have L >= Nk = 6, got [4,5]"],
                change={"bias": zeros(4, 5)}),
        Refused("norm-width", {}, ["norm_weight shape must be [Hkv,Dg] with Dg = Dv = 5, got [4,2]"],
                change={"norm_weight": zeros(4, 2)}),
        alone("norm-half", {}, "norm_bias shape must be [Hkv,Dg] with Dg = Dv/2 = 3, got [4,6]",
              norm_bias=zeros(4, 6)),
        Refused("norm-unread", PLAIN,
                ["norm_weight must be absent with norm_scope = none, got [4,5]"],
                change={"norm_weight": zeros(4, 5)}),
        Refused("residual-width", {},
                ["gate_residual shape must be [B,Hkv,Nk,Dg] with Dg = Dv = 5, got [2,4,6,2]"],
                change={"gate_residual": zeros(2, 4, 6, 2)}),
        Refused("long-drawn", {},
                ["weight must be sent where it has more than 16777216 elements, got 16785409"],
                change={"q": None, "k": None, "v": zeros(1, 1, 4097, 2)}),
    ],
)
