"""Forward of every method on real data against the float64 oracles."""

import asyncio

import ml_dtypes
import numpy as np
import pytest

import attnd
from helpers import BOUND, OPTIONS, ORACLES, noise, relative_error, same_bits
from server_process import DEVICE

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


def check(method, options, reply, tensors):
    want = ORACLES[method].forward(tensors, options)
    q = tensors["q"]
    assert reply.out.dtype == q.dtype
    assert reply.out.shape == want["out"].shape
    assert relative_error(reply.out, want["out"]) < BOUND[q.dtype.type]
    assert reply.lse.dtype == np.float32
    alive = np.isfinite(want["lse"])
    assert np.array_equal(np.isfinite(reply.lse), alive)
    assert np.allclose(reply.lse[alive], want["lse"][alive], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("method", ORACLES)
def test_genesis(client, genesis, method, causal, dtype):
    # The oracle in float64 is slow: all heads in the file's own dtype, some in the others.
    heads = 12 if dtype == np.float16 else 3
    tensors = {name: genesis[name][:, :heads].astype(dtype) for name in "qkv"}
    options = OPTIONS[method] | {"causal": causal}

    reply = client.forward(*tensors.values(), method=method, options=options)

    check(method, options, reply, tensors)


@pytest.mark.parametrize("method", ORACLES)
def test_ragged_verses(client, verses, method):
    reply = client.forward(
        verses["q"],
        verses["k"],
        verses["v"],
        method=method,
        options=OPTIONS[method],
        tensors={name: verses[name] for name in ("q_lengths", "kv_lengths")},
    )

    check(method, OPTIONS[method], reply, verses)
    for row, length in enumerate(verses["q_lengths"]):
        assert not reply.out[row, :, length:].any()
        assert np.isneginf(reply.lse[row, :, length:]).all()


@pytest.mark.parametrize("method", ORACLES)
def test_padding_may_hold_nan(client, verses, method):
    poisoned = {name: verses[name].copy() for name in "qkv"}
    for row, length in enumerate(verses["kv_lengths"]):
        for array in poisoned.values():
            array[row, :, length:] = np.nan
    lengths = {name: verses[name] for name in ("q_lengths", "kv_lengths")}
    send = {"method": method, "options": OPTIONS[method], "tensors": lengths}

    clean = client.forward(verses["q"], verses["k"], verses["v"], **send)
    reply = client.forward(*poisoned.values(), **send)

    assert same_bits(reply.out, clean.out)
    assert same_bits(reply.lse, clean.lse)


@pytest.mark.parametrize("method", ORACLES)
def test_layout_BNHD_is_the_same_answer(client, genesis, method):
    turned = [np.ascontiguousarray(genesis[name].transpose(0, 2, 1, 3)) for name in "qkv"]
    send = {"method": method, "options": OPTIONS[method]}

    plain = client.forward(*(genesis[name] for name in "qkv"), **send)
    reply = client.forward(*turned, layout="BNHD", **send)

    assert same_bits(reply.out.transpose(0, 2, 1, 3).copy(), plain.out)
    assert same_bits(reply.lse, plain.lse)


@pytest.mark.parametrize("method", ORACLES)
def test_grouped_heads_cross_lengths_and_wide_values(client, rng, method):
    tensors = {
        "q": noise(rng, (2, 6, 33, 16)),
        "k": noise(rng, (2, 2, 65, 16)),
        "v": noise(rng, (2, 2, 65, 24)),
    }
    options = OPTIONS[method] | {"causal": True}

    reply = client.forward(*tensors.values(), method=method, options=options)

    assert reply.out.shape == (2, 6, 33, 24)
    check(method, options, reply, tensors)


def test_scale_and_causal_offset(client, rng):
    tensors = {name: noise(rng, (2, 2, 20, 8)) for name in "qkv"}
    tensors["causal_offset"] = np.array([0, -3], np.int32)
    options = {"causal": True, "scale": 0.7}

    reply = client.forward(
        *(tensors[name] for name in "qkv"),
        options=options,
        tensors={"causal_offset": tensors["causal_offset"]},
    )

    check("softmax", options, reply, tensors)


@pytest.mark.parametrize("granularity", ["token", "block"])
def test_enum_options(client, genesis, granularity):
    options = {"granularity": granularity, "window_left": 9, "window_right": 3}
    if granularity == "block":
        options = {"granularity": granularity, "block": 32}
    reply = client.forward(*(genesis[n] for n in "qkv"), method="local", options=options)
    check("local", options, reply, genesis)


@pytest.mark.parametrize("shape", [(1, 1, 0, 8), (1, 1, 1, 8)], ids=str)
@pytest.mark.parametrize("method", ORACLES)
def test_smallest(client, method, shape):
    q = np.ones(shape, np.float32)
    reply = client.forward(q, q, q, method=method, options=OPTIONS[method])
    assert reply.out.shape == shape
    assert np.allclose(reply.out, 1, atol=1e-5)


def test_not_contiguous_arrays(client, genesis):
    wide = np.repeat(genesis["q"], 2, axis=3)[..., ::2]
    turned = genesis["k"].transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3)
    assert not wide.flags.c_contiguous and not turned.flags.c_contiguous

    plain = client.forward(genesis["q"], genesis["k"], genesis["v"])
    reply = client.forward(wide, turned, genesis["v"])

    assert same_bits(reply.out, plain.out)


