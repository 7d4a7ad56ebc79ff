"""A backward where the gradient of an output is absent answers what one answers where zeros are
sent: for every method, every set of its outputs, at sizes of more than one tile."""

import dataclasses
import functools
import itertools
import re

import numpy as np
import pytest

from tests.methods import library
from tests.methods.cases import Case, tensors
from tests.methods.harness import engine, fit_to_options, methods, on_every_isa, run
from tests.methods.performer import state_grads

# Of methods none of whose cases has them.
MORE = {"linear_attention": [Case("state", D=16, options={"causal": True, "return_state": True},
                                  made=state_grads(16))]}


@functools.cache
def gradients_of(method_id):
    """Names of the gradients that a backward of the method takes, by its own words."""
    x = np.ones((1, 1, 1, 1), np.float32)
    with pytest.raises(library.Refused) as refused:
        engine("").plan(library.Request(method_id, {"v": x}, {}, backward=True))
    return re.findall(r"grad_\w+", refused.value.message)


def cases_of(method):
    """Cases of 4 heads and 130 tokens: each of `batches` and `tensor_batches`, and each set of
    options under which the gradients of named outputs are sent."""
    likes = [Case(f"options-{i}", options=o) for i, o in enumerate(method.batches)]
    likes += method.tensor_batches
    likes = [dataclasses.replace(like, D=16) for like in likes] + MORE.get(method.id, [])
    likes += [dataclasses.replace(like, ints={}, dtypes=("f32",), layout="BHND", strided=False)
              for like in method.cases if any(name.startswith("grad_") for name in like.made)]
    for like in likes:
        yield fit_to_options(method, dataclasses.replace(
            like, id=f"absent-{like.id}", B=1, H=4, Hkv=2, Nq=130, Nk=-1))


def case_params():
    return [pytest.param(method, case, id=f"{name}-{case.id[len('absent-'):]}")
            for name, method in methods().items() for case in cases_of(method)]


def subsets(names):
    """Each but the empty set and the whole."""
    return itertools.chain(*(itertools.combinations(names, n) for n in range(1, len(names))))


@pytest.mark.parametrize("method", methods().values(), ids=methods())
def test_every_gradient_is_tried(method):
    sent = {name for case in cases_of(method) for name in tensors(case, "f32", gradients=True)}
    assert {"grad_out"} <= set(gradients_of(method.id)) <= sent


@on_every_isa
@pytest.mark.parametrize("method, case", case_params())
def test_absent_is_zero(method, case, isa):
    """Symptoms: transformer_xl's dq and dv_bias with grad_lse alone; "no gradient flows to v" of
    fast_weights with grad_state_z alone."""
    t = tensors(case, "f32", gradients=True)
    names = [name for name in gradients_of(method.id) if name in t]
    for sent in subsets(names):
        others = [name for name in names if name not in sent]
        absent = run(isa, method, case, {n: x for n, x in t.items() if n not in others},
                     backward=True).outputs
        zeros = run(isa, method, case, t | {n: np.zeros_like(t[n]) for n in others},
                    backward=True).outputs
        assert absent.keys() == zeros.keys()
        for name, got in absent.items():
            largest = np.abs(zeros[name]).max(initial=0)
            np.testing.assert_allclose(got, zeros[name], rtol=0, atol=2e-6 * largest,
                                       err_msg=f"{name} of {sent}")


@on_every_isa
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_lse_alone_by_distance(dtype, isa):
    """Symptom: transformer_xl answered dq[65] = 0.0298 and dv_bias = 15.787. All scores are 0, so
    that row i weighs i + 1 keys alike: dq_i is the mean of r over distances 0..i, i / 2 / 66."""
    n = 66
    case = Case("literal", H=1, Nq=n, D=1, options={"scale": 1.0})
    t = tensors(case, dtype)
    kind = t["q"].dtype
    t = {name: np.zeros_like(x) for name, x in t.items()} | {
        "rel_k": (np.arange(n) / n).astype(kind).reshape(1, n, 1),
        "u": np.zeros((1, 1), kind), "v_bias": np.zeros((1, 1), kind),
        "grad_lse": np.ones((1, 1, n), np.float32)}
    got = run(isa, methods()["transformer_xl"], case, t, backward=True).outputs
    tolerance = {"f32": 1e-6, "f16": 2e-3, "bf16": 2e-2}[dtype]
    want = np.arange(n) / 2 / n
    np.testing.assert_allclose(np.float64(got["q"].ravel()), want, atol=tolerance, rtol=tolerance)
    assert float(got["v_bias"].ravel()[0]) == pytest.approx(want.sum(), rel=tolerance)
