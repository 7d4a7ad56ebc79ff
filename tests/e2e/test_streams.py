"""Calls that end early, send nothing or declare a wrong size: the server answers them with a clear
text, releases their memory, and serves all other calls meanwhile."""

import grpc
import pytest

import attnd
from bad_input_cases import forward
from helpers import Busy, eventually, noise
from one_lane import client, server  # noqa: F401
from raw_http2 import SERVICE, RawConnection, framed
from run_stream import RunStream, carry

GOOD = forward()
CODES = grpc.StatusCode
MAX = 2**30  # --max-message-bytes


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(server.target) as one:
        yield one


@pytest.fixture
def raw(server):
    one = RawConnection(server.target)
    yield one
    one.close()


def quiet(server):
    """No request is in flight or charged."""
    return all(
        server.metric(name) == 0
        for name in ("attnd_inflight_requests", "attnd_queue_requests", "attnd_queue_bytes")
    )


def outcome(channel, metadata, message=GOOD):
    call = channel.unary_unary(SERVICE + "Forward").future(message, timeout=30, metadata=metadata)
    return call.code(), call.details()


@pytest.mark.parametrize("rpc", ["Forward", "Backward", "ListMethods", "Estimate", "ServerInfo"])
def test_a_unary_call_without_message(server, channel, rpc):
    def counted():
        return server.metric("attnd_requests_total", code="INVALID_ARGUMENT")

    before = counted()
    call = channel.stream_unary(SERVICE + rpc)
    with pytest.raises(grpc.RpcError) as refused:
        call(iter(()), timeout=30)
    assert refused.value.code() == CODES.INVALID_ARGUMENT
    assert refused.value.details() == "request: a whole message is required, got none"
    if rpc in ("Forward", "Backward"):
        assert eventually(lambda: counted() == before + 1)
    assert eventually(lambda: quiet(server))


def test_a_run_without_message(channel):
    run = RunStream(channel)
    run.half_close()
    assert run.rest() == ([], CODES.OK, "")


def test_calls_that_are_reset_right_after_their_message(server, client, raw):
    cancelled = server.metric("attnd_requests_total")
    with Busy(client, server):
        for index in range(500):
            stream = raw.open(["Forward", "Run"][index % 2])
            raw.send(stream, framed([GOOD, carry("x", GOOD)][index % 2]))
            raw.reset(stream)
        assert eventually(lambda: server.metric("attnd_queue_requests") == 0)
    assert eventually(lambda: quiet(server))
    # gRPC may drop a call that is reset before the server saw its headers; those are not counted.
    assert server.metric("attnd_requests_total") > cancelled + 1
    assert client.health() == "SERVING"


def test_half_a_frame_then_reset(server, client, raw):
    for cut in (1, 4, 5, 6, len(GOOD)):
        stream = raw.open("Forward")
        raw.send(stream, framed(GOOD)[:cut])
        raw.reset(stream)
    assert eventually(lambda: quiet(server))
    assert client.health() == "SERVING"


def test_ten_thousand_calls_that_say_nothing(start_server, rng):
    server = start_server("--log-level", "warning", "--budget-bytes", "256MiB")
    q = noise(rng, (1, 2, 64, 32))
    with attnd.Client(server.target, timeout=60) as client:
        client.forward(q, q, q)
        idle = server.rss()
        connections = [RawConnection(server.target) for _ in range(40)]
        for index, connection in enumerate(connections):
            for _ in range(250):
                connection.open(["Run", "Forward"][index % 2])

        # It does not wait until those that say nothing have ended.
        assert client.forward(q, q, q).out.shape == q.shape
        assert eventually(lambda: server.metric("attnd_parked_requests") == 4)
        # All were seen: those of unknown size are refused but for the 8 that fit half of the budget
        # and the 4 that may wait.
        refused = {"reason": "bytes"}
        assert eventually(lambda: server.metric("attnd_refused_total", **refused) >= 4900)
        assert server.peak_rss() - idle < 10_000 * (32 << 10)

        for connection in connections:
            connection.close()
        assert eventually(lambda: quiet(server), seconds=20)
        assert client.forward(q, q, q).out.shape == q.shape
        assert server.stop() == 0


def test_compressed_messages_are_refused_and_counted(server, channel):
    def counted(**labels):
        return server.metric("attnd_requests_total", **labels)

    before, good = counted(), counted(code="OK")
    with grpc.insecure_channel(server.target, compression=grpc.Compression.Gzip) as compressed:
        code, text = outcome(compressed, (), forward(id="x" * 200))
        assert code == CODES.UNIMPLEMENTED and "gzip" in text
        assert eventually(lambda: counted() == before + 1)
        run = RunStream(compressed)
        run.send(carry("x" * 200, GOOD))
        replies, code, text = run.rest()
        assert not replies and code == CODES.UNIMPLEMENTED and "gzip" in text
    assert eventually(lambda: quiet(server))
    assert outcome(channel, ()) == (CODES.OK, "")
    # The stream brought no request.
    assert eventually(lambda: (counted(), counted(code="OK")) == (before + 2, good + 1))


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "+5", "1e3", "0x10", " 7", "12 34", "1.0", "9" * 19 + "x"]
)
def test_a_declared_size_that_is_no_number(server, channel, text):
    code, found = outcome(channel, [("attnd-message-bytes", text)])
    assert code == CODES.INVALID_ARGUMENT
    assert found == (f'metadata: attnd-message-bytes must be a decimal number >= 0, got "{text}"')
    assert outcome(channel, ()) == (CODES.OK, "")


@pytest.mark.parametrize("size", [MAX + 1, 10**18, 2**63, 2**64 + 5, 10**60])
def test_a_declared_size_above_the_limit(channel, size):
    code, text = outcome(channel, [("attnd-message-bytes", str(size))])
    assert code == CODES.RESOURCE_EXHAUSTED
    assert text.startswith("Received message larger than max (") and text.endswith(f" vs. {MAX})")
    assert f"{size}"[:20] in text


@pytest.mark.parametrize("size", [0, 1, len(GOOD) - 1])
def test_a_message_above_its_declared_size(channel, size):
    assert outcome(channel, [("attnd-message-bytes", str(size))]) == (
        CODES.INVALID_ARGUMENT,
        f"metadata: attnd-message-bytes must be >= the size of the message ({len(GOOD)} bytes), "
        f"got {size}",
    )


@pytest.mark.parametrize("text", [str(len(GOOD)), f"{len(GOOD)}".zfill(18), "100000", "70000000"])
def test_a_declared_size_that_holds(channel, text):
    assert outcome(channel, [("attnd-message-bytes", text)]) == (CODES.OK, "")


def test_a_size_declared_twice(channel):
    twice = [("attnd-message-bytes", "5000"), ("attnd-message-bytes", "6000")]
    assert outcome(channel, twice) == (CODES.OK, "")
