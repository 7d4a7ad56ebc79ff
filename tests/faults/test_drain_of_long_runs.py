"""A drain waited for a run of minutes after its timeout."""

import grpc

import attnd
from helpers import eventually
from long_work import begin, input_of, open_channel


def test_the_drain_timeout_stops_what_runs(start_server):
    server = start_server("--drain-timeout", "200ms")
    with attnd.Client(server.target, timeout=60) as client:
        q = input_of(client, seconds=100)
    with open_channel(server.target) as channel:
        running = begin(channel, q)
        assert eventually(lambda: server.metric("attnd_dispatch_total") == 1, 60)
        server.signal()
        assert server.wait() == 0
        assert running.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
