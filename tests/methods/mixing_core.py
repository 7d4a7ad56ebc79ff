"""What the methods that mix the rows of v share: their oracle, refusals, golden tensors. n_b is
kv_lengths[b]; q and k may be sent and are not read."""

import dataclasses
import math
import statistics

import numpy as np

from tests.methods import drawn, refused
from tests.methods.golden import lowrank_golden, wave
from tests.methods.refused import Refused, common_refusals, ints, zeros
from tests.methods.traced import TracedOracle

B, H, N, Dv = refused.B, refused.H, refused.Nq, refused.Dv
LACKS = ("scale", "gqa", "q", "cross")


class MixingOracle(TracedOracle):
    """`compute` sees v cut to n_b rows."""

    differentiable = ("v",)

    def _lengths(self, t, b):
        n = int(t["kv_lengths"][b]) if "kv_lengths" in t else t["v"].shape[2]
        return n, n

    def visible(self, t, o):
        batch, _, n, _ = t["v"].shape
        seen = np.ones((batch, 1, n, n), bool)
        if o.get("causal", False):
            seen &= np.tri(n, dtype=bool)
        for b in range(batch):
            length = self._lengths(t, b)[0]
            seen[b, :, length:] = seen[b, :, :, length:] = False
        return seen

    def pairs(self, t, o):
        return int(self.visible(t, o).sum()) * t["v"].shape[1]

    def gives_lse(self, o):
        return False


def merged(f, x):
    """[1,H,n,D] -> [n, H D]: the heads of a row side by side."""
    _, heads, n, D = x.shape
    return x.swapaxes(1, 2).reshape(n, heads * D)


def apart(f, x, heads):
    """[n, H D] -> [1,H,n,D]."""
    n, C = x.shape
    return x.reshape(1, n, heads, C // heads).swapaxes(1, 2)


def table(*letters, scale=1.0):
    """A function for Case.made: normals of these sizes: letters of Case, numbers, "C" (heads times
    Dv), "Dg" (half of Dv), "N+2"."""

    def make(rng, case):
        width = case.Dv or case.D
        sizes = {"B": case.B, "H": case.H, "N": case.Nq, "N+2": case.Nq + 2, "Dv": width,
                 "C": case.H * width, "Dg": width // 2}
        return scale * rng.standard_normal([sizes.get(x, x) for x in letters])

    return make


def golden(id, options, out00, out11, out5, total, tables=None, **more):
    """A row of the specification; `tables`: name -> (c, shape) of P_c."""
    tensors = {name: 0.5 * wave(np.cos, shape, 0.3, c)
               for name, (c, shape) in (tables or {}).items()}
    return lowrank_golden(id, options, out00, out11, out5, total, more=tensors | more)


def mixing_refusals(others=(), has_causal=True):
    """What every method of the family refuses alike; `others`: its tensors after the lengths."""
    lacks = LACKS if has_causal else (*LACKS, "causal")

    def refuse(id, reason, **change):
        return Refused(id, {}, [reason], change=change)

    v = zeros(B, H, N, Dv)
    return common_refusals({}, (), ("q_lengths", "kv_lengths", *others), ("out",), lacks) + [
        refuse("cross", "Nk must be Nq = 6, got 7", k=zeros(B, H, 7, 3), v=zeros(B, H, 7, Dv)),
        refuse("cross-without-k", "Nk must be Nq = 6, got 7", k=None, v=zeros(B, H, 7, Dv)),
        refuse("heads-without-k", "Hkv must be H = 4, got 3", k=None, v=zeros(B, 3, N, Dv)),
        refuse("no-heads-without-k", "Hkv must be H = 4, got 0", k=None, v=zeros(B, 0, N, Dv)),
        refuse("lengths-differ", "q_lengths[1] must be kv_lengths[1] = 5, got 4",
               q_lengths=ints(6, 4), kv_lengths=ints(6, 5)),
        refuse("lengths-of-queries", "q_lengths[1] must be Nk = 6 without kv_lengths, got 4",
               q_lengths=ints(6, 4)),
        refuse("lengths-out-of-range", "kv_lengths[0] must be in 0..Nk = 0..6, got 7",
               q_lengths=ints(6, 4), kv_lengths=ints(7, 5)),
        refuse("lengths-shape-of-queries", "q_lengths shape must be [B] with B = 2, got [3]",
               q_lengths=ints(6, 4, 3), kv_lengths=ints(6, 5)),
        Refused("k-without-q", {}, ["k shape must be [B,Hkv,Nk,D] with B = 2, got [1,4,6,3]"],
                change={"q": None, "k": zeros(1, H, N, 3)}),
        Refused("grad-without-q", {}, ["grad_out shape must be [B,H,Nq,Dv] with Dv = 5, got "
                                       "[2,4,6,3]"],
                change={"q": None, "k": None, "v": v, "grad_out": zeros(B, H, N, 3)},
                backward=True),
    ]


def without_q(case):
    """The case with v alone."""
    return dataclasses.replace(case, absent=("q", "k"), id=f"{case.id}-v-alone")


# --- R6: tables drawn from a seed, rounded to float32 once

def _uniforms(seed, name, shape):
    words = drawn.philox(seed, name, -(-math.prod(shape) // 4))
    return (words.astype(np.float64) + 0.5) / 2**32


def normals(seed, name, shape, deviation):
    """Box-Muller on pairs of uniforms."""
    u = _uniforms(seed, name, shape).reshape(-1, 2)
    radius, angle = np.sqrt(-2 * np.log(u[:, 0])), 2 * np.pi * u[:, 1]
    z = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).ravel()
    x = deviation * z[:math.prod(shape)].reshape(shape)
    return x.astype(np.float32).astype(np.float64)


def lecun_normals(seed, name, shape, fan_in):
    """N(0, 1/fan_in), truncated at two standard deviations, of that variance all the same."""
    normal = statistics.NormalDist()
    low, high = normal.cdf(-2), normal.cdf(2)
    u = _uniforms(seed, name, shape).ravel()[:math.prod(shape)]
    z = np.array([normal.inv_cdf(low + x * (high - low)) for x in u])
    x = (z / 0.87962566103423978 / math.sqrt(max(fan_in, 1))).reshape(shape)
    return x.astype(np.float32).astype(np.float64)
