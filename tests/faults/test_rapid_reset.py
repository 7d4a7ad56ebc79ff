"""Streams that are opened and reset at once, or opened beyond every limit: 8 MB of them took the
polling thread for 5 s and 1 GB of memory (CVE-2023-44487). gRPC keeps its limit of streams only
once the client has acknowledged it."""

import struct

import grpc
import pytest

import attnd
from helpers import ProcessorTime, eventually
from raw_http2 import END_HEADERS, HEADERS, RESET, Flood, frame, request_headers

MIB = 1 << 20
STREAMS = 40000
# Of the server's processor.
SECONDS = 1
CANCEL = struct.pack(">I", 8)
HEALTH = "/grpc.health.v1.Health/Check"
WORDS = "more streams at a time than the limit"


def streams(block, is_reset):
    for first in range(1, 2 * STREAMS, 400):
        some = b""
        for stream in range(first, first + 400, 2):
            some += frame(HEADERS, END_HEADERS, stream, block)
            some += frame(RESET, 0, stream, CANCEL) if is_reset else b""
        yield some


@pytest.mark.parametrize("is_reset", [True, False], ids=["reset", "left open"])
@pytest.mark.parametrize(
    "path", [HEALTH, "/attn.v1.AttentionService/Run", "/none", None]
)
def test_health_beside_it(start_server, path, is_reset):
    # b"\x83": a block that holds only :method POST and never becomes a call.
    block = b"\x83" if path is None else request_headers(path)
    server = start_server()
    with attnd.Client(server.target, timeout=30) as client:
        client.health()
        idle = server.rss()
        # Made before it is sent: making it meanwhile may be no faster than the server.
        sent = b"".join(streams(block, is_reset))
        with ProcessorTime(server, SECONDS):
            flood = Flood(server.target, [sent])
            assert client.health() == "SERVING"
            # What becomes a call that ends soon may end as fast as it comes. The rest cannot.
            ends_soon = path is not None and (is_reset or path != HEALTH)
            assert eventually(lambda: flood.was_cut_off or (ends_soon and not flood.is_sending()))
            assert client.health() == "SERVING"
        assert server.peak_rss() - idle < 200 * MIB
        # The server may still read what was sent, and cut it off now.
        assert eventually(lambda: flood.was_cut_off == server.log().count(WORDS)
                          == server.metric("attnd_connections_cut_off_total"))
        flood.close()


def test_many_connections_each_within_its_limit(start_server):
    """40 connections of 1000 calls each: 600 MB, and seconds until another client was served."""
    server = start_server()
    block = request_headers("/grpc.health.v1.Health/Check")
    some = b"".join(frame(HEADERS, END_HEADERS, stream, block) for stream in range(1, 2000, 2))
    with attnd.Client(server.target, timeout=30) as client:
        client.health()
        idle = server.rss()
        floods = [Flood(server.target, [some]) for _ in range(40)]
        assert eventually(lambda: sum(flood.was_cut_off for flood in floods) > 20)
        assert client.health() == "SERVING"
        assert server.peak_rss() - idle < 300 * MIB
        for flood in floods:
            flood.close()


def test_a_thousand_calls_at_once_are_none(start_server):
    """As many streams as the limit allows, over and over."""
    server = start_server()
    with grpc.insecure_channel(server.target) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        for _ in range(3):
            calls = [check.future(b"", timeout=60) for _ in range(1024)]
            assert all(call.code().value[0] == 0 for call in calls)
    assert WORDS not in server.log()
