"""Transformer-XL: oracle from the specification of learned patterns and memories, cases, golden
sums, refusals."""

import numpy as np

from tests.methods.cases import ALL, Case
from tests.methods.golden import Golden
from tests.methods.memory_core import (MEM, OPTIONS, RELATIVE, MemoryOracle, bias, golden_figures,
                                       golden_tensors, golden_values, head_biases, memory,
                                       memory_refusals, memory_rows, rel_k, w_r, wave)
from tests.methods.method import Growth, Method, Visible
from tests.methods.refused import Refused


class TransformerXlOracle(MemoryOracle):
    def more(self, f, t, o, lanes):
        if not o.get("return_memory", False):
            return {}
        spans = []
        for lane in lanes:
            m, n = lane["kept"][0], lane["nk"]
            end = m + max(0, n - o.get("ext_len", 0))
            spans.append((max(0, end - o.get("mem_len", 0)), end) if n else (0, m))
        lengths = f.num(np.array([end - begin for begin, end in spans]))
        return {f"mem_{x}": memory_rows(lanes, x, spans) for x in "kv"} | {"mem_lengths": lengths}


ORACLE = TransformerXlOracle()
LENGTHS = {"q_lengths": (0, 1, 63, 64, 65, 131), "kv_lengths": (131, 65, 64, 63, 1, 0)}
MEM_LENGTHS = {"mem_lengths": (70, 3, 0, 64, 5, 70)}


def sent(rows, **more):
    """Every tensor of the relative term and `rows` of memory."""
    return memory(rows) | head_biases() | rel_k(rows) | more


def keep(mem_len, **more):
    return {"return_memory": True, "mem_len": mem_len, **more}


