"""Tensors whose scores float32 holds exactly, at any magnitude, so that gradients can be compared
with the oracle there.

A float32 score of 1e6 is off by 0.06 where it was rounded, and its weight by 6 %, whatever the
code: weights of drawn inputs say nothing about a gradient. Here a score is

    s_ij = sign_i A_j M + b_i B_j u,    A_j of {1, 0, -1}, b_i and B_j small integers,

a multiple of the unit u = max(1/4, M / 2^22) below 2^24 u (at 1e30 of M / 2^14: beside it float64
loses a mask of -1e9, too): products, partial sums in any order, the scale (a power of two) and a
bias are exact in float32, and every entry of q and k has at most three bits, as many as bfloat16
and tensor cores hold. A_j M gives ties and gaps beyond any weight, b_i B_j u gaps of order one up
to M = 2^20; above, float32 has no such scores.

A finite mask that is added to a score rounds it to units of its own, 64 for -1e9 and 2e31 for
finfo.min. The keys that it hides are therefore equal to each other, and a row of which it hides
all keys has no b_i: what is rounded there are ties, and gaps that remain far."""

import dataclasses

import numpy as np

# Scores by name: the exponent of the power of two.
MAGNITUDES = {"1": 0, "1e2": 7, "1e4": 13, "1e6": 20, "1e8": 27, "1e12": 40, "1e30": 100}
LOWEST = float(np.finfo(np.float32).min)
MASKS = {"none": 0.0, "-1e9": -1e9, "finfo.min": LOWEST, "-inf": -np.inf}
# Magnitudes that one request can have, and the exponent of its scale. float16 ends at 2^16: there
# the largest scores need a scale of their own.
GROUPS = {
    "f32": [(tuple(MAGNITUDES), -1)],
    "bf16": [(tuple(MAGNITUDES), -1)],
    "f16": [(("1", "1e2", "1e4", "1e6", "1e8"), -1), (("1e12",), 12), (("1e30",), 72)],
}
OF_KEY = 13  # |k| <= 2^13; q has the rest of the magnitude
QUERIES = ("q", "q_global", "inducing")
KEYS = ("k", "k_global", "mem_k", "cmem_k", "null_k", "seeds", "w_dense")
VALUES = ("v", "v_global", "mem_v", "cmem_v", "null_v")
# Added to queries or scores alike at all magnitudes: exact if they are 0. Their gradients are not.
ZEROS = ("u", "v_bias", "rel_bias_long", "rel_bias_global")
# Looked up by a label, times q: multiples of u.
UNITS = ("rel_k", "rel_emb_long", "rel_emb_global")


