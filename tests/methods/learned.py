"""Check values of the specification of learned patterns and memories."""

import numpy as np

from tests.methods.golden import Golden


def F(shape, a, b):
    """sin(a (n + 1) + b) with n the row-major flat index."""
    return np.sin(a * (np.arange(np.prod(shape)) + 1.0) + b).reshape(shape)


def learned_golden(id, options, total, first, last, lse, more=None, N=8):
    """A row of "Check". `more`: tensors besides q, k and v; None: not sent."""
    shape = (1, 2, N, 4)
    tensors = {"q": F(shape, 0.7, 0.1), "k": F(shape, 1.1, 0.2), "v": F(shape, 1.3, 0.3)}
    tensors |= {"grad_out": np.ones(shape)} | (more or {})
    tensors = {name: x for name, x in tensors.items() if x is not None}

    def figures(results):
        out, of_lse = results["out"], results["lse"]
        return {"sum(out)": out.sum(), "out[0,0,0,0]": out[0, 0, 0, 0],
                "out[0,1,-1,-1]": out[0, 1, -1, -1],
                "sum of finite lse": of_lse[np.isfinite(of_lse)].sum()}

    expected = dict(zip(("sum(out)", "out[0,0,0,0]", "out[0,1,-1,-1]", "sum of finite lse"),
                        (total, first, last, lse)))
    return Golden(id, tensors, options, expected, figures)
