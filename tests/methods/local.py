"""Sliding windows and block look-around: oracle in float64 from patterns.md (Common core, local),
cases, golden sums, refusals. The oracle takes one query after the other and looks at its keys
only."""

import numpy as np

from tests.methods.cases import ALL, Case, ints
from tests.methods.refused import Refused, common_refusals
from tests.methods.golden import pattern_golden

ID = "local"
OPTIONS = {
    "granularity": "enum", "window_left": "int", "window_right": "int", "block": "int",
    "look_backward": "int", "look_forward": "int", "scale": "float", "causal": "bool",
    "logit_softcap": "float", "alibi": "bool", "duplicates": "enum",
}
UNSERVED_OPTIONS = {"logit_softcap", "alibi"}
TENSORS = {
    "q", "k", "v", "q_lengths", "kv_lengths", "causal_offset", "segment_ids_q", "segment_ids_kv",
    "cu_seqlens_q", "cu_seqlens_k", "bias", "alibi_slopes", "sink_logits",
}
UNSERVED_TENSORS = {
    "segment_ids_q", "segment_ids_kv", "cu_seqlens_q", "cu_seqlens_k", "bias", "alibi_slopes",
    "sink_logits",
}
PEERS = [
    "local-attention LocalAttention(exact_windowsize=True or False) (needs PyTorch)",
    "transformers sliding_window_bidirectional (needs PyTorch)",
]


