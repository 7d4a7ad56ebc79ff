"""Streams that stay open and send nothing: their number had no bound."""

import grpc
import pytest

import attnd
from attnd import _calls, _proto
from helpers import eventually, noise
from raw_http2 import RawConnection

CODES = grpc.StatusCode
STREAMS = {
    "Watch": "/grpc.health.v1.Health/Watch",
    "Run": "/attn.v1.AttentionService/Run",
    "reflection": "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
}


@pytest.fixture
def path(tmp_path):
    return f"unix:{tmp_path}/attnd.sock"


@pytest.fixture
def server(start_server, path):
    return start_server(
        "--grpc", f"127.0.0.1:0,{path}", "--max-streams", "12", "--max-streams-per-connection", "5"
    )


def channel_to(target):
    return grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)])


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


def test_too_many_on_a_connection_of_a_client_and_in_total(server, path, rng):
    """Connections of one address occupied all streams without a time limit."""
    first, second = (channel_to(server.target) for _ in range(2))
    others = [channel_to(path) for _ in range(2)]
    open_ones = [watch(first) for _ in range(5)]
    assert [refusal_of(one) for one in open_ones] == [None] * 5
    code, text = refusal_of(watch(first))
    assert code == CODES.RESOURCE_EXHAUSTED
    assert text == (
        "stream: 5 are open on this connection already, which is the limit, close some"
    )
    assert refusal_of(last := watch(second)) is None
    code, text = refusal_of(watch(second))
    assert code == CODES.RESOURCE_EXHAUSTED
    assert text == (
        "stream: 6 are open of ipv4:127.0.0.1 already, which is the limit of one client, close some"
    )
    # Each connection to a Unix socket counts as a client.
    open_ones += [watch(channel) for channel in others for _ in range(3)]
    assert [refusal_of(one) for one in open_ones[5:]] == [None] * 6
    code, text = refusal_of(watch(others[0]))
    assert code == CODES.RESOURCE_EXHAUSTED
    assert text == "stream: 12 are open already, which is the server's limit, retry later"

    # Calls are no streams.
    q = noise(rng, (1, 2, 64, 32))
    with attnd.Client(server.target, timeout=30) as client:
        assert client.forward(q, q, q).out.shape == q.shape
    # One that ends makes room.
    last.cancel()
    assert eventually(lambda: refusal_of(watch(second)) is None)


@pytest.mark.parametrize("name", STREAMS)
def test_silent_ones_are_counted(server, name):
    """A client that opens a stream and sends nothing."""
    raw = RawConnection(server.target)
    silent = [raw.open_path(STREAMS[name]) for _ in range(5)]
    late = raw.open_path(STREAMS[name])
    assert raw.status(late) == CODES.RESOURCE_EXHAUSTED.value[0]
    assert not any(stream in raw.ended for stream in silent)
    raw.close()


def test_calls_of_the_same_connection_go_on(start_server, rng):
    """Streams took all that HTTP/2 allows a connection: its calls waited without an error."""
    server = start_server()
    q = noise(rng, (1, 2, 64, 32))
    channel = channel_to(server.target)
    open_ones = [watch(channel) for _ in range(128)]
    assert [refusal_of(one) for one in open_ones] == [None] * 128
    code, text = refusal_of(watch(channel))
    assert code == CODES.RESOURCE_EXHAUSTED
    assert "128 are open on this connection" in text
    request = _calls.forward_request(q, q, q, "softmax", {}, {}, "BHND")
    assert channel.unary_unary(request.path)(request.message(), timeout=30)
