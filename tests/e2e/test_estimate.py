"""Estimate: workspace is an upper bound of what a run takes, work is exact, seconds grow with it.

How far seconds are from measured ones: tests/bench/run estimate.
"""

import ml_dtypes
import numpy as np
import pytest

import attnd
from helpers import OPTIONS, ORACLES, noise
from server_process import DEVICE

SHAPES = {
    "softmax": [(1, 4, 1024, 64), (2, 2, 1500, 128)],
    "local": [(1, 8, 4096, 64), (1, 4, 6000, 128)],
    "linear_attention": [(1, 8, 8192, 64), (1, 4, 8000, 128)],
}
WIDE = {"softmax": {}, "local": {"window_left": 128}, "linear_attention": {}}
CASES = [
    (method, shape, causal, backward)
    for method, shapes in SHAPES.items()
    for shape, causal in zip(shapes, (False, True), strict=True)
    for backward in (False, True)
]


def ask(client, tensors, method, options, backward):
    if backward:
        return client.backward(*tensors, tensors[0], method=method, options=options)
    return client.forward(*tensors, method=method, options=options)


@pytest.mark.parametrize("method, shape, causal, backward", CASES, ids=str)
def test_workspace_and_work(client, rng, method, shape, causal, backward):
    options = WIDE[method] | {"causal": causal}
    tensors = [noise(rng, shape) for _ in range(3)]
    predicted = client.estimate(
        shape, shape, shape, method=method, options=options, backward=backward
    )

    stats = ask(client, tensors, method, options, backward).stats
    assert stats.peak_workspace_bytes <= predicted.workspace_bytes
    # The bound must be tight, because admission charges it.
    assert predicted.workspace_bytes <= 4 * stats.peak_workspace_bytes + 2**20
    assert np.isclose(predicted.flops, stats.flops)
    assert np.isclose(predicted.visible_pairs, stats.visible_pairs)
    payload = tensors[0].nbytes
    assert predicted.input_bytes == payload * (4 if backward else 3)
    assert predicted.device == DEVICE


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("method", ORACLES)
def test_workspace_is_a_bound_for_odd_shapes(client, rng, method, dtype):
    for q_shape, k_shape, v_shape in [
        ((1, 1, 1, 8),) * 3,
        ((2, 6, 65, 16), (2, 2, 127, 16), (2, 2, 127, 24)),
        ((3, 1, 257, 33), (3, 1, 31, 33), (3, 1, 31, 1)),
    ]:
        for backward in (False, True):
            predicted = client.estimate(
                q_shape, k_shape, v_shape, method=method, options=OPTIONS[method], dtype=dtype,
                backward=backward)  # fmt: skip
            q, k, v = (noise(rng, shape, dtype) for shape in (q_shape, k_shape, v_shape))
            send = {"method": method, "options": OPTIONS[method]}
            if backward:
                grad_out = noise(rng, (*q_shape[:3], v_shape[3]), dtype)
                stats = client.backward(q, k, v, grad_out, **send).stats
            else:
                stats = client.forward(q, k, v, **send).stats
            assert stats.peak_workspace_bytes <= predicted.workspace_bytes


@pytest.mark.parametrize("method, exponent", [("softmax", 2), ("local", 1), ("linear_attention", 1)])
def test_seconds_follow_the_work(client, method, exponent):
    def seconds(n, heads=4, **more):
        shape = (1, heads, n, 64)
        return client.estimate(
            shape, shape, shape, method=method, options=WIDE[method], **more).seconds  # fmt: skip

    once = seconds(16384)
    assert once > 0
    assert seconds(65536) == pytest.approx(4**exponent * once, rel=0.1)
    assert seconds(16384, heads=16) == pytest.approx(4 * once, rel=0.1)
    assert once * 1.5 < seconds(16384, backward=True) < once * 8


@pytest.mark.parametrize("layout", ["BHND", "BNHD"])
@pytest.mark.parametrize(
    "more, rows",
    [({"options": {"mode": "pma"}}, 1),
     ({"options": {"mode": "pma", "num_seeds": 3}}, 3),
     ({"options": {"mode": "pma"}, "tensors": {"seeds": ((4, 2, 16), np.float32)}}, 2),
     ({}, 96)],
)  # fmt: skip
def test_the_gradient_of_out_is_as_long_as_out(client, rng, more, rows, layout):
    """Symptom: a backward whose out has other rows than q could not be estimated."""
    shape = (2, 4, 96, 16) if layout == "BHND" else (2, 96, 4, 16)
    out = (2, 4, rows, 16) if layout == "BHND" else (2, rows, 4, 16)
    send = {"method": "set_transformer", "layout": layout} | more
    predicted = client.estimate(shape, shape, shape, backward=True, **send)
    assert predicted.input_bytes - client.estimate(shape, shape, shape, **send).input_bytes == (
        2 * 4 * rows * 16 * 4)
    send["tensors"] = {name: noise(rng, s) for name, (s, _) in more.get("tensors", {}).items()}
    q, k, v = (noise(rng, shape) for _ in range(3))
    stats = client.backward(q, k, v, noise(rng, out), **send).stats
    assert np.isclose(predicted.flops, stats.flops)
    assert stats.peak_workspace_bytes <= predicted.workspace_bytes


