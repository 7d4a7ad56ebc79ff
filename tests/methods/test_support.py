"""Mode support: refusals with their exact texts, and the library's description of its methods,
which must be that of the specs."""

import dataclasses

import numpy as np
import pytest

from tests.methods import library, refused, support_table
from tests.methods.cases import Case
from tests.methods.harness import engine, fit, method_params, methods

SOFTMAX = methods()["softmax"]


@pytest.mark.parametrize("method, row", method_params("refused"))
def test_refused(method, row):
    t = refused.good_tensors(method, row.backward) | row.change
    t = {name: x for name, x in t.items() if x is not None}
    call = library.Request(method.id, t, row.options, row.backward, row.bnhd)
    acts = [engine("").plan, lambda call: engine("").execute([call])]
    if row.values:
        acts.pop(0)(call)
    for act in acts:
        with pytest.raises(library.Refused) as error:
            act(call)
        assert sorted(error.value.reasons) == sorted(f"{method.id}: {r}" for r in row.reasons)
        assert error.value.code == row.code


def outputs_of(method):
    return ["out", "lse"] if method.oracle.gives_lse(method.batches[0]) else ["out"]


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("method", methods().values(), ids=methods())
def test_good_request_is_taken(method, backward):
    """The request that test_refused changes; unserved options may be sent as their default."""
    defaults = {"logit_softcap": 0.0, "alibi": False, "feature_sum_norm": False, "nu": 2, "seed": 0,
                "causal_norm": "prefix", "return_state": False}
    unserved = {name: defaults[name] for name in method.unserved_options}
    assert unserved.keys() <= method.options.keys()
    sizes = {name: getattr(refused, name) for name in ("B", "H", "Hkv", "Nq", "Nk", "D", "Dv")}
    good = fit(method, Case("good", **sizes, options=method.batches[0])).options
    for options in (good, good | unserved):
        t = refused.good_tensors(method, backward)
        call = library.Request(method.id, t, options, backward)
        names = ([name for name in method.differentiable if name in t] if backward
                 else outputs_of(method))
        assert list(engine("").execute([call])[0].outputs) == names


def test_unknown_method():
    call = library.Request("dot", refused.good_tensors(SOFTMAX, False))
    with pytest.raises(library.Refused) as error:
        engine("").plan(call)
    known = ", ".join(library.methods_info())
    assert error.value.reasons == [f'request: method must be one of {known}, got "dot"']


def test_one_bad_request_refuses_the_batch_before_it_runs():
    good, bad = (library.Request("softmax", refused.good_tensors(SOFTMAX, False), options)
                 for options in ({}, {"causal": 3}))
    with pytest.raises(library.Refused) as error:
        engine("").execute([good, bad])
    assert error.value.reasons == ["softmax: causal must be a bool, got 3"]
    assert len(engine("").execute([good])[0].outputs) == 2


def test_buckets_must_be_equal():
    calls = [library.Request("softmax", refused.good_tensors(SOFTMAX, False), {"causal": causal})
             for causal in (False, True)]
    with pytest.raises(library.Refused, match="buckets must be equal") as error:
        engine("").execute(calls)
    assert error.value.code == refused.INVALID_ARGUMENT


def test_a_default_that_is_spelled_out_shares_a_batch():
    """Symptom: requests that mean the same were never batched, since their buckets held options as
    sent."""
    defaults = {"causal": False, "logit_softcap": 0.0, "duplicates": "set"}
    calls = [library.Request("softmax", refused.good_tensors(SOFTMAX, False), options)
             for options in ({}, defaults)]
    left_out, spelled_out = engine("").execute(calls)
    np.testing.assert_array_equal(left_out.outputs["out"], spelled_out.outputs["out"])


def test_parameters_of_two_dtypes_do_not_share_a_batch():
    half = {name: x.astype(np.float16) for name, x in refused.good_tensors(SOFTMAX, False).items()}
    calls = [library.Request("softmax", half | {"sink_logits": np.zeros(4, dtype)}, {})
             for dtype in (np.float16, np.float32)]
    with pytest.raises(library.Refused, match="buckets must be equal"):
        engine("").execute(calls)


