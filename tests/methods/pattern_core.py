"""The core of patterns.md in NumPy: one masked softmax with a predicate, steps 1 to 7, its six
gradient formulas and the sums of absolute values that bound its rounding. A method's module gives
the predicate alone. Holds whole score matrices."""

import functools

import numpy as np

from tests.methods.cases import ints

# What PatternInputs of the library declares; shapes are letters of cases.Case.
TENSORS = {
    "q", "k", "v", "q_lengths", "kv_lengths", "causal_offset", "segment_ids_q", "segment_ids_kv",
    "cu_seqlens_q", "cu_seqlens_k", "bias", "alibi_slopes", "sink_logits",
}
DIFFERENTIABLE = ["q", "k", "v", "bias", "alibi_slopes", "sink_logits"]
OPTIONS = {
    "scale": "float", "causal": "bool", "logit_softcap": "float", "alibi": "bool",
    "duplicates": "enum",
}


def standard_slopes(H):
    c = 2 ** int(np.floor(np.log2(H)))
    return np.array([2.0 ** (-8 * (h + 1) / c) if h < c else 2.0 ** (-4 * (2 * (h - c) + 1) / c)
                     for h in range(H)])


def cut(x):
    """Finite terms as the library counts them."""
    return np.where(np.isfinite(x), np.clip(x, -2.29e38, 2.3e38), x).astype(x.dtype)


class PatternOracle:
    """`shown(o, p, j)`: whether the method's own predicate lets position p [Nq,1] see key j [1,Nk],
    causality and lengths apart."""

    def __init__(self, shown):
        self.shown = shown

    # --- what is visible ---

    def visible(self, t, o):
        """[B,1,Nq,Nk] of tensors that are not packed: step 4."""
        B, _, Nq, _ = t["q"].shape
        Nk = t["k"].shape[2]
        seen = np.zeros((B, 1, Nq, Nk), bool)
        i, j = np.arange(Nq)[:, None], np.arange(Nk)[None, :]
        for b in range(B):
            p = i + ints(t, "causal_offset", b, Nk - Nq)
            seen[b, 0] = (i < ints(t, "q_lengths", b, Nq)) & (j < ints(t, "kv_lengths", b, Nk))
            seen[b, 0] &= self.shown(o, p, j)
            if o.get("causal", False):
                seen[b, 0] &= j <= p
            if "segment_ids_q" in t:
                mine, theirs = t["segment_ids_q"][b][:, None], t["segment_ids_kv"][b][None, :]
                seen[b, 0] &= (mine == theirs) & (mine >= 0)
        return seen

    def pairs(self, t, o):
        parts = [piece for piece, _ in self.sequences(t)]
        return sum(int(self.visible(piece, o).sum()) for piece in parts) * t["q"].shape[1]

    # --- packed sequences ---

    @staticmethod
    def sequences(t):
        """(tensors of one sequence, {name: where they lie in t}); one of all if not packed."""
        if "cu_seqlens_q" not in t:
            yield t, {name: np.s_[...] for name in t}
            return
        cu_q, cu_k = t["cu_seqlens_q"], t["cu_seqlens_k"]
        for s in range(len(cu_q) - 1):
            rows, keys = slice(cu_q[s], cu_q[s + 1]), slice(cu_k[s], cu_k[s + 1])
            where = {name: np.s_[:, :, rows] for name in ("q", "grad_out", "grad_lse", "out", "lse")}
            where |= {name: np.s_[:, :, keys] for name in "kv"}
            if "bias" in t:
                n = (1,) * (4 - t["bias"].ndim) + t["bias"].shape
                at = [slice(None), slice(None), slice(None) if n[2] == 1 else rows,
                      slice(None) if n[3] == 1 else keys]
                where["bias"] = tuple(at[4 - t["bias"].ndim:])
            where |= {name: np.s_[...] for name in ("alibi_slopes", "sink_logits")}
            yield {name: x[where[name]] for name, x in t.items() if name in where}, where

    def forward(self, t, o, dtype=np.float64):
        B, H, Nq, _ = t["q"].shape
        out = {"out": np.zeros((B, H, Nq, t["v"].shape[3]), dtype), "lse": np.zeros((B, H, Nq), dtype)}
        for piece, where in self.sequences(t):
            done = Core(self, piece, o, dtype)
            out["out"][where.get("out", ...)] = done.P @ done.v
            out["lse"][where.get("lse", ...)] = done.lse
        return out

    def backward(self, t, o, dtype=np.float64, store=lambda x: x):
        """Gradients for t's grad_out and grad_lse. `store` rounds out as code that keeps it would."""
        return self.summed(t, lambda piece: Core(self, piece, o, dtype).backward(store), dtype)

    @staticmethod
    def named(t):
        return [name for name in DIFFERENTIABLE if name in t]

    def summed(self, t, gradients_of, dtype):
        grads = {name: np.zeros(t[name].shape, dtype) for name in self.named(t)}
        for piece, where in self.sequences(t):
            for name, x in gradients_of(piece).items():
                grads[name][where[name]] += x
        return grads

    def magnitude(self, t, o):
        """Sums of absolute values of what is added up, for error bounds: {name: (float32 part, part
        that a rounded `out` brings in through delta)}, and how much a score amplifies a rounding."""
        sums = {"out": (np.zeros_like(self.forward(t, o)["out"]), 0),
                "lse": (np.zeros(t["q"].shape[:3]), 0)}
        amplification = 0.0
        for piece, where in self.sequences(t):
            done = Core(self, piece, o, np.float64)
            sums["out"][0][where.get("out", ...)] = done.P @ abs(done.v)
            sums["lse"][0][where.get("lse", ...)] = 1 + abs(
                np.where(np.isfinite(done.lse), done.lse, 0))
            amplification = max(amplification, done.amplification())
        if "grad_out" in t or "grad_lse" in t:
            parts = [self.summed(t, lambda piece, i=i: Core(self, piece, o, np.float64)
                                 .magnitude()[i], np.float64) for i in range(2)]
            sums |= {name: (parts[0][name], parts[1][name]) for name in parts[0]}
        return sums, amplification


