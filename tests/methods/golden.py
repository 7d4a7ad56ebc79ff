"""The specs' golden inputs and the figures read off the results."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Golden:
    id: str
    tensors: dict
    options: dict
    expected: dict  # figure -> value
    figures: object  # results -> {figure: value}; results hold out, lse, dq, dk, dv as float64
    pairs: int | None = None


def wave(f, shape, step, start):
    """f(step * e + start) with e the row-major flat index."""
    return f(step * np.arange(np.prod(shape)) + start).reshape(shape)


def pattern_golden(id, options, pairs, out, lse, dq, dk, dv, more=None):
    """A row of "Golden sums" of the pattern specification; lse is None where there is none. `more`:
    tensors besides q, k, v."""
    tensors = {
        "q": wave(np.sin, (1, 2, 16, 4), 0.7, 0.1),
        "k": wave(np.cos, (1, 1, 16, 4), 0.9, 0.2),
        "v": wave(np.sin, (1, 1, 16, 3), 0.5, 0.3),
        "grad_out": wave(np.cos, (1, 2, 16, 3), 0.3, 0.0),
    } | (more or {})

    def sums(results):
        return {
            name: (x.ravel() * np.cos(0.37 * np.arange(x.size))).sum()
            for name, x in results.items()
        }

    expected = {"out": out, "dq": dq, "dk": dk, "dv": dv} | ({} if lse is None else {"lse": lse})
    return Golden(id, tensors, options, expected, sums, pairs)


def lowrank_golden(id, options, out00, out11, out5, total, lse5=None, more=None):
    """A row of "Golden values" of the low-rank specification. `more`: tensors besides q, k and v;
    None: not sent."""
    shape = (1, 2, 12, 4)
    tensors = {name: wave(np.sin, shape, 0.7, c) for c, name in enumerate("qkv")}
    tensors["grad_out"] = np.ones(shape)
    tensors = {name: x for name, x in (tensors | (more or {})).items() if x is not None}

    def picks(results):
        out = results["out"]
        figures = {
            "out[0,0,0,0]": out[0, 0, 0, 0],
            "out[0,1,11,1]": out[0, 1, 11, 1],
            "out[0,1,5,0]": out[0, 1, 5, 0],
            "sum|out|": abs(out).sum(),
        }
        return figures | ({"lse[0,1,5]": results["lse"][0, 1, 5]} if "lse" in results else {})

    expected = {"out[0,0,0,0]": out00, "out[0,1,11,1]": out11, "out[0,1,5,0]": out5,
                "sum|out|": total}
    if lse5 is not None:
        expected["lse[0,1,5]"] = lse5
    return Golden(id, tensors, options, expected, picks)
