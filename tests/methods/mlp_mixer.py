"""MLP-Mixer's token mixing: oracle from the low-rank specification (R1, R4, R5, mlp_mixer), cases,
golden values, refusals."""

import numpy as np

from tests.methods.cases import ALL, Case
from tests.methods.method import Growth, Method, Visible
from tests.methods.mixing_core import (MixingOracle, apart, golden, lecun_normals, merged,
                                       mixing_refusals, table, without_q)
from tests.methods.refused import Refused, zeros

TABLES = ("w1", "b1", "w2", "b2", "norm_weight", "norm_bias")


class MixerOracle(MixingOracle):
    differentiable = ("v", *TABLES)

    def _cut(self, t, b):
        return super()._cut(t, b) | {"rows": np.array(t["v"].shape[2])}

    def compute(self, f, t, o, offset):
        heads, n, rows, seed = t["v"].shape[1], t["v"].shape[2], int(t["rows"]), o.get("seed", 0)
        T = o.get("tokens_dim", 256)
        T = t["b1"].shape[0] if "b1" in t else T
        T = t["w2"].shape[0] if "w2" in t else T
        T = t["w1"].shape[1] if "w1" in t else T
        w1 = t["w1"] if "w1" in t else f.num(lecun_normals(seed, "w1", (rows, T), rows))
        w2 = t["w2"] if "w2" in t else f.num(lecun_normals(seed, "w2", (T, rows), T))
        x = merged(f, t["v"])
        xn = x
        if o.get("pre_norm", True):
            xn = f.layer_norm(x, (-1,), t.get("norm_weight", 1.0), t.get("norm_bias", 0.0),
                              o.get("norm_eps", 1e-6))
        hidden = w1[:n].swapaxes(0, 1) @ xn
        if "b1" in t:
            hidden = hidden + t["b1"].reshape(T, 1)
        hidden = {"gelu_tanh": f.gelu_tanh, "gelu_erf": f.gelu_erf, "relu": f.relu,
                  "identity": lambda a: a}[o.get("act", "gelu_tanh")](hidden)
        y = w2[:, :n].swapaxes(0, 1) @ hidden
        if "b2" in t:
            y = y + t["b2"][:n].reshape(n, 1)
        if o.get("residual", False):
            y = y + x
        return {"out": apart(f, y, heads)}


def layers(T, rows="N"):
    return {"w1": table(rows, T, scale=0.3), "w2": table(T, rows, scale=0.3)}


BIASES = {"b1": table(24), "b2": table("N+2")}
NORM = {"norm_weight": table("C"), "norm_bias": table("C")}
ALL_TABLES = layers(24) | BIASES | NORM
ACTS = ("gelu_erf", "relu", "identity")
LENGTHS = {"kv_lengths": (0, 1, 63, 64, 65, 131), "q_lengths": (0, 1, 63, 64, 65, 131)}

