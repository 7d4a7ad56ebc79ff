"""A run of minutes went on after its client had left, and other requests waited for it."""

import time

import numpy as np
import pytest

import attnd
from helpers import eventually, noise
from long_work import begin, input_of, open_channel


OPTIONS = {"softmax": {}, "random": {"num_random": 32}, "linear_attention": {}}


def rests(server):
    """Whether the server leaves the processors idle for half a second."""
    before = server.cpu_seconds()
    time.sleep(0.5)
    return server.cpu_seconds() - before < 0.1


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("method", OPTIONS)
def test_the_processors_are_free_and_the_memory_returns(start_server, rng, method, direction):
    server = start_server("--max-request-seconds", "0")
    small = noise(rng, (1, 1, 64, 8))
    client = attnd.Client(server.target, timeout=60)
    with client, open_channel(server.target) as channel:
        send = {"method": method, "options": OPTIONS[method], "direction": direction}
        if method == "softmax":
            q = input_of(client, 100, **send)
        else:
            # The run may have ended before the cancellation arrives.
            q = np.zeros((1, 1, 1 << 17, 16), np.float32)
        running = begin(channel, q, **send)
        assert eventually(lambda: server.metric("attnd_dispatch_total") == 1, 60)
        if method == "softmax":
            began = server.cpu_seconds()
            assert eventually(lambda: server.cpu_seconds() > began + 0.1, 60)
            assert not running.done()
        running.cancel()
        assert eventually(lambda: server.metric("attnd_inflight_requests") == 0, 30)
        assert eventually(lambda: server.metric("attnd_budget_charged_bytes") == 0, 30)
        # The run has ended by now.
        assert eventually(lambda: rests(server), 30)
        assert client.forward(small, small, small).out.shape == small.shape
    if method == "softmax":
        assert server.metric("attnd_refused_total", reason="cancelled") == 1
    assert server.stop() == 0


