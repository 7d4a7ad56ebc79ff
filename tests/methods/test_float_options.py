"""The ends of every option that is a number: each method answers finite numbers for normal inputs,
or refuses the value."""

import dataclasses

import numpy as np
import pytest

from tests.methods import library
from tests.methods.cases import Case, tensors
from tests.methods.harness import engine, fit_to_options, methods, request

ENDS = (5e-324, 1e-300, 1e-45, 1e-40, 1.2e-38, 1e-30, 1e-15, 1e15, 1e30, 1e39, 1e300)
VALUES = ENDS + tuple(-x for x in ENDS)
INVALID = 3  # of gRPC


def option_params():
    """pytest params (method, option, options of a batch)."""
    return [
        pytest.param(methods()[name], option["name"], options, id=f"{name}-{option['name']}-{i}")
        for name, described in library.methods_info().items()
        for option in described["options"] if option["type"] == "float" and option["served"]
        for i, options in enumerate(methods()[name].batches)]


def may_be_nan(method_id):
    """Outputs that say so of themselves: the logarithm of an estimate that is not positive."""
    outputs = library.methods_info()[method_id]["outputs"]
    return {x["name"] for x in outputs if "NaN" in x["help"]}


def check_finite(method, case, t, backward):
    try:
        outputs = engine("").execute([request(method, case, t, backward)])[0].outputs
    except library.Refused as refused:
        assert refused.code == INVALID, refused
        return
    for name, x in outputs.items():
        if backward or name not in may_be_nan(method.id):
            assert not np.isnan(x.astype(np.float32)).any(), name


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("method, name, options", option_params())
def test_no_value_gives_nan(method, name, options, dtype):
    """Symptom: rfa with tau = 1e-300 answered NaN."""
    like = fit_to_options(method, Case("ends", H=2, Nq=40, D=16, options=options))
    t = tensors(like, dtype, gradients=True)
    forward = {n: x for n, x in t.items() if not n.startswith("grad_")}
    for value in VALUES:
        case = dataclasses.replace(like, options=like.options | {name: value})
        check_finite(method, case, forward, False)
        check_finite(method, case, t, True)


@pytest.mark.parametrize("method_id, name", [
    ("gmlp_sgu", "norm_eps"), ("mlp_mixer", "norm_eps"), ("long_short", "ln_eps")])
def test_a_small_eps_hides_equal_rows(method_id, name):
    """Rows whose variance is 0, divided by the root of what is added to it."""
    method = methods()[method_id]
    case = fit_to_options(method, Case("equal", H=2, Nq=40, D=16, options=method.batches[0]))
    t = {n: np.ones_like(x) if n in "qkv" else x
         for n, x in tensors(case, "f32", gradients=True).items()}
    for value in VALUES:
        check_finite(method, dataclasses.replace(case, options=case.options | {name: value}), t, True)
