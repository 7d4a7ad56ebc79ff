"""Nystromformer: oracle from the low-rank specification (R1, R8, nystromformer), cases, golden
values, refusals."""

import dataclasses
import math

import numpy as np

from tests.methods import drawn
from tests.methods.cases import ALL, Case
from tests.methods.golden import lowrank_golden, wave
from tests.methods.method import Growth, Method, Visible
from tests.methods.refused import Refused, common_refusals, zeros
from tests.methods.traced import DrawnOracle, Tape


def taps_of(t, o):
    return t["conv_weight"].shape[1] if "conv_weight" in t else o.get("conv_kernel_size", 0)


class NystromOracle(DrawnOracle):
    differentiable = ("q", "k", "v", "conv_weight")

    def gives_lse(self, o):
        return False

    def is_exact(self, o, nq, nk):
        m = o.get("num_landmarks", 64)
        return nq <= m or nk <= m

    def means(self, f, x, m):
        """Step 2: floor(n/m) rows or one more, short segments first."""
        n = x.shape[2]
        size, longer = n // m, n % m
        ends = np.cumsum([0] + [size] * (m - longer) + [size + 1] * longer)
        return f.concat([f.mean(x[:, :, i:j], 2, keepdims=True) for i, j in zip(ends, ends[1:])], 2)

    def middle(self, f, t, o):
        """(landmarks of q, of k, softmax of their scores) [1,H,m,m]."""
        group = t["q"].shape[1] // t["k"].shape[1]
        scale, m = o.get("scale", t["q"].shape[3] ** -0.5), o.get("num_landmarks", 64)
        q = self.means(f, t["q"], m)
        k = f.repeat_heads(self.means(f, t["k"], m), group)
        return q, k, f.softmax((q @ k.swapaxes(-1, -2)) * scale)

    def inverse(self, f, A, o, most):
        m = A.shape[-1]
        one = np.eye(m)
        if most is None:
            most = f.max(A.sum(2, keepdims=True), 3)
        z = A.swapaxes(-1, -2) / most
        for _ in range(o.get("pinv_iterations", 6)):
            p = A @ z
            z = 0.25 * (z @ (13.0 * one - p @ (15.0 * one - p @ (7.0 * one - p))))
        return z

    def compute(self, f, t, o, offset):
        q, k, v = t["q"], t["k"], t["v"]
        (_, H, nq, D), nk = q.shape, k.shape[2]
        group = H // k.shape[1]
        scale = o.get("scale", D ** -0.5)
        k_all, v_all = (f.repeat_heads(x, group) for x in (k, v))
        if self.is_exact(o, nq, nk):
            out = f.attention((q @ k_all.swapaxes(-1, -2)) * scale, v_all)[0]
        else:
            q_marks, k_marks, A = self.middle(f, t, o)
            z = self.inverse(f, A, o, t.get("most"))
            inner = f.attention((q_marks @ k_all.swapaxes(-1, -2)) * scale, v_all)[0]
            out = f.attention((q @ k_marks.swapaxes(-1, -2)) * scale, z @ inner)[0]
        if "conv_weight" in t:
            out = out + self.convolve(f, v_all, t["conv_weight"], nq)
        return {"out": out}

    def convolve(self, f, v, weight, nq):
        """Step 6, row i from row i + t - floor(ks / 2) of v."""
        taps, nk = weight.shape[1], v.shape[2]
        left, right = taps // 2, max(nq - nk, 0) + taps
        pad = [np.zeros((1, v.shape[1], n, v.shape[3])) for n in (left, right)]
        x, total = f.concat([pad[0], v, pad[1]], 2), None
        for i in range(taps):
            part = x[:, :, i:i + nq] * weight[:, i].reshape(1, -1, 1, 1)
            total = part if total is None else total + part
        return total

    # --- pinv_init=original: one c0 of the whole request

    def _largest(self, t, o):
        """(sequence, head, column) with the largest column sum of A, the first of equal ones."""
        best = None
        for b in range(t["q"].shape[0]):
            if self.is_exact(o, *self._lengths(t, b)):
                continue
            tape = Tape()
            cut = {n: tape.num(x) for n, x in self._cut(t, b).items() if n in ("q", "k")}
            sums = self.middle(tape, cut, o)[2].x.sum(2)[0]
            at = np.unravel_index(sums.argmax(), sums.shape)
            if best is None or sums[at] > best[0]:
                best = sums[at], b, at
        return best

    def _sequence(self, tape, t, o, b):
        if o.get("pinv_init", "exact") == "exact":
            return super()._sequence(tape, t, o, b)
        # The sequence of the largest sum joins the tape: its gradient is read by _grads.
        best = self._largest(t, o)
        cut = self._cut(t, b)
        named = {name: tape.variable(x) if name in self.differentiable else
                 tape.num(x) if x.dtype.kind not in "iub" else x
                 for name, x in cut.items() if not name.startswith("grad_")}
        variables = {n: x for n, x in named.items() if n in self.differentiable}
        if best is not None:
            _, owner, (head, column) = best
            of_owner = named
            if owner != b:
                of_owner = {n: tape.variable(x) for n, x in self._cut(t, owner).items()
                            if n in ("q", "k")}
                variables |= {f"owner_{n}": x for n, x in of_owner.items()}
            A = self.middle(tape, of_owner, o)[2]
            named["most"] = A[0, head, :, column].sum(0).reshape(1, 1, 1, 1)
        outputs = self.compute(tape, named, o, t["k"].shape[2] - t["q"].shape[2])
        grads = {name[5:]: x for name, x in cut.items() if name.startswith("grad_")}
        return outputs, variables, grads

    def _grads(self, t, o, tape_of, pick):
        if o.get("pinv_init", "exact") == "exact":
            return super()._grads(t, o, tape_of, pick)
        sums = {}
        best = self._largest(t, o)
        for b in range(t["q"].shape[0]):
            tape = tape_of()
            outputs, variables, grads = self._sequence(tape, t, o, b)
            found = tape.gradients([(outputs[n], g) for n, g in grads.items()],
                                   list(variables.values()))
            for name, g in zip(variables, found):
                x, at_b = pick(g), b
                if name.startswith("owner_"):
                    name, at_b = name[6:], best[1]
                whole = sums.setdefault(name, np.zeros(t[name].shape, x.dtype))
                at = self._index(name, whole.shape, at_b, self._lengths(t, at_b))
                whole[... if at is None else at] += x
        return sums

    # --- what is drawn, and counts

    def drawn(self, t, o):
        taps = taps_of(t, o)
        if taps == 0:
            return {}
        return {"conv_weight": drawn.uniforms(o.get("seed", 0), "conv_weight",
                                              (t["q"].shape[1], taps), 1 / math.sqrt(taps))}

    def pairs(self, t, o):
        """Of exact sequences queries by keys, else both by landmarks."""
        count, m = 0, o.get("num_landmarks", 64)
        for b in range(t["q"].shape[0]):
            nq, nk = self._lengths(t, b)
            count += nq * nk if self.is_exact(o, nq, nk) else m * (nq + nk)
        return count * t["q"].shape[1]


