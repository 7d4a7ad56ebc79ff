"""Other requests of a batch never change an answer, to the bit."""

import numpy as np
import pytest

import attnd
from helpers import OPTIONS, ORACLES, Busy, noise, same_bits, together
from one_lane import client, server  # noqa: F401
from server_process import DEVICE


@pytest.fixture(scope="module")
def requests():
    rng = np.random.default_rng(3)
    lengths, D = [1, 7, 63, 64, 65, 100, 128, 200, 257, 300], 32
    if DEVICE != "cpu":
        # The emulator takes milliseconds for these, and a batch closes before 20 ms.
        lengths, D = [1, 3, 5, 7, 8, 15, 16, 17, 20, 24], 8
    return [[noise(rng, (1, 2, n, D)) for _ in range(4)] for n in lengths]


def ask(client, method, direction, tensors):
    send = {"method": method, "options": OPTIONS[method]}
    if direction == "forward":
        return client.forward(*tensors[:3], **send)
    return client.backward(*tensors, **send)


def batched_replies(client, server, calls, which):
    """Replies of calls of which number `which` ran in a batch with others.

    A batch closes before its predicted seconds exceed a bound, and what a loaded machine has taken
    for earlier requests raises the prediction: a request may run alone, and is tried again.
    """
    for _ in range(10):
        with Busy(client, server, seconds=1):
            replies = together(calls)
        if replies[which].stats.batch_requests > 1:
            return replies
    pytest.fail("ten times, no other request ran in the batch")


def arrays_of(reply):
    if isinstance(reply, attnd.ForwardResult):
        return [reply.out, reply.lse]
    return [reply.q, reply.k, reply.v]


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("method", ORACLES)
def test_batched_equals_alone(server, client, requests, method, direction):
    alone = [ask(client, method, direction, tensors) for tensors in requests]
    assert all(reply.stats.batch_requests == 1 for reply in alone)

    calls = [lambda t=tensors: ask(client, method, direction, t) for tensors in requests]
    batched = batched_replies(client, server, calls, which=3)

    for one, other in zip(alone, batched, strict=True):
        for a, b in zip(arrays_of(one), arrays_of(other), strict=True):
            assert same_bits(a, b)


@pytest.mark.parametrize("method", ORACLES)
def test_nan_stays_in_its_own_request(server, client, requests, method):
    sound = requests[5]
    poisoned = [array.copy() for array in requests[6]]
    poisoned[0][0, 0, 3, 5] = np.nan
    poisoned[2][0, 1, 9, 2] = np.inf
    alone = ask(client, method, "backward", sound)

    calls = [lambda t=tensors: ask(client, method, "backward", t)
             for tensors in (sound, poisoned, sound)]
    first, poison, second = batched_replies(client, server, calls, which=1)

    assert np.isnan(poison.q).any()
    for reply in (first, second):
        for a, b in zip(arrays_of(alone), arrays_of(reply), strict=True):
            assert same_bits(a, b)


def test_one_client_serves_many_threads(client, rng):
    inputs = [noise(rng, (1, 1, 40 + i, 16)) for i in range(16)]
    alone = [client.forward(q, q, q).out for q in inputs]
    for _ in range(5):
        replies = together([lambda q=q: client.forward(q, q, q) for q in inputs])
        assert all(same_bits(r.out, a) for r, a in zip(replies, alone, strict=True))