def window(p, o):
    """First and last key that position p may see, before clipping to the keys there are."""
    causal = o.get("causal", False)
    if o.get("granularity", "token") == "block":
        W = o["block"]
        ahead = o.get("look_forward", 0 if causal else 1)
        first = (p // W - o.get("look_backward", 1)) * W
        last = (p // W + ahead + 1) * W - 1
    else:
        left = o["window_left"]
        right = o.get("window_right", left)
        first = -np.inf if left == -1 else p - left
        last = np.inf if right == -1 else p + right
    return first, min(last, p) if causal else last


def visible_keys(t, o):
    """(b, i, keys) for each query row that sees a key."""
    B, _, Nq, _ = t["q"].shape
    Nk = t["k"].shape[2]
    for b in range(B):
        j = np.arange(ints(t, "kv_lengths", b, Nk))
        for i in range(ints(t, "q_lengths", b, Nq)):
            first, last = window(i + ints(t, "causal_offset", b, Nk - Nq), o)
            keys = j[(j >= first) & (j <= last)]
            if keys.size:
                yield b, i, keys


def pairs(t, o):
    return sum(keys.size for _, _, keys in visible_keys(t, o)) * t["q"].shape[1]


class Rows:
    """The softmax of every row: q [g,h,D] of kv head g, its keys k, v [g,n,..], scores [g,h,n], lse
    [g,h,1]. Backwards take P = exp(s - lse): they keep lse only."""

    def __init__(self, t, o, dtype):
        self.t, self.o = t, o
        q, k, v = (t[name].astype(dtype) for name in "qkv")
        self.B, self.H, self.Nq, D = q.shape
        self.Hkv, self.Dv = k.shape[1], v.shape[3]
        self.group = self.H // self.Hkv
        self.q = q.reshape(self.B, self.Hkv, self.group, self.Nq, D)
        self.k, self.v, self.dtype = k, v, dtype
        self.scale = o.get("scale", D**-0.5)

    def __iter__(self):
        for b, i, keys in visible_keys(self.t, self.o):
            q, k, v = self.q[b, :, :, i], self.k[b, :, keys], self.v[b, :, keys]
            k, v = k.swapaxes(0, 1), v.swapaxes(0, 1)
            s = self.scale * np.matmul(q, k.swapaxes(1, 2))
            m = s.max(axis=2, keepdims=True)
            lse = m + np.log(np.exp(s - m).sum(axis=2, keepdims=True))
            yield b, i, keys, q, k, v, s, lse

    def per_query(self, last=()):
        return np.zeros((self.B, self.Hkv, self.group, self.Nq) + last, self.dtype)

    def merge_heads(self, x):
        return x.reshape((self.B, self.H) + x.shape[3:])

    def incoming(self, b, i):
        """grad_out [g,h,Dv] and grad_lse [g,h] of one row, zero where absent."""
        shape = (self.Hkv, self.group)
        dO, dL = np.zeros(shape + (self.Dv,), self.dtype), np.zeros(shape, self.dtype)
        if "grad_out" in self.t:
            dO = self.t["grad_out"][b, :, i].astype(self.dtype).reshape(dO.shape)
        if "grad_lse" in self.t:
            dL = self.t["grad_lse"][b, :, i].astype(self.dtype).reshape(shape)
        return dO, dL


def forward(t, o, dtype=np.float64):
    rows = Rows(t, o, dtype)
    out, lse = rows.per_query((rows.Dv,)), rows.per_query()
    lse[...] = -np.inf
    for b, i, _, _, _, v, s, row_lse in rows:
        e = np.exp(s - s.max(axis=2, keepdims=True))
        out[b, :, :, i] = (e @ v) / e.sum(axis=2, keepdims=True)
        lse[b, :, :, i] = row_lse[..., 0]
    return {"out": rows.merge_heads(out), "lse": rows.merge_heads(lse)}


def backward(t, o, dtype=np.float64, store=lambda x: x):
    rows = Rows(t, o, dtype)
    dq = rows.per_query(rows.q.shape[-1:])
    dk, dv = np.zeros_like(rows.k), np.zeros_like(rows.v)
    for b, i, keys, q, k, v, s, lse in rows:
        P = np.exp(s - lse)
        dO, dL = rows.incoming(b, i)
        delta = (dO * store(P @ v)).sum(axis=2)
        dS = P * (dO @ v.swapaxes(1, 2) - delta[..., None] + dL[..., None])
        dq[b, :, :, i] = rows.scale * (dS @ k)
        dk[b][:, keys] += rows.scale * np.matmul(dS.swapaxes(1, 2), q)
        dv[b][:, keys] += np.matmul(P.swapaxes(1, 2), dO)
    return {"q": rows.merge_heads(dq), "k": dk, "v": dv}


def magnitude(t, o):
    """See softmax.magnitude: the same sums of absolute values, row by row."""
    rows = Rows(t, o, np.float64)
    scale = abs(rows.scale)
    out, lse = rows.per_query((rows.Dv,)), rows.per_query() + 1
    dq, dq_stored = (rows.per_query(rows.q.shape[-1:]) for _ in range(2))
    dk, dk_stored = (np.zeros_like(rows.k) for _ in range(2))
    dv = np.zeros_like(rows.v)
    amplification = 0.0
    for b, i, keys, q, k, v, s, row_lse in rows:
        P, q, k, v = np.exp(s - row_lse), abs(q), abs(k), abs(v)
        amplification = max(amplification, (scale * (q @ k.swapaxes(1, 2))).max())
        out[b, :, :, i] = P @ v
        lse[b, :, :, i] += abs(row_lse[..., 0])
        dO, dL = (abs(x) for x in rows.incoming(b, i))
        stored = P * (dO * (P @ v)).sum(axis=2)[..., None]
        dS = P * (dO @ v.swapaxes(1, 2) + dL[..., None]) + stored
        dq[b, :, :, i], dq_stored[b, :, :, i] = scale * (dS @ k), scale * (stored @ k)
        dk[b][:, keys] += scale * np.matmul(dS.swapaxes(1, 2), q)
        dk_stored[b][:, keys] += scale * np.matmul(stored.swapaxes(1, 2), q)
        dv[b][:, keys] += np.matmul(P.swapaxes(1, 2), dO)
    merge = rows.merge_heads
    return {
        "out": (merge(out), 0), "lse": (merge(lse), 0), "q": (merge(dq), merge(dq_stored)),
        "k": (dk, dk_stored), "v": (dv, 0),
    }, amplification


def token(left, right=None, **more):
    return {"window_left": left} | ({} if right is None else {"window_right": right}) | more


def block(W, **more):
    return {"granularity": "block", "block": W} | more


CASES = [
    Case("causal-wl3", dtypes=ALL, B=2, Nq=65, options=token(3, causal=True)),
    Case("wl2-wr2", Nq=63, options=token(2)),
    Case("wl5-wr0", Nq=64, options=token(5, 0)),
    Case("self-only", dtypes=ALL, Nq=65, options=token(0)),
    Case("unlimited", Nq=65, options=token(-1)),
    Case("unlimited-left-wr3", Nq=131, options=token(-1, 3)),
    Case("wl3-unlimited-right", Nq=131, options=token(3, -1)),
    Case("unlimited-left-causal", Nq=65, options=token(-1, 3, causal=True)),
    Case("wider-than-n", Nq=63, options=token(1000)),
    Case("wl64-d64", dtypes=ALL, H=1, Nq=261, D=64, options=token(64, causal=True)),
    Case("wl100-wr20", H=1, Nq=323, D=8, options=token(100, 20)),
    Case("n1", Nq=1, options=token(3)),
    Case("n0", Nq=0, Nk=3, options=token(3), grad_lse=False),
    Case("nk0", Nq=3, Nk=0, options=token(3)),
    Case("more-keys", Nq=65, Nk=131, options=token(7, 2)),
    Case("more-queries", dtypes=ALL, Nq=131, Nk=65, options=token(7, 2)),
    Case("more-queries-causal", Nq=131, Nk=63, options=token(7, causal=True)),
    Case("offset", B=3, Nq=65, Nk=70, options=token(4, 3), ints={"causal_offset": (-66, 2, 69)}),
    Case("offset-causal", B=3, Nq=65, Nk=70, options=token(4, causal=True),
         ints={"causal_offset": (-30, 5, 40)}),
    Case("lengths", dtypes=ALL, B=6, H=1, Nq=131, options=token(9, 3),
         ints={"q_lengths": (131, 65, 64, 63, 1, 0), "kv_lengths": (0, 1, 63, 64, 65, 131)}),
    Case("window-in-padding", Nq=131, options=token(9, 3), ints={"kv_lengths": (40,)}),
    Case("gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=65, options=token(10, causal=True)),
    Case("scale-dv", Nq=65, D=5, Dv=33, options=token(10, scale=0.7)),
    Case("block4-causal", dtypes=ALL, Nq=63, options=block(4, causal=True)),
    Case("block4", Nq=65, options=block(4)),
    Case("block16-lb2-lf0", Nq=131, options=block(16, look_backward=2, look_forward=0)),
    Case("block7-lb0-lf2", Nq=65, options=block(7, look_backward=0, look_forward=2)),
    Case("block64-d64", H=1, Nq=201, D=64, options=block(64)),
    Case("block1", Nq=20, options=block(1)),
    Case("block-more-queries", Nq=131, Nk=65, options=block(10)),
    Case("block-offset", B=2, Nq=33, Nk=40, options=block(8, causal=True),
         ints={"causal_offset": (-11, 3)}),
    Case("block-lengths", B=3, H=1, Nq=65, options=block(8), ints={"kv_lengths": (0, 13, 65)}),
    Case("huge-window", Nq=65, options=token(2**63 - 1, 2**63 - 1)),
    Case("huge-block", Nq=65, options=block(2**63 - 1)),
    Case("huge-look", Nq=65, options=block(16, look_backward=2**63 - 1, look_forward=2**62)),
    Case("huge-block-and-look", B=2, Nq=65, options=block(2**62, look_backward=2**62),
         ints={"causal_offset": (-40, 2**31 - 1)}),
    Case("offset-extreme", B=2, Nq=33, options=token(-1, 3),
         ints={"causal_offset": (2**31 - 1, -(2**31))}),
    Case("offset-extreme-block", B=2, Nq=33, options=block(7, look_forward=2**40),
         ints={"causal_offset": (2**31 - 1, -(2**31))}),
    Case("bnhd", B=2, Nq=65, layout="BNHD", options=token(6, causal=True)),
    Case("strided", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, strided=True, options=token(6, 1)),
    Case("strided-bnhd", dtypes=ALL, B=2, Nq=65, strided=True, layout="BNHD", options=block(16)),
]

BATCHES = [token(5, causal=True), token(20, 3), block(16)]

PERF = [token(256, causal=True), block(128)]
# (options, exponent of time, exponent of workspace) over N: tests/bench/growth.py.
GROWTH = [(token(256, causal=True), 1, 1)]

VISIBLE = [
    ("wl3-causal", 16, 16, token(3, causal=True), 58),
    ("wl2-wr2", 16, 16, token(2, 2), 74),
    ("block4-causal", 16, 16, block(4, look_backward=1, causal=True), 88),
    ("block4", 16, 16, block(4, look_backward=1, look_forward=1), 160),
]

GOLDEN = [
    pattern_golden("wl3-causal", token(3, causal=True), 116, 5.1525781413, -7.4843923619,
                   0.6846044227, -2.5951311722, 5.1083616890),
    pattern_golden("wl2-wr2", token(2, 2), 148, 2.4584478891, -5.2519736616, -1.7820082130,
                   0.1084702018, 3.5508025011),
    pattern_golden("block4-causal", block(4, look_backward=1, causal=True), 176, 3.4924542337,
                   -11.7302017568, 0.0464069327, -2.0074410853, 1.0110024521),
]

REFUSED = common_refusals(token(3), UNSERVED_TENSORS) + [
    Refused("no-window", {}, ["window_left is required when granularity is token, got none"]),
    Refused("no-block", {"granularity": "block"},
            ["block is required when granularity is block, got none"]),
    Refused("window-left", token(-2), ["window_left must be >= -1, got -2"]),
    Refused("window-right", token(3, -2), ["window_right must be >= -1, got -2"]),
    Refused("block-0", block(0), ["block must be >= 1, got 0"]),
    Refused("look-backward", block(4, look_backward=-1), ["look_backward must be >= 0, got -1"]),
    Refused("look-forward", block(4, look_forward=-7), ["look_forward must be >= 0, got -7"]),
    Refused("granularity", {"granularity": "page", "window_left": 3},
            ['granularity must be one of token, block, got "page"']),
    Refused("window-type", {"window_left": 3.5}, ["window_left must be an integer, got 3.5"]),
    Refused("softcap", token(3, logit_softcap=30.0),
            ["logit_softcap is not served by this version, got 30"], code=12),
    Refused("alibi", token(3, alibi=True), ["alibi is not served by this version, got true"],
            code=12),
    Refused("everything-at-once", token(-2, -3, look_backward=-1, scale=float("nan")),
            ["window_left must be >= -1, got -2", "window_right must be >= -1, got -3",
             "look_backward must be >= 0, got -1", "scale must be finite, got nan"]),
]
