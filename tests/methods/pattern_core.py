"""The core of the pattern specification in NumPy: one masked softmax with a predicate, steps 1 to
7, its six gradient formulas and the sums of absolute values that bound its rounding. A method's
module gives the predicate and, where it has them, kinds of rows, distances, places of biases, or
weights of its own. Holds whole score matrices."""

import dataclasses
import functools
import typing

import numpy as np

from tests.methods.cases import ints
from tests.methods.method import Oracle


def standard_slopes(H):
    c = 2 ** int(np.floor(np.log2(H)))
    return np.array([2.0 ** (-8 * (h + 1) / c) if h < c else 2.0 ** (-4 * (2 * (h - c) + 1) / c)
                     for h in range(H)])


@dataclasses.dataclass(frozen=True)
class Seq:
    """Sequence `b` of tensors `t` that are not packed, or one packed sequence."""

    o: dict
    t: dict
    b: int

    @property
    def H(self):
        return self.t["q"].shape[1]

    @property
    def Nq(self):
        return self.t["q"].shape[2]

    @property
    def Nk(self):
        return self.t["k"].shape[2]

    @property
    def i(self):
        return np.arange(self.Nq)[:, None]

    @property
    def p(self):
        return self.i + ints(self.t, "causal_offset", self.b, self.Nk - self.Nq)

    @property
    def j(self):
        return np.arange(self.Nk)[None, :]


def positions(seq):
    return abs(seq.p - seq.j)


@dataclasses.dataclass(frozen=True)
class Kind:
    """Query rows that share tensors. `rows(seq)`: which are of this kind, broadcastable to [H,Nq];
    `names`: the tensors they use in place of q, k and v, where those are sent."""

    rows: typing.Callable = lambda seq: np.True_
    names: dict = dataclasses.field(default_factory=dict)

    def name(self, role, t):
        name = self.names.get(role, role)
        return name if name in t else role


class PatternOracle(Oracle):
    """`sees(seq)`: whether the method's own predicate lets queries see keys, broadcastable to
    [H,Nq,Nk], causality, lengths and segments apart; or a pair of that and of a float array that is
    added to the scores last (ln of how often a key counts).

    `kinds` cover each query row once. `distance(seq)` [Nq,Nk] is what ALiBi slopes multiply.
    `bias_at(seq)` gives the last two indices of `bias` at [Nq,Nk] pairs. `core` weighs the scores;
    `gives_lse(o)`: whether it has an lse. `causal(o)`: whether j <= p is required."""

    def __init__(self, sees, kinds=(Kind(),), distance=positions,
                 bias_at=None, core=None, gives_lse=lambda o: True,
                 causal=lambda o: o.get("causal", False)):
        self.sees, self.kinds = sees, kinds
        self.distance, self.bias_at, self.core = distance, bias_at, core or Core
        self.gives_lse, self.causal = gives_lse, causal

    # --- what is visible ---

    def shown(self, t, o):
        """For tensors that are not packed: step 4 as bools, and the scores that multiplicities add,
        both [B,H,Nq,Nk]."""
        B, H, Nq, _ = t["q"].shape
        Nk = t["k"].shape[2]
        seen, more = np.zeros((B, H, Nq, Nk), bool), np.zeros((B, H, Nq, Nk))
        for b in range(B):
            seq = Seq(o, t, b)
            own = self.sees(seq)
            if isinstance(own, tuple):
                own, more[b] = own
            seen[b] = own
            seen[b] &= seq.i < ints(t, "q_lengths", b, Nq)
            seen[b] &= seq.j < ints(t, "kv_lengths", b, Nk)
            if self.causal(o):
                seen[b] &= seq.j <= seq.p
            if "segment_ids_q" in t:
                mine, theirs = t["segment_ids_q"][b][:, None], t["segment_ids_kv"][b][None, :]
                seen[b] &= (mine == theirs) & (mine >= 0)
        return seen, more

    def visible(self, t, o):
        """[B,H,Nq,Nk] of tensors that are not packed."""
        return self.shown(t, o)[0]

    def pairs(self, t, o):
        return sum(int(self.visible(piece, o).sum()) for piece, _ in self.sequences(t))

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
            where = {name: np.s_[...] for name in t if not name.startswith("cu_seqlens")}
            where |= {name: np.s_[:, :, rows]
                      for name in ("q", "q_global", "grad_out", "grad_lse", "out", "lse")}
            where |= {name: np.s_[:, :, keys] for name in ("k", "v", "k_global", "v_global")}
            where |= {"global_mask": np.s_[..., keys], "rand_keys": np.s_[..., rows, :]}
            if "bias" in t:
                n = (1,) * (4 - t["bias"].ndim) + t["bias"].shape
                at = [slice(None), slice(None), slice(None) if n[2] == 1 else rows,
                      slice(None) if n[3] == 1 else keys]
                where["bias"] = tuple(at[4 - t["bias"].ndim:])
            yield {name: x[where[name]] for name, x in t.items() if name in where}, where

    def cores(self, t, o, dtype):
        """(scores and weights of the rows of one kind in one sequence, where its tensors lie)."""
        for piece, where in self.sequences(t):
            for kind in self.kinds:
                yield self.core(self, piece, o, dtype, kind), where

    def forward(self, t, o, dtype=np.float64):
        B, H, Nq, _ = t["q"].shape
        out, lse = np.zeros((B, H, Nq, t["v"].shape[3]), dtype), np.zeros((B, H, Nq), dtype)
        for done, where in self.cores(t, o, dtype):
            out[where.get("out", ...)] += done.P @ done.v
            at = lse[where.get("lse", ...)]
            at[done.mine] = done.lse[done.mine]
        return {"out": out} | ({"lse": lse} if self.gives_lse(o) else {})

    def backward(self, t, o, dtype=np.float64, store=lambda x: x):
        """Gradients for t's grad_out and grad_lse. `store` rounds out as code that keeps it
        would."""
        return self.summed(t, o, lambda done: done.backward(store), dtype)

    @staticmethod
    def differentiable(t):
        """Names of the inputs that are no integers."""
        return [name for name, x in t.items()
                if x.dtype.kind not in "iu" and not name.startswith("grad_")]

    def summed(self, t, o, gradients_of, dtype):
        grads = {name: np.zeros(t[name].shape, dtype) for name in self.differentiable(t)}
        for done, where in self.cores(t, o, dtype):
            for role, x in gradients_of(done).items():
                name = done.kind.name(role, t)
                grads[name][where[name]] += x
        return grads

    def magnitude(self, t, o):
        """Sums of absolute values of all terms, for error bounds: {name: (float32 part,
        part that a rounded `out` brings in through delta)}, and how much a score amplifies a
        rounding."""
        out = np.zeros((*t["q"].shape[:3], t["v"].shape[3]))
        lse = np.zeros(t["q"].shape[:3])
        amplification = 0.0
        for done, where in self.cores(t, o, np.float64):
            out[where.get("out", ...)] += done.magnitude_of_out()
            at = lse[where.get("lse", ...)]
            at[done.mine] = 1 + abs(np.where(np.isfinite(done.lse), done.lse, 0))[done.mine]
            amplification = max(amplification, done.amplification())
        sums = {"out": (out, 0), "lse": (lse, 0)}
        if "grad_out" in t or "grad_lse" in t:
            parts = [self.summed(t, o, lambda done, i=i: done.magnitude()[i], np.float64)
                     for i in range(2)]
            sums |= {name: (parts[0][name], parts[1][name]) for name in parts[0]}
        return sums, amplification


