"""Linformer: oracle from the low-rank specification (R1, R5, R8, linformer), cases, golden values,
refusals."""

import math

import numpy as np

from tests.methods import drawn
from tests.methods.cases import ALL, Case
from tests.methods.golden import lowrank_golden, wave
from tests.methods.method import Growth, Method, Visible
from tests.methods.refused import Refused, common_refusals, zeros
from tests.methods.traced import DrawnOracle

TABLES = ["e", "f", "e_bias", "f_bias"]
CONVS = ["conv_weight_k", "conv_weight_v", "conv_bias_k", "conv_bias_v"]


def columns_of(t, o):
    """k: that of a table that was sent, else the option."""
    return next((t[name].shape[-1] for name in TABLES if name in t), o.get("k", 256))


def width_of(t, o):
    for name in CONVS[:2]:
        if name in t:
            return t[name].shape[-1]
    return max(t["k"].shape[2] // o.get("k", 256), 1)


class LinformerOracle(DrawnOracle):
    differentiable = ("q", "k", "v", *TABLES, *CONVS)

    def drawn(self, t, o):
        """What is drawn for the whole tensors, before they are cut."""
        seed, projection = o.get("seed", 0), o.get("projection", "linear")
        L = t["k"].shape[2]
        made = {}
        if projection == "linear":
            k, sharing = columns_of(t, o), o.get("sharing", "headwise")
            shape = (t["k"].shape[1], L, k) if sharing == "none" else (L, k)
            limit = math.sqrt(6 / (L + k)) / math.sqrt(2)
            made["e"] = drawn.uniforms(seed, "e", shape, limit)
            if sharing in ("none", "headwise"):
                made["f"] = drawn.uniforms(seed, "f", shape, limit)
        if projection == "conv":
            w = width_of(t, o)
            for x in "kv":
                D = t[x].shape[3]
                limit = 1 / math.sqrt(D * w)
                made[f"conv_weight_{x}"] = drawn.uniforms(seed, f"conv_weight_{x}", (D, D, w), limit)
                made[f"conv_bias_{x}"] = drawn.uniforms(seed, f"conv_bias_{x}", (D,), limit)
                if f"conv_weight_{x}" in t:
                    del made[f"conv_bias_{x}"]
        return made

    def project(self, f, t, o, name):
        """[1,Hkv,columns,D] of k or v."""
        x, projection = t[name], o.get("projection", "linear")
        n = x.shape[2]
        if projection == "linear":
            of_v = "f" if "f" in t else "e"
            table, bias = (t["e"], t.get("e_bias")) if name == "k" else (t[of_v], t.get("f_bias"))
            table = table[..., :n, :]
            heads = "g" if table.ndim == 3 else ""
            y = f.einsum(f"{heads}jc,bgjd->bgcd", table, x)
            return y if bias is None else y + bias.reshape(*bias.shape, 1)
        if projection == "conv":
            w = t[f"conv_weight_{name}"].shape[-1]
            columns = -(-n // w)
            pad = np.zeros((1, x.shape[1], columns * w - n, x.shape[3]))
            windows = f.concat([x, pad], 2).reshape(1, x.shape[1], columns, w, x.shape[3])
            y = f.einsum("bgcti,oit->bgco", windows, t[f"conv_weight_{name}"])
            bias = t.get(f"conv_bias_{name}")
            return y if bias is None else y + bias
        w = max(-(-n // o.get("k", 256)), 1)
        pool = f.mean if projection == "mean_pool" else f.max
        parts = [pool(x[:, :, i:i + w], 2, keepdims=True) for i in range(0, n, w)]
        return f.concat(parts, 2) if parts else x[:, :, :0]

    def compute(self, f, t, o, offset):
        q, group = t["q"], t["q"].shape[1] // t["k"].shape[1]
        k, v = (f.repeat_heads(self.project(f, t, o, name), group) for name in "kv")
        logits = (q @ k.swapaxes(-1, -2)) * o.get("scale", q.shape[3] ** -0.5)
        out, lse = f.attention(logits, v, t["k"].shape[2] > 0)
        return {"out": out, "lse": lse}

    def pairs(self, t, o):
        """Queries by columns."""
        count = 0
        for b in range(t["q"].shape[0]):
            nq, nk = self._lengths(t, b)
            columns = columns_of(t, o)
            if o.get("projection", "linear") == "conv":
                columns = -(-nk // width_of(t, o))
            elif "projection" in o and o["projection"] != "linear":
                columns = -(-nk // max(-(-nk // columns), 1))
            count += nq * (columns if nk else 0)
        return count * t["q"].shape[1]


def table(*letters, size=0.2):
    """Of these sizes: numbers, or names of sizes of the case."""
    return lambda rng, case: size * rng.standard_normal(case.shape_of(",".join(letters)))


def made(k="5", L="Nk", heads=False, biases=True, f=True):
    rows = ("Hkv", L, k) if heads else (L, k)
    of_bias = ("Hkv", k) if heads else (k,)
    return ({"e": table(*rows)} | ({"f": table(*rows)} if f else {})
            | ({"e_bias": table(*of_bias), "f_bias": table(*of_bias)} if biases else {}))


def convs(w="3", biases=True):
    return ({"conv_weight_k": table("D", "D", w), "conv_weight_v": table("Dv", "Dv", w)}
            | ({"conv_bias_k": table("D"), "conv_bias_v": table("Dv")} if biases else {}))


LENGTHS = {"q_lengths": (0, 1, 63, 64, 65, 131), "kv_lengths": (131, 65, 64, 63, 1, 0)}


def pool(kind, k):
    return {"projection": kind, "k": k}


P = {c: wave(lambda x: 0.5 * np.cos(x), (12, 3), 0.3, c) for c in (0, 1)}

METHOD = Method(
    id="linformer",
    oracle=LinformerOracle(),
    options={"k": "int", "projection": "enum", "sharing": "enum", "scale": "float", "seed": "int"},
    tensors={"q", "k", "v", "q_lengths", "kv_lengths", *TABLES, *CONVS},
    differentiable=["q", "k", "v", *TABLES, *CONVS],
    peers=[
        "linformer (lucidrains) LinformerSelfAttention (needs PyTorch)",
        "linformer-pytorch LinearAttentionHead (needs PyTorch)",
        "mlpen/Nystromformer attention_linformer.py (not on PyPI)",
        "fairseq MultiheadLinearAttention (needs PyTorch and a compiler)",
    ],
    cases=[
        Case("plain", dtypes=ALL, B=2, Nq=63, options={"k": 8}),
        Case("defaults", H=1, Nq=131, D=8),
        Case("tables", dtypes=ALL, B=2, Nq=65, made=made()),
        Case("tables-f32", dtypes=("bf16", "f16"), B=2, Nq=65, made=made(), wide_floats=True),
        Case("tables-per-head", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, Nk=70, made=made(heads=True)),
        Case("longer-tables", B=2, Nq=20, Nk=33, made=made(L="70", k="7")),
        Case("e-alone", Nq=33, made={"e": table("Nk", "6")}),
        Case("f-alone", Nq=33, made={"f": table("Nk", "6")}),
        Case("biases-alone", Nq=33, made={"e_bias": table("4"), "f_bias": table("Hkv", "4")}),
        Case("mixed-heads", H=4, Hkv=2, Nq=33,
             made={"e": table("Hkv", "Nk", "6"), "f": table("Nk", "6")}),
        Case("none", H=4, Hkv=2, Nq=65, options={"sharing": "none", "k": 9}),
        Case("kv", Nq=65, options={"sharing": "kv", "k": 9}),
        Case("kv-tables", B=2, Nq=65, options={"sharing": "kv"}, made=made(f=False)),
        Case("kv-per-head", B=2, H=4, Hkv=2, Nq=65, options={"sharing": "kv"},
             made=made(f=False, heads=True), ints={"kv_lengths": (65, 20)}),
        Case("kv-with-f", Nq=33, options={"sharing": "kv"}, made=made()),
        Case("layerwise", Nq=65, options={"sharing": "layerwise", "k": 9, "seed": 7}),
        Case("seed", Nq=33, options={"k": 6, "seed": 2**64 - 1}),
        Case("k1", Nq=33, options={"k": 1}),
        Case("k-above-n", Nq=20, Nk=5, options={"k": 70}),
        Case("scale", Nq=33, options={"k": 6, "scale": 2.5}),
        Case("odd-d", dtypes=ALL, Nq=65, Nk=131, D=5, Dv=7, made=made()),
        Case("gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=65, options={"k": 16}),
        Case("mqa", H=4, Hkv=1, Nq=65, made=made(heads=True)),
        Case("n0", Nq=0, Nk=3, options={"k": 4}, grad_lse=False),
        Case("nk0", Nq=3, Nk=0, options={"k": 4}),
        Case("nk0-biases", Nq=3, Nk=0, made=made(L="4")),
        Case("n1", dtypes=ALL, Nq=1, D=1, Dv=1, options={"k": 3}),
        Case("lengths", dtypes=ALL, B=6, Nq=131, ints=LENGTHS, made=made(L="140")),
        Case("lengths-per-head", B=6, H=2, Hkv=2, Nq=131, ints=LENGTHS, made=made(heads=True)),
        Case("lengths-drawn", B=6, Nq=131, ints=LENGTHS, options={"k": 7}),
        Case("lengths-equal", B=3, Nq=65, ints={"kv_lengths": (20, 20, 20)}, made=made()),
        *[Case(f"{kind}-{name}", options=pool(kind, 5), **how)
          for kind in ("mean_pool", "max_pool") for name, how in {
              "n63": {"dtypes": ALL, "B": 2, "Nq": 63}, "n65": {"Nq": 20, "Nk": 65, "Dv": 7},
              "gqa": {"B": 2, "H": 4, "Hkv": 2, "Nq": 33, "layout": "BNHD"},
              "n3": {"Nq": 3}, "n1": {"Nq": 1, "D": 1}, "nk0": {"Nq": 3, "Nk": 0},
              "n6": {"Nq": 6}, "strided": {"B": 2, "Nq": 33, "strided": True},
              "lengths": {"B": 6, "Nq": 131, "ints": LENGTHS}}.items()],
        Case("conv", dtypes=ALL, B=2, Nq=65, made=convs(), options={"projection": "conv"}),
        Case("conv-drawn", B=2, Nq=65, D=5, Dv=7, options=pool("conv", 9)),
        Case("conv-drawn-short", Nq=65, Nk=3, options=pool("conv", 9)),
        Case("conv-one-weight", Nq=65, D=5, Dv=7, options=pool("conv", 9),
             made={"conv_weight_v": table("Dv", "Dv", "4")}),
        Case("conv-bias-alone", Nq=65, D=5, options=pool("conv", 9),
             made={"conv_bias_k": table("D")}),
        Case("conv-without-bias", Nq=64, made=convs("4", biases=False),
             options={"projection": "conv"}),
        Case("conv-gqa", B=2, H=4, Hkv=2, Nq=33, made=convs("5"), layout="BNHD",
             options={"projection": "conv"}),
        Case("conv-lengths", B=6, Nq=131, ints=LENGTHS, made=convs("4"),
             options={"projection": "conv"}),
        Case("conv-wide", Nq=9, Nk=5, made=convs("8"), options={"projection": "conv"}),
        Case("conv-nk0", Nq=3, Nk=0, made=convs(), options={"projection": "conv"}),
        Case("bnhd", B=2, Nq=65, layout="BNHD", options={"k": 8}),
        Case("strided", B=2, H=4, Hkv=2, Nq=65, strided=True, options={"k": 8}),
        Case("strided-bnhd", dtypes=ALL, B=2, Nq=65, strided=True, layout="BNHD", made=made()),
        Case("subnormal", dtypes=("f16",), Nq=33, v_scale=1e-6, options={"k": 8}),
    ],
    batches=[{"k": 6}, {"k": 6, "sharing": "none"}, {"k": 6, "sharing": "kv"},
             pool("mean_pool", 6), pool("max_pool", 6)],
    tensor_batches=[
        Case("tables", made=made()),
        Case("kv-per-head", options={"sharing": "kv"}, made=made(L="140", heads=True, f=False)),
        Case("conv", options={"projection": "conv"}, made=convs("4")),
        Case("conv-v", options={"projection": "conv"},
             made={"conv_weight_v": table("Dv", "Dv", "4")}),
    ],
    perf=[{}, pool("mean_pool", 256)],
    growth=[Growth({"k": 16}, 1, 1), Growth(pool("mean_pool", 256), 1, 1)],
    visible=[
        Visible("k3", 16, 12, {"k": 3}, 48),
        Visible("mean-n7-k4", 5, 7, pool("mean_pool", 4), 20),
        Visible("mean-n9-k4", 5, 9, pool("mean_pool", 4), 15),
        Visible("conv-n9-k4", 5, 9, pool("conv", 4), 25),
        Visible("nothing", 5, 0, {"k": 3}, 0),
    ],
    golden=[
        lowrank_golden("k3", {}, 0.323716836, -0.324051211, -0.222778225, 19.973216873,
                       1.384180722, more={"e": P[0], "f": P[1]}),
        lowrank_golden("k3-length-7", {}, 0.103445035, -0.079265946, 0.007123081, 8.212098790,
                       1.123555179,
                       more={"e": P[0], "f": P[1], "kv_lengths": np.array([7], np.int32)}),
    ],
    refused=common_refusals({}, (), ("q_lengths", "kv_lengths", *TABLES, *CONVS),
                            lacks=("causal",)) + [
        Refused("k-0", {"k": 0}, ["k must be in 1..65536, got 0"]),
        Refused("k-65537", {"k": 65537}, ["k must be in 1..65536, got 65537"]),
        Refused("k-0-conv", {"k": 0, "projection": "conv"}, ["k must be in 1..65536, got 0"]),
        Refused("projection", {"projection": "sum"},
                ['projection must be one of linear, mean_pool, max_pool, conv, got "sum"']),
        Refused("sharing", {"sharing": "all"},
                ['sharing must be one of none, headwise, kv, layerwise, got "all"']),
        Refused("scale-0", {"scale": 0.0}, ["scale must be > 0 and <= 1e+30, got 0"]),
        Refused("seed", {"seed": -1}, ["seed must be in 0..2^64-1, got -1"]),
        Refused("short-e", {}, ["e shape must have L >= Nk = 7, got [6,3]"],
                change={"e": zeros(6, 3)}),
        Refused("short-f-per-head", {}, ["f shape must have L >= Nk = 7, got [2,6,3]"],
                change={"f": zeros(2, 6, 3)}),
        Refused("e-heads", {}, ["e shape must be [L,k] or [Hkv,L,k] with Hkv = 2, got [4,7,3]"],
                change={"e": zeros(4, 7, 3)}),
        Refused("e-rank", {}, ["e shape must be [L,k] or [Hkv,L,k], got [3]"],
                change={"e": zeros(3)}),
        Refused("e-without-columns", {}, ["e shape must have k in 1..65536, got [7,0]"],
                change={"e": zeros(7, 0)}),
        Refused("e-65537", {}, ["e shape must have k in 1..65536, got [7,65537]"],
                change={"e": zeros(7, 65537)}),
        Refused("k-and-e", {"k": 4}, ["k must be that of e, 3, got 4"], change={"e": zeros(7, 3)}),
        Refused("refused-k-and-e", {"k": 70000}, ["k must be in 1..65536, got 70000"],
                change={"e": zeros(7, 3)}),
        Refused("k-and-f", {"k": 256}, ["k must be that of f, 3, got 256"],
                change={"f": zeros(7, 3)}),
        Refused("e-and-f", {}, ["f shape must be [L,k] or [Hkv,L,k] with k = 3, got [7,4]"],
                change={"e": zeros(7, 3), "f": zeros(7, 4)}),
        Refused("e-and-bias", {}, ["e_bias shape must be [k] or [Hkv,k] with k = 3, got [2,4]"],
                change={"e": zeros(7, 3), "e_bias": zeros(2, 4)}),
        Refused("bias-heads", {}, ["f_bias shape must be [k] or [Hkv,k] with Hkv = 2, got [4,3]"],
                change={"f_bias": zeros(4, 3)}),
        Refused("e-dtype", {}, ["e dtype must be float32, got float16"],
                change={"e": zeros(7, 3, dtype=np.float16)}),
        Refused("large-draw", {"k": 65536},
                [f"{x} must be sent where it has more than 16777216 elements, got 19660800"
                 for x in "ef"],
                change={name: zeros(2, 2, 300, d) for name, d in (("k", 3), ("v", 5))}),
        *[Refused(f"{name}-{kind}", {"projection": kind},
                  [f"{name} needs projection linear, got {kind}"], change={name: x})
          for kind in ("mean_pool", "max_pool", "conv")
          for name, x in (("e", zeros(7, 3)), ("f_bias", zeros(3)))],
        *[Refused(f"{name}-linear", {}, [f"{name} needs projection conv, got linear"],
                  change={name: zeros(*shape)})
          for name, shape in (("conv_weight_k", (3, 3, 2)), ("conv_weight_v", (5, 5, 2)),
                              ("conv_bias_k", (3,)), ("conv_bias_v", (5,)))],
        Refused("conv-shape", {"projection": "conv"},
                ["conv_weight_k shape must be [D,D,w] with D = 3, got [5,5,2]"],
                change={"conv_weight_k": zeros(5, 5, 2)}),
        Refused("conv-empty", {"projection": "conv"},
                ["conv_weight_k shape must have w >= 1, got [3,3,0]"],
                change={"conv_weight_k": zeros(3, 3, 0)}),
        Refused("conv-widths", {"projection": "conv"},
                ["conv_weight_v shape must have w = 2, got [5,5,4]"],
                change={"conv_weight_k": zeros(3, 3, 2), "conv_weight_v": zeros(5, 5, 4)}),
    ],
)
