"""A flood at priority 100 kept every other client waiting for as long as it lasted."""

import grpc
import pytest

import attnd
from helpers import eventually, noise
from long_work import begin, input_of, open_channel

# Calls of the flood that are open at a time, fewer than a connection may have, so that none waits in
# the client; how many wait in the server in the middle of it; predicted seconds of each.
OPEN, WAITING, EACH_SECONDS = 240, 200, 0.1


def test_others_are_served_in_the_middle_of_it(start_server, rng, tmp_path):
    socket = f"unix:{tmp_path}/flood"
    server = start_server("--grpc", socket, "--max-batch", "1", "--max-running", "1")
    small = noise(rng, (1, 1, 16, 8))
    client = attnd.Client(server.target, timeout=60)
    with client, open_channel(socket) as channel:
        q = input_of(client, EACH_SECONDS)
        flood = []

        def is_in_the_middle():
            ended = sum(one.done() for one in flood)
            flood.extend(begin(channel, q, priority=100) for _ in range(OPEN - len(flood) + ended))
            return server.metric("attnd_queue_requests") > WAITING

        assert eventually(is_in_the_middle, 60)
        assert client.forward(small, small, small).out.shape == small.shape
        assert server.metric("attnd_queue_requests") > WAITING / 4
        for one in flood:
            one.cancel()
        assert eventually(lambda: server.metric("attnd_inflight_requests") == 0, 30)


def test_priorities_above_the_limit_are_refused(start_server, rng, tmp_path):
    socket = f"unix:{tmp_path}/any"
    server = start_server("--grpc", socket, "--max-priority", "5")
    q = noise(rng, (1, 1, 16, 8))
    with attnd.Client(server.target, timeout=60) as client, attnd.Client(socket) as local:
        assert client.forward(q, q, q, priority=5).out.shape == q.shape
        assert local.forward(q, q, q, priority=100).out.shape == q.shape
        with pytest.raises(attnd.Error) as caught:
            client.forward(q, q, q, priority=6)
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT
    assert str(caught.value).endswith(
        "request: priority must be <= 5 from this address (--max-priority of the server), got 6"
    )
