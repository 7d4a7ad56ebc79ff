"""attnd.aio.Client: the same results and errors as the blocking client, many calls at a time."""

import asyncio
import threading

import grpc
import numpy as np
import pytest

import attnd
from helpers import noise, same_bits
from peer import Peer

Q = np.ones((1, 1, 2, 8), np.float32)


def with_client(target, use, **settings):
    """What `await use(client)` returns, on a new event loop."""

    async def run():
        async with attnd.aio.Client(target, **settings) as client:
            return await use(client)

    return asyncio.run(run())


@pytest.fixture
def peer():
    one = Peer()
    yield one
    one.stop()


@pytest.fixture
def hanging():
    """A peer that answers nothing, and reports when a call began and when it was cancelled."""
    one = Peer()
    one.began, one.cancelled = threading.Event(), threading.Event()

    def hang(request, context):
        context.add_callback(one.cancelled.set)
        one.began.set()
        one.cancelled.wait(20)
        return b""

    one.answer = hang
    yield one
    one.cancelled.set()
    one.stop()


def test_calls_answer_like_the_blocking_client(server, client, rng):
    q, k, v, grad = (noise(rng, (2, 2, 33, 16)) for _ in range(4))
    lengths = np.array([33, 20])
    request = {
        "method": "local",
        "options": {"window_left": 5, "causal": True},
        "tensors": {"kv_lengths": lengths},
    }

    async def use(c):
        return await asyncio.gather(
            c.forward(q, k, v, **request),
            c.backward(q, k, v, grad, **request),
            c.estimate(q.shape, k.shape, v.shape, method="softmax", backward=True),
            c.methods(),
            c.info(),
            c.health(),
        )

    forward, backward, estimate, methods, info, health = with_client(server.target, use)
    expected = client.forward(q, k, v, **request)
    assert same_bits(forward.out, expected.out) and same_bits(forward.lse, expected.lse)
    assert forward.stats.compute_seconds > 0
    expected = client.backward(q, k, v, grad, **request)
    assert all(same_bits(getattr(backward, n), getattr(expected, n)) for n in "qkv")
    assert estimate.flops == client.estimate(q.shape, k.shape, v.shape, backward=True).flops
    assert methods == client.methods()
    assert info.budget_bytes == client.info().budget_bytes
    assert health == "SERVING"


def test_many_calls_at_a_time(server, client, rng):
    inputs = [noise(rng, (1, 2, n, 16)) for n in range(1, 101)]

    async def use(c):
        return await asyncio.gather(*(c.forward(q, q, q) for q in inputs))

    for q, reply in zip(inputs, with_client(server.target, use), strict=True):
        assert same_bits(reply.out, client.forward(q, q, q).out)


def test_errors_are_those_of_the_blocking_client(server, client):
    async def use(c):
        calls = [
            c.forward(Q, Q, Q, method="local", options={"window_left": -5}),
            c.forward(Q, Q, Q, method="exact"),
            c.forward(Q.astype(np.float64)),
            c.health("nobody"),
        ]
        return await asyncio.gather(*calls, return_exceptions=True)

    found = with_client(server.target, use)
    blocking = [
        lambda: client.forward(Q, Q, Q, method="local", options={"window_left": -5}),
        lambda: client.forward(Q, Q, Q, method="exact"),
        lambda: client.forward(Q.astype(np.float64)),
        lambda: client.health("nobody"),
    ]
    for error, call in zip(found, blocking, strict=True):
        with pytest.raises(attnd.Error) as expected:
            call()
        assert isinstance(error, attnd.Error)
        assert error.args == expected.value.args


def test_requests_declare_their_size_and_token(peer):
    sizes = []

    def answer(request, context, first_tensor=peer.answer):
        sizes.append(len(request))
        return first_tensor(request, context)

    peer.answer = answer
    with_client(peer.target, lambda c: c.forward(Q, Q, Q), token="secret")
    assert peer.metadata["attnd-message-bytes"] == str(sizes[0])
    assert peer.metadata["authorization"] == "Bearer secret"


@pytest.mark.parametrize("settings, arguments", [({"timeout": 0.1}, {}), ({}, {"timeout": 0.1})])
def test_timeout_of_client_and_of_call(hanging, settings, arguments):
    with pytest.raises(attnd.Error) as caught:
        with_client(hanging.target, lambda c: c.forward(Q, Q, Q, **arguments), **settings)
    assert caught.value.code == grpc.StatusCode.DEADLINE_EXCEEDED
    assert hanging.cancelled.wait(10)


def test_cancelled_task_cancels_its_call(hanging):
    async def use(c):
        task = asyncio.create_task(c.forward(Q, Q, Q))
        assert await asyncio.to_thread(hanging.began.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The channel is still open, so the server sees the cancellation, not a closed connection.
        assert await asyncio.to_thread(hanging.cancelled.wait, 10)

    with_client(hanging.target, use)


def test_close_ends_calls_that_run(hanging):
    async def use(c):
        task = asyncio.create_task(c.forward(Q, Q, Q))
        assert await asyncio.to_thread(hanging.began.wait, 10)
        await c.close()
        return await asyncio.gather(task, c.forward(Q, Q, Q), return_exceptions=True)

    for error in with_client(hanging.target, use):
        assert isinstance(error, attnd.Error)
        assert error.code == grpc.StatusCode.CANCELLED
        assert str(error) == "client is closed"


def test_client_made_before_its_loop(peer):
    client = attnd.aio.Client(peer.target)

    async def run():
        async with client:
            return await client.forward(Q, Q, Q)

    assert np.array_equal(asyncio.run(run()).out, Q)


def test_client_that_was_never_used_closes():
    async def run():
        async with attnd.aio.Client("127.0.0.1:1"):
            pass

    asyncio.run(run())
