"""A run of minutes went on after its client had left, and with it the wait of everybody behind."""

import pytest

import attnd
from helpers import eventually, noise
from long_work import begin, input_of, open_channel


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("method", ["softmax", "random", "linear_attention"])
def test_the_processors_are_free_and_the_memory_returns(start_server, rng, method, direction):
    server = start_server("--max-request-seconds", "0")
    small = noise(rng, (1, 1, 64, 8))
    client = attnd.Client(server.target, timeout=60)
    with client, open_channel(server.target) as channel:
        # Linear methods cost as much as is sent.
        seconds = 100 if method == "softmax" else 0.5
        q = input_of(client, seconds, method=method, direction=direction, width=16)
        running = begin(channel, q, direction=direction, method=method)
        assert eventually(lambda: server.metric("attnd_dispatch_total") == 1, 60)
        if method == "softmax":
            began = server.cpu_seconds()
            assert eventually(lambda: server.cpu_seconds() > began + 0.1, 60)
            assert not running.done()
        running.cancel()
        assert eventually(lambda: server.metric("attnd_inflight_requests") == 0, 30)
        assert eventually(lambda: server.metric("attnd_budget_charged_bytes") == 0, 30)
        # The run has ended by now: what follows takes no more than it takes alone.
        before = server.cpu_seconds()
        assert client.forward(small, small, small).out.shape == small.shape
        assert server.cpu_seconds() - before < 1
    if method == "softmax":
        assert server.metric("attnd_refused_total", reason="cancelled") == 1
    assert server.stop() == 0


