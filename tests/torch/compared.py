"""The library and a peer on the same numbers, forward and, through autograd, backward.

The library gets float32, the peer the same numbers as float64: they differ by the library's
rounding, which TOLERANCE bounds. A mask that is wrong by one key changes a result by percents.
"""

import functools

import numpy as np
import torch

from tests.methods import library

# Relative to the largest element of a tensor, or to 1 where sums of products of normal numbers
# cancel: 80 roundings of float32 (6e-8). Every element is a sum of at most some hundred products;
# the error of a score (D <= 64 products) becomes one of its weight.
TOLERANCE = 5e-6


@functools.cache
def engine():
    return library.Engine("", threads=2)


def normal(seed=0, **shapes):
    """float32 arrays of standard normal numbers, by name."""
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(shape).astype(np.float32)
            for name, shape in shapes.items()}


def qkv(B=1, H=2, Hkv=None, Nq=37, Nk=None, D=16, Dv=None, seed=0, **shapes):
    """q, k, v and further float tensors by their shapes."""
    Nk = Nq if Nk is None else Nk
    kv = (B, Hkv or H, Nk)
    t = normal(seed, q=(B, H, Nq, D), k=(*kv, D), v=(*kv, Dv or D), **shapes)
    if "alibi_slopes" in t:
        # Multiplied by distances of 100, normal numbers would give scores whose rounding dominates.
        t["alibi_slopes"] *= 0.1
    return t


def ours(method, options, tensors, backward=False):
    """The library's reply to one request."""
    return engine().execute([library.Request(method, tensors, options, backward)])[0]


def close(name, got, want, tolerance=TOLERANCE):
    want = np.asarray(want.detach() if isinstance(want, torch.Tensor) else want, np.float64)
    assert got.shape == want.shape, f"{name}: shape {got.shape}, the peer's {want.shape}"
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite], name)
    bound = tolerance * abs(want[finite]).max(initial=1.0)
    error = abs(got[finite] - want[finite])
    wrong = ~(error <= bound)  # NaN is wrong, too
    assert not wrong.any(), (f"{name}: {int(wrong.sum())} of {error.size} differ by more than "
                             f"{bound:.3g}, the most by {error.max():.3g}")


def reduced(gradient, shape):
    """The gradient of a tensor of `shape` that was broadcast."""
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    axes = tuple(i for i, n in enumerate(shape) if n == 1)
    return gradient.sum(axis=axes, keepdims=True)


def compare(method, options, floats, peer, fixed=None, pairs=None, tolerance=TOLERANCE, tied=None):
    """`floats` are sent and differentiated, `fixed` (lengths, masks, indices, random features) only
    sent. `peer` gets the floats by name as float64 and gives out, or out and lse. `tied`: for a
    float that the peer uses in several places, the names and shapes under which it is sent."""
    tied, fixed = tied or {}, fixed or {}
    sent = {name: x for name, x in floats.items() if name not in tied} | fixed
    for name, uses in tied.items():
        sent |= {use: np.broadcast_to(floats[name], shape).copy() for use, shape in uses.items()}
    reply = ours(method, options, sent)
    leaves = {name: torch.tensor(x, dtype=torch.float64, requires_grad=True)
              for name, x in floats.items()}
    answer = peer(**leaves)
    out, lse = answer if isinstance(answer, tuple) else (answer, None)
    close("out", reply.outputs["out"], out, tolerance)
    if pairs is not None:
        assert reply.pairs == pairs, f"visible pairs {reply.pairs}, the peer's mask has {pairs}"

    incoming = normal(7, grad_out=out.shape)
    loss = (out * torch.tensor(incoming["grad_out"])).sum()
    if lse is not None:
        close("lse", reply.outputs["lse"], lse, tolerance)
        incoming |= normal(8, grad_lse=lse.shape)
        # By the spec grad_lse of a row that sees no key has no effect.
        counted = torch.where(torch.isfinite(lse), lse, 0.0)
        loss = loss + (counted * torch.tensor(incoming["grad_lse"])).sum()
    want = torch.autograd.grad(loss, list(leaves.values()))
    grads = ours(method, options, sent | incoming, backward=True).outputs
    for name, uses in tied.items():
        grads[name] = sum(reduced(grads.pop(use), floats[name].shape) for use in uses)
    assert set(grads) - set(fixed) == set(leaves)
    for name, gradient in zip(leaves, want):
        close(f"gradient of {name}", grads[name], gradient, tolerance)
