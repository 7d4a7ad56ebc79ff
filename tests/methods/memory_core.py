"""What transformer_xl and compressive share: attention over memories and the segment, from the
specification of learned patterns and memories, and the memory that a call hands to the next one."""

import numpy as np

from tests.methods import refused
from tests.methods.mixing_core import normals
from tests.methods.refused import Refused, common_refusals, zeros
from tests.methods.traced import Num, TracedOracle

RELATIVE = ["u", "v_bias", "rel_k", "w_r", "bias"]
MEM = ["mem_k", "mem_v"]
OPTIONS = {"mem_len": "int", "clamp_len": "int", "same_length": "int", "return_memory": "bool",
           "grad_memory": "bool", "scale": "float", "seed": "int"}
B, H, Hkv, N, D, Dv = (refused.B, refused.H, refused.Hkv, refused.Nq, refused.D, refused.Dv)


def rows_of(t, name):
    return t[name].shape[2] if name in t else 0


def held(t, name):
    """What has no gradient where it is read: finite differences hold it."""
    return t.get(f"held_{name}", t.get(name))


class MemoryOracle(TracedOracle):
    """One tape for the whole batch, lane by lane."""

    differentiable = ("q", "k", "v", *RELATIVE, *MEM)
    memories = ("mem",)  # oldest first

    # --- lengths and visible pairs

    def _lengths(self, t, b):
        n = int(t["kv_lengths"][b]) if "kv_lengths" in t else t["k"].shape[2]
        return int(t["q_lengths"][b]) if "q_lengths" in t else n, n

    def kept(self, t, b):
        """Rows of each memory that lane b has."""
        return [int(t[f"{m}_lengths"][b]) if f"{m}_lengths" in t else rows_of(t, f"{m}_k")
                for m in self.memories]

    def seen(self, nq, before, n, o):
        """[nq, before + n]"""
        distance = np.arange(nq)[:, None] + before - np.arange(before + n)
        W = o.get("same_length", 0)
        return (distance >= 0) & ((distance < W) if W else True), distance

    def visible(self, t, o):
        batch, _, n, _ = t["q"].shape
        shown = np.zeros((batch, 1, n, n), bool)
        for b in range(batch):
            nq, nk = self._lengths(t, b)
            shown[b, 0, :nq, :nk] = self.seen(nq, 0, nk, o)[0]
        return shown

    def pairs(self, t, o):
        count = 0
        for b in range(t["q"].shape[0]):
            nq, nk = self._lengths(t, b)
            count += self.seen(nq, sum(self.kept(t, b)), nk, o)[0].sum()
        return int(count) * t["q"].shape[1]

    # --- one lane

    def drawn(self, t, o):
        seed, (_, heads, _, d) = o.get("seed", 0), t["q"].shape
        made = {name: normals(seed, name, (heads, d), 0.02) for name in ("u", "v_bias")}
        if "rel_k" not in t:
            waves = heads * d + heads * d % 2
            made["w_r"] = normals(seed, "w_r", (heads, d, waves), 0.02)
        return made

    def distances(self, f, t, R):
        """r [H,R,D]."""
        if "rel_k" in t:
            return t["rel_k"][:, :R]
        w = t["w_r"]
        half = w.shape[2] // 2
        angle = np.arange(R)[:, None] * 10000.0 ** (-np.arange(half) / half)
        e = np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
        # A sum of two products of rounded numbers.
        s = None if f.rounding is None else np.full(e.shape, 3 * f.rounding)
        return f.einsum("hdm,rm->hrd", w, Num(f, e.astype(f.dtype), s))

    def attend(self, f, t, o, b):
        """What attention of lane b reads and gives."""
        nq, nk = self._lengths(t, b)
        kept = self.kept(t, b)
        before, scale = sum(kept), o.get("scale", t["q"].shape[3] ** -0.5)
        rows = {}
        for x in "kv":
            parts = []
            for m, n in zip(self.memories, kept):
                memory = t.get(f"{m}_{x}")
                if memory is not None:
                    memory = memory if o.get("grad_memory", False) else f.stop(memory)
                    parts.append(memory[b:b + 1, :, memory.shape[2] - n:])
            rows[x] = f.concat([*parts, t[x][b:b + 1, :, :nk]], 2)
        q = t["q"][b:b + 1, :, :nq]
        group = q.shape[1] // t["k"].shape[1]
        all_rows = sum(rows_of(t, f"{m}_k") for m in self.memories) + t["k"].shape[2]
        clamp = o.get("clamp_len", -1)
        R = min(clamp + 1, max(all_rows, 1)) if clamp > 0 else max(all_rows, 1)
        mask, distance = self.seen(nq, before, nk, o)
        u, v = (t[name].reshape(1, *t[name].shape[:1], 1, -1) for name in ("u", "v_bias"))
        r = self.distances(f, t, R)
        relative = ((q + v) @ r.swapaxes(-1, -2))[
            (slice(None), slice(None), np.arange(nq)[:, None], np.clip(distance, 0, R - 1))]
        k = f.repeat_heads(rows["k"], group)
        logits = ((q + u) @ k.swapaxes(-1, -2) + relative) * scale
        if "bias" in t:
            logits = logits + self.bias(f, t, b, nq, nk, kept)
        out, lse = f.attention(logits, f.repeat_heads(rows["v"], group), mask)
        return {"nq": nq, "nk": nk, "kept": kept, "rows": rows, "q": q, "scale": scale, "out": out,
                "lse": lse, "logits": logits, "mask": mask}

    def bias(self, f, t, b, nq, nk, kept):
        x = t["bias"]
        x = x.reshape(*[1] * (4 - x.ndim), *x.shape)
        x = x[b:b + 1] if x.shape[0] > 1 else x
        x = x[:, :, :nq] if x.shape[2] > 1 else x
        if x.shape[3] == 1:
            return x
        at, columns = 0, []
        for m, n in zip(self.memories, kept):
            at += rows_of(t, f"{m}_k")
            columns += range(at - n, at)
        return x[:, :, :, np.array([*columns, *range(at, at + nk)], int)]

    # --- the batch

    def more(self, f, t, o, lanes):
        """The other outputs: {name: Num or list of one [1,Hkv,rows,D] a lane}."""
        raise NotImplementedError

    def _batch(self, f, t, o):
        lanes = [self.attend(f, t, o, b) for b in range(t["q"].shape[0])]
        n = t["q"].shape[2]

        def padded(x, rows, fill, at_end=False):
            shape = list(x.shape)
            shape[2] = rows - shape[2]
            parts = [x, np.full(shape, fill)]
            return f.concat(parts[::-1] if at_end else parts, 2)

        made = {"out": f.concat([padded(lane["out"], n, 0) for lane in lanes], 0),
                "lse": f.concat([padded(lane["lse"], n, -np.inf) for lane in lanes], 0)}
        for name, x in sorted(self.more(f, t, o, lanes).items()):
            if isinstance(x, list):
                longest = max(y.shape[2] for y in x)
                x = f.concat([padded(y, longest, 0, at_end=True) for y in x], 0)
            made[name] = x
        return made

    def _named(self, tape, t, o):
        t = self.drawn(t, o) | t
        return {name: tape.variable(x) if name in self.differentiable else
                tape.num(x) if x.dtype.kind not in "iub" else x for name, x in t.items()
                if not name.startswith("grad_")}

    def _run(self, t, o, tape_of, pick):
        tape = tape_of()
        return {name: pick(x) for name, x in self._batch(tape, self._named(tape, t, o), o).items()}

    def constants_of(self, o):
        """Differentiable inputs that are constants under these options."""
        if o.get("grad_memory", False):
            return frozenset()
        return frozenset(f"{m}_{x}" for m in self.memories for x in "kv")

    def _grads(self, t, o, tape_of, pick):
        tape = tape_of()
        named = self._named(tape, t, o)
        outputs = self._batch(tape, named, o)
        ends = []
        for name, g in t.items():
            if name.startswith("grad_"):
                made = outputs[name[5:]]
                ends.append((made, np.where(np.isfinite(made.x), g, 0)))
        names = [n for n in self.differentiable if n in t and n not in self.constants_of(o)]
        return dict(zip(names, map(pick, tape.gradients(ends, [named[n] for n in names]))))


