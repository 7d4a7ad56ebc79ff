"""Gradients of every method on real data against the float64 oracles' analytic ones."""

import ml_dtypes
import numpy as np
import pytest

import attnd
from helpers import BOUND, OPTIONS, ORACLES, noise, relative_error, same_bits

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


def check(method, options, reply, tensors):
    want = ORACLES[method].backward(tensors, options)
    for name in "qkv":
        ours = getattr(reply, name)
        assert ours.dtype == tensors[name].dtype
        assert ours.shape == tensors[name].shape
        # Differences cancel in the gradients of q and k: wider than the forward's bound.
        assert relative_error(ours, want[name]) < 4 * BOUND[tensors[name].dtype.type], name
    assert reply.tensors == {}


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("method", ORACLES)
def test_genesis(client, genesis, rng, method, causal, dtype):
    # The oracle in float64 is slow: all heads in the file's own dtype, some in the others.
    heads = 12 if dtype == np.float16 else 3
    tensors = {name: genesis[name][:, :heads].astype(dtype) for name in "qkv"}
    tensors["grad_out"] = noise(rng, tensors["q"].shape, dtype)
    options = OPTIONS[method] | {"causal": causal}

    reply = client.backward(*tensors.values(), method=method, options=options)

    check(method, options, reply, tensors)


@pytest.mark.parametrize("method", ORACLES)
def test_ragged_verses_with_gradient_of_lse(client, verses, rng, method):
    tensors = verses | {"grad_out": noise(rng, verses["q"].shape, np.float16)}
    tensors["grad_lse"] = noise(rng, verses["q"].shape[:3])
    reply = client.backward(
        verses["q"],
        verses["k"],
        verses["v"],
        tensors["grad_out"],
        method=method,
        options=OPTIONS[method],
        tensors={name: verses[name] for name in ("q_lengths", "kv_lengths")},
        grad_lse=tensors["grad_lse"],
    )

    check(method, OPTIONS[method], reply, tensors)
    for row, length in enumerate(verses["kv_lengths"]):
        assert not reply.k[row, :, length:].any()
        assert not reply.v[row, :, length:].any()


@pytest.mark.parametrize("method", ORACLES)
def test_gradient_of_lse_alone(client, rng, method):
    tensors = {name: noise(rng, (1, 2, 33, 16)) for name in "qkv"}
    tensors["grad_lse"] = noise(rng, (1, 2, 33))

    reply = client.backward(
        *(tensors[n] for n in "qkv"),
        grad_lse=tensors["grad_lse"],
        method=method,
        options=OPTIONS[method],
    )

    want = ORACLES[method].backward(tensors, OPTIONS[method])
    for name in "qk":
        assert relative_error(getattr(reply, name), want[name]) < 2e-5
    assert not reply.v.any()


@pytest.mark.parametrize("method", ORACLES)
def test_grouped_heads_and_cross_lengths(client, rng, method):
    tensors = {
        "q": noise(rng, (2, 6, 33, 16)),
        "k": noise(rng, (2, 2, 65, 16)),
        "v": noise(rng, (2, 2, 65, 24)),
        "grad_out": noise(rng, (2, 6, 33, 24)),
    }
    options = OPTIONS[method] | {"causal": True}

    reply = client.backward(*tensors.values(), method=method, options=options)

    check(method, options, reply, tensors)


def test_layout_BNHD_is_the_same_answer(client, genesis, rng):
    tensors = [genesis[name] for name in "qkv"] + [noise(rng, genesis["q"].shape, np.float16)]
    turned = [np.ascontiguousarray(array.transpose(0, 2, 1, 3)) for array in tensors]

    plain = client.backward(*tensors)
    reply = client.backward(*turned, layout="BNHD")

    for name in "qkv":
        assert same_bits(getattr(reply, name).transpose(0, 2, 1, 3).copy(), getattr(plain, name))


def test_the_processor_is_deterministic_whatever_is_asked_for(client, rng):
    tensors = [noise(rng, (1, 4, 64, 32), np.float16) for _ in range(4)]

    usual = client.backward(*tensors)
    reply = client.backward(*tensors, deterministic=False)

    assert all(same_bits(getattr(reply, name), getattr(usual, name)) for name in "qkv")


def test_no_incoming_gradient_is_refused(client, rng):
    q = noise(rng, (1, 1, 4, 8))
    with pytest.raises(attnd.Error) as caught:
        client.backward(q, q, q)
    assert caught.value.code.name == "INVALID_ARGUMENT"
    assert "grad_out" in str(caught.value)
