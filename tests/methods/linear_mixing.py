"""Linear mixing: oracle from the low-rank specification (R1, R5, linear_mixing), cases, golden
values, refusals. random_mixing.py shares all but the gradients and the draw."""

import dataclasses

import numpy as np

from tests.methods.cases import ALL, Case
from tests.methods.method import Growth, Method, Visible
from tests.methods.mixing_core import (MixingOracle, apart, golden, merged, mixing_refusals, normals,
                                       table, without_q)
from tests.methods.refused import Refused, zeros


class DenseOracle(MixingOracle):
    """`draw`: (seed, stream's name, shape, fan-in) -> the table of a tensor that is absent."""

    def __init__(self, draw, differentiable):
        self.draw, self.differentiable = draw, differentiable

    def _tables(self, t, o, rows):
        """seq_kernel and hidden_kernel as sent, else drawn for `rows` rows."""
        _, heads, _, D = t["v"].shape
        made = {}
        if "seq_kernel" not in t:
            made["seq_kernel"] = self.draw(o.get("seed", 0), "seq_kernel", (rows, rows), rows)
        if "hidden_kernel" not in t and o.get("mix_hidden", True):
            per_head = o.get("hidden_scope", "merged") == "per_head"
            C = D if per_head else heads * D
            shape = (heads, C, C) if per_head else (C, C)
            made["hidden_kernel"] = self.draw(o.get("seed", 0), "hidden_kernel", shape, C)
        return made

    def _cut(self, t, b):
        return super()._cut(t, b) | {"rows": np.array(t["v"].shape[2])}

    def compute(self, f, t, o, offset):
        t = t | {name: f.num(x) for name, x in self._tables(t, o, int(t["rows"])).items()}
        x, heads, n = t["v"], t["v"].shape[1], t["v"].shape[2]
        if o.get("mix_hidden", True):
            if o.get("hidden_scope", "merged") == "merged":
                x = apart(f, merged(f, x) @ t["hidden_kernel"], heads)
            else:
                x = x @ t["hidden_kernel"]
        seq = t["seq_kernel"][..., :n, :n]
        if o.get("causal", False):
            seq = f.where(np.tri(n, dtype=bool), seq)
        return {"out": seq @ x}


def linear_draw(seed, name, shape, fan_in):
    return normals(seed, name, shape, 0.02)


HEADS = {"hidden_scope": "per_head"}
CAUSAL = {"causal": True}
ALONE = {"mix_hidden": False}
SEQ = {"seq_kernel": table("N", "N", scale=0.3)}
SEQ_OF_HEADS = {"seq_kernel": table("H", "N+2", "N+2", scale=0.3)}
HIDDEN = {"hidden_kernel": table("C", "C", scale=0.3)}
HIDDEN_OF_HEADS = {"hidden_kernel": table("H", "Dv", "Dv", scale=0.3)}
LENGTHS = {"kv_lengths": (0, 1, 63, 64, 65, 131), "q_lengths": (0, 1, 63, 64, 65, 131)}

