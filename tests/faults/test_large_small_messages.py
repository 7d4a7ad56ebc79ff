"""Messages that have no reason to be large: health checks of 100 MB were received, uncounted."""

import time

import grpc
import pytest

from bad_input_cases import T, forward
from own_client import client  # noqa: F401
from raw_http2 import RawConnection, framed
from run_stream import RunStream, carry

MIB = 1 << 20
SIZE = 100 * MIB
CODES = grpc.StatusCode
HEALTH = "/grpc.health.v1.Health/Check"
ATTENTION = "/attn.v1.AttentionService/"
METHODS = [HEALTH, "/grpc.health.v1.Health/Watch", ATTENTION + "Estimate", ATTENTION + "ServerInfo",
           ATTENTION + "ListMethods", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
           ATTENTION + "Run"]  # fmt: skip


@pytest.fixture
def server(start_server):
    return start_server("--budget-bytes", "256MiB")


def send(server, method, size=SIZE, metadata=()):
    """Sends on a new connection, so that no call waits for another."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channel = grpc.insecure_channel(server.target, options)
    call = channel.unary_unary(method).future(bytes(size), timeout=60, metadata=metadata)
    return channel, call


def refused(call):
    return call.code() in (CODES.RESOURCE_EXHAUSTED, CODES.INVALID_ARGUMENT)


def test_three_health_checks_of_100_mb(server, client):
    client.health()
    idle = server.rss()
    calls = [send(server, HEALTH) for _ in range(3)]
    assert all(refused(call) for _, call in calls), [call.details() for _, call in calls]
    assert server.peak_rss() - idle < 100 * MIB


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.rpartition("/")[2])
def test_refused_long_before_its_end(server, method):
    """The bytes arrive in pieces, so that the machine's speed does not matter."""
    raw = RawConnection(server.target)
    stream = raw.open_path(method)
    message = framed(bytes(SIZE))
    sent = 0
    while stream not in raw.ended and sent < len(message):
        sent += raw.send(stream, message[sent : sent + MIB], seconds=1)
        time.sleep(0.02)
    assert raw.status(stream) in (CODES.RESOURCE_EXHAUSTED.value[0], CODES.INVALID_ARGUMENT.value[0])
    assert sent < 64 * MIB
    raw.close()


def test_a_message_above_its_declared_size(server):
    declared = (("attnd-message-bytes", "100"),)
    # Less than the size at which a connection is cut off.
    channel, call = send(server, ATTENTION + "Forward", 32 * MIB, metadata=declared)
    assert call.code() == CODES.INVALID_ARGUMENT
    assert "attnd-message-bytes must be >= the size of the message" in call.details()


def test_small_calls_beside_are_not_taken_for_a_flood(server, client):
    """Sizes at their limits, thousands of them, on one connection with an open stream."""
    channel = grpc.insecure_channel(server.target)
    run = RunStream(channel)
    estimate = channel.unary_unary(ATTENTION + "Estimate")
    for _ in range(20):
        calls = [estimate.future(b"\xfa\x0f\x80\x80\x0c" + bytes(3 << 16), timeout=30) for _ in range(16)]
        assert {call.code() for call in calls} == {CODES.INVALID_ARGUMENT}
    run.half_close()
    assert run.rest()[1] == CODES.OK
    assert "more arrives than calls expect" not in server.log()


def test_a_burst_of_calls_is_no_flood(server, client):
    """Hundreds at once on one connection, each of the largest size that needs no room.

    All are refused, as invalid or because the planner has no place for so many large heads.
    """
    channel = grpc.insecure_channel(server.target)
    call = channel.unary_unary(ATTENTION + "Forward")
    message = b"\xfa\x0f\xf0\xff\x03" + bytes(65520)
    metadata = [("attnd-message-bytes", str(len(message)))]
    idle = RunStream(channel)
    calls = [call.future(message, timeout=60, metadata=metadata) for _ in range(600)]
    assert all(refused(one) for one in calls)
    idle.half_close()
    assert idle.rest()[1] == CODES.OK
    assert "more arrives than calls expect" not in server.log()


def test_a_stream_that_is_ahead_is_no_flood(server):
    """Messages of a stream that arrive faster than they are answered, beside one that is idle."""
    shape = (1, 8, 400, 64)
    tensors = {name: T(shape, payload=bytes(8 * 400 * 64 * 4)) for name in "k"}
    message = forward("linear_attention {}", tensors)  # refused: no q, no v
    channel = grpc.insecure_channel(server.target)
    busy, idle = RunStream(channel), RunStream(channel)
    for index in range(60):
        busy.send(carry(str(index), message))
    for run in (busy, idle):
        run.half_close()
    assert busy.rest()[1] == CODES.OK and idle.rest()[1] == CODES.OK
    assert "more arrives than calls expect" not in server.log()
