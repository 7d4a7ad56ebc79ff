"""Drains with work that takes long: the server waits for it, at most for the drain timeout."""

import grpc
import pytest

import attnd
from bad_input_cases import T, forward
from helpers import eventually
from long_work import begin, input_of, open_channel
from raw_http2 import SERVICE
from run_stream import RunStream, carry
from stopped_thread import StoppedThread

TENSORS = {name: T((1, 1, 1, 1), payload=bytes(4)) for name in "qkv"}
# Longer than the time that a drain leaves for the last answers.
SECONDS = 2.5


def on_a_stream(channel):
    run = RunStream(channel)
    run.send(carry("1", forward("softmax {}", TENSORS)))
    return run.call, lambda: [reply.WhichOneof("content") for reply in run.rest()[0]]


def of_its_own(channel):
    message = forward("softmax {}", TENSORS)
    size = [("attnd-message-bytes", str(len(message)))]
    call = channel.unary_unary(SERVICE + "Forward").future(message, metadata=size)
    return call, lambda: ["forward"] if call.code() == grpc.StatusCode.OK else []


@pytest.mark.parametrize("start", [of_its_own, on_a_stream], ids=["Forward", "Run"])
def test_running_requests_are_waited_for(start_server, start):
    """Calls ended a second after the signal, answered or not."""
    server = start_server("--max-running", "1", "--drain-timeout", "60s")
    with open_channel(server.target) as channel:
        with StoppedThread(server.pid, "lane-0"):
            call, answers = start(channel)
            assert eventually(lambda: server.metric("attnd_inflight_requests") == 1)
            server.signal()
            assert not eventually(call.done, SECONDS)
        assert answers() == ["forward"]
        assert server.wait() == 0


def test_the_drain_timeout_stops_what_runs(start_server):
    """A drain waited for a run of minutes after its timeout."""
    server = start_server("--drain-timeout", "200ms")
    with attnd.Client(server.target, timeout=60) as client:
        q = input_of(client, seconds=100)
    with open_channel(server.target) as channel:
        running = begin(channel, q)
        assert eventually(lambda: server.metric("attnd_dispatch_total") == 1, 60)
        server.signal()
        assert server.wait() == 0
        assert running.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
