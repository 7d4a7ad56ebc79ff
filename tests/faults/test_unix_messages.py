"""Large messages through a Unix socket were received uncounted: three health checks of 300 MB took
300 MB, since the system does not report how much a Unix socket has received."""

import grpc
import pytest

import attnd

MIB = 1 << 20
SIZE = 300 * MIB
CODES = grpc.StatusCode
HEALTH = "/grpc.health.v1.Health/Check"
ATTENTION = "/attn.v1.AttentionService/"


@pytest.fixture
def target(tmp_path):
    return f"unix:{tmp_path}/attnd.sock"


@pytest.fixture
def server(start_server, target):
    return start_server("--grpc", f"127.0.0.1:0,{target}", "--budget-bytes", "256MiB")


def send(target, method, size, declared=None):
    channel = grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)])
    metadata = None if declared is None else [("attnd-message-bytes", str(declared))]
    call = channel.unary_unary(method).future(bytes(size), timeout=60, metadata=metadata)
    return channel, call


def idle_bytes(server, target):
    with attnd.Client(target, timeout=30) as client:
        client.health()
    return server.rss()


@pytest.mark.parametrize("method", [HEALTH, ATTENTION + "Estimate", ATTENTION + "Run"])
def test_three_large_ones_where_small_ones_are_expected(server, target, method):
    idle = idle_bytes(server, target)
    calls = [send(target, method, SIZE) for _ in range(3)]
    # UNAVAILABLE: cut off, because more arrived than the polling thread could inspect.
    refused = {CODES.RESOURCE_EXHAUSTED, CODES.INVALID_ARGUMENT, CODES.UNAVAILABLE}
    assert {call.code() for _, call in calls} <= refused
    assert server.peak_rss() - idle < 128 * MIB


def test_more_than_declared(server, target):
    idle = idle_bytes(server, target)
    channel, call = send(target, ATTENTION + "Forward", SIZE, declared=100)
    assert call.code() in (CODES.INVALID_ARGUMENT, CODES.UNAVAILABLE)
    if call.code() == CODES.INVALID_ARGUMENT:
        assert "attnd-message-bytes must be >= the size of the message" in call.details()
    assert server.peak_rss() - idle < 128 * MIB


def test_one_of_unknown_size_is_charged_as_it_comes(server, target):
    """Within the budget it is received whole; beyond it, refused before its end."""
    idle = idle_bytes(server, target)
    channel, call = send(target, ATTENTION + "Forward", 64 * MIB)
    assert call.code() == CODES.INVALID_ARGUMENT  # zeros are no request
    channel, call = send(target, ATTENTION + "Forward", 500 * MIB)
    assert call.code() in (CODES.RESOURCE_EXHAUSTED, CODES.UNAVAILABLE)
    assert server.peak_rss() - idle < 384 * MIB