CASES = [
    Case("plain", dtypes=ALL, B=2, Nq=65, made=SEQ | HIDDEN),
    without_q(Case("odd", B=2, H=3, Nq=63, D=5, made=SEQ | HIDDEN)),
    Case("drawn", dtypes=ALL, B=2, Nq=65),
    Case("seed", Nq=20, options={"seed": 2**40 + 7}),
    Case("n0", Nq=0),
    Case("n1", dtypes=ALL, Nq=1, D=3, made=SEQ | HIDDEN),
    Case("long", H=1, Nq=1031, D=8, made=SEQ | HIDDEN, ratio=False),
    Case("longer-table", dtypes=ALL, B=2, Nq=31, D=8,
         made={"seq_kernel": table("N+2", "N+2", scale=0.3)} | HIDDEN),
    Case("wide-tables", dtypes=("bf16",), Nq=31, D=8, made=SEQ | HIDDEN, wide_floats=True),
    Case("lengths", dtypes=ALL, B=6, Nq=131, D=8, ints=LENGTHS, made=SEQ | HIDDEN),
    Case("lengths-drawn", B=3, Nq=40, D=8, ints={"kv_lengths": (40, 40, 7)}),
    Case("alone", dtypes=ALL, B=2, Nq=65, options=ALONE, made=SEQ),
    Case("alone-lengths", dtypes=ALL, B=3, Nq=40, D=8, options=ALONE, made=SEQ,
         ints={"kv_lengths": (31, 0, 40)}),
    Case("per-head", dtypes=ALL, B=2, H=3, Nq=65, D=12, options=HEADS, made=SEQ | HIDDEN_OF_HEADS),
    Case("per-head-drawn", B=2, H=3, Nq=33, D=6, options=HEADS),
    Case("per-head-both", dtypes=ALL, B=2, H=3, Nq=33, D=6, options=HEADS,
         made=SEQ_OF_HEADS | HIDDEN_OF_HEADS),
    Case("per-head-both-lengths", B=4, H=2, Nq=40, D=6, options=HEADS,
         made=SEQ_OF_HEADS | HIDDEN_OF_HEADS, ints={"kv_lengths": (1, 40, 0, 40)}),
    Case("causal", dtypes=ALL, B=2, Nq=65, options=CAUSAL, made=SEQ | HIDDEN),
    Case("causal-lengths", dtypes=ALL, B=6, Nq=131, D=8, options=CAUSAL, ints=LENGTHS,
         made=SEQ | HIDDEN),
    Case("causal-alone", B=2, H=5, Nq=70, D=7, options=CAUSAL | ALONE, made=SEQ),
    Case("causal-per-head", B=2, H=3, Nq=65, D=8, options=CAUSAL | HEADS,
         made=SEQ_OF_HEADS | HIDDEN_OF_HEADS),
    Case("causal-one-channel", B=2, H=3, Nq=20, D=1, options=CAUSAL, made=SEQ | HIDDEN),
    Case("lengths-one-channel", B=2, H=3, Nq=20, D=1, ints={"kv_lengths": (20, 7)},
         made=SEQ | HIDDEN),
    Case("causal-wide", H=9, Nq=40, D=64, options=CAUSAL | ALONE, made=SEQ),
    Case("bnhd", dtypes=ALL, B=2, Nq=65, layout="BNHD", made=SEQ | HIDDEN),
    Case("bnhd-causal-lengths", B=2, Nq=65, layout="BNHD", made=SEQ, options=CAUSAL | ALONE,
         ints={"kv_lengths": (65, 13)}),
    Case("strided", B=2, Nq=65, strided=True, made=SEQ | HIDDEN),
    Case("strided-alone", B=2, Nq=33, strided=True, layout="BNHD", options=ALONE, made=SEQ),
]
C = 4 * 5
REFUSED = mixing_refusals(("seq_kernel", "hidden_kernel")) + [
    Refused("hidden-scope", {"hidden_scope": "head"},
            ['hidden_scope must be one of merged, per_head, got "head"']),
    Refused("short-seq", {}, ["seq_kernel shape must have L >= Nk = 6, got [5,5]"],
            change={"seq_kernel": zeros(5, 5)}),
    Refused("short-seq-columns", {}, ["seq_kernel shape must have L >= Nk = 6, got [6,5]"],
            change={"seq_kernel": zeros(6, 5)}),
    Refused("uneven-seq", {}, ["seq_kernel shape must be [L,L] or [Hkv,L,L], got [6,7]"],
            change={"seq_kernel": zeros(6, 7)}),
    Refused("seq-rank", {}, ["seq_kernel shape must be [L,L] or [Hkv,L,L], got [6]"],
            change={"seq_kernel": zeros(6)}),
    Refused("seq-heads", HEADS,
            ["seq_kernel shape must be [L,L] or [Hkv,L,L] with Hkv = 4, got [3,6,6]"],
            change={"seq_kernel": zeros(3, 6, 6)}),
    Refused("seq-merged", {}, ["seq_kernel must be [L,L] with hidden_scope merged, got [4,6,6]"],
            change={"seq_kernel": zeros(4, 6, 6)}),
    Refused("hidden-width", {},
            ["hidden_kernel shape must be [C,C] with C = Hkv Dv = 20, got [20,19]"],
            change={"hidden_kernel": zeros(C, 19)}),
    Refused("hidden-merged", {},
            ["hidden_kernel must be [C,C] with hidden_scope merged, got [4,5,5]"],
            change={"hidden_kernel": zeros(4, 5, 5)}),
    Refused("hidden-per-head", HEADS,
            ["hidden_kernel must be [Hkv,Dv,Dv] with hidden_scope per_head, got [20,20]"],
            change={"hidden_kernel": zeros(C, C)}),
    Refused("hidden-unread", ALONE,
            ["hidden_kernel must be absent with mix_hidden = false, got [20,20]"],
            change={"hidden_kernel": zeros(C, C)}),
    Refused("long-drawn", ALONE,
            ["seq_kernel must be sent where it has more than 16777216 elements, got 16785409"],
            change={"q": None, "k": None, "v": zeros(1, 1, 4097, 1)}),
    Refused("wide-drawn", {},
            ["hidden_kernel must be sent where it has more than 16777216 elements, got 16793604"],
            change={"q": None, "k": None, "v": zeros(1, 2, 1, 2049)}),
    Refused("seed", {"seed": -1}, ["seed must be in 0..2^64-1, got -1"]),
]
BATCHES = [{}, CAUSAL | HEADS, HEADS, ALONE]
TENSOR_BATCHES = [Case("seq", options=CAUSAL | HEADS, made=SEQ | HIDDEN_OF_HEADS),
                  Case("seq-of-heads", options=HEADS, made=SEQ_OF_HEADS)]


def perf_case(case):
    """Tables that are too long to be drawn are sent."""
    return case if case.Nq <= 4096 else dataclasses.replace(case, made=SEQ | case.made)


METHOD = Method(
    id="linear_mixing",
    oracle=DenseOracle(linear_draw, ("v", "seq_kernel", "hidden_kernel")),
    options={"mix_hidden": "bool", "hidden_scope": "enum", "causal": "bool", "seed": "int"},
    tensors={"q", "k", "v", "q_lengths", "kv_lengths", "seq_kernel", "hidden_kernel"},
    required=frozenset("v"),
    differentiable=["v", "seq_kernel", "hidden_kernel"],
    square=True,
    gqa=False,
    fit_options=perf_case,
    peers=["f_net LinearTransform (needs Flax): einsum bij,jk,ni->bnk"],
    cases=CASES,
    batches=BATCHES,
    tensor_batches=TENSOR_BATCHES,
    perf=[{}, CAUSAL],
    growth=[Growth({}, 2, 2)],
    visible=[Visible("all", 6, 6, {}, 36), Visible("causal", 16, 16, CAUSAL, 136)],
    golden=[
        golden("default", {}, 0.018731227, -0.024805789, 0.031026922, 1.630508913,
               {"seq_kernel": (0, (12, 12)), "hidden_kernel": (1, (8, 8))}),
        golden("causal", ALONE | CAUSAL, 0.454648713, -0.086972681, -0.267922315, 13.645901991,
               {"seq_kernel": (0, (12, 12))}),
    ],
    refused=REFUSED,
)
