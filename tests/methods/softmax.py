"""Exact softmax attention: oracle in float64 from patterns.md (Common core, softmax), cases,
golden sums, refusals. The oracle holds the whole score matrix."""

import numpy as np

from tests.methods.cases import ALL, Case, ints
from tests.methods.refused import Refused, common_refusals
from tests.methods.golden import pattern_golden, lowrank_golden

ID = "softmax"
OPTIONS = {
    "scale": "float", "causal": "bool", "logit_softcap": "float", "alibi": "bool",
    "duplicates": "enum",
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
    "torch.nn.functional.scaled_dot_product_attention (needs PyTorch)",
    "transformers gpt-oss eager_attention_forward (needs PyTorch; sinks)",
]


def visible(t, o):
    """[B,1,Nq,Nk]: which pairs count, step 4 of the core."""
    B, _, Nq, _ = t["q"].shape
    Nk = t["k"].shape[2]
    seen = np.zeros((B, 1, Nq, Nk), bool)
    i, j = np.arange(Nq)[:, None], np.arange(Nk)[None, :]
    for b in range(B):
        p = i + ints(t, "causal_offset", b, Nk - Nq)
        seen[b, 0] = (i < ints(t, "q_lengths", b, Nq)) & (j < ints(t, "kv_lengths", b, Nk))
        if o.get("causal", False):
            seen[b, 0] &= j <= p
    return seen


def pairs(t, o):
    return int(visible(t, o).sum()) * t["q"].shape[1]


def prepare(t, o, dtype):
    """q, k, v with one kv head per query head and zeros in rows nobody may read; seen; scale."""
    seen = visible(t, o)
    q, k, v = (t[name].astype(dtype) for name in "qkv")
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    q = np.where(seen.any(axis=3)[..., None], q, dtype(0))
    k, v = (np.where(seen.any(axis=2)[..., None], x, dtype(0)) for x in (k, v))
    return q, k, v, seen, o.get("scale", 1 / np.sqrt(q.shape[-1]).item())


def weights(q, k, seen, scale):
    """P and lse, steps 1 to 6, and P as a backward has it that kept lse only."""
    s = np.where(seen, scale * (q @ k.swapaxes(2, 3)), -np.inf).astype(q.dtype)
    m = s.max(axis=3, initial=-np.inf)
    m_safe = np.where(np.isneginf(m), 0, m).astype(q.dtype)
    e = np.exp(s - m_safe[..., None])
    z = e.sum(axis=3)
    with np.errstate(divide="ignore"):
        lse = (m_safe + np.log(z)).astype(q.dtype)
    P = e / np.where(z == 0, 1, z)[..., None].astype(q.dtype)
    return P, lse, np.where(seen, np.exp(s - np.where(z == 0, 0, lse)[..., None]), q.dtype.type(0))


def forward(t, o, dtype=np.float64):
    q, k, v, seen, scale = prepare(t, o, dtype)
    P, lse, _ = weights(q, k, seen, scale)
    return {"out": P @ v, "lse": lse}


def backward(t, o, dtype=np.float64, store=lambda x: x):
    """Gradients for t's grad_out and grad_lse. `store` rounds out as code that keeps it would."""
    q, k, v, seen, scale = prepare(t, o, dtype)
    P, lse, again = weights(q, k, seen, scale)
    dO, dL = incoming(t, dtype, np.isfinite(lse), v.shape[-1])
    delta, P = (dO * store(P @ v)).sum(axis=3), again
    dS = P * (dO @ v.swapaxes(2, 3) - delta[..., None] + dL[..., None])
    return {
        "q": scale * (dS @ k),
        "k": by_kv_head(scale * (dS.swapaxes(2, 3) @ q), t),
        "v": by_kv_head(P.swapaxes(2, 3) @ dO, t),
    }


def incoming(t, dtype, alive, Dv):
    """grad_out and grad_lse, zero where absent and in rows without gradient."""
    dO, dL = np.zeros(alive.shape + (Dv,), dtype), np.zeros(alive.shape, dtype)
    if "grad_out" in t:
        dO = np.where(alive[..., None], t["grad_out"].astype(dtype), dtype(0))
    if "grad_lse" in t:
        dL = np.where(alive, t["grad_lse"].astype(dtype), dtype(0))
    return dO, dL


