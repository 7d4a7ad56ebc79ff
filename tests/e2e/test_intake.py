"""Memory of the server while large messages arrive: its budget bounds it for all clients."""

import threading
import time

import grpc
import numpy as np
import pytest

from bad_input_cases import T, forward
from helpers import eventually, noise, refusals, together
from own_client import client  # noqa: F401
from raw_http2 import SERVICE, RawConnection, framed
from run_stream import RunStream, announce, carry

MIB = 1 << 20
BUDGET = 64 * MIB
SHAPE = (1, 32, 1024, 64)  # 8 MiB
CODES = grpc.StatusCode
# What gRPC may have received for a call that the server does not read: its window, which the
# bandwidth probe enlarges. On the loopback 11 MiB were measured.
WINDOW = 16 * MIB


@pytest.fixture(scope="module")
def upload():
    """A forward of 24 MiB that is quick to compute."""
    tensors = {name: T(SHAPE, payload=bytes(SHAPE[1] * SHAPE[2] * SHAPE[3] * 4)) for name in "qkv"}
    return forward("local { window_left: 1 }", tensors)


@pytest.fixture
def small(rng):
    q = noise(rng, (1, 2, 64, 32))
    return {"q": q, "k": q, "v": q}


@pytest.fixture
def server(start_server):
    return start_server("--budget-bytes", str(BUDGET))


def new_channel(server):
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(server.target, options)


def start(channel, message, size=None):
    metadata = [("attnd-message-bytes", str(len(message) if size is None else size))]
    return channel.unary_unary(SERVICE + "Forward").future(message, timeout=60, metadata=metadata)


@pytest.fixture
def channels(server):
    """Channels that do not share a connection."""
    four = [new_channel(server) for _ in range(4)]
    yield four
    for channel in four:
        channel.close()


def test_peak_of_many_uploads(server, client, channels, small, upload):
    client.forward(**small)
    idle = server.rss()

    calls = [start(channels[i % 4], upload) for i in range(16)]
    codes = [call.code() for call in calls]

    assert set(codes) <= {CODES.OK, CODES.RESOURCE_EXHAUSTED}
    assert codes.count(CODES.OK) >= 4
    assert server.peak_rss() - idle <= BUDGET + 4 * WINDOW + 64 * MIB


