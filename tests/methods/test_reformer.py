"""reformer beside its cases: queries fewer than keys, many rounds, buckets of any numbers, limits."""

import time

import numpy as np
import pytest

from tests.methods import library
from tests.methods.cases import Case, tensors
from tests.methods.harness import engine, methods, request, suited

METHOD = methods()["reformer"]
ROUNDS = {"chunk_len": 16, "n_hashes": 3}


def run(t, options, backward=False):
    return engine("").execute([library.Request("reformer", t, options, backward)])[0].outputs


def made(N, options=None, **more):
    case = suited(METHOD, Case(f"made-{N}", Nq=N, D=8, options=options or ROUNDS, **more))
    return tensors(case, "f32", gradients=True)


@pytest.mark.parametrize("N", [12, 70])
def test_keys_beyond_the_queries_are_seen(N):
    """q_lengths cuts queries alone: rows below kv_lengths stay keys, with gradients."""
    t = made(N)
    whole = run({name: x for name, x in t.items() if name in "qv"}, ROUNDS)
    nq = N - 5
    cut = t | {"q_lengths": np.array([nq], np.int32)}
    got = run({name: x for name, x in cut.items() if not name.startswith("grad_")}, ROUNDS)
    np.testing.assert_array_equal(got["out"][:, :, :nq], whole["out"][:, :, :nq])
    assert not got["out"][:, :, nq:].any() and np.isneginf(got["lse"][:, :, nq:]).all()
    grads, want = run(cut, ROUNDS, True), METHOD.oracle.backward(cut, ROUNDS)
    for name in ("q", "v"):
        assert grads[name][:, :, nq:].any()
        np.testing.assert_allclose(grads[name], want[name], atol=2e-5)


def test_many_rounds_are_shared_attention():
    """The specification: with dedup 64 rounds of 32 rows converge to attention over all others."""
    case = suited(METHOD, Case("converged", Nq=32, D=8))
    t = tensors(case, "f32")
    all_keys = run(t, {"chunk_len": 32})
    rounds = run(t, {"chunk_len": 4, "n_hashes": 64})
    np.testing.assert_allclose(rounds["out"], all_keys["out"], atol=1e-5)
    lists = run(t, {"chunk_len": 4, "n_hashes": 64, "dedup": False})
    assert abs(lists["out"] - all_keys["out"]).max() > 0.01


def test_own_length_decides_and_not_that_of_the_batch():
    """Chunks follow the valid rows; buckets are given, since their number follows N."""
    options = ROUNDS | {"n_buckets": [6]}
    long = made(131, options)
    t = {name: long[name] for name in "qv"}
    padded = run(t | {"kv_lengths": np.array([50], np.int32)}, options)
    alone = run({name: x[:, :, :50].copy() for name, x in t.items()}, options)
    for name in ("out", "lse"):
        np.testing.assert_array_equal(padded[name][:, :, :50], alone[name])


def test_rotations_are_the_drawn_ones_and_buckets_those_of_the_rotations():
    t = {name: x for name, x in made(70).items() if name in "qv"}
    drawn = run(t, ROUNDS)
    buckets = METHOD.oracle.constants(t, ROUNDS)["buckets"]
    sent = run(t | {"buckets": buckets}, ROUNDS)
    np.testing.assert_array_equal(sent["out"], drawn["out"])
    moved = run(t | {"buckets": buckets * 1000 - 2**20}, ROUNDS)
    np.testing.assert_array_equal(moved["out"], drawn["out"])


def test_ties_go_to_the_first_bucket():
    """Rows of zeros and rotations that repeat a column: the lowest index, positives first."""
    t = {name: x for name, x in made(40).items() if name in "qv"}
    t["q"][:, :, ::3] = 0
    rotations = np.repeat(t["q"][0, :, :1].transpose(0, 2, 1), 3, axis=2)[:, :, None]
    options = {"chunk_len": 8, "n_buckets": [6]}
    buckets = METHOD.oracle.constants(t | {"rotations": rotations}, options)["buckets"]
    assert set(np.unique(buckets)) <= {0, 3}
    got = run(t | {"rotations": rotations}, options)
    want = run(t | {"buckets": buckets}, options)
    np.testing.assert_array_equal(got["out"], want["out"])