class Core:
    """Scores and weights of tensors that are not packed. q, k, v hold zeros in rows that must not be
    read, and one kv head per query head."""

    def __init__(self, oracle, t, o, dtype, kind):
        self.oracle, self.t, self.o, self.dtype, self.kind = oracle, t, o, dtype, kind
        (B, H, Nq, D), Nk = t["q"].shape, t["k"].shape[2]
        self.seqs = [Seq(o, t, b) for b in range(B)]
        self.mine = np.array([np.broadcast_to(kind.rows(seq), (H, Nq)) for seq in self.seqs])
        seen, self.more = oracle.shown(t, o)
        self.more = self.more.astype(dtype)
        seen &= self.mine[..., None]
        self.bias = np.zeros((1, 1, 1, 1), dtype)
        if "bias" in t:
            self.bias = t["bias"].astype(dtype).reshape((1,) * (4 - t["bias"].ndim) + t["bias"].shape)
            if oracle.bias_at:
                self.bias = self.bias[..., *self.places_of_bias()]
            seen &= ~np.isneginf(self.bias)
        q, k, v = (t[kind.name(role, t)].astype(dtype) for role in "qkv")
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
        self.distance = np.array([np.broadcast_to(oracle.distance(seq), (1, Nq, Nk))
                                  for seq in self.seqs]).astype(dtype)  # [B,1,Nq,Nk]
        lengths = np.array([ints(t, "q_lengths", b, Nq) for b in range(B)]).reshape(B, 1, 1)
        self.valid = self.mine & (np.arange(Nq) < lengths)
        self.weigh()

    def places_of_bias(self):
        """[Nq,Nk] indices of the last two dimensions of `bias`; 0 along one of size 1."""
        shape = (1, 1, *self.t["bias"].shape)[-2:]
        places = np.broadcast_arrays(*self.oracle.bias_at(self.seqs[0]))
        return [place if n > 1 else 0 * place for n, place in zip(shape, places)]

    def to_places_of_bias(self, x):
        """[B,H,Nq,Nk] summed to the place of each pair's bias."""
        if not self.oracle.bias_at:
            return x
        summed = np.zeros((*x.shape[:2], *(1, 1, *self.t["bias"].shape)[-2:]), x.dtype)
        np.add.at(summed, (slice(None), slice(None), *self.places_of_bias()), x)
        return summed

    @functools.cached_property
    def sinks(self):
        """[1,H,1], -inf where a row has none."""
        if "sink_logits" not in self.t:
            return np.full((1, 1, 1), -np.inf, self.dtype)
        z = self.t["sink_logits"].astype(self.dtype).reshape((1, -1, 1))
        return np.where(self.valid, z, self.dtype(-np.inf))

    def products(self):
        """Step 1 before the scale."""
        return self.q @ self.k.swapaxes(2, 3)

    def scores(self):
        """Steps 1 to 3, -inf where nothing is seen."""
        dtype = self.dtype
        x = (self.scale * self.products()).astype(dtype)
        self.through_cap = dtype(1)
        if self.cap > 0:
            tanh = np.tanh(x / dtype(self.cap))
            x, self.through_cap = dtype(self.cap) * tanh, 1 - tanh * tanh
        with np.errstate(invalid="ignore"):
            s = x + np.where(self.seen, self.bias, dtype(0))
            if self.slopes is not None:
                s = s - self.slopes * self.distance
            s = s + self.more
        return np.where(self.seen, s, -np.inf).astype(dtype)

    def weigh(self):
        """P and lse, steps 4 to 7; `again`: P as a backward has it that kept lse and, as numbers of
        the same type, what its rounding left out."""
        dtype, s = self.dtype, self.scores()
        m = np.maximum(s.max(axis=3, initial=-np.inf), self.sinks)
        m_safe = np.where(np.isneginf(m), 0, m).astype(dtype)
        e = np.exp(s - m_safe[..., None])
        z = e.sum(axis=3) + np.exp(self.sinks - m_safe)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_z = np.log(z)
            self.lse = (m_safe + log_z).astype(dtype)
            low = ((m_safe - self.lse) + log_z).astype(dtype)
        self.P = e / np.where(z == 0, 1, z)[..., None].astype(dtype)
        alive, low = np.where(z == 0, 0, self.lse), np.where(np.isfinite(low), low, 0)
        self.again = np.where(self.seen, np.exp(s - alive[..., None] - low[..., None]), dtype(0))
        self.of_sink = np.where(np.isneginf(self.sinks), dtype(0), np.exp(self.sinks - alive - low))

    def incoming(self):
        """grad_out and grad_lse, zero where absent and in rows without gradient."""
        alive = np.isfinite(self.lse)
        dO = np.zeros(alive.shape + self.v.shape[3:], self.dtype)
        dL = np.zeros(alive.shape, self.dtype)
        if "grad_out" in self.t:
            dO = np.where(alive[..., None], self.t["grad_out"].astype(self.dtype), self.dtype(0))
        if "grad_lse" in self.t:
            dL = np.where(alive, self.t["grad_lse"].astype(self.dtype), self.dtype(0))
        return dO, dL

    def flows(self, dS, through_cap, P, dO, back=None, size=lambda x: x):
        """The gradients that follow from dS; `back` is that of a row's denominator. With size=abs
        the sums of the sizes of what they add up, if those of the arguments are given."""
        dT = dS * through_cap
        scale = size(self.scale)
        grads = {
            "q": scale * (dT @ size(self.k)),
            "k": self.by_kv_head(scale * (dT.swapaxes(2, 3) @ size(self.q))),
            "v": self.by_kv_head(P.swapaxes(2, 3) @ dO),
        }
        if "bias" in self.t:
            grads["bias"] = self.summed_to(self.to_places_of_bias(dS), "bias", 4)
        if "alibi_slopes" in self.t:
            grads["alibi_slopes"] = self.summed_to(
                (size(-dS) * self.distance).sum(axis=(2, 3)), "alibi_slopes", 2)
        if "sink_logits" in self.t:
            grads["sink_logits"] = self.summed_to((self.of_sink * back).sum(axis=2),
                                                  "sink_logits", 2)
        return grads

    def backward(self, store):
        dO, dL = self.incoming()
        delta = (dO * store(self.P @ self.v)).sum(axis=3)
        dS = self.again * (dO @ self.v.swapaxes(2, 3) - delta[..., None] + dL[..., None])
        return self.flows(dS, self.through_cap, self.again, dO, dL - delta)

    def magnitude(self):
        """Sums of absolute values: all of it, and what a rounded `out` brings in through delta."""
        dO, dL = (abs(x) for x in self.incoming())
        v = abs(self.v)
        delta = (dO * (self.P @ v)).sum(axis=3)
        dS = self.again * (dO @ v.swapaxes(2, 3) + delta[..., None] + dL[..., None])
        whole = self.flows(dS, 1, self.again, dO, delta + dL, abs)
        stored = self.flows(self.again * delta[..., None], 1, 0 * self.P, dO, delta, abs)
        return whole, stored

    def magnitude_of_out(self):
        return self.P @ abs(self.v)

    def size_of_products(self):
        return abs(self.q) @ abs(self.k).swapaxes(2, 3)

    def size_of_scores(self):
        """The sum of absolute values behind each score; 0 where nothing is seen."""
        total = abs(self.scale) * self.size_of_products() + abs(self.more)
        with np.errstate(invalid="ignore"):
            # A bias of which no digit of the score is left rounds nothing.
            total = total + np.where(abs(self.bias) < 1e30, abs(self.bias), 0)
        if self.slopes is not None:
            total = total + abs(self.slopes) * self.distance
        return np.where(self.seen, total, 0)

    def amplification(self):
        return self.size_of_scores().max(initial=0)

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
