"""Attention along the lines of an n-d grid: oracle in float64 from the pattern specification
(Common core, axial), cases, golden sums, refusals."""

import dataclasses
import math

import numpy as np

from tests.methods.cases import ALL, Case
from tests.methods.golden import pattern_golden
from tests.methods.method import Growth, Oracle, Visible
from tests.methods.pattern_core import PatternOracle
from tests.methods.pattern_method import pattern_method
from tests.methods.refused import Refused, zeros


# --- one softmax ---


def coordinates(o):
    """[m,N] of the flat indices, row-major."""
    return np.array(np.unravel_index(np.arange(math.prod(o["grid"])), o["grid"]))


def on_axis(seq):
    """Coordinates along the axis as a column and as a row."""
    x = coordinates(seq.o)[seq.o["axis"]]
    return x[:, None], x[None, :]


def same(seq):
    """[m,N,N] which coordinates of two cells are equal."""
    x = coordinates(seq.o)
    return x[:, :, None] == x[:, None, :]


def sees_line(seq):
    others = np.delete(same(seq), seq.o["axis"], axis=0).all(axis=0)
    mine, theirs = on_axis(seq)
    return others & (theirs <= mine) if seq.o.get("causal_axis", False) else others


def sees_cross(seq):
    return (~same(seq)).sum(axis=0) <= 1


def along_axis(seq):
    mine, theirs = on_axis(seq)
    return abs(mine - theirs)


LINE = PatternOracle(sees_line, distance=along_axis)
LINE_BIAS = PatternOracle(sees_line, distance=along_axis, bias_at=on_axis)
CROSS = PatternOracle(sees_cross)


# --- and the sum of several ---


def softmaxes(o):
    """(oracle, options) of each softmax whose outputs add up."""
    mode, m = o.get("mode", "single"), len(o["grid"])
    if mode == "union":
        return [(CROSS, o)]
    if mode == "single":
        return [(LINE_BIAS if o.get("axis_bias", False) else LINE, o)]
    return [(LINE, o | {"axis": axis}) for axis in o.get("axes") or range(m)]


def total(parts):
    """Tensors of equal names added up."""
    return {name: sum(part[name] for part in parts) for name in parts[0]}


class SumOfSoftmaxes(Oracle):
    """One softmax in the modes single and union; in mode sum several, each counting its pairs."""

    def visible(self, t, o):
        return np.any([oracle.visible(t, own) for oracle, own in softmaxes(o)], axis=0)

    def pairs(self, t, o):
        return sum(oracle.pairs(t, own) for oracle, own in softmaxes(o))

    def gives_lse(self, o):
        return o.get("mode", "single") != "sum"

    def forward(self, t, o, dtype=np.float64):
        parts = [oracle.forward(t, own, dtype) for oracle, own in softmaxes(o)]
        return parts[0] if self.gives_lse(o) else {"out": total(parts)["out"]}

    def backward(self, t, o, dtype=np.float64, store=lambda x: x):
        return total([oracle.backward(t, own, dtype, store) for oracle, own in softmaxes(o)])

    def magnitude(self, t, o):
        sums, amplifications = zip(*(oracle.magnitude(t, own) for oracle, own in softmaxes(o)))
        added = {name: tuple(map(sum, zip(*(part[name] for part in sums)))) for name in sums[0]}
        return added, max(amplifications)


# --- grids of other sizes ---


def grid_of(N, like):
    """A grid of N cells. From the last extent on, each stays if it divides the rest of N, else
    becomes the divisor nearest to its share."""
    grid, left = [], N
    for e in range(len(like) - 1, 0, -1):
        n = like[e]
        if left % n != 0:
            cells = math.prod(like[: e + 1])
            share = left ** (math.log(n) / math.log(cells)) if cells > 1 else 1
            divisors = [d for d in range(1, left + 1) if left % d == 0]
            n = min(divisors, key=lambda d: abs(math.log(d / share)))
        grid.insert(0, n)
        left //= n
    return [left, *grid]


def fit_grid(case):
    """The same case with a grid of its N cells; N = 0 becomes 1."""
    N = max(case.Nq, 1)
    grid = case.options["grid"]
    if math.prod(grid) != N:
        grid = grid_of(N, grid)
    return dataclasses.replace(case, Nq=N, Nk=N, options=case.options | {"grid": grid})


def fit_sizes(case):
    """The same case with as many cells as its grid has."""
    N = math.prod(case.options["grid"])
    lengths = {name: tuple(min(n, N) for n in values) for name, values in case.ints.items()}
    return dataclasses.replace(case, Nq=N, Nk=N, ints=lengths)


