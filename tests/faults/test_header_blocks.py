"""A header block in thousands of pieces blocked all calls for 3 to 15 s: with every piece gRPC
parses the block again from its start."""

import grpc
import pytest

import attnd
from helpers import ProcessorTime, eventually
from raw_http2 import CONTINUATION, END_HEADERS, HEADERS, Flood, frame

# Of the server's processor; a block of 1 MB took at least three.
SECONDS = 1


def string_size(size):
    """A length as HPACK writes it, not Huffman coded."""
    assert size >= 127
    size -= 127
    out = bytearray([127])
    while size >= 128:
        out.append(128 | size & 127)
        size >>= 7
    return bytes(out) + bytes([size])


# A literal header "x" that declares a value of 200 MB, most of which is never sent.
BEGIN = frame(HEADERS, 0, 1, b"\0\x01x" + string_size(200 << 20))
PIECE = frame(CONTINUATION, 0, 1, b"a" * 16384)


def one_large_block():
    yield BEGIN
    yield PIECE * 64
    yield frame(CONTINUATION, 0, 1, b"a") * 40000


def small_blocks():
    """Blocks within the limits of metadata, each in many pieces."""
    value = b"a" * 4000
    for stream in range(1, 1000, 2):
        block = b"\0\x01x" + string_size(len(value) + 1)
        pieces = b"".join(frame(CONTINUATION, 0, stream, b"a") for _ in value)
        yield frame(HEADERS, 0, stream, block) + pieces + frame(CONTINUATION, END_HEADERS, stream, b"a")


def empty_pieces():
    yield BEGIN
    for _ in range(100):
        yield frame(CONTINUATION, 0, 1) * 7000


@pytest.mark.parametrize("frames", [one_large_block, small_blocks, empty_pieces])
def test_health_beside_it(start_server, frames):
    server = start_server()
    with attnd.Client(server.target, timeout=30) as client:
        client.health()
        with ProcessorTime(server, SECONDS):
            flood = Flood(server.target, frames())
            assert client.health() == "SERVING"
            assert eventually(lambda: flood.was_cut_off)
        assert server.metric("attnd_connections_cut_off_total") == 1
        assert eventually(lambda: "reason=\"a header block " in server.log())
        flood.close()


def test_a_block_as_libraries_send_it_is_refused_by_itself(start_server):
    """Metadata above the limit, in a few large frames."""
    server = start_server()
    with grpc.insecure_channel(server.target) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(grpc.RpcError, match="metadata size exceeds limit"):
            check(b"", metadata=[("x", "a" * 40000)], timeout=20)
    assert server.metric("attnd_connections_cut_off_total") == 0
