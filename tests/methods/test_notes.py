"""Plans say what is legal and seldom meant: positions in a padded cache, options without effect."""

import dataclasses
import functools

import numpy as np
import pytest

from tests.methods import library
from tests.methods.cases import Case, tensors
from tests.methods.harness import engine, fit_to_options, methods, same_bits
from tests.methods.tolerance import check_bound

PADDED = "send causal_offset = kv_lengths - Nq"
NO_EFFECT = "; no effect unless "


@functools.cache
def described():
    return library.methods_info()


def cache_of(rng, lengths, Nk, D=16):
    k, v = (rng.standard_normal((len(lengths), 2, Nk, D), dtype=np.float32) for _ in range(2))
    for b, n in enumerate(lengths):
        k[b, :, n:] = v[b, :, n:] = np.nan
    return k, v


@pytest.mark.parametrize("method, options, queries", [
    ("local", {"window_left": 127}, 1), ("local", {"window_left": 127}, 4),
    ("softmax", {"causal": True}, 4),
])
def test_a_padded_cache_of_2048_slots(method, options, queries):
    """One query with window 127 saw nothing, four causal ones saw later tokens, without a word."""
    rng = np.random.default_rng(0)
    lengths = np.array([701, 1501], np.int32)
    q = rng.standard_normal((2, 2, queries, 16), dtype=np.float32)
    k, v = cache_of(rng, lengths, 2048)
    sent = {"q": q, "k": k, "v": v, "kv_lengths": lengths}

    noted = engine("").execute([library.Request(method, sent, options)])[0].notes
    offset = {"causal_offset": lengths - queries}
    right = engine("").execute([library.Request(method, sent | offset, options)])[0]

    assert [PADDED in note for note in noted] == [True] and noted[0].startswith(f"{method}: ")
    assert right.notes == []
    oracle = methods()[method].oracle
    for b, n in enumerate(lengths):
        alone = {"q": q[b:b + 1], "k": k[b:b + 1, :, :n], "v": v[b:b + 1, :, :n]}
        want = oracle.forward(alone, options)
        sums, amplification = oracle.magnitude(alone, options)
        check_bound("out", right.outputs["out"][b:b + 1], want["out"], sums["out"],
                    amplification, n, "f32")


def sees_by_position(method, options, made):
    """Whether positions that count from elsewhere change what a request answers."""
    offsets = [np.full(2, shift, np.int32) for shift in (-3, 0, 7, 40)]
    outs = [engine("").execute([library.Request(method, made | {"causal_offset": offset}, options)])
            [0].outputs for offset in offsets]
    return any(same_bits(outs[0], out) for out in outs[1:])


def offset_params():
    """Each of `batches` of the methods that take causal_offset, causal or not, with ALiBi or not."""
    params = []
    for method in methods().values():
        if "causal_offset" not in method.tensors:
            continue
        batches = list(method.batches)
        if method.id == "local":
            batches.append({"window_left": -1})
        if method.id == "random":
            batches.append({"num_random": 5, "include_self": True})
        for options in batches:
            for more in ({}, {"causal": True}, {"causal": False}, {"alibi": True}):
                params.append(pytest.param(method, options | more, id=f"{method.id}-" + "-".join(
                    f"{k}={v}" for k, v in (options | more).items())))
    return params


@pytest.mark.parametrize("method, options", offset_params())
def test_a_padded_cache_is_noted_where_positions_decide(method, options):
    if "alibi" in options and "alibi_slopes" not in method.tensors:
        options = {name: value for name, value in options.items() if name != "alibi"}
    if options.get("horizontal") and options.get("causal"):
        options = options | {"horizontal": False}
    case = fit_to_options(method, Case("padded", B=2, H=4, Hkv=2, Nq=9, Nk=64,
                                        options=options))
    rng = np.random.default_rng(1)
    made = tensors(dataclasses.replace(case, B=2), "f32")
    made["k"], made["v"] = cache_of(rng, (30, 64), 64)
    made["kv_lengths"] = np.array([30, 64], np.int32)

    noted = engine("").plan(library.Request(method.id, made, case.options)).notes

    expects = sees_by_position(method.id, case.options, made)
    if method.id == "random" and not any(case.options.get(n) for n in ("causal", "include_self",
                                                                        "alibi")):
        expects = False  # which keys are drawn follows from the position: others are as good
    assert any(PADDED in note for note in noted) == expects, noted