def test_every_upload_succeeds_with_retries(server, channels, upload):
    left = [None] * 16

    def insist(index):
        end = time.monotonic() + 50
        while time.monotonic() < end:
            left[index] = start(channels[index % 4], upload).code()
            if left[index] != CODES.RESOURCE_EXHAUSTED:
                return
            time.sleep(0.1)

    threads = [threading.Thread(target=insist, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert left == [CODES.OK] * 16
    assert eventually(lambda: server.metric("attnd_inflight_requests") == 0)


def test_more_bytes_than_declared(server, client, channels, small, upload):
    client.forward(**small)
    idle = server.rss()
    for channel in channels:
        call = start(channel, upload, size=100)
        assert client.forward(**small).out.shape == small["q"].shape
        assert call.code() == CODES.INVALID_ARGUMENT
        # Its end may have been refused unread.
        words = "metadata: attnd-message-bytes must be >= the size of the message"
        whole = f"{words} ({len(upload)} bytes), got 100"
        assert call.details() in (whole, f"{words}, got 100 and more is arriving")
    assert refusals(server) == {"invalid": len(channels)}
    assert eventually(lambda: server.rss() - idle < 16 * MIB)
    assert start(channels[0], upload).code() == CODES.OK


def test_a_reply_that_is_never_read(server, client, channels, small, upload):
    lazy = RawConnection(server.target)
    stream = lazy.open("Forward", attnd_message_bytes=str(len(upload)))
    assert lazy.send(stream, framed(upload)) == len(framed(upload))
    assert eventually(lambda: server.metric("attnd_answer_seconds_count") == 1)

    # Its reply of 8 MiB counts, the rest of the budget is there for others.
    assert 8 * MIB <= server.metric("attnd_budget_charged_bytes") < 9 * MIB
    assert client.forward(**small).out.shape == small["q"].shape
    assert start(channels[0], upload).code() == CODES.OK
    lazy.close()
    assert start(channels[0], upload).code() == CODES.OK


def test_a_client_that_stops_in_the_middle(server, client, channels, small, upload):
    stopped = RawConnection(server.target)
    stream = stopped.open("Forward", attnd_message_bytes=str(len(upload)))
    half = framed(upload)[: len(upload) // 2]
    assert stopped.send(stream, half) == len(half)

    # Small ones have room at once; another large one has it when the server ends the first.
    assert client.forward(**small).out.shape == small["q"].shape
    assert start(channels[0], upload).code() == CODES.OK
    assert stopped.status(stream) == CODES.RESOURCE_EXHAUSTED.value[0]
    assert refusals(server) == {"bytes": 1}
    stopped.close()
    assert eventually(lambda: server.metric("attnd_inflight_requests") == 0)


def test_an_announcement_that_nothing_follows(server, client, channels, small, upload):
    run = RunStream(channels[1])
    run.send(announce("x", len(upload)))
    assert eventually(lambda: server.metric("attnd_budget_charged_bytes") >= len(upload))
    # It holds most of the budget for a while, for which the next one waits.
    assert start(channels[0], upload).code() == CODES.OK
    assert client.forward(**small).out.shape == small["q"].shape
    assert refusals(server) == {"bytes": 1}
    replies, code, text = run.rest()
    assert not replies and code == CODES.RESOURCE_EXHAUSTED
    assert text.startswith("request: its message must arrive at ")


def test_memory_kept_for_reuse_is_part_of_the_bound(server, client):
    client.methods()
    idle = server.rss()
    for heads in range(1, 17):
        q = np.ones((1, heads, 1024, 64), np.float32)
        client.backward(q, q.copy(), q.copy(), q, method="local", options={"window_left": 1})
    assert server.peak_rss() - idle <= BUDGET + 4 * WINDOW + 64 * MIB


def test_small_replies_that_are_never_read_take_room(server, client, small):
    """Replies of a few KB are copied, not sent from where they lie; they count all the same."""
    tensors = {"q": T((1, 255, 1, 1)), "k": T((1, 1, 1, 1)), "v": T((1, 1, 1, 4))}
    message = forward("softmax {}", tensors)
    requests = [carry(str(i), message) for i in range(280)]
    first, part, streams, most = 40, 40, 10, 256
    reply_bytes = 255 * 4 * (4 + 1)  # out and lse
    lazy = RawConnection(server.target)

    def answers():
        return server.metric("attnd_answer_seconds_count")

    # More than the client receives, which has a window of 64 KiB for all streams.
    lazy.send(lazy.open("Run"), b"".join(map(framed, requests[:first])))
    assert eventually(lambda: answers() == first)
    for count in range(streams):
        stream = lazy.open("Run")
        # In parts that find room while they are computed: a stream whose reply finds none is not
        # read either.
        for end in range(part, len(requests) + 1, part):
            lazy.send(stream, b"".join(map(framed, requests[end - part : end])))
            answered = first + most * count + min(end, most)
            assert eventually(lambda n=answered: answers() == n)
    # Nothing is left of them but replies.
    least = (answers() - first) * reply_bytes
    assert least < server.metric("attnd_budget_charged_bytes") < 1.1 * least
    # A stream with so many of them is not read.
    read = sum(map(len, requests[:first])) + streams * sum(map(len, requests[:most]))
    assert server.metric("attnd_received_bytes_total") == read
    assert client.forward(**small).out.shape == small["q"].shape
    lazy.close()
    assert eventually(lambda: server.metric("attnd_budget_charged_bytes") == 0)


def test_streams_whose_replies_find_no_room_are_not_read(start_server):
    """They were read until each had its maximum of answers, without regard to their size."""
    budget, streams, most = MIB, 3, 256
    server = start_server("--budget-bytes", str(budget))
    # 50 empty tensors, each of which causes a reason in the reply.
    message, least_words = b"\x1a\x00" * 50, 3500
    requests = b"".join(framed(carry(str(i), message)) for i in range(most))
    lazy = RawConnection(server.target)

    def answered():
        return server.metric("attnd_refused_total", reason="invalid")

    def charged():
        return server.metric("attnd_budget_charged_bytes")

    for _ in range(streams):
        assert lazy.send(lazy.open("Run"), requests) == len(requests)
    # Except what the client receives, a window of 64 KiB.
    room = (budget + (64 << 10)) // least_words
    assert eventually(lambda: charged() > budget - 2 * least_words, 30)
    assert not eventually(lambda: answered() > room + streams, 1)
    lazy.close()
    assert eventually(lambda: charged() == 0)


def test_uploads_on_streams_wait_for_their_turn(server, client, channels, small, upload):
    client.forward(**small)
    idle = server.rss()
    runs = [RunStream(channel) for channel in channels]
    for run in runs:
        for index in range(3):
            run.send_whole(f"{index}", upload)
        run.half_close()
    # Together, because unread replies take up room.
    for replies, code, _ in together([run.rest for run in runs]):
        assert code == CODES.OK
        assert sorted(reply.id for reply in replies) == ["0", "1", "2"]
        assert {reply.WhichOneof("content") for reply in replies} == {"forward"}
    assert server.peak_rss() - idle <= BUDGET + 4 * WINDOW + 64 * MIB
