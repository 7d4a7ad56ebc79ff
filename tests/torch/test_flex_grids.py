"""flex_attention against the patterns of grids: axial, image_local_1d, image_local_2d."""

import math

import numpy as np
import pytest
import torch

from tests.torch.flex import Case, attend

GQA = {"B": 2, "H": 4, "Hkv": 2}


def coordinates(grid):
    """[N,m] of the flat indices, row-major."""
    return torch.tensor(np.stack(np.unravel_index(np.arange(math.prod(grid)), grid), axis=1))


# --- axial ---


def line(grid, axis, causal=False):
    x = coordinates(grid)
    others = [e for e in range(len(grid)) if e != axis % len(grid)]

    def visible(at):
        seen = at.j >= 0
        for e in others:
            seen = seen & (x[at.i, e] == x[at.j, e])
        return seen & (x[at.j, axis] <= x[at.i, axis]) if causal else seen

    return visible


def cross(grid):
    x = coordinates(grid)
    return lambda at: sum((x[at.i, e] != x[at.j, e]).int() for e in range(len(grid))) <= 1


def single(id, grid, axis, options, terms=None, **more):
    x, N = coordinates(grid), math.prod(grid)
    return Case(id, "axial", {"grid": list(grid), "axis": axis} | options,
                line(grid, axis, options.get("causal_axis")), GQA | {"Nq": N} | (terms or {}),
                distance=lambda at: abs(x[at.i, axis] - x[at.j, axis]), **more)


def axis_bias(id, grid, axis, shape, **options):
    x = coordinates(grid)
    return single(id, grid, axis, {"axis_bias": True} | options, {"bias": shape},
                  bias_at=lambda at: (x[at.i, axis], x[at.j, axis]))


def added(id, grid, axes, options, terms=None, **more):
    """The sum of one softmax an axis; it has no lse. Each axis has its own distances. The pairs
    of all axes count."""
    x, N = coordinates(grid), math.prod(grid)
    causal = options.get("causal_axis")

    def peer(case, t):
        total = 0
        for axis in axes:
            case.distance = lambda at, axis=axis: abs(x[at.i, axis] - x[at.j, axis])
            total = total + attend(case, t["q"], t["k"], t["v"], t, line(grid, axis, causal))[0]
        return total

    return Case(id, "axial", {"grid": list(grid), "mode": "sum", "axes": list(axes)} | options,
                [line(grid, axis, causal) for axis in axes], GQA | {"Nq": N} | (terms or {}),
                peer=peer, **more)


ALL_TERMS = {"bias": (1, 4, 63, 63), "alibi_slopes": (4,), "sink_logits": (4,)}
LENGTHS = {"q_lengths": np.int32([63, 20]), "kv_lengths": np.int32([40, 63])}
AXIAL = [
    # Height and width differ, so that mixed-up axes change the result.
    single("columns", (7, 9), 0, {}),
    single("rows", (7, 9), 1, {}),
    single("rows-causal", (7, 9), -1, {"causal": True}),
    single("columns-causal-axis", (7, 9), 0, {"causal_axis": True}),
    single("three-dimensions", (3, 4, 5), 1, {}),
    axis_bias("axis-bias", (7, 9), 0, (1, 4, 7, 7)),
    axis_bias("axis-bias-by-row-causal", (7, 9), 1, (2, 1, 9, 9), causal=True),
    single("all-terms", (9, 7), 0, {"logit_softcap": 2.0}, ALL_TERMS, fixed=LENGTHS),
    Case("union", "axial", {"grid": [7, 9], "mode": "union"}, cross((7, 9)), GQA | {"Nq": 63}),
    Case("union-causal", "axial", {"grid": [7, 9], "mode": "union", "causal": True}, cross((7, 9)),
         GQA | {"Nq": 63}),
    Case("union-three-dimensions", "axial", {"grid": [3, 4, 5], "mode": "union"},
         cross((3, 4, 5)), {"Nq": 60}),
    Case("union-all-terms", "axial", {"grid": [7, 9], "mode": "union", "logit_softcap": 2.0},
         cross((7, 9)), GQA | {"Nq": 63} | ALL_TERMS, LENGTHS),
    added("sum", (7, 9), [0, 1], {}),
    added("sum-causal-axis", (7, 9), [0, 1], {"causal_axis": True}),
    added("sum-of-two-of-three", (3, 4, 5), [2, 0], {}),
    added("sum-all-terms", (9, 7), [0, 1], {"logit_softcap": 2.0}, ALL_TERMS, fixed=LENGTHS),
]


# --- image_local_1d, image_local_2d ---


def raster(lq, lm, causal):
    def visible(at):
        first = at.i // lq * lq
        seen = at.j >= first - lm
        return seen if causal else seen & (at.j < first + lq + lm)

    return visible


def rectangles(grid, block, flange, causal):
    x = coordinates(grid)
    (qh, qw), (mh, mw) = block, flange

    def visible(at):
        (y, x_), (v, u) = (x[at.i, 0], x[at.i, 1]), (x[at.j, 0], x[at.j, 1])
        top, left = y // qh * qh, x_ // qw * qw
        wide = (u >= left - mw) & (u < left + qw + mw)
        if not causal:
            return wide & (v >= top - mh) & (v < top + qh + mh)
        above = wide & (v >= top - mh) & (v < top)
        in_rows = (v >= top) & (v < top + qh)
        before = in_rows & (u >= left - mw) & (u < left)
        same = in_rows & (u >= left) & (u < left + qw)
        order = (v - top) * qw + (u - left) <= (y - top) * qw + (x_ - left)
        return above | before | (same & order)

    return visible


def image_1d(id, n, lq, lm, causal=False, terms=None, **more):
    return Case(id, "image_local_1d", {"query_block": lq, "memory": lm, "causal": causal},
                raster(lq, lm, causal), GQA | {"Nq": n} | (terms or {}), **more)


def image_2d(id, grid, block, flange, causal=False, terms=None, **more):
    options = {"grid": list(grid), "query_shape": list(block), "memory_flange": list(flange)}
    # Causal in the order of blocks: j <= p is not added.
    return Case(id, "image_local_2d", options | {"causal": causal},
                rectangles(grid, block, flange, causal),
                GQA | {"Nq": math.prod(grid)} | (terms or {}), causal=False, **more)


IMAGES = [
    image_1d("both-sides", 130, 16, 5),
    image_1d("causal", 130, 16, 20, True),
    image_1d("causal-no-memory", 61, 8, 0, True),
    image_1d("all-terms", 63, 8, 5, True, ALL_TERMS, fixed=LENGTHS),
    image_2d("both-sides", (7, 9), (2, 3), (1, 2)),
    image_2d("causal", (7, 9), (2, 3), (1, 2), True),
    image_2d("causal-wide-flange", (10, 6), (3, 2), (4, 5), True),
    image_2d("one-row", (1, 60), (2, 8), (3, 5), True),
    image_2d("terms", (9, 7), (4, 2), (1, 3), True, {"bias": (1, 4, 63, 63), "sink_logits": (4,)},
             fixed=LENGTHS),
]


@pytest.mark.parametrize("case", AXIAL + IMAGES, ids=lambda case: f"{case.method}-{case.id}")
def test_flex_attention(case):
    case.run()