def differs(method, pair, options):
    """Whether a row with and without padding have other results; None: not both are accepted."""
    if not all(planned(method, made, options) for made in pair):
        return None
    outs = [outputs(method, made, options)["out"] for made in pair]
    return not np.allclose(*outs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("method", [
    pytest.param(m, id=m.id) for m in methods().values()
    if {"kv_lengths", "k"} <= {*m.tensors}
    and "causal" in {option["name"] for option in described()[m.id]["options"]}])
def test_what_causal_changes_of_a_padded_row_is_noted(method, queries):
    """Symptom: one causal query got no note in long_short and memory_compressed, which see by
    segments, windows and cells. What differs without causal, too, is drawn for the padded size."""
    rng = np.random.default_rng(6)
    n, Nk = 40, 64
    q = rng.standard_normal((1, 2, queries, 16), dtype=np.float32)
    k, v = cache_of(rng, (n,), Nk)
    padded = {"q": q, "k": k, "v": v, "kv_lengths": np.array([n], np.int32)}
    pair = (padded, {"q": q, "k": k[:, :, :n], "v": v[:, :, :n]})
    for options in [{}, *method.batches]:
        causal = options | {"causal": True}
        if differs(method, pair, causal) and not differs(method, pair, options | {"causal": False}):
            notes = planned(method, padded, causal).notes
            assert any("kv_lengths end before Nk" in note for note in notes), causal


def test_a_padded_cache_is_noted_for_methods_that_take_no_offset():
    rng = np.random.default_rng(2)
    q = rng.standard_normal((2, 2, 3, 16), dtype=np.float32)
    k, v = cache_of(rng, (20, 40), 40)
    sent = {"q": q, "k": k, "v": v, "kv_lengths": np.array([20, 40], np.int32)}
    for method in ("linear_attention", "performer", "rfa", "fast_weights", "long_short",
                   "memory_compressed"):
        notes = engine("").plan(library.Request(method, sent, {"causal": True})).notes
        assert any("send k and v without padding" in note for note in notes), method
    for method in ("linear_attention", "performer", "nystromformer", "set_transformer"):
        assert engine("").plan(library.Request(method, sent)).notes == [], method


@pytest.mark.parametrize("change", [
    {"kv_lengths": np.array([64, 64], np.int32)},
    {"q_lengths": np.array([9, 9], np.int32)},
    {"causal_offset": np.array([21, 55], np.int32)},
    {"q": np.zeros((2, 2, 64, 16), np.float32)},
    {"q": np.zeros((2, 2, 1, 16), np.float32)},  # causal hides no key of one query
], ids=["full", "q_lengths", "causal_offset", "square", "one query"])
def test_nothing_is_noted_of_what_is_meant(change):
    rng = np.random.default_rng(3)
    k, v = cache_of(rng, (30, 64), 64)
    made = {"q": rng.standard_normal((2, 2, 9, 16), dtype=np.float32), "k": k, "v": v,
            "kv_lengths": np.array([30, 64], np.int32)} | change
    assert engine("").plan(library.Request("softmax", made, {"causal": True})).notes == []


@pytest.mark.parametrize("method", ["transformer_xl", "compressive"])
def test_a_memory_of_no_rows(method):
    rng = np.random.default_rng(4)
    made = {name: rng.standard_normal((1, 2, 20, 8), dtype=np.float32) for name in "qkv"}

    def notes(**options):
        return engine("").plan(library.Request(method, made, options)).notes

    assert notes(return_memory=True, mem_len=0) == [
        f"{method}: return_memory answers a memory that keeps no rows, as mem_len is 0"]
    assert notes(return_memory=True, mem_len=8) == []
    assert notes(mem_len=8) == [f"{method}: mem_len has no effect unless return_memory" + (
        " or aux_loss" if method == "compressive" else "") + " is true"]


def test_a_state_that_no_call_takes():
    rng = np.random.default_rng(5)
    made = {name: rng.standard_normal((1, 2, 20, 8), dtype=np.float32) for name in "qkv"}

    def notes(**options):
        options = {"causal": True, "return_state": True} | options
        return engine("").plan(library.Request("performer", made, options)).notes

    assert notes(stabilizer="global") == ["performer: return_state answers a state that no call "
                                          "takes, as stabilizer is global"]
    assert notes() == notes(stabilizer="prefix") == []


# --- options that others make meaningless ---


@pytest.mark.parametrize("method, options", [
    ("local", {"window_left": 4, "window_right": 0, "causal": True}),  # says it twice
    ("performer", {"stabilizer": "global"}),  # what it would be anyway
    ("sparse_fixed", {"stride": 16, "summary": 4, "part": "segment"}),  # 32 would be refused
])
def test_values_that_are_meant_are_not_noted(method, options):
    made = {name: np.zeros((1, 2, 32, 8), np.float32) for name in "qkv"}
    assert engine("").plan(library.Request(method, made, options)).notes == []


def other_values(option):
    """Some values of an option besides its default."""
    if option["type"] == "bool":
        return [option["default_value"] != "true"]
    if option["type"] == "enum":
        return [name for name in option["enum_values"] if name != option["default_value"]]
    if option["type"] == "ints":
        return [[0], [1], [1, 0]]
    default = option["default_value"]
    of_default = float(default) if default.replace(".", "").replace("e-", "").isdigit() else 1
    numbers = [of_default + 1, of_default * 2, of_default / 2 or 3, 1, 2, 3, 4]
    return [int(x) for x in numbers if x >= 1] if option["type"] == "int" else numbers


def planned(method, tensors, options):
    try:
        return engine("").plan(library.Request(method.id, tensors, options))
    except library.Refused:
        return None


def conditional(method):
    return {option["name"]: option for option in described()[method.id]["options"]
            if NO_EFFECT in option["help"]}


def noted(method, made, options, name):
    """Whether a plan says that option `name` has no effect; None: the request is refused."""
    plan = planned(method, made, options)
    return plan and any(f": {name} has no effect" in note for note in plan.notes)


def outputs(method, made, options):
    return engine("").execute([library.Request(method.id, made, options)])[0].outputs


@pytest.mark.parametrize("method", [pytest.param(m, id=m.id) for m in methods().values()])
def test_an_option_that_is_noted_has_no_effect(method):
    """Each option whose help names a condition, in each case of the method: values that are noted
    give the bits of the default. Some case shows each of the notes."""
    unseen = conditional(method)
    for case in method.cases:
        if max(case.Nq, case.keys) > 140 or "f32" not in case.dtypes:
            continue
        made = tensors(case, "f32")
        for name, option in conditional(method).items():
            rest = {n: v for n, v in case.options.items() if n != name}
            tried = [rest | {name: value} for value in other_values(option)]
            tried = [options for options in tried if noted(method, made, options, name)][:2]
            if not tried:
                continue
            if planned(method, made, rest):
                tried = [rest, tried[0]]
            got = [outputs(method, made, options) for options in tried]
            assert all(same_bits(got[0], other) == [] for other in got[1:]), (case.id, tried)
            if len(got) == 2:
                unseen.pop(name, None)
    assert not unseen, f"no case shows a note of {sorted(unseen)}"
