"""Compressive Transformer: oracle from the specification of learned patterns and memories, cases,
golden sums, refusals."""

import math

import numpy as np

from tests.methods import drawn
from tests.methods.cases import ALL, Case
from tests.methods.golden import Golden
from tests.methods.memory_core import (MEM, OPTIONS, RELATIVE, MemoryOracle, bias, golden_figures,
                                       golden_tensors, golden_values, head_biases, held, memory,
                                       memory_refusals, memory_rows, rel_k, w_r, wave)
from tests.methods.method import Growth, Method, Visible
from tests.methods.refused import B, D, Dv, Hkv, Refused, zeros

CMEM = ["cmem_k", "cmem_v"]
CONVS = ["conv_wk", "conv_bk", "conv_wv", "conv_bv"]
CONVOLVES = ("conv", "dilated_conv")


def taps_of(o):
    rate = o.get("rate", 4)
    return o.get("kernel", rate) if o.get("compression") == "dilated_conv" else rate


def compress(f, x, o, weight=None, bias=None, usage=None):
    """[1,Hkv,L,F] -> [1,Hkv,L/c,F]."""
    c, kind = o.get("rate", 4), o.get("compression", "conv")
    _, heads, L, F = x.shape
    n = L // c
    blocks = x.reshape(1, heads, n, c, F)
    if kind == "mean":
        return f.mean(blocks, 3) if n else x[:, :, :0]
    if kind == "max":
        return f.max(blocks, 3, keepdims=False) if n else x[:, :, :0]
    if kind == "most_used":
        best = np.argsort(-usage, kind="stable")[:n]
        return x[:, :, np.sort(best)]
    step = o.get("dilation", 2) if kind == "dilated_conv" else 1
    taps = weight.shape[3]
    padded = f.concat([x, np.zeros((1, heads, c + (taps - 1) * step, F))], 2)
    at = np.arange(n)[:, None] * c + np.arange(taps) * step
    return f.einsum("bgtri,goir->bgto", padded[:, :, at], weight) + bias.reshape(1, heads, 1, -1)


