"""A stopped lane keeps its request's charge, also when the caller has left."""

import time

import pytest

import attnd
from attnd import _calls
from bad_input_cases import T, forward
from helpers import eventually, long_input, refusals
from long_work import begin, open_channel
from raw_http2 import RawConnection, framed
from run_stream import RunStream, carry
from stopped_thread import StoppedThread


def on_a_stream(channel, q):
    """A call to be cancelled: a stream of Run with one request."""
    run = RunStream(channel)
    request = _calls.forward_request(q, q, q, "softmax", {}, {}, "BHND")
    run.send_whole("1", request.message())
    return run.call


@pytest.mark.parametrize("start", [begin, on_a_stream], ids=["Forward", "Run"])
def test_memory_of_a_cancelled_run_counts_until_the_run_has_ended(start_server, start):
    server = start_server("--max-running", "1", "--max-request-seconds", "0")

    def charged():
        return server.metric("attnd_budget_charged_bytes")

    with attnd.Client(server.target, timeout=60) as client, open_channel(server.target) as channel:
        q = long_input(client, seconds=20)
        call = start(channel, q)
        assert eventually(lambda: server.metric("attnd_memory_bytes", kind="workspace") > 0, 30)
        with StoppedThread(server.pid, "lane-0"):
            call.cancel()
            # Its caller is answered.
            assert eventually(lambda: server.metric("attnd_inflight_requests") == 0)
            assert server.metric("attnd_memory_bytes", kind="inputs") >= q.nbytes
            assert charged() >= q.nbytes
        assert eventually(lambda: charged() == 0)


def test_a_cancel_is_seen_at_once(start_server):
    """Without waiting for a timer: the time of one of some tries is close to an empty call's."""
    server = start_server("--max-running", "1")
    tensors = {name: T((1, 1, 1, 1), payload=bytes(4)) for name in "qkv"}
    message = framed(forward("softmax {}", tensors))
    raw = RawConnection(server.target)
    taken = []  # by the cancelled call, by an empty one

    def cancelled(what):
        return server.metric(f"attnd_request_seconds_{what}", code="CANCELLED")

    with StoppedThread(server.pid, "lane-0"):
        for count in range(20):
            before = cancelled("sum")
            stream = raw.open("Forward", attnd_message_bytes=str(len(message)))
            raw.send(stream, message)
            # When this call is answered, the other one waits for the lane.
            started = time.monotonic()
            other = raw.open("ServerInfo")
            raw.send(other, framed(b""))
            assert raw.status(other) == 0
            round_trip = time.monotonic() - started
            raw.reset(stream)
            assert eventually(lambda n=count: cancelled("count") > n)
            taken.append((cancelled("sum") - before, round_trip))
    raw.close()
    assert refusals(server) == {"cancelled": 20}
    assert any(call < max(0.0045, 3 * empty) for call, empty in taken), taken


def test_the_highest_priority_goes_first(start_server):
    server = start_server("--max-running", "1", "--max-priority", "100")
    tensors = {name: T((1, 1, 1, 1), payload=bytes(4)) for name in "qkv"}
    with open_channel(server.target) as channel:
        run = RunStream(channel)
        with StoppedThread(server.pid, "lane-0"):
            run.send(carry("usual", forward("softmax {}", tensors)))
            run.send(carry("urgent", forward("local { window_left: 1 }", tensors, priority=5)))
            assert eventually(lambda: server.metric("attnd_queue_requests") == 2)
        assert [reply.id for reply in run.take(2)] == ["urgent", "usual"]
        run.close()
