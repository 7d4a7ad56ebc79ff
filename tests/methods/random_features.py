"""What the oracles of methods with random features share: omega as the specification draws it (R6,
performer), and attention through features (R7)."""

import numpy as np

MASK = 2**32 - 1


def fnv1a(text):
    h = 0xcbf29ce484222325
    for byte in text.encode():
        h = ((h ^ byte) * 0x100000001b3) % 2**64
    return h


def philox(blocks, seed, name):
    """Words [blocks,4] of Philox4x32-10."""
    stream = fnv1a(name)
    n = np.arange(blocks, dtype=np.uint64)
    c = [n & np.uint64(MASK), n >> np.uint64(32), np.full_like(n, stream & MASK),
         np.full_like(n, stream >> 32)]
    k0, k1 = seed & MASK, seed >> 32
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        low, high = np.uint64(MASK), np.uint64(32)
        c = [(b >> high) ^ c[1] ^ np.uint64(k0), b & low, (a >> high) ^ c[3] ^ np.uint64(k1),
             a & low]
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return np.stack(c, axis=1)


def normals(shape, seed, name):
    """float64 normals of a stream, before rounding."""
    size = int(np.prod(shape))
    u = (philox(-(-size // 4), seed, name).astype(np.float64) + 0.5) / 2**32
    r = np.sqrt(-2 * np.log(u[:, ::2]))
    angle = 2 * np.pi * u[:, 1::2]
    return np.stack([r * np.cos(angle), r * np.sin(angle)], axis=2).reshape(-1)[:size].reshape(shape)


def drawn_omega(m, D, seed=0, heads=0, orthogonal=True, norms="chi", redraw=0):
    """float32 [m,D], with heads [heads,m,D]."""
    lead, suffix = (heads,) if heads else (), f"#{redraw}" if redraw else ""
    if not orthogonal:
        return normals((*lead, m, D), seed, "omega" + suffix).astype(np.float32)
    blocks = normals((*lead, -(-m // D), D, D), seed, "omega.block" + suffix)
    q, r = np.linalg.qr(blocks)
    q = q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]
    rows = q.swapaxes(-1, -2).reshape(*lead, -1, D)[..., :m, :]
    if norms == "sqrt_d":
        return (rows * np.sqrt(D)).astype(np.float32)
    length = np.linalg.norm(normals((*lead, m, D), seed, "omega.norm" + suffix), axis=-1)
    return (rows * length[..., None]).astype(np.float32)


def seen_of(Nq, Nk, o, offset):
    """Which keys a query of one sequence sees, [Nq,Nk]."""
    return np.tri(Nq, Nk, offset, dtype=bool) if o.get("causal", False) else np.ones((Nq, Nk), bool)


def seen_pairs(t, o):
    """[B,1,Nq,Nk]; causal with the offset Nk - Nq for any lengths (R1)."""
    B, Nq, Nk = t["q"].shape[0], t["q"].shape[2], t["k"].shape[2]
    seen = np.broadcast_to(seen_of(Nq, Nk, o, Nk - Nq), (B, 1, Nq, Nk)).copy()
    for b in range(B):
        if "q_lengths" in t:
            seen[b, :, t["q_lengths"][b]:] = False
        if "kv_lengths" in t:
            seen[b, :, :, t["kv_lengths"][b]:] = False
    return seen
