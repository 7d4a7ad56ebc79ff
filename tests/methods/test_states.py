"""Every state that a method answers is one that it takes: the tokens of a sequence in two calls, the
second from the state of the first, give what one call gives, gradients included."""

import dataclasses

import numpy as np
import pytest

from tests.methods import library
from tests.methods.cases import Case, tensors
from tests.methods.harness import fit_to_options, methods, on_every_isa, run

# Outputs that are no state.
RESULTS = {"out", "lse", "aux"}
# Options of states that hold all that earlier tokens are to later ones, by method, each with those
# under which a state comes back.
EXACT = {
    "fast_weights": [{"return_state": True}, {"return_state": True, "attention_normalize": True},
                     {"return_state": True, "update_rule": "sum", "attention_normalize": True}],
    "linear_attention": [{"return_state": True, "causal": True},
                         {"return_state": True, "causal": True, "feature_map": "exp"},
                         {"return_state": True, "causal": True, "feature_map": "dpfp"}],
    "performer": [{"return_state": True, "causal": True, "num_features": 16} | more for more in (
        {}, {"feature_eps": 1e-2}, {"feature_eps": 0.0}, {"kind": "hyperbolic"},
        {"kind": "trig", "scale": 0.05}, {"kind": "generalized"},
        {"renormalize": False, "feature_eps": 1e-2})],
    "rfa": [{"return_state": True, "causal": True, "num_features": 16} | more for more in (
        {}, {"gated": True}, {"feature": "arccos"})],
    "transformer_xl": [{"return_memory": True, "mem_len": 200, "grad_memory": True}],
}
# By another name: routing's means of clusters are those that an input sets.
TAKEN_AS = {"centroids": "means"}
# Those whose states are a choice of what came before: compressed, or means of clusters.
SUMMARIES = {"compressive", "routing"}


def states_of(method_id):
    """Names of the outputs besides results, by the library's description."""
    described = library.methods_info()[method_id]
    return {x["name"] for x in described["outputs"]} - RESULTS


def test_every_state_is_an_input():
    """Symptom: performer answered a state that it refused as input."""
    for name, described in library.methods_info().items():
        taken = {x["name"] for x in described["inputs"] if x["served"]}
        assert {TAKEN_AS.get(x, x) for x in states_of(name)} <= taken, name
        assert bool(states_of(name)) == (name in EXACT or name in SUMMARIES), name


def exact_params(has_gradient=False):
    """A memory, rows of the input as they are, is a constant of the call that returns it."""
    return [pytest.param(methods()[name], options, id=f"{name}-{i}")
            for name, of_method in EXACT.items() for i, options in enumerate(of_method)
            if not has_gradient or "return_state" in options]


def case_of(method, options):
    like = Case("states", B=2, H=4, Hkv=2, Nq=150, D=8, Dv=5, options=options, grad_lse=False)
    if options.get("gated", False):
        like = dataclasses.replace(like, floats={"gate_logits": "B,Hkv,Nk"})
    if options.get("update_rule", "delta") == "delta" and method.id == "fast_weights":
        like = dataclasses.replace(like, floats={"beta_logits": "B,Hkv,Nk"})
    return fit_to_options(method, like)


def rows(t, begin, end):
    """The tensors of these tokens."""
    return {name: np.ascontiguousarray(x[:, :, begin:end]) for name, x in t.items()}


def cut_params():
    """A state_z that is sent is one that a key has left, by the specification of fast_weights."""
    return [pytest.param(*param.values, cut, id=f"{param.id}-{cut}")
            for param in exact_params() for cut in (0, 1, 67, 150)
            if cut > 0 or not param.values[1].get("attention_normalize", False)]


@on_every_isa
@pytest.mark.parametrize("method, options, cut", cut_params())
def test_two_halves_are_the_whole(method, options, cut, isa):
    case = case_of(method, options)
    t = tensors(case, "f32")
    whole = run(isa, method, case, t).outputs
    first = run(isa, method, case, rows(t, 0, cut)).outputs
    names = states_of(method.id) & first.keys()
    assert names, "no state came back"
    second = run(isa, method, case, rows(t, cut, case.Nq) | {n: first[n] for n in names}).outputs
    for name in {"out", "lse"} & whole.keys():
        joined = np.concatenate([first[name], second[name]], axis=2)
        np.testing.assert_allclose(joined, whole[name], rtol=2e-4, atol=2e-5, err_msg=name)
    for name in names:
        np.testing.assert_allclose(second[name], whole[name], rtol=2e-4, atol=2e-5, err_msg=name)


@on_every_isa
@pytest.mark.parametrize("method, options", exact_params(has_gradient=True))
def test_gradients_pass_through_the_state(method, options, isa):
    """The second call's gradients of the state are the first call's gradients of its output."""
    case = case_of(method, options)
    t, cut = tensors(case, "f32", gradients=True), 67
    whole = run(isa, method, case, t, backward=True).outputs
    halves = [rows(t, 0, cut), rows(t, cut, case.Nq)]
    forward = {name: x for name, x in halves[0].items() if not name.startswith("grad_")}
    first = run(isa, method, case, forward).outputs
    state = {name: first[name] for name in states_of(method.id) & first.keys()}
    later = run(isa, method, case, halves[1] | state, backward=True).outputs
    through = {f"grad_{name}": later[name] for name in state if name in later}
    assert through, "no gradient of a state"
    earlier = run(isa, method, case, halves[0] | through, backward=True).outputs
    for name in t.keys() & whole.keys():
        joined = np.concatenate([earlier[name], later[name]], axis=2)
        largest = abs(whole[name]).max()
        np.testing.assert_allclose(joined, whole[name], rtol=2e-3, atol=2e-5 * largest, err_msg=name)
