"""BNHD against BHND through the Python client: q, k, v, out and their gradients are turned, named
outputs and their gradients have one shape in either layout.
"""

import importlib

import numpy as np
import pytest

import attnd
from helpers import noise
from server_process import REPOSITORY
from tests.methods import cases

TURNED = ("q", "k", "v")
METHODS = sorted(path.stem for path in (REPOSITORY / "kernels/methods").glob("*.cc"))


# Named outputs whose gradients a Backward takes; the others (memories, centroids) are constants.
WITH_GRADIENT = ("state_s", "state_z", "aux")
CASES = 5  # of a method


def method_of(name):
    return importlib.import_module(f"tests.methods.{name}").METHOD


def returning(method):
    """Cases of a method that ask for a state or a memory."""
    return [case for case in method_of(method).cases
            if case.layout == "BHND" and not case.strided and "f32" in case.dtypes
            and any(name.startswith("return_") for name in case.options)][:CASES]


def case_id(value):
    return value if isinstance(value, str) else value.id


RETURNING = [(method, case) for method in METHODS for case in returning(method)]


def turned(array):
    return np.ascontiguousarray(array.swapaxes(1, 2))


def request_of(tensors, layout):
    """Arguments of a call for `tensors`, which are BHND."""
    if layout == "BNHD":
        tensors = tensors | {name: turned(tensors[name]) for name in TURNED if name in tensors}
    qkv = {name: tensors.get(name) for name in TURNED}
    others = {name: x for name, x in tensors.items() if name not in TURNED}
    return qkv | {"tensors": others, "layout": layout}


def check_same(client, method, options, tensors, grads):
    """Both layouts give the same. `grads`: of named outputs, drawn where they have gradients."""
    request = {"method": method, "options": options}
    straight, other = (client.forward(**request_of(tensors, layout), **request)
                       for layout in ("BHND", "BNHD"))
    assert np.array_equal(turned(other.out), straight.out)
    assert other.tensors.keys() == straight.tensors.keys()
    for name, x in straight.tensors.items():
        assert np.array_equal(other.tensors[name], x, equal_nan=True), name

    given = {name: grads(x.shape) for name, x in straight.tensors.items() if name in WITH_GRADIENT}
    grad_out = grads(straight.out.shape)
    straight, other = (
        client.backward(**request_of(tensors, layout), **request, grad_tensors=given,
                        grad_out=grad_out if layout == "BHND" else turned(grad_out))
        for layout in ("BHND", "BNHD"))
    for name in TURNED:
        x = getattr(straight, name)
        assert x is None or np.array_equal(turned(getattr(other, name)), x), name
    assert other.tensors.keys() == straight.tensors.keys()
    for name, x in straight.tensors.items():
        assert np.array_equal(other.tensors[name], x), name


@pytest.mark.parametrize("method, case", RETURNING, ids=case_id)
def test_named_outputs_and_their_gradients(client, rng, method, case):
    tensors = cases.tensors(case, "f32")
    if method_of(method).shares_qk(case.options):
        tensors.pop("k", None)
    check_same(client, method, case.options, tensors, lambda shape: noise(rng, shape))


# As many heads as features: a state that is turned still has the right shape.
SQUARE = {
    "linear_attention": {"causal": True},
    "fast_weights": {"feature_map": "identity"},
    "performer": {"causal": True, "num_features": 4},
    "rfa": {"causal": True, "num_features": 2},
}


@pytest.mark.parametrize("method", SQUARE)
def test_gradients_of_states_with_as_many_features_as_heads(client, rng, method):
    """The gradient of state_s was read as [B,F,Hkv,Dv]: the wrong dk, without a word."""
    options = SQUARE[method] | {"return_state": True}
    tensors = {name: noise(rng, (2, 4, 9, 4)) for name in TURNED}
    state = client.forward(**tensors, method=method, options=options).tensors["state_s"]
    assert state.shape == (2, 4, 4, 4)
    check_same(client, method, options, tensors, lambda shape: noise(rng, shape))


def test_all_outputs_of_rank_four_are_tried(client):
    declared = {(info.id, output.name) for info in client.methods() for output in info.outputs
                if output.name != "out" and output.shape.count(",") == 3}
    tried = {method for method, _ in RETURNING} | SQUARE.keys()
    assert declared and {method for method, _ in declared} <= tried


def test_estimate_of_a_backward(client):
    """grad_out among the tensors of an estimate has the layout of q, as in the Backward itself."""
    shape = (2, 33, 4, 16)
    options = {"causal": True, "return_state": True}
    found, plain = (
        client.estimate(shape, shape, shape, method="linear_attention", options=options,
                        tensors=tensors | {"grad_state_s": ((2, 4, 16, 16), np.float32)},
                        backward=True, layout="BNHD")
        for tensors in ({"grad_out": (shape, np.float32)}, {"grad_out": np.ones(shape, np.float32)}))
    assert found == plain


def test_masks_are_those_that_the_server_declares(client):
    """The client takes integers for them; elsewhere than in this list they would be refused."""
    declared = {tensor.name for info in client.methods() for tensor in info.tensors
                if tensor.dtype == "uint8"}
    assert declared == set(attnd._arrays.MASKS)