def taps(n):
    return {"conv_weight": lambda rng, case: 0.3 * rng.standard_normal((case.H, n))}


LENGTHS = {"q_lengths": (0, 1, 63, 64, 65, 131), "kv_lengths": (131, 65, 64, 63, 1, 0)}
SAME = {name: (0, 1, 9, 64, 65, 131) for name in LENGTHS}
M4 = {"num_landmarks": 4}
ORIGINAL = M4 | {"pinv_init": "original"}
MIXED = {"num_landmarks": 9}
P0 = wave(lambda x: 0.5 * np.cos(x), (2, 3), 0.3, 0)


def of_one_branch(case):
    """The same in sizes that take the same launches: more rows than landmarks everywhere or, with 9
    landmarks, one sequence through landmarks and an exact one."""
    least = case.options.get("num_landmarks", 64) + 1
    if least == 10:
        n = max(case.Nq, least)
        return dataclasses.replace(case, B=2, Nq=n, Nk=n, ints={
            "q_lengths": (n, n - 1), "kv_lengths": (n, 3)})
    ints = {name: tuple(max(n, least) for n in values) for name, values in case.ints.items()}
    if taps_of({}, case.options) or "conv_weight" in case.made:
        n = max(case.Nq, case.keys, least)
        # As many queries as keys, of every sequence.
        return dataclasses.replace(case, Nq=n, Nk=n, ints={
            name: ints["kv_lengths"] for name in ("q_lengths", "kv_lengths") if ints})
    return dataclasses.replace(case, Nq=max(case.Nq, least), Nk=max(case.keys, least), ints=ints)


