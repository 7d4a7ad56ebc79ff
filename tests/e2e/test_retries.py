"""Refused calls are sent again, by both clients alike. The peer counts the attempts."""

import asyncio
import threading
import time

import grpc
import numpy as np
import pytest

import attnd
from peer import Peer, first_tensor

Q = np.ones((1, 1, 2, 8), np.float32)
TRANSIENT = [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE]


class Refusing(Peer):
    """Refuses the first `count` attempts with `code` and `trailing` metadata."""

    def __init__(self, count, code, trailing=()):
        self.attempts = 0
        self.reply = first_tensor
        self._refusal = count, code, trailing
        self._lock = threading.Lock()
        super().__init__()
        self.answer = self._refuse_first

    def _refuse_first(self, request, context):
        count, code, trailing = self._refusal
        with self._lock:
            self.attempts += 1
            is_refused = self.attempts <= count
        if is_refused:
            context.set_trailing_metadata(trailing)
            context.abort(code, "no room")
        return self.reply(request, context)


@pytest.fixture
def refusing():
    peers = []

    def start(*arguments, **named):
        peers.append(Refusing(*arguments, **named))
        return peers[-1]

    yield start
    for peer in peers:
        peer.stop()


def blocking(target, name="forward", arguments=(Q, Q, Q), timeout=None, **settings):
    with attnd.Client(target, **settings) as client:
        return getattr(client, name)(*arguments, timeout=timeout)


def with_asyncio(target, name="forward", arguments=(Q, Q, Q), timeout=None, **settings):
    async def run():
        async with attnd.aio.Client(target, **settings) as client:
            return await getattr(client, name)(*arguments, timeout=timeout)

    return asyncio.run(run())


@pytest.fixture(params=[blocking, with_asyncio], ids=["blocking", "asyncio"])
def call(request):
    return request.param


@pytest.mark.parametrize("code", TRANSIENT, ids=lambda code: code.name)
def test_refused_call_is_sent_again(call, refusing, code):
    peer = refusing(2, code)
    assert np.array_equal(call(peer.target).out, Q)
    assert peer.attempts == 3


@pytest.mark.parametrize("settings, attempts", [({}, 5), ({"retries": 1}, 2), ({"retries": 0}, 1)])
def test_retries_end(call, refusing, settings, attempts):
    peer = refusing(99, grpc.StatusCode.RESOURCE_EXHAUSTED)
    with pytest.raises(attnd.Error, match="no room") as caught:
        call(peer.target, **settings)
    assert caught.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not caught.value.permanent
    assert peer.attempts == attempts


@pytest.mark.parametrize(
    "code, trailing",
    [
        (grpc.StatusCode.INVALID_ARGUMENT, ()),
        (grpc.StatusCode.UNIMPLEMENTED, ()),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, [("grpc-retry-pushback-ms", "-1")]),
    ],
    ids=["INVALID_ARGUMENT", "UNIMPLEMENTED", "pushback"],
)
def test_permanent_refusals_are_final(call, refusing, code, trailing):
    peer = refusing(99, code, trailing)
    with pytest.raises(attnd.Error, match="no room") as caught:
        call(peer.target)
    assert caught.value.code == code and caught.value.permanent
    assert peer.attempts == 1


def test_deadline_bounds_all_attempts(call, refusing):
    peer = refusing(99, grpc.StatusCode.UNAVAILABLE)
    with pytest.raises(attnd.Error) as caught:
        call(peer.target, timeout=1)
    assert caught.value.code == grpc.StatusCode.DEADLINE_EXCEEDED
    # The fifth would come after 0.1 + 0.2 + 0.4 + 0.8 s, less a fifth.
    assert 1 <= peer.attempts < 5


def test_large_requests_stay_retryable(call, refusing):
    """By default gRPC keeps only 256 KiB of a call for another attempt."""
    large = np.arange(2**21, dtype=np.float32).reshape(1, 1, -1, 64)
    peer = refusing(1, grpc.StatusCode.UNAVAILABLE)
    reply = call(peer.target, arguments=(large,), timeout=60)
    assert np.array_equal(reply.out, large)
    assert peer.attempts == 2


def test_other_calls_are_sent_again_but_not_health(call, refusing):
    peer = refusing(1, grpc.StatusCode.UNAVAILABLE)
    peer.reply = lambda request, context: b""
    assert call(peer.target, "info", ()).version == ""
    assert peer.attempts == 2

    peer.attempts = 0
    with pytest.raises(attnd.Error, match="no room"):
        call(peer.target, "health", ())
    assert peer.attempts == 1


def test_a_missing_server_is_reported_soon(call):
    start = time.monotonic()
    with pytest.raises(attnd.Error) as caught:
        call("127.0.0.1:1")
    # 1.8 s of waiting at most, and room for a busy machine; not the deadline of 600 s.
    assert time.monotonic() - start < 20
    assert caught.value.code == grpc.StatusCode.UNAVAILABLE
    assert str(caught.value) == (
        "cannot reach attnd server at 127.0.0.1:1: failed to connect to all addresses; last error: "
        "UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused. "
        "Is it running? Start it with attnd-server or deploy/quickstart --serve"
    )


@pytest.mark.parametrize("retries", [-1, 5, "many", 2.5])
def test_wrong_retries(retries):
    for kind in (attnd.Client, attnd.aio.Client):
        with pytest.raises(attnd.Error, match="client: retries must be 0..4, got") as caught:
            kind(retries=retries)
        assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT
