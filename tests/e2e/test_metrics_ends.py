"""Ends of calls in /metrics: each is counted once, with the status that the client received."""

import grpc
import numpy as np
import pytest

import attnd
from bad_input_cases import T, forward
from helpers import Busy, eventually, noise
from own_client import client  # noqa: F401
from raw_http2 import RawConnection, framed

SHAPE = (1, 4, 1024, 64)  # 1 MiB: more than the window of a client that does not read


@pytest.fixture
def server(start_server):
    return start_server("--max-running", "1")


def ended(server, **labels):
    """Requests that ended so, and how many of them have a latency."""
    return (
        server.metric("attnd_requests_total", **labels),
        server.metric("attnd_request_seconds_count", **labels),
    )


def test_a_result_that_is_never_read_is_no_success(server, client):
    tensors = {name: T(SHAPE, payload=bytes(4 * np.prod(SHAPE))) for name in "qkv"}
    message = forward("local { window_left: 1 }", tensors)
    sent = server.metric("attnd_sent_bytes_total")
    lazy = RawConnection(server.target)
    stream = lazy.open("Forward", attnd_message_bytes=str(len(message)))
    assert lazy.send(stream, framed(message)) == len(framed(message))
    # It was computed, and its reply is on its way for as long as the client does not read.
    assert eventually(lambda: server.metric("attnd_answer_seconds_count") == 1)
    assert ended(server) == (0, 0)
    assert server.metric("attnd_inflight_requests") == 1

    lazy.close()

    assert eventually(lambda: ended(server, code="CANCELLED") == (1, 1))
    assert ended(server) == (1, 1)
    assert server.metric("attnd_refused_total", reason="cancelled") == 1
    assert server.metric("attnd_sent_bytes_total") == sent
    assert server.metric("attnd_inflight_requests") == 0
    assert server.metric("attnd_calls_total", rpc="attn.v1.AttentionService/Forward") == 1
    calls = {"rpc": "attn.v1.AttentionService/Forward", "code": "CANCELLED"}
    assert server.metric("attnd_calls_total", **calls) == 1


def test_a_refusal_that_the_run_finds_is_counted(server, client, rng):
    q = noise(rng, (1, 1, 64, 8))
    twice = np.array([[0, 1, 1, 2]], np.int32)
    with pytest.raises(attnd.Error, match="perm"):
        client.forward(
            q, q, q, method="blockwise", options={"num_blocks": 4}, tensors={"perm": twice}
        )
    assert eventually(lambda: ended(server, code="INVALID_ARGUMENT") == (1, 1))
    assert server.metric("attnd_refused_total", reason="invalid") == 1
    assert server.metric("attnd_refused_total") == 1
    # It was queued until a lane took it.
    assert server.metric("attnd_queue_seconds_count") == 1


def test_waiting_in_vain_counts_as_waiting(server, client):
    with Busy(client, server, seconds=2):
        # A client that does not cancel at its deadline, which might arrive before that.
        raw = RawConnection(server.target)
        call = raw.open("Forward", grpc_timeout="1S")
        raw.send(call, framed(forward("local { window_left: 1 }")))
        # Refused by prediction or after it waited, as the machine is fast.
        assert raw.status(call) == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        labels = {"code": "DEADLINE_EXCEEDED"}
        assert eventually(lambda: ended(server, **labels) == (1, 1))
        raw.close()
    assert server.metric("attnd_refused_total", reason="deadline") == 1


def test_every_rpc_counts_its_errors(server, client):
    with pytest.raises(attnd.Error):
        client.estimate((1, 1, 4, 8), (1, 1, 4, 8), method="local", options={"window_left": -5})
    with pytest.raises(attnd.Error):
        client.health("no.such.Service")
    assert client.health() == "SERVING"
    raw = RawConnection(server.target)
    run = raw.open("Run")
    raw.send(run, framed(b"\xff"))

    def calls(rpc, code):
        return server.metric("attnd_calls_total", rpc=rpc, code=code)

    assert eventually(lambda: calls("attn.v1.AttentionService/Run", "INVALID_ARGUMENT") == 1)
    raw.close()
    assert calls("attn.v1.AttentionService/Estimate", "INVALID_ARGUMENT") == 1
    assert calls("grpc.health.v1.Health/Check", "NOT_FOUND") == 1
    assert calls("grpc.health.v1.Health/Check", "OK") == 1


@pytest.mark.parametrize("rpc", ["Estimate", "Forward", "ServerInfo"])
def test_a_call_whose_client_leaves_before_the_message_is_cancelled(server, client, rpc):
    raw = RawConnection(server.target)
    raw.open(rpc)
    calls = {"name": "attnd_calls_total", "rpc": f"attn.v1.AttentionService/{rpc}"}
    opened = {"name": "attnd_open_calls", "rpc": f"attn.v1.AttentionService/{rpc}"}
    assert eventually(lambda: server.metric(**opened) == 1)
    raw.close()
    assert eventually(lambda: server.metric(**calls, code="CANCELLED") == 1)
    assert server.metric(**calls) == 1


def test_streams_and_connections_are_open_until_they_end(server, client):
    assert client.health() == "SERVING"
    open_runs = {"name": "attnd_open_calls", "rpc": "attn.v1.AttentionService/Run"}
    before = server.metric("attnd_connections")
    raw = RawConnection(server.target)
    raw.open("Run")
    raw.open("Run")
    assert eventually(lambda: server.metric(**open_runs) == 2)
    assert server.metric("attnd_connections") == before + 1
    assert server.metric("attnd_connections_accepted_total") == before + 1
    raw.close()
    assert eventually(lambda: server.metric(**open_runs) == 0)
    assert eventually(lambda: server.metric("attnd_connections") == before)


def test_memory_is_reported_by_kind(server, client):
    with Busy(client, server, seconds=1) as busy:
        one = busy.q.nbytes

        def kind(name):
            return server.metric("attnd_memory_bytes", kind=name)

        assert eventually(lambda: kind("inputs") >= 3 * one)
        # Sizes are rounded up to classes an eighth apart; the output is as large as q.
        assert 3 * one <= kind("inputs") < 4 * one
        assert eventually(lambda: kind("workspace") >= one)
        assert kind("workspace") < 3 * one
        # Nothing was freed yet.
        assert kind("retained") < one
        assert busy.is_running()
    assert eventually(lambda: kind("inputs") + kind("workspace") == 0)
    assert server.metric("attnd_memory_peak_bytes") >= 4 * one
    assert kind("retained") <= server.metric("attnd_memory_peak_bytes")


def test_plans_and_patterns_are_measured(server, client, rng):
    q = noise(rng, (1, 1, 256, 8))
    client.forward(q, q, q, method="local", options={"window_left": 5})
    plans = {"method": "local", "direction": "forward"}
    assert server.metric("attnd_plan_seconds_count", **plans) == 1
    # Estimates count as plans, too, also refused ones.
    shapes = [q.shape] * 3
    client.estimate(*shapes, method="local", options={"window_left": 5})
    with pytest.raises(attnd.Error):
        client.estimate(*shapes, method="local", options={"window_left": -5})
    assert server.metric("attnd_plan_seconds_count", **plans) == 3
    client.estimate(*shapes, method="local", options={"window_left": 5}, backward=True)
    assert server.metric("attnd_plan_seconds_count") == 4
    assert server.metric("attnd_requests_total") == 1
    assert server.metric("attnd_pattern_cache_bytes") > 0