METHOD = Method(
    id="nystromformer",
    oracle=NystromOracle(),
    options={"num_landmarks": "int", "pinv_iterations": "int", "pinv_init": "enum",
             "conv_kernel_size": "int", "scale": "float", "seed": "int"},
    tensors={"q", "k", "v", "q_lengths", "kv_lengths", "conv_weight"},
    differentiable=["q", "k", "v", "conv_weight"],
    peers=[
        "nystrom-attention (lucidrains; needs PyTorch)",
        "transformers NystromformerSelfAttention (needs PyTorch)",
        "mlpen/Nystromformer attention_nystrom.py (not on PyPI)",
        "T2T-ViT token_nystromformer.py (not on PyPI)",
    ],
    cases=[
        Case("plain", dtypes=ALL, B=2, Nq=63, options=M4),
        Case("defaults", H=1, Nq=131, D=8),
        Case("defaults-exact", dtypes=ALL, B=2, Nq=64),
        Case("exact-by-keys", Nq=70, Nk=8, options={"num_landmarks": 8}),
        Case("m1", Nq=33, options={"num_landmarks": 1}),
        Case("m-even", Nq=64, options={"num_landmarks": 8}),
        Case("m-n-1", Nq=12, Nk=17, options={"num_landmarks": 11}),
        Case("iterations-0", Nq=33, options=M4 | {"pinv_iterations": 0}),
        Case("iterations-1", Nq=33, options=M4 | {"pinv_iterations": 1}),
        Case("iterations-12", Nq=33, options=M4 | {"pinv_iterations": 12}),
        Case("cross", dtypes=ALL, B=2, Nq=65, Nk=131, D=5, Dv=7, options=M4),
        Case("fewer-keys", Nq=131, Nk=33, options={"num_landmarks": 5}),
        Case("gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=65, options=M4),
        Case("mqa", H=4, Hkv=1, Nq=65, options={"num_landmarks": 7}),
        Case("scale", Nq=33, options=M4 | {"scale": 1.5}),
        Case("original", dtypes=ALL, B=3, H=4, Hkv=2, Nq=65, options=ORIGINAL),
        Case("original-cross", B=2, Nq=20, Nk=33, options=ORIGINAL),
        Case("original-lengths", B=6, Nq=131, options=ORIGINAL, ints=LENGTHS),
        Case("original-exact", B=2, Nq=4, options=ORIGINAL),
        Case("n0", Nq=0, Nk=3),
        Case("nk0", Nq=3, Nk=0),
        Case("n1", dtypes=ALL, Nq=1, D=1, Dv=1),
        Case("n2-m1", Nq=2, D=1, Dv=1, options={"num_landmarks": 1}),
        Case("lengths", dtypes=ALL, B=6, Nq=131, options=M4, ints=LENGTHS),
        Case("lengths-exact", B=3, Nq=65, options={"num_landmarks": 64},
             ints={"kv_lengths": (64, 1, 0)}),
        Case("lengths-landmarks", B=3, H=4, Hkv=2, Nq=65, options=M4,
             ints={"kv_lengths": (64, 64, 20), "q_lengths": (65, 33, 33)}),
        Case("conv", dtypes=ALL, B=2, Nq=63, options=M4 | {"conv_kernel_size": 3}, made=taps(3)),
        Case("conv-f32", dtypes=("bf16", "f16"), Nq=33, options=M4, made=taps(3),
             wide_floats=True),
        Case("conv-by-weight", Nq=33, options=M4, made=taps(5)),
        Case("conv-drawn", B=2, Nq=65, options=M4 | {"conv_kernel_size": 33, "seed": 5}),
        Case("conv-1", Nq=33, options=M4 | {"conv_kernel_size": 1}),
        Case("conv-511", Nq=33, options=M4 | {"conv_kernel_size": 511}),
        Case("conv-exact", Nq=33, options={"conv_kernel_size": 5}, made=taps(5)),
        Case("conv-gqa", dtypes=ALL, B=2, H=4, Hkv=2, Nq=33, options=M4, made=taps(5),
             layout="BNHD"),
        Case("conv-lengths", dtypes=ALL, B=6, Nq=131, options=M4, ints=SAME, made=taps(5)),
        Case("conv-kv-lengths", B=6, H=4, Hkv=2, Nq=131, options=M4, made=taps(5),
             ints={"kv_lengths": LENGTHS["kv_lengths"]}),
        Case("conv-equal-lengths", B=5, H=4, Hkv=2, Nq=33, options=M4, made=taps(5), ints={
            name: (20, 20, 33, 33, 33) for name in LENGTHS}),
        Case("original-equal-lengths", B=5, H=4, Hkv=2, Nq=33, options=ORIGINAL,
             ints={"kv_lengths": (20, 20, 33, 3, 3)}),
        Case("conv-n0", Nq=0, options={"conv_kernel_size": 3}, made=taps(3)),
        Case("bnhd", B=2, Nq=65, layout="BNHD", options=M4),
        Case("strided", B=2, H=4, Hkv=2, Nq=65, strided=True, options=M4),
        Case("strided-bnhd", dtypes=ALL, B=2, Nq=65, strided=True, layout="BNHD", options=M4),
        Case("subnormal", dtypes=("f16",), Nq=33, v_scale=1e-6, options=M4),
    ],
    batches=[M4, ORIGINAL, M4 | {"conv_kernel_size": 3}, {"num_landmarks": 7}, MIXED,
             MIXED | {"conv_kernel_size": 3}, MIXED | {"pinv_init": "original"}],
    tensor_batches=[Case("conv", options=M4, made=taps(5))],
    fit_sizes=of_one_branch,
    perf=[{}],
    growth=[Growth({}, 1, 1)],
    visible=[
        Visible("exact", 16, 12, {"num_landmarks": 12}, 192),
        Visible("m4", 16, 12, M4, 112),
    ],
    golden=[
        lowrank_golden("m4", M4, 0.573965083, -0.061731592, -0.475584585, 26.083992683),
        lowrank_golden("m4-original", ORIGINAL, 0.573965083, -0.061731719, -0.475313903,
                       26.075668898),
        lowrank_golden("m5", {"num_landmarks": 5}, 0.381731432, 0.025050429, -0.354759136,
                       15.482038224),
        lowrank_golden("m4-conv", M4 | {"conv_kernel_size": 3}, 0.597222524, 0.083844317,
                       -0.458639620, 27.907985254, more={"conv_weight": P0}),
        lowrank_golden("m4-length-10", M4, 0.134759750, 0.0, -0.526854564, 12.961325394,
                       more={name: np.array([10], np.int32) for name in LENGTHS}),
    ],
    refused=common_refusals({}, (), ("q_lengths", "kv_lengths", "conv_weight"), ("out",),
                            lacks=("causal",)) + [
        Refused("landmarks-0", {"num_landmarks": 0},
                ["num_landmarks must be in 1..1024, got 0"]),
        Refused("landmarks-1025", {"num_landmarks": 1025},
                ["num_landmarks must be in 1..1024, got 1025"]),
        Refused("iterations", {"pinv_iterations": 65}, ["pinv_iterations must be in 0..64, got 65"]),
        Refused("iterations-low", {"pinv_iterations": -1},
                ["pinv_iterations must be in 0..64, got -1"]),
        Refused("init", {"pinv_init": "svd"},
                ['pinv_init must be one of exact, original, got "svd"']),
        Refused("scale-0", {"scale": 0.0}, ["scale must be > 0 and <= 1e+30, got 0"]),
        Refused("seed", {"seed": -1}, ["seed must be in 0..2^64-1, got -1"]),
        Refused("even", {"conv_kernel_size": 4}, [
            "conv_kernel_size must be 0 or odd, got 4",
            "Nk must be Nq = 6 with conv_kernel_size > 0, got 7"]),
        Refused("taps-513", {"conv_kernel_size": 513},
                ["conv_kernel_size must be in 0..511, got 513"]),
        Refused("taps-low", {"conv_kernel_size": -1},
                ["conv_kernel_size must be in 0..511, got -1"]),
        Refused("cross-conv", {"conv_kernel_size": 3},
                ["Nk must be Nq = 6 with conv_kernel_size > 0, got 7"]),
        *[Refused(f"weight-{taps}", {}, [
            f"conv_weight shape must have an odd conv_kernel_size in 1..511, got [4,{taps}]"],
                  change={"conv_weight": zeros(4, taps), **{
                      name: zeros(2, 2, 6, d) for name, d in (("k", 3), ("v", 5))}})
          for taps in (0, 2, 513)],
        Refused("weight-heads", {},
                ["conv_weight shape must be [H,conv_kernel_size] with H = 4, got [2,3]",
                 "Nk must be Nq = 6 with conv_kernel_size > 0, got 7"],
                change={"conv_weight": zeros(2, 3)}),
        *[Refused(f"weight-and-{taps}", {"conv_kernel_size": taps}, [
            f"conv_kernel_size must be that of conv_weight, 3, got {taps}"],
                  change={"conv_weight": zeros(4, 3), **{
                      name: zeros(2, 2, 6, d) for name, d in (("k", 3), ("v", 5))}})
          for taps in (0, 5)],
    ],
)