class CompressiveOracle(MemoryOracle):
    differentiable = ("q", "k", "v", *RELATIVE, *MEM, *CMEM, *CONVS)
    memories = ("cmem", "mem")

    def drawn(self, t, o):
        made = super().drawn(t, o)
        if o.get("compression", "conv") in CONVOLVES:
            for x in "kv":
                heads, F = t[x].shape[1], t[x].shape[3]
                limit = 1 / math.sqrt(F * taps_of(o))
                for name, shape in ((f"conv_w{x}", (heads, F, F, taps_of(o))),
                                    (f"conv_b{x}", (heads, F))):
                    made[name] = drawn.uniforms(o.get("seed", 0), name, shape, limit)
        return made

    def constants(self, t, o):
        """Queries, keys and values of aux."""
        if not o.get("aux_loss", False):
            return {}
        return {f"held_{name}": t[name] for name in ("q", "k", "v", *MEM, *CMEM) if name in t}

    def evicted(self, t, o, lane):
        n, m = lane["nk"], lane["kept"][1]
        if n == 0:
            return 0
        c = o.get("rate", 4)
        return c * (max(0, m + n - o.get("mem_len", t["k"].shape[2])) // c)

    def usage(self, lane, e):
        """sum_(h,i) P_hij of the rows that leave."""
        x = np.where(lane["mask"], lane["logits"].x, -np.inf)
        seen = np.isfinite(lane["lse"].x)
        p = np.exp(x - np.where(seen, lane["lse"].x, 0)[..., None]) * seen[..., None]
        return p.sum((0, 1, 2))[lane["kept"][0]:][:e]

    def more(self, f, t, o, lanes):
        made, lengths = {}, {"mem": [], "cmem": []}
        rows = {name: [] for name in (*MEM, *CMEM)}
        squares, count = None, 0
        aux, memories = o.get("aux_loss", False), o.get("return_memory", False)
        old_t = {name: t[f"held_{name}"] for name in ("q", "k", "v", *MEM, *CMEM)
                 if f"held_{name}" in t}
        for b, lane in enumerate(lanes if aux or memories else []):
            c0, m, n = *lane["kept"], lane["nk"]
            e = self.evicted(t, o, lane)
            source = lane
            if old_t:  # the same rows, with held values
                source = self.attend(f, t | old_t, o, b)
            old = {x: f.stop(source["rows"][x][:, :, c0:c0 + e]) for x in "kv"}
            convs = {x: (t.get(f"conv_w{x}"), t.get(f"conv_b{x}")) for x in "kv"}
            new = {x: compress(f, old[x], o, *convs[x], usage=self.usage(source, e)) for x in "kv"}
            if aux and e:
                difference = (self.plain(f, t, b, lane, new, o)
                              - self.plain(f, t, b, lane, old, o))
                square = difference * difference
                for axis in (3, 2, 1):
                    square = square.sum(axis)
                squares = square if squares is None else squares + square
                count += lane["nq"]
            mem_len = o.get("mem_len", t["k"].shape[2])
            most = o.get("cmem_len", mem_len // o.get("rate", 4)) if n else c0
            joined = {x: f.concat([lane["rows"][x][:, :, :c0], new[x]], 2) for x in "kv"}
            kept = min(most, joined["k"].shape[2])
            for x in "kv":
                rows[f"cmem_{x}"].append(joined[x][:, :, joined[x].shape[2] - kept:])
                rows[f"mem_{x}"] += memory_rows([lane], x, [(c0 + e, c0 + m + n)])
            lengths["mem"].append(m + n - e)
            lengths["cmem"].append(kept)
        if aux:
            size = count * t["q"].shape[1] * t["v"].shape[3]
            made["aux"] = f.num(np.zeros(1)) if not size else squares * (1 / size)
        if memories:
            made |= rows | {f"{m}_lengths": f.num(np.array(x)) for m, x in lengths.items()}
        return made

    def plain(self, f, t, b, lane, rows, o):
        """A(q, rows) without positions and mask."""
        q = f.stop(held(t, "q")[b:b + 1, :, :lane["nq"]])
        group = q.shape[1] // t["k"].shape[1]
        k, v = (f.repeat_heads(rows[x], group) for x in "kv")
        return f.attention((q @ k.swapaxes(-1, -2)) * lane["scale"], v)[0]


ORACLE = CompressiveOracle()
LENGTHS = {"q_lengths": (0, 1, 63, 64, 65, 131), "kv_lengths": (131, 65, 64, 63, 1, 0)}
MEMORY_LENGTHS = {"mem_lengths": (70, 3, 0, 64, 5, 70), "cmem_lengths": (9, 9, 4, 0, 1, 3)}


def memories(mem, cmem):
    return memory(mem) | memory(cmem, "cmem")


def sent(mem, cmem, **more):
    """Every tensor of the relative term and both memories."""
    return memories(mem, cmem) | head_biases() | rel_k(mem + cmem) | more


def convs(taps="4", size=0.5):
    """A weight of `taps` for keys and values."""

    def table(letters):
        return lambda rng, case: size * rng.standard_normal(case.shape_of(letters))

    return {"conv_wk": table(f"Hkv,D,D,{taps}"), "conv_bk": table("Hkv,D"),
            "conv_wv": table(f"Hkv,Dv,Dv,{taps}"), "conv_bv": table("Hkv,Dv")}


def keep(kind, **more):
    return {"return_memory": True, "compression": kind, **more}


def grad_aux(size=1.0):
    return {"grad_aux": lambda rng, case: np.array([size])}


def by(kind, **more):
    return {"aux_loss": True, "return_memory": True, "compression": kind, **more}


GOLDEN_CMEM = {x: wave((1, 2, 8, 4), a, b).reshape(1, 2, 2, 4, 4).mean(3)
               for x, a, b in (("cmem_k", .25, .2), ("cmem_v", .35, .3))}
GOLDEN = golden_tensors(mem_k=wave((1, 2, 8, 4), .45, .7), mem_v=wave((1, 2, 8, 4), .55, .8),
                        rel_k=wave((2, 18, 4), .21, .3), **GOLDEN_CMEM)
W, BIAS = wave((4, 4, 4), .31, .2) / 2, wave((4,), .3, .1)
X = wave((1, 2, 8, 4), .45, .7)


def picks(results):
    y = results["cmem_k"]
    return {"sum": y.sum(), "first": y[0, 0, 0, 0], "last": y[0, 1, 1, 3]}


def compressor_golden(kind, *values):
    """All rows of X leave: the memory keeps the segment."""
    tensors = golden_tensors(mem_k=X, mem_v=X, rel_k=wave((2, 16, 4), .21, .3))
    options = keep(kind, rate=4, mem_len=8, cmem_len=2)
    if kind in CONVOLVES:
        tensors |= {"conv_wk": np.stack([W, W]), "conv_bk": np.stack([BIAS, BIAS])}
    return Golden(kind, tensors, options, dict(zip(("sum", "first", "last"), values)), picks)


METHOD = Method(
    id="compressive",
    oracle=ORACLE,
    options=OPTIONS | {"compression": "enum", "rate": "int", "cmem_len": "int", "kernel": "int",
                       "dilation": "int", "aux_loss": "bool"},
    tensors={"q", "k", "v", "q_lengths", "kv_lengths", "mem_lengths", "cmem_lengths", *RELATIVE,
             *MEM, *CMEM, *CONVS},
    differentiable=["q", "k", "v", *RELATIVE, *MEM, *CMEM, *CONVS],
    outputs=["aux", *MEM, "mem_lengths", *CMEM, "cmem_lengths"],
    constants=ORACLE.constants_of,
    always_causal=True,
    peers=[
        "compressive-transformer-pytorch SelfAttention (needs PyTorch)",
        "labml-nn transformers.compressive (needs PyTorch)",
    ],
    cases=[
        Case("drawn", dtypes=ALL, B=2, Nq=63),
        Case("sent", dtypes=ALL, B=2, Nq=65, made=sent(70, 9)),
        Case("sent-f32", dtypes=("bf16", "f16"), B=2, Nq=65, made=sent(70, 9), wide_floats=True),
        Case("cmem-alone", Nq=33, made=memory(9, "cmem") | rel_k(9)),
        Case("mem-alone", Nq=33, made=memory(9) | rel_k(9)),
        Case("w-r", B=2, Nq=33, made=memories(20, 5) | w_r(6)),
        Case("gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=33, made=sent(40, 7)),
        Case("window-clamp", Nq=65, options={"same_length": 70, "clamp_len": 30},
             made=sent(70, 9)),
        Case("bias", B=2, Nq=33, made=sent(20, 5) | bias("B,H,Nq,K", 25)),
        *[Case(f"bias-lengths-{n}", B=6, Nq=131, made=sent(70, 9) | bias(letters, 79),
               ints=LENGTHS | MEMORY_LENGTHS)
          for n, letters in enumerate(("B,H,Nq,K", "H,Nq,K", "Nq,1", "B,1,1,K"))],
        Case("grad-memory", dtypes=ALL, B=2, H=4, Hkv=2, Nq=33, options={"grad_memory": True},
             made=sent(70, 9)),
        Case("grad-memory-lengths", B=6, Nq=131, options={"grad_memory": True}, made=sent(70, 9),
             ints=LENGTHS | MEMORY_LENGTHS),
        Case("lengths", dtypes=ALL, B=6, Nq=131, ints=LENGTHS | MEMORY_LENGTHS, made=sent(70, 9)),
        Case("kv-lengths", B=6, Nq=131, ints={"kv_lengths": LENGTHS["kv_lengths"]},
             made=sent(70, 9)),
        Case("cmem-lengths", B=6, Nq=33, ints={"cmem_lengths": MEMORY_LENGTHS["cmem_lengths"]},
             made=sent(70, 9)),
        Case("conv-without-aux", B=2, Nq=33, made=sent(20, 3) | convs()),
        *[Case(f"{kind}-{name}", **{"options": by(kind, **o), "made": sent(70, 9) | grad_aux(),
                                   "Nq": 33, "B": 2} | how)
          for kind in ("mean", "max", "most_used") for name, o, how in (
              ("keep", {"mem_len": 33}, {"dtypes": ALL, "H": 4, "Hkv": 2}),
              ("lengths", {"mem_len": 65, "cmem_len": 7},
               {"B": 6, "Nq": 131, "ints": LENGTHS | MEMORY_LENGTHS}),
              ("rate-1", {"mem_len": 30, "rate": 1, "cmem_len": 50}, {}),
              ("rate-7", {"rate": 7}, {"Dv": 5, "layout": "BNHD"}))],
        *[Case(f"{kind}-{name}", **{"options": by(kind, **o), "Nq": 33, "B": 2,
                                   "made": sent(70, 9) | convs(taps) | grad_aux()} | how)
          for kind in CONVOLVES for name, o, taps, how in (
              ("keep", {"mem_len": 33}, "4", {"dtypes": ALL, "H": 4, "Hkv": 2}),
              ("lengths", {"mem_len": 65, "cmem_len": 7}, "4",
               {"B": 6, "Nq": 131, "ints": LENGTHS | MEMORY_LENGTHS}),
              ("rate-1", {"mem_len": 30, "rate": 1, "cmem_len": 50}, "1", {}),
              ("rate-7", {"rate": 7}, "7", {"Dv": 5, "layout": "BNHD"}),
              ("nothing-leaves", {"mem_len": 1000}, "4", {}),
              ("strided", {"mem_len": 40}, "4", {"strided": True}))],
        Case("dilated-kernel", B=2, Nq=33, options=by("dilated_conv", kernel=6, dilation=3),
             made=sent(20, 3) | convs("6") | grad_aux()),
        Case("dilated-past-all", Nq=33, options=by("dilated_conv", kernel=3, dilation=30),
             made=sent(20, 3) | convs("3") | grad_aux()),
        Case("conv-drawn", dtypes=ALL, B=2, Nq=33, Dv=7, options=by("conv", mem_len=20),
             made=sent(20, 3) | grad_aux()),
        Case("dilated-drawn", B=2, Nq=33, options=by("dilated_conv", mem_len=20, kernel=3, seed=5),
             made=sent(20, 3) | grad_aux()),
        Case("cmem-0", Nq=33, options=by("conv", mem_len=20, cmem_len=0),
             made=sent(20, 3) | convs() | grad_aux()),
        Case("mem-0", Nq=33, options=by("conv", mem_len=0, cmem_len=100),
             made=sent(20, 3) | convs() | grad_aux()),
        Case("first-segment", B=2, Nq=33, options=by("conv", mem_len=20), made=convs()),
        Case("surplus-below-c", Nq=3, options=keep("mean", mem_len=22), made=sent(20, 3)),
        Case("n0", Nq=0, options=by("conv"), made=sent(7, 3), grad_lse=False),
        Case("n1", dtypes=ALL, Nq=1, D=1, Dv=1, options=keep("mean", mem_len=1),
             made=sent(4, 1)),
        Case("bnhd", B=2, Nq=65, layout="BNHD", options=keep("mean"), made=sent(20, 4)),
    ],
    batches=[{}, keep("mean"), by("conv", mem_len=20), by("most_used", mem_len=9, rate=3)],
    tensor_batches=[
        Case("sent", made=sent(40, 9)),
        *[Case(kind, made=sent(40, 9) | convs(), options=by(kind, mem_len=50))
          for kind in CONVOLVES],
        Case("max", made=sent(40, 9), options=by("max", mem_len=10)),
        Case("most_used", made=sent(40, 9), options=by("most_used", mem_len=10)),
        Case("grad-memory", made=sent(40, 9), options={"grad_memory": True}),
        Case("bias", made=sent(20, 5) | bias("H,Nq,K", 25)),
    ],
    square=True,
    perf=[{}, keep("conv")],
    growth=[Growth({}, 2, 1)],
    visible=[
        Visible("n4", 4, 4, {}, 10),
        Visible("n4-m3-c2", 4, 4, {}, 30, made=memories(3, 2)),
        Visible("n4-m3-c2-window-2", 4, 4, {"same_length": 2}, 8, made=memories(3, 2)),
        Visible("aux-adds-nothing", 4, 4, {"aux_loss": True, "mem_len": 0}, 10),
    ],
    golden=[
        compressor_golden("mean", .404334095, .091888495, -.140574518),
        compressor_golden("max", 14.251735114, .912763940, .694164668),
        compressor_golden("conv", 11.320360050, .333173564, .803037078),
        compressor_golden("dilated_conv", 11.305577665, .260559942, .947459448),
        Golden("attention", GOLDEN, {},
               golden_values(5.140450361, .043223687, .151097861, 60.283857905), golden_figures,
               232),
        Golden("aux", GOLDEN, by("mean", mem_len=8), {"aux": .028771835},
               lambda results: {"aux": results["aux"][0]}),
        # Rows 3 and 6 of mem.
        Golden("most-used", GOLDEN, keep("most_used", mem_len=8, cmem_len=2),
               {"distance": 0.0},
               lambda results: {"distance": abs(
                   results["cmem_v"] - GOLDEN["mem_v"][:, :, [3, 6]]).max()}),
    ],
    refused=memory_refusals(
        ("q_lengths", "kv_lengths", *RELATIVE, *MEM, "mem_lengths", *CMEM, "cmem_lengths", *CONVS),
        ("out", "lse", "aux")) + [
        Refused("compression", {"compression": "sum"},
                ['compression must be one of mean, max, conv, dilated_conv, most_used, got "sum"']),
        Refused("rate-0", {"rate": 0}, ["rate must be in 1..1073741824, got 0"]),
        Refused("cmem-len", {"cmem_len": -1}, ["cmem_len must be >= 0, got -1"]),
        Refused("kernel-0", {"kernel": 0, "compression": "dilated_conv"},
                ["kernel must be in 1..65536, got 0"]),
        Refused("dilation-0", {"dilation": 0}, ["dilation must be in 1..65536, got 0"]),
        Refused("reach", {"compression": "dilated_conv", "kernel": 3, "dilation": 32769},
                ["(kernel - 1) dilation must be <= 65536, got 65538"]),
        Refused("aux-loss", {"aux_loss": 1}, ["aux_loss must be a bool, got 1"]),
        Refused("grad-aux", {}, ["grad_aux needs aux_loss, got aux_loss = false"], backward=True,
                change={"grad_aux": zeros(1)}),
        Refused("grad-aux-shape", {"aux_loss": True}, ["grad_aux shape must be [1], got [2]"],
                backward=True, change={"grad_aux": zeros(2)}),
        Refused("cmem-alone", {}, ["cmem_k and cmem_v must be sent together, got cmem_k alone"],
                change={"cmem_k": zeros(B, Hkv, 5, D)}),
        Refused("cmem-rows", {}, ["cmem_v shape must have Nc = 5, got [2,2,4,5]"],
                change={"cmem_k": zeros(B, Hkv, 5, D), "cmem_v": zeros(B, Hkv, 4, Dv)}),
        Refused("cmem-lengths", {}, ["cmem_lengths[0] must be in 0..Nc = 0..5, got 6"],
                change={"cmem_k": zeros(B, Hkv, 5, D), "cmem_v": zeros(B, Hkv, 5, Dv),
                        "cmem_lengths": np.array([6, 0], np.int32)}),
        Refused("cmem-lengths-alone", {}, ["cmem_lengths needs cmem_k, got none"],
                change={"cmem_lengths": np.array([6, 0], np.int32)}),
        *[Refused(f"{name}-mean", {"compression": "mean"},
                  [f"{name} needs compression conv or dilated_conv, got [2,{shape}]"],
                  change={name: zeros(2, *map(int, shape.split(",")))})
          for name, shape in (("conv_wk", "3,3,4"), ("conv_bv", "5"))],
        Refused("conv-rate", {"rate": 3},
                ["conv_wk shape must be [Hkv,D,D,c] with c = rate = 3, got [2,3,3,4]"],
                change={"conv_wk": zeros(2, 3, 3, 4)}),
        Refused("conv-kernel", {"kernel": 5, "compression": "dilated_conv"},
                ["conv_wv shape must be [Hkv,Dv,Dv,c] with c = kernel = 5, got [2,5,5,4]"],
                change={"conv_wv": zeros(2, 5, 5, 4)}),
        Refused("conv-heads", {},
                ["conv_wk shape must be [Hkv,D,D,c] with Hkv = 2, got [4,3,3,4]"],
                change={"conv_wk": zeros(4, 3, 3, 4)}),
        Refused("conv-draw", {"rate": 2**24, "aux_loss": True},
                [f"conv_w{x} must be sent where it has more than 16777216 elements, got {n}"
                 for x, n in (("k", 2**25 * 9), ("v", 2**25 * 25))]),
        Refused("grad-cmem", {}, ["grad_cmem_v must be absent: cmem_v is a constant, got [2,2,1,5]"],
                change={"grad_cmem_v": zeros(2, 2, 1, 5)}, backward=True),
    ],
)