def test_windows_of_any_size():
    """And in any place, beside the cases of tests/methods/reformer.py."""
    rng = np.random.default_rng(5)
    for _ in range(60):
        options = {"chunk_len": int(rng.integers(1, 12)), "n_hashes": int(rng.integers(1, 5)),
                   "chunks_before": int(rng.integers(60)), "chunks_after": int(rng.integers(60)),
                   "dedup": bool(rng.integers(2)), "attend_across_buckets": bool(rng.integers(2)),
                   "lookback": ("flat", "round")[rng.integers(2)], "causal": bool(rng.integers(2)),
                   "self_value": -2000.0}
        N = int(rng.integers(2, 90))
        t = made(N, options, ints={"kv_lengths": (int(rng.integers(N + 1)),)}, grad_lse=False)
        t["buckets"] = METHOD.oracle.constants(t, options)["buckets"]
        got, want = run(t, options, True), METHOD.oracle.backward(t, options)
        for name in ("q", "v"):
            np.testing.assert_allclose(got[name], want[name], atol=1e-4, err_msg=str(options))


@pytest.mark.parametrize("N, options", [
    (32, {"chunks_before": 2000}), (256, {"chunks_before": 510}), (256, {"chunks_before": 500}),
    (500, {"chunks_before": 999, "n_hashes": 16, "causal": True, "dedup": False}),
    (500, {"chunk_len": 8, "chunks_before": 60, "lookback": "round",
           "attend_across_buckets": False}),
    (500, {"chunk_len": 8, "chunks_before": 3000, "attend_across_buckets": False}),
    (500, {"chunk_len": 8, "chunks_before": 2**40, "attend_across_buckets": False})])
@pytest.mark.parametrize("backward", [False, True])
def test_masks_of_many_rounds_are_planned(N, options, backward):
    """Symptom: 256 bytes took 38 s of masks, planned as less than a millisecond."""
    t = {name: x[:, :1, :, :1] for name, x in made(N).items() if name in ("q", "v", "grad_out")}
    if not backward:
        del t["grad_out"]
    call = library.Request("reformer", t, {"chunk_len": 1, "n_hashes": 64} | options, backward)
    start = time.process_time()
    reply = engine("", 1).execute([call])[0]
    # A few milliseconds of the rest are no masks.
    assert time.process_time() - start < 8 * reply.planned_seconds + 0.5
    assert reply.peak_bytes <= reply.planned_bytes


@pytest.mark.parametrize("options", [
    {"chunk_len": 1, "n_hashes": 64}, {"chunk_len": 1, "n_hashes": 64, "chunks_before": 2**62},
    {"chunk_len": 1, "n_hashes": 64, "chunks_after": 2**62, "dedup": False},
    {"chunk_len": 2**62, "n_buckets": [2**62]}])
def test_extreme_options_of_a_small_request(options):
    t = {name: x for name, x in made(9).items() if name in "qv"}
    call = library.Request("reformer", t, options)
    reply = engine("").execute([call])[0]
    assert np.isfinite(reply.outputs["out"]).all()
    assert reply.peak_bytes <= reply.planned_bytes < 2**24
    assert reply.planned_seconds < 1


def test_requests_with_other_numbers_of_parts_do_not_share_a_batch():
    calls = [request(METHOD, case, tensors(case, "f32")) for case in (
        suited(METHOD, Case(f"parts-{n}", Nq=n, options=ROUNDS)) for n in (10, 100))]
    with pytest.raises(library.Refused, match="buckets must be equal"):
        engine("").execute(calls)