METHOD = Method(
    id="transformer_xl",
    oracle=ORACLE,
    options=OPTIONS | {"ext_len": "int"},
    tensors={"q", "k", "v", "q_lengths", "kv_lengths", "mem_lengths", *RELATIVE, *MEM},
    differentiable=["q", "k", "v", *RELATIVE, *MEM],
    outputs=["mem_k", "mem_v", "mem_lengths"],
    constants=ORACLE.constants_of,
    always_causal=True,
    peers=[
        "kimiyoung/transformer-xl RelPartialLearnableMultiHeadAttn (not on PyPI)",
        "transformers TransfoXL up to 4.35 (needs PyTorch)",
    ],
    cases=[
        Case("drawn", dtypes=ALL, B=2, Nq=63),
        Case("drawn-odd", H=1, Nq=20, D=5, Dv=7, options={"seed": 2**64 - 1}),
        Case("sent", dtypes=ALL, B=2, Nq=65, made=sent(70)),
        Case("sent-f32", dtypes=("bf16", "f16"), B=2, Nq=65, made=sent(70), wide_floats=True),
        Case("memory-and-draws", B=2, Nq=33, made=memory(20)),
        Case("w-r", dtypes=ALL, B=2, Nq=65, made=memory(20) | head_biases() | w_r(24)),
        Case("w-r-2", H=1, Nq=130, D=3, made=memory(70) | w_r(2)),
        Case("longer-rel-k", Nq=33, made=memory(10) | rel_k(50)),
        Case("gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=33, made=sent(40)),
        Case("mqa", H=4, Hkv=1, Nq=33, made=sent(7)),
        Case("odd-d", dtypes=ALL, Nq=65, D=5, Dv=7, made=sent(131)),
        Case("clamp", B=2, Nq=65, options={"clamp_len": 20}, made=sent(70)),
        Case("clamp-short-table", B=2, Nq=65, options={"clamp_len": 20},
             made=memory(70) | rel_k(0, most=21)),
        Case("clamp-1", Nq=20, options={"clamp_len": 1}, made=memory(9) | rel_k(0, most=2)),
        Case("clamp-drawn", Nq=33, options={"clamp_len": 7}, made=memory(9)),
        Case("clamp-beyond", Nq=20, options={"clamp_len": 10**6}, made=sent(9)),
        Case("window", dtypes=ALL, B=2, Nq=65, options={"same_length": 40}, made=sent(70)),
        Case("window-1", Nq=33, options={"same_length": 1}, made=sent(5)),
        Case("window-beyond", Nq=33, options={"same_length": 2**62}, made=sent(5)),
        Case("window-clamp", Nq=65, options={"same_length": 70, "clamp_len": 30}, made=sent(70)),
        Case("scale", Nq=33, options={"scale": 2.5}, made=sent(5)),
        Case("grad-memory", dtypes=ALL, B=2, H=4, Hkv=2, Nq=33, options={"grad_memory": True},
             made=sent(70)),
        Case("grad-memory-lengths", B=6, Nq=131, options={"grad_memory": True}, made=sent(70),
             ints=LENGTHS | MEM_LENGTHS),
        *[Case(f"bias-{n}", B=2, H=2, Nq=33, made=sent(20) | bias(letters, 20))
          for n, letters in enumerate(("B,H,Nq,K", "H,Nq,K", "Nq,K", "Nq,1", "B,1,1,K"))],
        *[Case(f"bias-lengths-{n}", B=6, H=2, Nq=131, made=sent(70) | bias(letters, 70),
               ints=LENGTHS | MEM_LENGTHS)
          for n, letters in enumerate(("B,H,Nq,K", "H,Nq,K", "Nq,1", "B,1,1,K"))],
        Case("lengths", dtypes=ALL, B=6, Nq=131, ints=LENGTHS, made=sent(70)),
        Case("lengths-drawn", B=6, Nq=131, ints=LENGTHS | MEM_LENGTHS, made=memory(70)),
        Case("kv-lengths", B=6, Nq=131, ints={"kv_lengths": LENGTHS["kv_lengths"]}, made=sent(70)),
        Case("q-lengths", B=6, Nq=131, ints={"q_lengths": LENGTHS["q_lengths"]}, made=sent(70)),
        Case("mem-lengths", dtypes=ALL, B=6, H=4, Hkv=2, Nq=65, ints=MEM_LENGTHS, made=sent(70)),
        Case("equal-lengths", B=3, Nq=65, made=sent(7), ints={"kv_lengths": (20, 20, 20)}),
        Case("keep", dtypes=ALL, B=2, H=4, Hkv=2, Nq=33, options=keep(50), made=sent(40)),
        Case("keep-less-than-a-segment", B=2, Nq=33, options=keep(7), made=sent(5)),
        Case("keep-all", Nq=33, options=keep(1000), made=sent(5)),
        Case("keep-nothing", Nq=33, options={"return_memory": True}, made=sent(5)),
        Case("keep-first", dtypes=ALL, B=2, Nq=33, Dv=7, options=keep(20)),
        Case("keep-bnhd", B=2, Nq=33, options=keep(50), made=sent(40), layout="BNHD"),
        Case("ext", B=2, Nq=33, options=keep(50, ext_len=3), made=sent(40)),
        Case("ext-beyond", B=2, Nq=5, options=keep(50, ext_len=9), made=sent(40)),
        Case("keep-lengths", dtypes=ALL, B=6, Nq=131, options=keep(80), made=sent(70),
             ints=LENGTHS | MEM_LENGTHS),
        Case("keep-ext-lengths", B=6, Nq=131, options=keep(30, ext_len=64), made=sent(70),
             ints=LENGTHS | MEM_LENGTHS),
        Case("m0", Nq=33, options=keep(10), made=sent(0)),
        Case("n0", Nq=0, options=keep(10), made=sent(7), grad_lse=False),
        Case("n0-m0", Nq=0, options=keep(10), made=sent(0), grad_lse=False),
        Case("n1", dtypes=ALL, Nq=1, D=1, Dv=1, made=sent(1)),
        Case("bnhd", B=2, Nq=65, layout="BNHD", made=sent(20)),
        Case("strided", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, strided=True, made=sent(20)),
        Case("strided-bnhd", B=2, Nq=65, strided=True, layout="BNHD", made=sent(20)),
        Case("subnormal", dtypes=("f16",), Nq=33, v_scale=1e-6, made=rel_k(0)),
    ],
    batches=[{}, {"same_length": 20}, {"clamp_len": 5}, keep(30, ext_len=2)],
    tensor_batches=[
        Case("sent", made=sent(40)),
        Case("sent-kept", made=sent(40), options=keep(50)),
        Case("grad-memory", made=sent(40), options={"grad_memory": True}),
        Case("bias", made=sent(20) | bias("H,Nq,K", 20)),
        Case("biases", made=sent(20) | bias("B,H,Nq,K", 20)),
        Case("w-r", made=memory(20) | w_r(6)),
    ],
    square=True,
    perf=[{}],
    growth=[Growth({}, 2, 1), Growth({"same_length": 256, "clamp_len": 256}, 1, 1)],
    visible=[
        Visible("n4", 4, 4, {}, 10),
        Visible("n4-m3", 4, 4, {}, 22, made=memory(3)),
        Visible("n4-m3-window-2", 4, 4, {"same_length": 2}, 8, made=memory(3)),
        Visible("n4-window-2", 4, 4, {"same_length": 2}, 7),
        Visible("n0-m3", 0, 0, {}, 0, made=memory(3)),
    ],
    golden=[
        Golden(id, golden_tensors(mem_k=wave((1, 2, 5, 4), .45, .7),
                                  mem_v=wave((1, 2, 5, 4), .55, .8),
                                  rel_k=wave((2, 13, 4), .21, .3)),
               options, golden_values(*values), golden_figures, pairs)
        for id, options, values, pairs in (
            ("m5", {}, (-.577056481, .226211642, .015118083, 51.457146020), 152),
            ("m5-clamp-4", {"clamp_len": 4},
             (-6.026733252, .227661624, .018681164, 47.931460287), 152),
            ("m5-window-5", {"same_length": 5},
             (-4.315861236, .221783121, .103422197, 41.671533015), 80))
    ],
    refused=memory_refusals(("q_lengths", "kv_lengths", *RELATIVE, *MEM, "mem_lengths"),
                            ("out", "lse")) + [
        Refused("ext-len", {"ext_len": -1}, ["ext_len must be >= 0, got -1"]),
    ],
)