METHOD = Method(
    id="mlp_mixer",
    oracle=MixerOracle(),
    options={"tokens_dim": "int", "act": "enum", "pre_norm": "bool", "norm_eps": "float",
             "residual": "bool", "seed": "int"},
    tensors={"q", "k", "v", "q_lengths", "kv_lengths", *TABLES},
    required=frozenset("v"),
    differentiable=["v", *TABLES],
    square=True,
    gqa=False,
    peers=["timm MixerBlock.mlp_tokens (needs PyTorch)", "mlp-mixer-pytorch (needs PyTorch)",
           "vision_transformer MixerBlock (needs Flax)"],
    cases=[
        Case("plain", dtypes=ALL, B=2, Nq=65, made=ALL_TABLES),
        without_q(Case("odd", B=2, H=3, Nq=63, D=5, made=layers(13))),
        Case("drawn", dtypes=ALL, B=2, Nq=65, options={"tokens_dim": 32}),
        Case("drawn-default", Nq=20, D=3, options={"seed": 2**40 + 7}),
        Case("n0", Nq=0, options={"tokens_dim": 3}),
        Case("n1", dtypes=ALL, Nq=1, D=3, made=layers(1)),
        Case("long", H=1, Nq=1031, D=8, made=layers(24), ratio=False),
        Case("longer-tables", dtypes=ALL, B=2, Nq=31, made=layers(24, "N+2") | BIASES),
        Case("width-of-b1", Nq=20, D=3, made={"b1": table(7)}),
        Case("width-of-w2", Nq=20, D=3, made={"w2": table(9, "N")}, options={"tokens_dim": 9}),
        Case("lengths", dtypes=ALL, B=6, Nq=131, D=8, ints=LENGTHS, made=ALL_TABLES),
        Case("lengths-residual", B=3, Nq=40, D=8, made=ALL_TABLES, options={"residual": True},
             ints={"kv_lengths": (40, 0, 13)}),
        Case("lengths-without-norm", B=3, Nq=40, D=8, made=layers(24) | BIASES,
             options={"pre_norm": False}, ints={"kv_lengths": (40, 0, 13)}),
        Case("without-norm", dtypes=ALL, B=2, Nq=65, made=layers(24) | BIASES,
             options={"pre_norm": False}),
        Case("eps", B=2, Nq=33, made=ALL_TABLES, options={"norm_eps": 0.5}),
        Case("residual", dtypes=ALL, B=2, Nq=65, made=ALL_TABLES, options={"residual": True}),
        *(Case(act, dtypes=ALL, B=2, Nq=65, made=ALL_TABLES, options={"act": act}) for act in ACTS),
        Case("bnhd", dtypes=ALL, B=2, Nq=65, layout="BNHD", made=ALL_TABLES),
        Case("strided", B=2, Nq=65, strided=True, made=ALL_TABLES),
        Case("strided-bnhd", B=2, Nq=33, strided=True, layout="BNHD", made=layers(5),
             options={"residual": True}),
    ],
    batches=[{}, {"tokens_dim": 9, "act": "relu"}, {"pre_norm": False, "residual": True}],
    tensor_batches=[Case("tables", made=ALL_TABLES), Case("layers", made=layers(5))],
    perf=[{}],
    growth=[Growth({"tokens_dim": 64}, 1, 1)],
    visible=[Visible("all", 6, 6, {}, 36)],
    golden=[
        golden("tanh", {"tokens_dim": 6}, 0.045456589, 0.008221321, 0.021994010, 3.254048886,
               {"w1": (0, (12, 6)), "w2": (1, (6, 12))}),
        golden("erf", {"act": "gelu_erf"}, 0.045456774, 0.008221317, 0.021993868, 3.254074996,
               {"w1": (0, (12, 6)), "w2": (1, (6, 12))}),
    ],
    refused=mixing_refusals(TABLES, has_causal=False) + [
        Refused("tokens-dim-0", {"tokens_dim": 0}, ["tokens_dim must be in 1..65536, got 0"]),
        Refused("tokens-dim-of-w1", {"tokens_dim": 8}, ["tokens_dim must be that of w1, 6, got 8"],
                change={"w1": zeros(6, 6)}),
        Refused("tokens-dim-of-w2", {"tokens_dim": 8}, ["tokens_dim must be that of w2, 9, got 8"],
                change={"w2": zeros(9, 6)}),
        Refused("tokens-dim-of-b1", {"tokens_dim": 8}, ["tokens_dim must be that of b1, 9, got 8"],
                change={"b1": zeros(9)}),
        Refused("widths-differ", {},
                ["w2 shape must be [T,L] with T = that of w1 = 6, got [7,6]",
                 "b1 shape must be [T] with T = that of w1 = 6, got [8]"],
                change={"w1": zeros(6, 6), "w2": zeros(7, 6), "b1": zeros(8)}),
        Refused("no-width", {}, ["w1 shape must have T >= 1, got T = 0"],
                change={"w1": zeros(6, 0)}),
        Refused("short-w1", {}, ["w1 shape must have L >= Nk = 6, got [5,6]"],
                change={"w1": zeros(5, 6)}),
        Refused("short-w2", {}, ["w2 shape must have L >= Nk = 6, got [6,5]"],
                change={"w2": zeros(6, 5)}),
        Refused("short-b2", {}, ["b2 shape must have L >= Nk = 6, got [5]"],
                change={"b2": zeros(5)}),
        Refused("w1-rank", {}, ["w1 shape must be [L,T], got [6]"], change={"w1": zeros(6)}),
        Refused("norm-width", {}, ["norm_weight shape must be [C] with C = Hkv Dv = 20, got [5]"],
                change={"norm_weight": zeros(5)}),
        Refused("norm-unread", {"pre_norm": False},
                ["norm_bias must be absent with pre_norm = false, got [20]"],
                change={"norm_bias": zeros(20)}),
        Refused("act", {"act": "gelu"},
                ['act must be one of gelu_tanh, gelu_erf, relu, identity, got "gelu"']),
        Refused("eps", {"norm_eps": 0.0}, ["norm_eps must be >= 1e-30 and <= 1e+30, got 0"]),
        Refused("long-drawn", {"tokens_dim": 4097},
                [f"{name} must be sent where it has more than 16777216 elements, got 16785409"
                 for name in ("w1", "w2")],
                change={"q": None, "k": None, "v": zeros(1, 1, 4097, 1)}),
    ],
)