def fit_options(case):
    case = fit_grid(case)
    if not case.options.get("axis_bias", False) or "bias" not in case.floats:
        return case
    cells = str(case.options["grid"][case.options["axis"]])
    letters = case.floats["bias"].split(",")
    letters[-2:] = [n if n == "1" else cells for n in letters[-2:]]
    return dataclasses.replace(case, floats=case.floats | {"bias": ",".join(letters)})


def single(grid, axis, **more):
    return {"grid": grid, "axis": axis} | more


def union(grid, **more):
    return {"grid": grid, "mode": "union"} | more


def added(grid, axes=None, **more):
    return {"grid": grid, "mode": "sum"} | ({} if axes is None else {"axes": axes}) | more


TERMS = {"bias": "1,H,Nq,Nk", "alibi_slopes": "H", "sink_logits": "H"}


METHOD = pattern_method(
    id="axial",
    oracle=SumOfSoftmaxes(),
    options={"grid": "ints", "axis": "int", "mode": "enum", "axes": "ints", "causal_axis": "bool",
             "axis_bias": "bool"},
    lacks=("cross", "packed"),
    bias="M,M",
    good_options=single([2, 3], 0),
    peers=[
        "google-research axial nn.attn_nd(q, k, v, time_axis, feat_axis, masked)"
        " (needs TensorFlow)",
        "axial-attention AxialAttention, a layer an axis with its weights copied (needs PyTorch)",
        "xformers attention_patterns.axial_nd_pattern, mode union (needs PyTorch)",
    ],
    fit_options=fit_options,
    fit_sizes=fit_sizes,
    cases=[
        Case("rows", dtypes=ALL, B=2, Nq=63, options=single([7, 9], 1)),
        Case("columns", dtypes=ALL, B=2, Nq=63, options=single([7, 9], 0)),
        Case("last-axis", Nq=65, options=single([13, 5], -1)),
        Case("columns-of-64", H=1, Nq=192, D=8, options=single([64, 3], 0)),
        Case("rows-of-65", H=1, Nq=195, D=8, options=single([3, 65], 1)),
        Case("rows-of-64-causal", H=1, Nq=192, D=8, options=single([3, 64], 1, causal=True)),
        Case("columns-of-130", H=1, Nq=260, D=8, options=single([130, 2], 0)),
        Case("columns-causal", dtypes=ALL, Nq=126, options=single([14, 9], 0, causal=True)),
        Case("rows-causal-axis", Nq=126, options=single([14, 9], 1, causal_axis=True)),
        Case("causal-twice", Nq=40, options=single([5, 8], 1, causal_axis=True, causal=True)),
        Case("lines-of-1", Nq=65, options=single([65, 1], 1)),
        Case("one-line", Nq=65, options=single([65, 1], 0)),
        Case("one-dimension", Nq=65, options=single([65], 0)),
        Case("one-dimension-causal", Nq=65, options=single([65], -1, causal_axis=True)),
        Case("three-dimensions-0", dtypes=ALL, Nq=120, options=single([4, 5, 6], 0)),
        Case("three-dimensions-1", Nq=120, options=single([4, 5, 6], 1, causal=True)),
        Case("three-dimensions-2", Nq=105, options=single([5, 3, 7], -1)),
        Case("three-dimensions-with-1", Nq=60, options=single([6, 1, 10], 0)),
        Case("four-dimensions", Nq=120, options=single([2, 3, 4, 5], -2)),
        Case("n1", Nq=1, options=single([1, 1], 0)),
        Case("union", dtypes=ALL, B=2, Nq=63, options=union([7, 9])),
        Case("union-causal", Nq=126, options=union([14, 9], causal=True)),
        Case("union-three-dimensions", Nq=105, options=union([5, 3, 7])),
        Case("union-with-1", Nq=40, options=union([40, 1], causal=True)),
        Case("union-wide", H=1, Nq=260, D=8, options=union([2, 130])),
        Case("union-alibi", Nq=63, options=union([7, 9], alibi=True)),
        Case("sum", dtypes=ALL, B=2, Nq=63, options=added([7, 9]), grad_lse=False),
        Case("sum-causal", Nq=126, options=added([14, 9], causal=True), grad_lse=False),
        Case("sum-causal-axis", Nq=126, options=added([14, 9], causal_axis=True), grad_lse=False),
        Case("sum-of-one", Nq=65, options=added([13, 5], [1]), grad_lse=False),
        Case("sum-of-two-of-three", Nq=105, options=added([5, 3, 7], [-1, 0]), grad_lse=False),
        Case("sum-of-three", H=4, Hkv=2, Nq=120, options=added([4, 5, 6]), grad_lse=False),
        Case("sum-alibi", H=4, Nq=63, options=added([7, 9], alibi=True), grad_lse=False),
        Case("sum-lengths", B=3, Nq=65, options=added([13, 5]), grad_lse=False,
             ints={"q_lengths": (65, 64, 3), "kv_lengths": (0, 33, 65)}),
        Case("sum-all-terms", dtypes=ALL, B=2, H=4, Hkv=2, Nq=66, D=9, Dv=17, strided=True,
             options=added([6, 11], logit_softcap=3.0, causal=True), floats=TERMS, grad_lse=False,
             ints={"q_lengths": (66, 40), "kv_lengths": (50, 66)}),
        Case("sum-segments", Nq=126, segments="mixed", options=added([14, 9]), layout="BNHD",
             grad_lse=False),
        Case("lengths", dtypes=ALL, B=6, H=1, Nq=132, options=single([12, 11], 0),
             ints={"q_lengths": (132, 65, 64, 63, 1, 0), "kv_lengths": (0, 1, 63, 64, 65, 132)}),
        Case("union-lengths", B=2, Nq=63, options=union([7, 9]), ints={"kv_lengths": (40, 5)}),
        Case("scale-dv", Nq=65, D=5, Dv=33, options=single([5, 13], 0, scale=0.7)),
        Case("gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=65, options=single([13, 5], 0)),
        Case("bnhd", B=2, Nq=65, layout="BNHD", options=single([13, 5], 0, causal=True)),
        Case("strided", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, strided=True,
             options=single([13, 5], 0)),
        Case("strided-lengths", B=2, H=4, Hkv=2, Nq=65, strided=True,
             options=single([13, 5], 0), ints={"q_lengths": (65, 40), "kv_lengths": (50, 21)}),
        Case("strided-lengths-union", B=2, Nq=63, strided=True, options=union([7, 9]),
             ints={"q_lengths": (63, 40), "kv_lengths": (40, 5)}),
        Case("multiset", Nq=63, options=union([7, 9], duplicates="multiset")),
        Case("bias", B=2, Nq=63, options=single([7, 9], 0), floats={"bias": "B,H,Nq,Nk"}),
        Case("axis-bias", dtypes=ALL, B=2, Nq=63, options=single([7, 9], 1, axis_bias=True),
             floats={"bias": "B,H,9,9"}),
        Case("axis-bias-columns", H=4, Hkv=2, Nq=60, options=single([10, 6], -2, axis_bias=True),
             floats={"bias": "H,10,10"}),
        Case("axis-bias-for-all", B=2, Nq=60,
             options=single([5, 3, 4], 0, axis_bias=True, causal=True), floats={"bias": "5,5"}),
        Case("axis-bias-keys", Nq=63, options=single([7, 9], 1, axis_bias=True),
             floats={"bias": "B,1,1,9"}),
        Case("axis-bias-queries", Nq=63, options=single([7, 9], 0, axis_bias=True),
             floats={"bias": "H,7,1"}),
        Case("axis-bias-one", Nq=63, options=single([7, 9], 0, axis_bias=True),
             floats={"bias": "H,1,1"}),
        Case("axis-bias-hides", Nq=63, options=single([7, 9], 0, axis_bias=True), hidden_bias=True,
             floats={"bias": "1,H,7,7"}),
        Case("alibi", dtypes=ALL, H=4, Nq=63, options=single([7, 9], 0, alibi=True)),
        Case("slopes-of-rows", B=2, Nq=60, options=single([5, 3, 4], 1),
             floats={"alibi_slopes": "B,H"}),
        Case("all-terms", dtypes=ALL, B=2, H=4, Hkv=2, Nq=126, D=33, Dv=17,
             options=single([14, 9], 0, logit_softcap=3.0), floats=TERMS,
             ints={"q_lengths": (126, 40), "kv_lengths": (50, 126)}),
        Case("all-terms-axis-bias", B=2, H=4, Hkv=2, Nq=63, strided=True, layout="BNHD",
             options=single([7, 9], 1, causal=True, logit_softcap=3.0, axis_bias=True),
             floats={"bias": "B,H,9,9", "alibi_slopes": "B,H", "sink_logits": "H"}),
        Case("all-terms-union", B=2, H=4, Hkv=2, Nq=63, D=9,
             options=union([7, 9], logit_softcap=3.0),
             floats={"bias": "B,1,1,Nk", "alibi_slopes": "B,H", "sink_logits": "H"}),
        Case("sinks-of-empty-rows", B=2, Nq=63, options=single([7, 9], 1),
             floats={"sink_logits": "H"}, ints={"kv_lengths": (20, 0)}),
        Case("segments", dtypes=ALL, B=2, Nq=126, segments="runs", options=single([14, 9], 0)),
        Case("segments-mixed", B=2, H=4, Nq=126, segments="mixed",
             options=single([14, 9], 1, causal=True)),
        Case("union-segments", Nq=126, segments="runs", options=union([9, 14])),
    ],
    batches=[
        single([8, 16], 0, causal=True),
        single([9, 14], 1),
        union([11, 12]),
        added([5, 3, 9]),
    ],
    tensor_batches=[
        Case("terms", options=single([12, 11], 0, logit_softcap=2.0),
             floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "B,H", "sink_logits": "H"}),
        Case("axis-bias", options=single([12, 11], 1, axis_bias=True),
             floats={"bias": "H,11,11", "sink_logits": "H"}),
        Case("segments", options=union([9, 14]), segments="mixed"),
    ],
    preset={"grid": "grid(Nq)", "axis": "0"},
    perf=[single([64, 64], 0), single([64, 64], 1), union([64, 64])],
    growth=[Growth(single([16, 64], 1), 1, 1)],
    visible=[
        Visible("columns", 20, 20, single([4, 5], 0), 80),
        Visible("rows", 20, 20, single([4, 5], 1), 100),
        Visible("rows-causal", 20, 20, single([4, 5], 1, causal=True), 60),
        Visible("rows-causal-axis", 20, 20, single([4, 5], 1, causal_axis=True), 60),
        Visible("union", 20, 20, union([4, 5]), 160),
        # Each softmax of the sum counts.
        Visible("sum", 20, 20, added([4, 5]), 180),
    ],
    golden=[
        pattern_golden("columns", single([4, 4], 0), 128, 4.5519868129, -3.1373945313, 0.0153223847,
                       0.0409313191, 0.5060625006),
        pattern_golden("rows-causal-axis", single([4, 4], 1, causal_axis=True), 80, 0.7504660046,
                       -2.0481694548, 0.5984208355, -0.6399722021, 11.5463858735),
        pattern_golden("union", union([4, 4]), 224, 1.8474672575, -3.8107981505, -0.8339038171,
                       0.8982588150, 0.2957858661),
    ],
    refused=[
        Refused("no-grid", {"axis": 0}, ["grid is required, got none"]),
        Refused("grid-extent", single([6, 0], 0), ["grid[1] must be >= 1, got 0"]),
        Refused("grid-product", single([2, 4], 0), ["grid must multiply to N = 6, got [2,4]"]),
        # The product is 6 modulo 2^64.
        Refused("grid-huge", single([9, 6148914691236517206], 0),
                ["grid must multiply to N = 6, got [9,6148914691236517206]"]),
        Refused("no-axis", {"grid": [2, 3]}, ["axis is required when mode is single, got none"]),
        Refused("axis-high", single([2, 3], 2), ["axis must be in -2..1, got 2"]),
        Refused("axis-low", single([2, 3], -3), ["axis must be in -2..1, got -3"]),
        Refused("axes-high", added([2, 3], [3]), ["axes[0] must be in -2..1, got 3"]),
        Refused("axes-twice", added([2, 3], [0, 0]), ["axes[1] must not repeat an axis, got 0"]),
        Refused("axes-twice-negative", added([2, 3], [1, -1]),
                ["axes[1] must not repeat an axis, got -1"]),
        Refused("mode", {"grid": [2, 3], "mode": "cross"},
                ['mode must be one of single, union, sum, got "cross"']),
        Refused("union-causal-axis", union([2, 3], causal_axis=True),
                ["causal_axis must be false when mode is union, got true"]),
        Refused("union-axis-bias", union([2, 3], axis_bias=True),
                ["axis_bias must be false unless mode is single, got true"]),
        Refused("sum-axis-bias", added([2, 3], axis_bias=True),
                ["axis_bias must be false unless mode is single, got true"]),
        Refused("axis-bias-shape", single([2, 3], 1, axis_bias=True),
                ["bias shape must be broadcastable to [B,H,M,M] with M = 3, got [4,6,6]"],
                change={"bias": zeros(4, 6, 6)}),
        Refused("axis-bias-heads", single([2, 3], 1, axis_bias=True),
                ["bias shape must be broadcastable to [B,H,M,M] with H = 4, got [3,3,3]"],
                change={"bias": zeros(3, 3, 3)}),
        Refused("sum-lse", added([2, 3]),
                ["grad_lse must not be sent when mode is sum, got [2,4,6]"], backward=True),
        Refused("everything-at-once",
                single([2, 3], 5, axis_bias=1, causal_axis=0.5, scale=float("nan")),
                ["axis must be in -2..1, got 5", "axis_bias must be a bool, got 1",
                 "causal_axis must be a bool, got 0.5", "scale must be finite, got nan"]),
        Refused("many-extents", single([1] * 8 + [6], 0),
                ["grid must have at most 8 values, got 9"]),
    ],
)
