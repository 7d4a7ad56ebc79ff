"""Keys that weigh by a softmax over tokens, at every size of keys."""

import numpy as np
import pytest

from tests.methods.cases import Case, tensors
from tests.methods.harness import methods, on_every_isa, run


@on_every_isa
@pytest.mark.parametrize("size", [1, 1e2, 1e4, 1e6, 1e12, 1e30])
@pytest.mark.parametrize("causal", [False, True])
def test_softmax_of_keys_of_any_size(causal, size, isa):
    """Symptom: causal, dk was 1.5e-2 of its largest off at keys of 100, and 16 where 0 is right at
    1e6: the logarithm of a sum of weights was rounded before keys were subtracted from it. Near
    keys weigh alike at any size."""
    method = methods()["linear_attention"]
    case = Case("size", H=4, Hkv=2, Nq=150, D=8, grad_lse=False,
                options={"feature_map": "softmax", "causal": causal})
    t = tensors(case, "f32", gradients=True)
    t["k"] = np.float32(size) * t["k"]
    t["k"][:, :, 1::2] = np.nextafter(t["k"][:, :, ::2], np.float32(0))
    forward = {name: x for name, x in t.items() if name != "grad_out"}
    want = method.oracle.forward(forward, case.options) | {
        f"d{n}": x for n, x in method.oracle.backward(t, case.options).items()}
    got = run(isa, method, case, forward).outputs | {
        f"d{n}": x for n, x in run(isa, method, case, t, backward=True).outputs.items()}
    for name, x in want.items():
        np.testing.assert_allclose(got[name], x, rtol=1e-5, atol=1e-5, err_msg=name)