@dataclasses.dataclass
class Exact:
    """Replaces the float tensors of a case, problem by problem: problem b has names[b] =
    (magnitude, mask). `by_key`: keys have the magnitude, because queries are shared by the batch.
    `shared`: q serves as the keys. `every`: each key is masked, not each fifth. `is_second`: q
    meets the result of another attention, which is not exact."""

    names: list
    scale_bits: int
    rng: np.random.Generator
    by_key: bool = False
    shared: bool = False
    every: bool = False
    is_second: bool = False

    def bits(self):
        return np.array([MAGNITUDES[m] for m, _ in self.names]) - self.scale_bits

    def unit(self):
        """u / scale of each problem, [B,1,1]."""
        m = self.bits() + self.scale_bits
        below = np.where(m > 80, 14, 22)
        return (2.0 ** (np.maximum(-2, m - below) - self.scale_bits))[:, None, None]

    def whole_rows(self, n, bias):
        """[n]: rows of which a bias of this shape hides all keys."""
        return (np.arange(n) % 7 == 3) & (bias is not None and bias.shape[-2] == n)

    def hidden(self, n):
        """[n]: keys that are masked in every row; the same for all problems."""
        return (np.arange(n) % 5 == 2) | self.every

    def large(self, shape, bias):
        """[B,H,N,D] with the magnitude: sign_i M / 2^13 and b_i u."""
        B, _, n, _ = shape
        x = np.zeros(shape)
        sign = self.rng.choice([1, 1, -1, 0], shape[:3])
        b = self.rng.integers(0, 4, shape[:3])
        whole = self.whole_rows(n, bias)
        b[..., whole] = 0
        if self.by_key:
            sign[..., self.hidden(n)], b[..., self.hidden(n)] = 1, 0
        for at, (magnitude, mask) in enumerate(self.names):
            # Below: gaps that -1e9 rounds away; gaps that finfo.min rounds away in float32 alone.
            if magnitude == "1" or (magnitude, mask) == ("1e30", "finfo.min"):
                sign[at][:, whole] = 0
        x[..., 0] = sign * 2.0 ** (self.bits() - OF_KEY)[:, None, None]
        if shape[3] > 1:
            x[..., 1] = b * self.unit()
        return x

    def small(self, shape):
        """[..,N,D]: A_j 2^13 and B_j. Odd heads have A_j = 1 alone: all scores of a row have the
        sign of its query."""
        x = np.zeros(shape)
        a = self.rng.choice([1, 1, 1, 0, -1], shape[:-1])
        if a.ndim > 1:
            a[..., 1::2, :] = 1
        b = self.rng.integers(-2, 3, shape[:-1])
        hidden = self.hidden(shape[-2])
        a[..., hidden], b[..., hidden] = 1, 0
        x[..., 0] = a * 2.0**OF_KEY
        if shape[-1] > 1:
            x[..., 1] = b
        return x

    def both(self, shape, bias):
        """q that serves as k: M = 2^(2h) or twice that, and units of it."""
        sign, b = self.rng.choice([1, 1, -1, 0], shape[:3]), self.rng.integers(0, 4, shape[:3])
        half = (self.bits() + 1) // 2
        x = np.zeros(shape)
        x[..., 0] = sign * 2.0 ** half[:, None, None]
        below = np.where(self.bits() + self.scale_bits > 80, 7, 11)
        x[..., 1] = b * 2.0 ** np.maximum(0, half - below)[:, None, None]
        whole = self.whole_rows(shape[2], bias)
        x[..., whole, :] = 0
        return x

    def values(self, shape):
        """Channel 0 is 1: out there is the sum of the weights of a row."""
        x = self.rng.integers(-3, 4, shape).astype(float)
        x[..., 0] = 1
        return x

    def bias(self, shape):
        """Masks some keys everywhere and some rows wholly, each by its problem's number."""
        x = np.zeros(shape)
        keys = self.hidden(shape[-1]) if shape[-1] > 1 else np.zeros(1, bool)
        for at, (_, mask) in enumerate(self.names):
            x[at][..., keys] = MASKS[mask]
            if shape[-2] > 1:
                x[at][..., np.arange(shape[-2]) % 7 == 3, :] = MASKS[mask]
        return x

    def of(self, name, x, bias):
        """What replaces tensor `name`; x: as the case made it."""
        shape = x.shape
        if name == "q" and self.shared:
            return self.both(shape, bias)
        if name == "q" and self.is_second:
            return self.rng.integers(-2, 3, shape) / 2.0 * (self.scale_bits < 0)
        if name in QUERIES or (self.by_key and name == "k"):
            return self.large(shape, bias)
        if name == "w_dense":
            return self.small(shape[::-1]).T if len(shape) == 2 else self.small(
                (shape[0], shape[2], shape[1])).swapaxes(1, 2)
        if name == "null_k":
            return np.zeros(shape)
        if name in KEYS:
            return self.small(shape)
        if name == "null_v":
            return np.where(np.arange(shape[-1]) == 0, 0.0, self.values(shape))
        if name in VALUES:
            return self.values(shape)
        if name == "grad_out":
            x = self.rng.integers(-2, 3, shape) / 2.0
            x[..., 0] = 1
            return x
        if name == "grad_lse":
            return self.rng.integers(-4, 5, shape) / 4.0
        if name.startswith("bias"):
            return self.bias(shape)
        if name == "alibi_slopes":
            return np.broadcast_to(self.unit()[:, :, 0] * 2.0**self.scale_bits, shape)
        if name == "sink_logits":
            powers = [2.0 ** MAGNITUDES[m] for m in ("1", "1e2", "1e4", "1e6")]
            return np.resize(powers, shape) + 1
        if name in ZEROS:
            return np.zeros(shape)
        if name in UNITS:
            made = np.zeros(shape)
            made[..., 1] = self.rng.integers(-1, 2, shape[:-1])
            return made
        return x

    def replace(self, t):
        """The same tensors with exact values, each of its dtype."""
        bias = next((t[name] for name in t if name.startswith("bias")), None)
        made = dict(t)
        for name, x in t.items():
            if x.dtype.kind not in "iu":
                made[name] = np.ascontiguousarray(self.of(name, x.astype(float), bias)).astype(
                    x.dtype)
        return made


def problems(dtype):
    """(names, exponent of the scale) of each request of this dtype."""
    return [(tuple((m, mask) for m in magnitudes for mask in MASKS), bits)
            for magnitudes, bits in GROUPS[dtype]]

