"""Tables drawn from a seed, in NumPy from the rule R6 of the low-rank specification."""

import numpy as np


def fnv1a(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return h


def philox(seed, name, blocks):
    """[blocks, 4] words of 32 bits."""
    low, high = (np.uint64(x) for x in (0xFFFFFFFF, 32))
    block = np.arange(blocks, dtype=np.uint64)
    h = fnv1a(name)
    c = [block & low, block >> high, np.full(blocks, h % 2**32, np.uint64),
         np.full(blocks, h >> 32, np.uint64)]
    k = [seed % 2**32, seed >> 32]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(b >> high) ^ c[1] ^ np.uint64(k[0]), b & low,
             (a >> high) ^ c[3] ^ np.uint64(k[1]), a & low]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return np.stack(c, axis=1)


def uniforms(seed, name, shape, limit):
    """U(-limit, limit), rounded to float32 once."""
    n = int(np.prod(shape))
    u = ((philox(seed, name, -(-n // 4)).astype(np.float64) + 0.5) / 2**32).ravel()[:n]
    return (-limit + 2 * limit * u).reshape(shape).astype(np.float32).astype(np.float64)