def test_stats(client, rng):
    q = noise(rng, (2, 3, 40, 16))
    stats = client.forward(q, q, q, options={"causal": True}).stats

    assert stats.device == DEVICE
    assert stats.visible_pairs == 2 * 3 * 40 * 41 / 2
    assert stats.flops == 4 * 16 * stats.visible_pairs
    assert stats.batch_requests >= 1 and stats.batch_tokens >= 80
    assert stats.compute_seconds > 0 and stats.gather_seconds > 0
    assert stats.queue_seconds >= 0 and stats.answer_seconds >= 0
    # The outputs, at least, were allocated.
    assert stats.peak_workspace_bytes >= q.nbytes + 2 * 3 * 40 * 4


def test_results_are_read_only(client, rng):
    q = noise(rng, (1, 1, 4, 8))
    reply = client.forward(q, q, q)
    with pytest.raises(ValueError, match="read-only"):
        reply.out += 1


def test_refusals_name_every_reason(client, rng):
    q = noise(rng, (1, 1, 4, 8))
    with pytest.raises(attnd.Error) as caught:
        client.forward(q.astype(np.float64), q, q, method="local", options={"widow": 3})
    assert caught.value.code.name == "INVALID_ARGUMENT"
    assert len(caught.value.reasons) == 2
    assert "did you mean" in str(caught.value) and "astype(np.float32)" in str(caught.value)

    with pytest.raises(attnd.Error) as caught:
        client.forward(q, q[..., :7], q, method="local", options={"window_left": -5})
    assert caught.value.code.name == "INVALID_ARGUMENT"
    assert "local: window_left must be >= -1, got -5" in caught.value.reasons
    assert len(caught.value.reasons) >= 2


def test_a_list_option_takes_one_int(server, client, genesis):
    """One int for a list, in every client."""
    q, k, v = (genesis[name] for name in "qkv")

    def options(dilation):
        return {"method": "longformer", "options": {"window": 8, "dilation": dilation}}

    async def with_asyncio():
        async with attnd.aio.Client(server.target) as one, one.pipeline() as p:
            return await asyncio.gather(*(c.forward(q, k, v, **options(2)) for c in (one, p)))

    with client.pipeline() as p:
        piped = p.forward(q, k, v, **options(2))
    found = [client.forward(q, k, v, **options(2)), piped.result(), *asyncio.run(with_asyncio())]
    want = client.forward(q, k, v, **options([2]))
    assert all(same_bits(reply.out, want.out) for reply in found)
    assert not same_bits(want.out, client.forward(q, k, v, **options(1)).out)
