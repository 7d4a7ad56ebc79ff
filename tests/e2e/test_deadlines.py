"""Deadlines and cancellations act at once, also on work that waits, and the server goes on."""

import time

import grpc
import pytest

import attnd
from attnd import _calls
from helpers import Busy, eventually, long_input, noise
from one_lane import client, server  # noqa: F401


def forward_request(q):
    return _calls.forward_request(q, q, q, "softmax", {}, {}, "BHND")


def dropped_count(server):
    # At its deadline a client also cancels: either may reach the server first.
    reasons = ("deadline", "cancelled")
    return sum(server.metric("attnd_refused_total", reason=reason) for reason in reasons)


def test_deadline_of_work_that_waits(server, client, rng):
    q = noise(rng, (1, 1, 64, 32))
    dropped = dropped_count(server)
    with Busy(client, server, held=True) as busy:
        with pytest.raises(attnd.Error) as caught:
            client.forward(q, q, q, timeout=1)  # long enough to reach the server
        # The server drops it while the lane is still busy, not when its turn comes.
        assert eventually(lambda: dropped_count(server) == dropped + 1)
        assert server.metric("attnd_queue_requests") == 0
    assert caught.value.code == grpc.StatusCode.DEADLINE_EXCEEDED
    assert busy.error is None
    assert client.forward(q, q, q).out.shape == q.shape


def test_deadline_of_work_that_runs(server, client, rng):
    q = long_input(client, seconds=4)
    small = noise(rng, (1, 1, 8, 64))

    start = time.monotonic()
    # As much to send, and next to nothing to compute.
    client.forward(q, q, q, method="local", options={"window_left": 0})
    to_send = time.monotonic() - start
    start = time.monotonic()
    with pytest.raises(attnd.Error) as caught:
        client.forward(q, q, q, timeout=0.2)
    assert caught.value.code == grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - start < 4 + to_send, "the client waited for the work"
    assert client.forward(small, small, small).out.shape == small.shape
    assert eventually(lambda: server.metric("attnd_inflight_requests") == 0)


def test_cancelled_work_that_waits_is_dropped(server, client, rng):
    request = forward_request(noise(rng, (1, 1, 64, 32)))
    cancelled = server.metric("attnd_refused_total", reason="cancelled")
    with grpc.insecure_channel(server.target) as channel:
        with Busy(client, server, held=True) as busy:
            call = channel.unary_unary(_calls.SERVICE + "Forward")
            waiting = [call.future(request.message()) for _ in range(5)]
            assert eventually(lambda: server.metric("attnd_queue_requests") == 5)

            for one in waiting[:4]:
                one.cancel()

            assert eventually(lambda: server.metric("attnd_queue_requests") == 1)
            assert eventually(
                lambda: server.metric("attnd_refused_total", reason="cancelled") == cancelled + 4
            )
        # What was not cancelled is answered.
        assert request.result(waiting[4].result(timeout=60)).out.shape == (1, 1, 64, 32)
    assert busy.error is None


def test_clients_that_vanish_leave_nothing_behind(server, client, rng):
    request = forward_request(noise(rng, (1, 8, 1024, 64))).message()
    for _ in range(10):
        channel = grpc.insecure_channel(server.target)
        channel.unary_unary(_calls.SERVICE + "Forward").future(request)
        channel.close()
    assert eventually(lambda: server.metric("attnd_inflight_requests") == 0)
    assert eventually(lambda: server.metric("attnd_queue_requests") == 0)
    assert client.health() == "SERVING"
