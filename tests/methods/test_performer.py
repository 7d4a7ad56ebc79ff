"""Performer without the division by its normaliser."""

import numpy as np
import pytest

from tests.methods.cases import Case, tensors
from tests.methods.harness import methods, on_every_isa, run


@on_every_isa
@pytest.mark.parametrize("feature_eps", [0.0, 1e-2])
@pytest.mark.parametrize("causal", [False, True])
def test_a_row_beyond_float32_stays_in_its_row(causal, feature_eps, isa):
    """Symptom: a row whose sum overflows made the gradients of all keys that it sees NaN, though its
    grad_out was 0. Here e^(s_q + s_k) of a row overflows; its sum does with feature_eps alone."""
    method, row = methods()["performer"], 40
    case = Case("overflow", H=2, Nq=66, D=8, grad_lse=False, options={
        "num_features": 16, "renormalize": False, "causal": causal, "feature_eps": feature_eps})
    t = tensors(case, "f32", gradients=True)
    t["q"][:, :, row] *= 30
    t["grad_out"][:, :, row] = 0
    forward = {name: x for name, x in t.items() if name != "grad_out"}
    want = method.oracle.forward(forward, case.options)["out"]
    assert (np.abs(want[:, :, row]) > 3.5e38).any() == (feature_eps > 0)
    got = run(isa, method, case, forward).outputs["out"]
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(got, np.float32(want), rtol=2e-3, atol=1e-4)
    grads = run(isa, method, case, t, backward=True).outputs
    for name, x in method.oracle.backward(t, case.options).items():
        np.testing.assert_allclose(grads[name], x, rtol=2e-4, atol=1e-5 * abs(x).max(), err_msg=name)