def memory_rows(lanes, x, spans):
    """Rows [begin, end) of each lane's [memories; segment]."""
    return [lane["rows"][x][:, :, begin:end] for lane, (begin, end) in zip(lanes, spans)]


# --- tensors of cases

def memory(rows, prefix="mem"):
    """<prefix>_k and <prefix>_v of so many rows, NaN in those that do not count."""

    def make(size):
        def of_case(rng, case):
            x = rng.standard_normal(case.shape_of(f"B,Hkv,{rows},{size}"))
            for b, n in enumerate(case.ints.get(f"{prefix}_lengths", ())):
                x[b, :, :rows - n] = np.nan
            return x

        return of_case

    return {f"{prefix}_k": make("D"), f"{prefix}_v": make("Dv")}


def head_biases(size=0.5):
    return {name: lambda rng, case: size * rng.standard_normal((case.H, case.D))
            for name in ("u", "v_bias")}


def rel_k(before, most=None, size=0.5):
    """L = before + N, or at most `most`."""

    def make(rng, case):
        L = max(before + case.Nq, 1)
        return size * rng.standard_normal((case.H, L if most is None else most, case.D))

    return {"rel_k": make}


def w_r(waves, size=0.3):
    return {"w_r": lambda rng, case: size * rng.standard_normal((case.H, case.D, waves))}