class Core:
    """Scores and weights of tensors that are not packed. q, k, v hold zeros in rows nobody may
    read, and one kv head per query head."""

    def __init__(self, oracle, t, o, dtype):
        self.t, self.dtype = t, dtype
        H, D = t["q"].shape[1], t["q"].shape[3]
        Nq, Nk = t["q"].shape[2], t["k"].shape[2]
        seen = np.broadcast_to(oracle.visible(t, o), (t["q"].shape[0], H, Nq, Nk))
        self.bias = np.zeros((1, 1, 1, 1), dtype)
        if "bias" in t:
            self.bias = cut(t["bias"].astype(dtype)).reshape(
                (1,) * (4 - t["bias"].ndim) + t["bias"].shape)
            seen = seen & ~np.isneginf(self.bias)
        q, k, v = (t[name].astype(dtype) for name in "qkv")
        k, v = (np.repeat(x, H // k.shape[1], axis=1) for x in (k, v))
        self.seen = seen
        self.q = np.where(seen.any(axis=3)[..., None], q, dtype(0))
        self.k, self.v = (np.where(seen.any(axis=2)[..., None], x, dtype(0)) for x in (k, v))
        self.scale = o.get("scale", 1 / np.sqrt(D).item())
        self.cap = o.get("logit_softcap", 0)
        self.slopes = None
        if "alibi_slopes" in t:
            self.slopes = t["alibi_slopes"].astype(dtype).reshape((-1, H, 1, 1))
        elif o.get("alibi", False):
            self.slopes = standard_slopes(H).astype(dtype).reshape((1, H, 1, 1))
        offset = np.array([ints(t, "causal_offset", b, Nk - Nq) for b in range(len(q))])
        p = np.arange(Nq)[None, :] + offset[:, None]
        self.distance = abs(p[:, None, :, None] - np.arange(Nk)).astype(dtype)  # [B,1,Nq,Nk]
        self.valid = np.array([[i < ints(t, "q_lengths", b, Nq) for i in range(Nq)]
                               for b in range(len(q))], bool).reshape(len(q), 1, Nq)
        self.weigh()

    @functools.cached_property
    def sinks(self):
        """[1,H,1], -inf where a row has none."""
        if "sink_logits" not in self.t:
            return np.full((1, 1, 1), -np.inf, self.dtype)
        z = cut(self.t["sink_logits"].astype(self.dtype)).reshape((1, -1, 1))
        return np.where(self.valid, z, self.dtype(-np.inf))

    def weigh(self):
        """P and lse, steps 1 to 7; `again`: P as a backward has it that kept lse only."""
        dtype = self.dtype
        x = (self.scale * (self.q @ self.k.swapaxes(2, 3))).astype(dtype)
        self.through_cap = dtype(1)
        if self.cap > 0:
            tanh = np.tanh(x / dtype(self.cap))
            x, self.through_cap = dtype(self.cap) * tanh, 1 - tanh * tanh
        with np.errstate(invalid="ignore"):
            s = x + np.where(self.seen, self.bias, dtype(0))
            if self.slopes is not None:
                s = s - self.slopes * self.distance
        s = np.where(self.seen, s, -np.inf).astype(dtype)
        m = np.maximum(s.max(axis=3, initial=-np.inf), self.sinks)
        m_safe = np.where(np.isneginf(m), 0, m).astype(dtype)
        e = np.exp(s - m_safe[..., None])
        z = e.sum(axis=3) + np.exp(self.sinks - m_safe)
        with np.errstate(divide="ignore"):
            self.lse = (m_safe + np.log(z)).astype(dtype)
        self.P = e / np.where(z == 0, 1, z)[..., None].astype(dtype)
        alive = np.where(z == 0, 0, self.lse)
        self.again = np.where(self.seen, np.exp(s - alive[..., None]), dtype(0))
        self.of_sink = np.where(np.isneginf(self.sinks), dtype(0), np.exp(self.sinks - alive))

    def incoming(self):
        """grad_out and grad_lse, zero where absent and in rows without gradient."""
        alive = np.isfinite(self.lse)
        dO, dL = np.zeros(alive.shape + self.v.shape[3:], self.dtype), np.zeros(alive.shape, self.dtype)
        if "grad_out" in self.t:
            dO = np.where(alive[..., None], self.t["grad_out"].astype(self.dtype), self.dtype(0))
        if "grad_lse" in self.t:
            dL = np.where(alive, self.t["grad_lse"].astype(self.dtype), self.dtype(0))
        return dO, dL

    def flows(self, dS, through_cap, P, dO, q, k, scale, back):
        """The gradients that follow from dS; `back` is that of a row's denominator."""
        dT = dS * through_cap
        grads = {
            "q": scale * (dT @ k),
            "k": self.by_kv_head(scale * (dT.swapaxes(2, 3) @ q)),
            "v": self.by_kv_head(P.swapaxes(2, 3) @ dO),
        }
        if "bias" in self.t:
            grads["bias"] = self.summed_to(dS, "bias", 4)
        if "alibi_slopes" in self.t:
            grads["alibi_slopes"] = self.summed_to((dS * self.distance).sum(axis=(2, 3)),
                                                   "alibi_slopes", 2)
        if "sink_logits" in self.t:
            grads["sink_logits"] = self.summed_to((self.of_sink * back).sum(axis=2),
                                                  "sink_logits", 2)
        return grads

    def backward(self, store):
        dO, dL = self.incoming()
        delta = (dO * store(self.P @ self.v)).sum(axis=3)
        dS = self.again * (dO @ self.v.swapaxes(2, 3) - delta[..., None] + dL[..., None])
        grads = self.flows(dS, self.through_cap, self.again, dO, self.q, self.k, self.scale,
                           dL - delta)
        if "alibi_slopes" in grads:
            grads["alibi_slopes"] = -grads["alibi_slopes"]
        return grads

    def magnitude(self):
        """Sums of absolute values: all of it, and what a rounded `out` brings in through delta."""
        dO, dL = (abs(x) for x in self.incoming())
        q, k, v, scale = abs(self.q), abs(self.k), abs(self.v), abs(self.scale)
        delta = (dO * (self.P @ v)).sum(axis=3)
        dS = self.again * (dO @ v.swapaxes(2, 3) + delta[..., None] + dL[..., None])
        whole = self.flows(dS, 1, self.again, dO, q, k, scale, delta + dL)
        stored = self.flows(self.again * delta[..., None], 1, 0 * self.P, dO, q, k, scale, delta)
        return whole, stored

    def amplification(self):
        """The largest sum of absolute values behind one score."""
        total = abs(self.scale) * (abs(self.q) @ abs(self.k).swapaxes(2, 3))
        with np.errstate(invalid="ignore"):
            # A bias of which no digit of the score is left rounds nothing.
            total = total + np.where(abs(self.bias) < 1e30, abs(self.bias), 0)
        if self.slopes is not None:
            total = total + abs(self.slopes) * self.distance
        return np.where(self.seen, total, 0).max(initial=0)

    def by_kv_head(self, x):
        """[B,H,N,D] summed over the query heads of each kv head."""
        B, H, N, D = x.shape
        Hkv = self.t["k"].shape[1]
        return x.reshape(B, Hkv, H // Hkv, N, D).sum(axis=2)

    def summed_to(self, x, name, rank):
        """Summed over what tensor `name` repeats of a tensor of `rank` dimensions."""
        shape = self.t[name].shape
        full = (1,) * (rank - len(shape)) + shape
        axes = tuple(i for i in range(rank) if full[i] == 1 and x.shape[i] != 1)
        return x.sum(axis=axes, keepdims=True).reshape(shape)
