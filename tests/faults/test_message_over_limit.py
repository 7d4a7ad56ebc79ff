"""A message above the limit: memory does not grow by its size, declared or not."""

import grpc
import pytest

import attnd
from helpers import refusals
from raw_http2 import SERVICE, RawConnection

MIB = 1 << 20
SIZE = 256 * MIB
CODES = grpc.StatusCode


@pytest.fixture
def server(start_server):
    return start_server("--max-message-bytes", "1MiB", "--budget-bytes", "2GiB")


@pytest.fixture
def idle(server):
    with attnd.Client(server.target, timeout=30) as client:
        client.health()
    return server.rss()


def forward(server, metadata):
    channel = grpc.insecure_channel(server.target)
    return channel.unary_unary(SERVICE + "Forward").future(
        bytes(SIZE), timeout=120, metadata=metadata
    )


@pytest.mark.parametrize("declared", [SIZE, 100, None])
def test_memory(server, idle, declared):
    metadata = None if declared is None else [("attnd-message-bytes", str(declared))]
    call = forward(server, metadata)
    assert call.code() in (CODES.RESOURCE_EXHAUSTED, CODES.INVALID_ARGUMENT), call.details()
    assert server.peak_rss() - idle < SIZE // 2


@pytest.mark.parametrize("size", [2**31, 2**32 - 1, 2**40])
def test_above_two_gib_is_refused_unread(server, size):
    raw = RawConnection(server.target)
    stream = raw.open("Forward", attnd_message_bytes=str(size))
    assert raw.status(stream) == CODES.RESOURCE_EXHAUSTED.value[0]
    raw.close()


def test_a_prefix_that_says_four_gib(server, idle):
    """The size on the wire, the size in the metadata and the bytes sent all differ."""
    raw = RawConnection(server.target)
    stream = raw.open("Forward")
    prefix = b"\0" + b"\xff" * 4
    sent = raw.send(stream, prefix + bytes(48 * MIB), seconds=30)
    assert sent < 48 * MIB
    assert raw.status(stream) == CODES.RESOURCE_EXHAUSTED.value[0]
    assert refusals(server) == {"bytes": 1}
    assert server.peak_rss() - idle < 128 * MIB
    raw.close()