def bias(letters, before):
    """`letters` with K for before + N."""

    def make(rng, case):
        return rng.standard_normal(case.shape_of(letters.replace("K", str(before + case.Nq))))

    return {"bias": make}


def wave(shape, a, b):
    """sin(a (n + 1) + b), n the row-major index: the F of the specification."""
    return np.sin(a * np.arange(1, np.prod(shape) + 1) + b).reshape(shape)


def golden_tensors(**more):
    shape = (1, 2, 8, 4)
    return {"q": wave(shape, .7, .1), "k": wave(shape, 1.1, .2), "v": wave(shape, 1.3, .3),
            "u": wave((2, 4), .33, .1), "v_bias": wave((2, 4), .44, .2),
            "grad_out": np.ones(shape), **more}


def golden_figures(results):
    out, lse = results["out"], results["lse"]
    return {"sum": out.sum(), "first": out[0, 0, 0, 0], "last": out[0, 1, -1, -1],
            "lse": lse[np.isfinite(lse)].sum()}


def golden_values(*values):
    return dict(zip(("sum", "first", "last", "lse"), values))


# --- refusals

def memory_refusals(others, outputs):
    """What both methods refuse alike. `others`: the tensors besides q, k, v; `outputs`: those that
    a gradient may come in for."""

    def refuse(id, reasons, options=None, **change):
        reasons = [reasons] if isinstance(reasons, str) else reasons
        return Refused(id, options or {}, reasons, change=change)

    mem = {"mem_k": zeros(B, Hkv, 5, D), "mem_v": zeros(B, Hkv, 5, Dv)}
    k7 = {"k": zeros(B, Hkv, 7, D), "v": zeros(B, Hkv, 7, Dv)}
    lengths = lambda *values: np.array(values, np.int32)
    rows = common_refusals({}, (), others, outputs, lacks=("causal", "cross"))
    rows += [
        refuse("cross", "Nk must be Nq = 6, got 7", **k7),
        refuse("clamp-0", "clamp_len must be -1 or >= 1, got 0", {"clamp_len": 0}),
        refuse("clamp-2", "clamp_len must be -1 or >= 1, got -2", {"clamp_len": -2}),
        refuse("clamp-type", "clamp_len must be an integer, got true", {"clamp_len": True}),
        refuse("same-length", "same_length must be >= 0, got -1", {"same_length": -1}),
        refuse("mem-len", "mem_len must be >= 0, got -1", {"mem_len": -1}),
        refuse("return-memory", "return_memory must be a bool, got 1", {"return_memory": 1}),
        refuse("grad-memory", "grad_memory must be a bool, got 1", {"grad_memory": 1}),
        refuse("seed", "seed must be in 0..2^64-1, got -1", {"seed": -1}),
        refuse("scale-0", "scale must be > 0 and <= 1e+30, got 0", {"scale": 0.0}),
        refuse("mem-alone", "mem_k and mem_v must be sent together, got mem_v alone",
               mem_v=mem["mem_v"]),
        refuse("mem-rows", "mem_v shape must have M = 5, got [2,2,4,5]",
               mem_k=mem["mem_k"], mem_v=zeros(B, Hkv, 4, Dv)),
        refuse("mem-heads", "mem_k shape must be [B,Hkv,M,D] with Hkv = 2, got [2,4,5,3]",
               mem_k=zeros(B, 4, 5, D), mem_v=mem["mem_v"]),
        refuse("mem-dtype", "mem_k dtype must be float32, got float16",
               mem_k=zeros(B, Hkv, 5, D, dtype=np.float16), mem_v=mem["mem_v"]),
        refuse("mem-lengths-alone", "mem_lengths needs mem_k, got none", mem_lengths=lengths(1, 2)),
        refuse("mem-lengths-high", "mem_lengths[1] must be in 0..M = 0..5, got 6", **mem,
               mem_lengths=lengths(5, 6)),
        refuse("mem-lengths-low", "mem_lengths[0] must be in 0..M = 0..5, got -1", **mem,
               mem_lengths=lengths(-1, 6)),
        refuse("mem-lengths-shape", "mem_lengths shape must be [B] with B = 2, got [3]", **mem,
               mem_lengths=lengths(1, 2, 3)),
        refuse("mem-lengths-dtype", "mem_lengths dtype must be int32, got float32", **mem,
               mem_lengths=zeros(2)),
        refuse("short-rel-k", "rel_k shape must have L >= M + N = 11, got [4,10,3]", **mem,
               rel_k=zeros(H, 10, D)),
        refuse("short-clamped", "rel_k shape must have L >= min(M + N, clamp_len + 1) = 5, got "
               "[4,4,3]", {"clamp_len": 4}, rel_k=zeros(H, 4, D)),
        refuse("clamp-beyond", "rel_k shape must have L >= min(M + N, clamp_len + 1) = 6, got "
               "[4,5,3]", {"clamp_len": 2**62}, rel_k=zeros(H, 5, D)),
        refuse("rel-k-heads", "rel_k shape must be [H,L,D] with H = 4, got [2,6,3]",
               rel_k=zeros(2, 6, D)),
        refuse("both", "w_r must not be sent with rel_k, got [4,3,8]", rel_k=zeros(H, 6, D),
               w_r=zeros(H, D, 8)),
        refuse("odd-waves", "w_r shape must have an even Dp >= 2, got [4,3,7]", w_r=zeros(H, D, 7)),
        refuse("no-waves", "w_r shape must have an even Dp >= 2, got [4,3,0]", w_r=zeros(H, D, 0)),
        refuse("bias", "bias shape must be broadcastable to [B,H,Nq,K] with K = M + N = 11, got "
               "[6,6]", **mem, bias=zeros(N, N)),
        refuse("u", "u shape must be [H,D] with H = 4, got [2,3]", u=zeros(2, D)),
        refuse("large-draw", "w_r must be sent where it has more than 16777216 elements, got "
               "67108864", q=zeros(2, 2, N, 4096), k=zeros(2, 2, N, 4096), v=zeros(2, 2, N, 5)),
    ]
    return rows + [
        Refused(f"grad-{name}", {"return_memory": True},
                [f"grad_{name} must be absent: {name} is a constant, got [2,2,6,3]"],
                change={f"grad_{name}": zeros(2, 2, 6, 3)}, backward=True)
        for name in ("mem_k", "mem_v", "mem_lengths")]
