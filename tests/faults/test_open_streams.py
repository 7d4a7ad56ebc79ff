"""Streams that stay open and say nothing: their number had no bound."""

import grpc
import pytest

import attnd
from attnd import _proto
from helpers import eventually, noise
from raw_http2 import RawConnection

CODES = grpc.StatusCode
STREAMS = {
    "Watch": "/grpc.health.v1.Health/Watch",
    "Run": "/attn.v1.AttentionService/Run",
    "reflection": "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
}


@pytest.fixture
def server(start_server):
    return start_server("--max-streams", "8", "--max-streams-per-connection", "5")


def channel_to(server):
    return grpc.insecure_channel(server.target, [("grpc.use_local_subchannel_pool", 1)])


def watch(channel):
    return channel.unary_stream(
        STREAMS["Watch"],
        request_serializer=_proto.HealthCheckRequest.SerializeToString,
        response_deserializer=_proto.HealthCheckResponse.FromString,
    )(_proto.HealthCheckRequest(), timeout=60)


def refusal_of(stream):
    try:
        next(stream)
    except grpc.RpcError as error:
        return error.code(), error.details()
    return None


def test_too_many_on_a_connection_and_in_total(server, rng):
    first, second, third = (channel_to(server) for _ in range(3))
    open_ones = [watch(first) for _ in range(5)]
    assert [refusal_of(one) for one in open_ones] == [None] * 5
    code, text = refusal_of(watch(first))
    assert code == CODES.RESOURCE_EXHAUSTED
    assert text == (
        "stream: 5 are open on this connection already, which is the limit, close some"
    )
    others = [watch(second) for _ in range(3)]
    assert [refusal_of(one) for one in others] == [None] * 3
    code, text = refusal_of(watch(third))
    assert code == CODES.RESOURCE_EXHAUSTED
    assert text == "stream: 8 are open already, which is the server's limit, retry later"

    # Calls are no streams.
    q = noise(rng, (1, 2, 64, 32))
    with attnd.Client(server.target, timeout=30) as client:
        assert client.forward(q, q, q).out.shape == q.shape
    # One that ends makes room.
    others[0].cancel()
    assert eventually(lambda: refusal_of(watch(third)) is None)


@pytest.mark.parametrize("name", STREAMS)
def test_silent_ones_are_counted(server, name):
    """A client that opens a stream and sends nothing."""
    raw = RawConnection(server.target)
    silent = [raw.open_path(STREAMS[name]) for _ in range(5)]
    late = raw.open_path(STREAMS[name])
    assert raw.status(late) == CODES.RESOURCE_EXHAUSTED.value[0]
    assert not any(stream in raw.ended for stream in silent)
    raw.close()