def by_kv_head(x, t):
    """[B,H,N,D] summed over the query heads of each kv head."""
    B, H, N, D = x.shape
    Hkv = t["k"].shape[1]
    return x.reshape(B, Hkv, H // Hkv, N, D).sum(axis=2)


def magnitude(t, o):
    """Sums of absolute values of what is added up, for error bounds: {name: (float32 part, part
    that a rounded `out` brings in through delta)}, and how much a score amplifies one rounding."""
    q, k, v, seen, scale = prepare(t, o, np.float64)
    P, lse, _ = weights(q, k, seen, scale)
    q, k, v, scale = abs(q), abs(k), abs(v), abs(scale)
    amplification = np.where(seen, scale * (q @ k.swapaxes(2, 3)), 0).max(initial=0)
    result = {"out": (P @ v, 0), "lse": (1 + abs(np.where(np.isfinite(lse), lse, 0)), 0)}
    if "grad_out" in t or "grad_lse" in t:
        dO, dL = (abs(x) for x in incoming(t, np.float64, np.isfinite(lse), v.shape[-1]))
        delta = (dO * (P @ v)).sum(axis=3)[..., None]
        dS = P * (dO @ v.swapaxes(2, 3) + delta + dL[..., None])
        result["q"] = scale * (dS @ k), scale * ((P * delta) @ k)
        dk = [scale * (x.swapaxes(2, 3) @ q) for x in (dS, P * delta)]
        result["k"] = by_kv_head(dk[0], t), by_kv_head(dk[1], t)
        result["v"] = by_kv_head(P.swapaxes(2, 3) @ dO, t), 0
    return result, amplification


CASES = [
    Case("plain", dtypes=ALL, Nq=63),
    Case("n0", Nq=0, Nk=5, grad_lse=False),
    Case("nk0", Nq=5, Nk=0),
    Case("n1", dtypes=ALL, Nq=1, D=1, Dv=1),
    Case("n64", Nq=64, D=64, H=1),
    Case("n65-d64", dtypes=ALL, Nq=65, D=64, Dv=32),
    Case("n131-d128", Nq=131, D=128, H=1, options={"causal": True}),
    Case("odd-d", dtypes=ALL, Nq=131, Nk=63, D=5, Dv=7),
    Case("wide-d", Nq=17, Nk=33, D=257, Dv=130, H=1),
    Case("long", H=1, Nq=70, Nk=1031, D=8),
    Case("causal", dtypes=ALL, B=2, Nq=65, options={"causal": True}),
    Case("causal-more-keys", Nq=65, Nk=131, options={"causal": True}),
    Case("causal-more-queries", dtypes=ALL, Nq=131, Nk=65, options={"causal": True}),
    Case("causal-offset", B=3, Nq=65, Nk=70, options={"causal": True},
         ints={"causal_offset": (-3, 0, 80)}),
    Case("causal-offset-nothing", B=2, Nq=9, Nk=9, options={"causal": True},
         ints={"causal_offset": (-9, 8)}),
    Case("gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=33, Nk=65),
    Case("mqa-causal", H=4, Hkv=1, Nq=64, options={"causal": True}),
    Case("lengths", dtypes=ALL, B=6, Nq=131, ints={"q_lengths": (0, 1, 63, 64, 65, 131),
                                        "kv_lengths": (131, 65, 64, 63, 1, 0)}),
    Case("lengths-causal", B=6, H=1, Nq=131, options={"causal": True},
         ints={"q_lengths": (0, 1, 63, 64, 65, 131), "kv_lengths": (0, 1, 63, 64, 65, 131)}),
    Case("prefill", dtypes=ALL, B=2, Nq=4, Nk=100, options={"causal": True},
         ints={"kv_lengths": (50, 7), "causal_offset": (46, 3)}),
    Case("scale", Nq=40, options={"scale": 0.3}),
    Case("scale-negative", Nq=40, options={"scale": -0.5}),
    Case("scale-zero", Nq=40, options={"scale": 0.0}),
    Case("multiset", Nq=20, options={"duplicates": "multiset"}),
    Case("peaked", Nq=131, D=64, spread=2.5),
    Case("one-hot", Nq=65, D=64, spread=8.0),
    # Every score far below any finite "minus infinity" sentinel: rows must stay ordinary rows.
    Case("far-below-zero", Nq=40, D=4, shift=60.0, options={"scale": -8.0}, ratio=False),
    Case("bnhd", B=2, Nq=65, Nk=33, layout="BNHD", options={"causal": True}),
    Case("strided", B=2, Nq=65, Nk=33, strided=True),
    Case("strided-bnhd-gqa", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, strided=True, layout="BNHD",
         options={"causal": True}),
    Case("no-grad-lse", Nq=33, grad_lse=False),
    # float16 below 2^-14: flush-to-zero of float32 arithmetic must not reach them.
    Case("subnormal", dtypes=("f16",), Nq=33, v_scale=1e-6),
    Case("offset-extreme", B=2, Nq=33, options={"causal": True},
         ints={"causal_offset": (2**31 - 1, -(2**31))}),
]

# Requests of one bucket: other lengths, batch sizes and layouts may share a launch.
BATCHES = [{}, {"causal": True}]

PERF = [{}, {"causal": True}]
# (options, exponent of time, exponent of workspace) over N: tests/bench/growth.py.
GROWTH = [({}, 2, 1), ({"causal": True}, 2, 1)]

VISIBLE = [
    ("nq5-nk9-causal", 5, 9, {"causal": True}, 35),
    ("nq9-nk5-causal", 9, 5, {"causal": True}, 15),
]

GOLDEN = [
    pattern_golden("softmax", {}, 512, -0.1189919003, -4.8247869001, -0.3841097957, 0.5687755287,
                   0.0642983619),
    pattern_golden("softmax-causal", {"causal": True}, 272, 4.2890626739, -15.0562522999,
                   0.9384382340, -1.5094260046, 1.8043583044),
    lowrank_golden("reference", {}, 0.531133528, -0.093486256, -0.512909521, 27.559082619),
    lowrank_golden("reference-causal", {"causal": True}, 0.909297427, -0.093486256, -0.426268365,
                   27.399186530),
]

REFUSED = common_refusals({}, UNSERVED_TENSORS) + [
    Refused("softcap", {"logit_softcap": 30.0},
            ["logit_softcap is not served by this version, got 30"], code=12),
    Refused("alibi", {"alibi": True}, ["alibi is not served by this version, got true"], code=12),
    Refused("duplicates", {"duplicates": "bag"},
            ['duplicates must be one of set, multiset, got "bag"']),
]