def test_a_misspelled_field_is_refused():
    """Symptom: cases of a method that never run, since a list under another name is never read."""
    with pytest.raises(TypeError, match="tensor_batchs"):
        dataclasses.replace(SOFTMAX, tensor_batchs=[])


def test_the_methods_are_those_with_an_oracle():
    assert sorted(library.methods_info()) == sorted(methods())


@pytest.mark.parametrize("method", methods().values(), ids=methods())
def test_description(method):
    info = library.methods_info()[method.id]
    options = {option["name"]: option for option in info["options"]}
    assert {name: option["type"] for name, option in options.items()} == method.options
    assert {n for n, option in options.items() if not option["served"]} == method.unserved_options
    for name, option in options.items():
        assert option["help"] and option["default_value"], name
        assert bool(option["enum_values"]) == (option["type"] in ("enum", "enums")), name

    inputs = {tensor["name"]: tensor for tensor in info["inputs"]}
    assert inputs.keys() == method.tensors
    assert {n for n, tensor in inputs.items() if not tensor["served"]} == method.unserved_tensors
    assert {n for n, tensor in inputs.items() if tensor["required"]} == method.required
    served = [n for n, tensor in inputs.items() if tensor["differentiable"] and tensor["served"]]
    assert served == method.differentiable
    outputs = [*outputs_of(method), *method.outputs]
    assert [tensor["name"] for tensor in info["outputs"]] == outputs
    assert info["summary"] and info["reference"] and info["cost"]
    assert ("always causal" in info["summary"]) == method.always_causal


def test_memories_of_their_own_lengths_have_their_own_letters():
    """Symptom: M' stood for the rows of both memories of compressive."""
    shapes = {x["name"]: x["shape"] for x in library.methods_info()["compressive"]["outputs"]}
    assert shapes["mem_k"] == "[B,Hkv,M',D]" and shapes["mem_v"] == "[B,Hkv,M',Dv]"
    assert shapes["cmem_k"] == "[B,Hkv,Nc',D]" and shapes["cmem_v"] == "[B,Hkv,Nc',Dv]"


@pytest.mark.parametrize("method", methods().values(), ids=methods())
def test_support_is_what_the_cases_show(method):
    """A column of the support table is true exactly if a case of test_check relies on it."""
    support = library.methods_info()[method.id]["support"]
    cases = method.cases
    shown = {
        "causal": method.always_causal or any(case.options.get("causal") for case in cases),
        "lengths": any("kv_lengths" in case.ints and "q_lengths" in case.ints for case in cases),
        "cross": any(case.Nq != case.keys for case in cases),
        "gqa": any(case.H != case.heads_kv for case in cases),
        "lse": any(method.oracle.gives_lse(case.options) for case in cases),
        "backward": any(case.backward for case in cases),
    }
    assert {name: support[name] for name in shown} == shown


def test_support_table():
    """One row a method, every column filled."""
    rows, _, common = support_table.table(library.methods_info()).partition("\n\n")
    lines = rows.splitlines()
    assert "`logit_softcap`" in common and "`sink_logits`" in common
    assert [line.split("`")[1] for line in lines[2:]] == sorted(methods())
    widths = {line.count(" | ") for line in (lines[0], *lines[2:])}
    assert widths == {len(support_table.COLUMNS) + 4}
    assert "`window_left`" in lines[2 + sorted(methods()).index("local")]
    assert "`seed`" in lines[2 + sorted(methods()).index("random")]
    assert "`seed`" not in lines[2 + sorted(methods()).index("local")]


@pytest.mark.parametrize("isa", ["avx9", "AVX2"])
def test_unknown_isa_is_refused(isa):
    with pytest.raises(RuntimeError, match=isa):
        library.Engine(isa)