def test_gradients_that_an_estimate_names_are_all_it_has(client):
    shape = (1, 2, 40, 8)
    of_out = client.estimate(shape, shape, shape, backward=True)
    lse = {"grad_lse": ((1, 2, 40), np.float32)}
    of_lse = client.estimate(shape, shape, shape, backward=True, tensors=lse)
    assert of_out.input_bytes - of_lse.input_bytes == (8 - 1) * 2 * 40 * 4
    with pytest.raises(attnd.Error) as caught:
        client.estimate(shape, shape, shape, backward=True, options={"logit_softcap": -1.0},
                        tensors={"kv_lengths": np.array([41])})  # fmt: skip
    assert sorted(caught.value.reasons) == [
        "softmax: kv_lengths[0] must be in 0..Nk = 0..40, got 41",
        "softmax: logit_softcap must be >= 0 and <= 1e+30, got -1"]


def test_lengths_count_as_sent_and_as_full_without_values(client):
    shape = (2, 1, 100, 8)
    full = client.estimate(shape, shape, shape)
    described = {"q_lengths": ((2,), np.int32), "kv_lengths": ((2,), np.int32)}
    assumed = client.estimate(shape, shape, shape, tensors=described)
    assert assumed.visible_pairs == full.visible_pairs
    lengths = {"q_lengths": np.array([3, 4]), "kv_lengths": [50, 100]}
    ragged = client.estimate(shape, shape, shape, tensors=lengths)
    assert (full.visible_pairs, ragged.visible_pairs) == (2 * 100 * 100, 3 * 50 + 4 * 100)


@pytest.mark.parametrize(
    "method, options",
    [("softmax", {}), ("local", {"window_left": 9}), ("longformer", {}), ("blockwise", {})],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_packed_sequences(client, rng, method, options):
    """An estimate of packed sequences without the values of cu_seqlens was refused as invalid."""
    N = 200
    shape, options = (1, 2, N, 16), options | {"causal": True}
    q = noise(rng, shape)
    for bounds in ([0, 3, 150, N], [0, 66, 133, N]):
        tensors = {"cu_seqlens_q": np.array(bounds), "cu_seqlens_k": np.array(bounds)}
        send = {"method": method, "options": options, "tensors": tensors}
        predicted = client.estimate(shape, shape, shape, **send)
        stats = client.forward(q, q, q, **send).stats
        assert predicted.visible_pairs == stats.visible_pairs
        assert predicted.flops == stats.flops
        assert stats.peak_workspace_bytes <= predicted.workspace_bytes
    # Without values the last of them is assumed: bounds at floor(i N / S).
    send["tensors"] = {name: ((4,), np.int32) for name in tensors}
    assert client.estimate(shape, shape, shape, **send) == predicted


def test_arrays_count_with_their_own_shape_and_dtype(client, rng):
    q = noise(rng, (1, 2, 100, 8)).astype(np.float16)
    assert client.estimate(q, q, q) == client.estimate(q.shape, q.shape, q.shape, dtype=np.float16)
    assert client.estimate(q, q, q, dtype=np.float32).input_bytes == 3 * q.nbytes


@pytest.mark.parametrize(
    "shape, reason",
    [
        ([1, 2, 100, 8.0], "softmax: q shape must be integers, got [1, 2, 100, 8.0]"),
        ([1, 2, -1, 8], "softmax: q shape must be >= 0, got [1, 2, -1, 8]"),
    ],
)
def test_what_is_no_shape(client, shape, reason):
    with pytest.raises(attnd.Error) as caught:
        client.estimate(shape, shape, shape)
    assert caught.value.reasons[0] == reason


def test_what_is_wrong_with_packed_sequences(client):
    shape = (1, 1, 100, 8)
    bounds = np.array([0, 60, 99])
    with pytest.raises(attnd.Error) as caught:
        client.estimate(
            shape, shape, shape, tensors={"cu_seqlens_q": bounds, "cu_seqlens_k": ((3,), np.int32)}
        )
    assert caught.value.reasons == ["softmax: cu_seqlens_q[2] must be Nq = 100, got 99"]
    with pytest.raises(attnd.Error, match="at most 65536 elements .* values are not sent"):
        client.estimate(shape, shape, shape, tensors={"kv_lengths": ((100_000,), np.int32)})


def test_estimates_need_no_room(client):
    """A request far above every limit gets an estimate."""
    shape = (1, 64, 1 << 20, 128)
    predicted = client.estimate(shape, shape, shape)
    assert predicted.input_bytes == 3 * 4 * 64 * (1 << 20) * 128
    assert predicted.flops == 4 * 128 * 64 * float(1 << 40)


def test_an_estimate_says_whether_its_pairs_are_exact(client):
    """Symptom: pairs that only data decide were wrong by up to 65 times, without a word."""
    shape = (1, 2, 256, 8)
    own_bucket = {"n_buckets": 8, "chunk_len": 16, "attend_across_buckets": False}
    said = {}
    cases = (("longformer", {"window": 8}), ("softmax", {}), ("reformer", own_bucket))
    for method, options in cases:
        kv = None if method == "reformer" else shape
        reply = client.estimate(shape, kv, shape, method=method, options=options)
        said[method] = [note for note in reply.notes if "visible_pairs" in note]
    assert not said["longformer"] and not said["softmax"]
    assert len(said["reformer"]) == 1 and "estimates" in said["reformer"][0]
