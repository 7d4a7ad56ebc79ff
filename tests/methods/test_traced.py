"""The tape of the oracles: every operation against finite differences, and its sums against the
errors of float32."""

import numpy as np
import pytest

from tests.methods.traced import Tape

OPERATIONS = {
    "add": lambda f, a, b: a + b[:1],
    "subtract": lambda f, a, b: 1.5 - a - b,
    "multiply": lambda f, a, b: a * b[..., :1],
    "divide": lambda f, a, b: a / (b * b + 0.5),
    "where": lambda f, a, b: f.where(b.x > 0, a, b),
    "exp": lambda f, a, b: f.exp(a),
    "log": lambda f, a, b: f.log(a * a + 0.1),
    "sqrt": lambda f, a, b: f.sqrt(a * a + 0.1),
    "sin": lambda f, a, b: f.sin(a) * f.cos(3.0 * b),
    "tanh": lambda f, a, b: f.tanh(a) + f.sigmoid(b),
    "relu": lambda f, a, b: f.relu(a) + f.abs(b),
    "gelu_erf": lambda f, a, b: f.gelu_erf(a),
    "gelu_tanh": lambda f, a, b: f.gelu_tanh(a),
    "sum": lambda f, a, b: a.sum(1) + b.sum(1, keepdims=True)[:, 0],
    "mean": lambda f, a, b: f.mean(a, 0, keepdims=True) * b,
    "max": lambda f, a, b: f.max(a, -1) * b,
    "cumsum": lambda f, a, b: f.cumsum(a, 1) * f.cumsum(b, 0, reverse=True),
    "layer_norm": lambda f, a, b: f.layer_norm(a, (-1, -2), b, 0.3, 1e-2),
    "einsum": lambda f, a, b: f.einsum("ijk,ljk->kil", a, b),
    "matmul": lambda f, a, b: a @ b[:1].swapaxes(1, 2),
    "reshape": lambda f, a, b: a.reshape(4, 6) * b.reshape(4, 6),
    "expand": lambda f, a, b: f.expand(a[:1], (2, 3, 4)) * b,
    "take": lambda f, a, b: f.take(a, (slice(None), np.array([0, 2, 2]))) * b,
    "repeat_heads": lambda f, a, b: f.repeat_heads(a, 2) * f.repeat_heads(b, 2),
    "concat": lambda f, a, b: f.concat([a, b * 2.0], 1) * f.concat([b, b], 1),
    "softmax": lambda f, a, b: f.softmax(a, b.x > -0.5) * b,
    "attention": lambda f, a, b: f.attention(a, b.swapaxes(1, 2), np.tri(3, 4, dtype=bool))[0],
    "lse": lambda f, a, b: f.attention(a, b.swapaxes(1, 2), np.tri(3, 4, dtype=bool))[1],
    "normalised": lambda f, a, b: f.normalised(a, b[..., :1] * b[..., :1] + 1.0),
    "stop": lambda f, a, b: a + f.stop(b) * 0.0 + b,
}


def run(operation, arrays, **how):
    tape = Tape(**how)
    variables = [tape.variable(x) for x in arrays]
    end = operation(tape, *variables)
    weights = np.cos(np.arange(end.x.size)).astype(np.float32).reshape(end.shape)
    return end, tape.gradients([(end, weights)], variables), weights


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients(name):
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((2, 3, 4)) for _ in range(2)]
    _, grads, weights = run(OPERATIONS[name], arrays)
    for i, grad in enumerate(grads):
        direction = rng.standard_normal((2, 3, 4))
        ends = []
        for h in (1e-6, -1e-6):
            moved = [x + h * direction if j == i else x for j, x in enumerate(arrays)]
            ends.append((run(OPERATIONS[name], moved)[0].x * weights).sum())
        slope = (ends[0] - ends[1]) / 2e-6
        assert slope == pytest.approx((grad.x * direction).sum(), abs=1e-7), i


@pytest.mark.parametrize("name", OPERATIONS)
def test_sums_bound_the_errors_of_float32(name):
    """At most 8 + sqrt(terms) roundings of the sums, and not by far more than the true error."""
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal((2, 3, 4)).astype(np.float32).astype(np.float64)
              for _ in range(2)]
    exact, exact_grads, _ = run(OPERATIONS[name], arrays, rounding=1.0)
    rough, rough_grads, _ = run(OPERATIONS[name], arrays, dtype=np.float32)
    for want, got in zip((exact, *exact_grads), (rough, *rough_grads)):
        bound = 2.0**-24 * (8 + 24**0.5) * want.s
        assert (abs(want.x - got.x) <= bound).all()
        assert (want.s <= 200 * (abs(want.x) + 1)).all()


def test_stored_results_carry_into_gradients():
    """`stored` sums hold what a rounded output brings into a gradient, and nothing else."""
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal((2, 3, 4)) for _ in range(2)]
    normalised, add = OPERATIONS["normalised"], OPERATIONS["add"]
    _, stored, _ = run(normalised, arrays, rounding=0.0, storing=1.0)
    assert not stored[0].s.any() and stored[1].s.any()
    assert not any(g.s.any() for g in run(add, arrays, rounding=0.0, storing=1.0)[1])
    exact = run(normalised, arrays)[1]
    rounded = run(normalised, arrays, store=lambda x: x.astype(np.float16).astype(np.float64))[1]
    difference = abs(exact[1].x - rounded[1].x)
    assert difference.any() and (difference <= 2.0**-11 * 1.01 * stored[1].s).all()
