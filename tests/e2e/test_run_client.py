"""Pipelines of both clients on the Run stream: against a peer that the test controls, and against
the server.
"""

import asyncio
import contextlib
import itertools
import queue
import threading

import grpc
import numpy as np
import pytest

import attnd
from attnd import _channel, _proto
from helpers import Busy, eventually, noise, same_bits
from one_lane import client, server  # noqa: F401
from peer import Peer, run_answer, run_error, run_requests

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def tensor(value, rows=1):
    return np.full((1, 1, rows, 8), value, np.float32)


def blocking(target, inputs, max_in_flight=64, timeout=None, **settings):
    """Result or error of a forward for each of the inputs."""
    with attnd.Client(target, **settings) as client:
        with client.pipeline(max_in_flight) as p:
            futures = [p.forward(q, q, q, timeout=timeout) for q in inputs]
        assert all(future.done() for future in futures)
        return [future.exception() or future.result() for future in futures]


def with_asyncio(target, inputs, max_in_flight=64, timeout=None, **settings):
    async def run():
        async with (
            attnd.aio.Client(target, **settings) as client,
            client.pipeline(max_in_flight) as p,
        ):
            calls = [p.forward(q, q, q, timeout=timeout) for q in inputs]
            return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(run())


@pytest.fixture(params=[blocking, with_asyncio], ids=["blocking", "asyncio"])
def run_all(request):
    return request.param


@pytest.fixture
def peer():
    one = Peer()
    yield one
    one.stop()


def values(results):
    """The first number of each out, or the error."""
    return [r if isinstance(r, attnd.Error) else r.out.flat[0] for r in results]


def test_answers_in_any_order(run_all, peer):
    def in_reverse(requests, context):
        yield from map(run_answer, reversed(list(itertools.islice(run_requests(requests), 5))))

    peer.run = in_reverse
    results = run_all(peer.target, [tensor(i) for i in range(5)], token="secret")
    assert values(results) == [0, 1, 2, 3, 4]
    assert peer.metadata["authorization"] == "Bearer secret"


def test_ids_are_unique_and_inside_is_empty(run_all, peer):
    seen = []

    def watch(requests, context):
        for request in run_requests(requests):
            seen.append(request)
            yield run_answer(request)

    peer.run = watch
    run_all(peer.target, [tensor(0)] * 5)
    assert len({request.id for request in seen}) == 5
    for request in seen:
        assert request.id and not request.forward.id and not request.forward.raw
        assert list(request.raw) == [tensor(0).tobytes()]


def test_large_messages_are_announced(run_all, peer):
    """Above 1 MiB, by their exact size, directly before."""
    seen = []

    def watch(requests, context):
        for message in requests:
            seen.append((len(message), _proto.RunRequest.FromString(message)))
            if not seen[-1][1].HasField("next_message_bytes"):
                yield run_answer(seen[-1][1])

    peer.run = watch
    rows = 2**20 // 32
    results = run_all(peer.target, [tensor(i, rows) for i in range(4)] + [tensor(9, rows - 8)])
    assert values(results) == [0, 1, 2, 3, 9]
    announced = [i for i, (_, r) in enumerate(seen) if r.HasField("next_message_bytes")]
    assert len(announced) == 4 and len(seen) == 9
    for i in announced:
        size, following = seen[i + 1]
        assert seen[i][1].next_message_bytes == size > 2**20
        assert seen[i][1].id == following.id


def test_refused_request_harms_no_other(run_all, peer):
    def refuse_second(requests, context):
        for count, request in enumerate(run_requests(requests)):
            code = grpc.StatusCode.INVALID_ARGUMENT
            yield run_error(request, code, "a\nb") if count == 1 else run_answer(request)

    peer.run = refuse_second
    results = run_all(peer.target, [tensor(i) for i in range(3)], max_in_flight=1)
    first, error, last = values(results)
    assert (first, last) == (0, 2)
    assert error.code == grpc.StatusCode.INVALID_ARGUMENT and error.permanent
    assert error.reasons == ["a", "b"]


@pytest.mark.parametrize("settings, refusals", [({}, 4), ({"retries": 1}, 1)])
@pytest.mark.parametrize("code", [EXHAUSTED, grpc.StatusCode.UNAVAILABLE], ids=lambda c: c.name)
def test_what_may_pass_is_sent_again(run_all, peer, code, settings, refusals):
    attempts = []

    def refuse_first(requests, context):
        for request in run_requests(requests):
            attempts.append((request.id, request.raw[0]))
            is_refused = len(attempts) <= refusals
            yield run_error(request, code) if is_refused else run_answer(request)

    peer.run = refuse_first
    assert values(run_all(peer.target, [tensor(7)], **settings)) == [7]
    assert len(attempts) == refusals + 1 and len(set(attempts)) == 1


@pytest.mark.parametrize(
    "code, permanent, settings, attempts",
    [
        (EXHAUSTED, False, {"retries": 2}, 3),
        (EXHAUSTED, False, {"retries": 0}, 1),
        (EXHAUSTED, True, {}, 1),
        (grpc.StatusCode.INTERNAL, False, {}, 1),
    ],
)
def test_retries_end(run_all, peer, code, permanent, settings, attempts):
    seen = []

    def refuse(requests, context):
        for request in run_requests(requests):
            seen.append(request.id)
            yield run_error(request, code, "no room", permanent)

    peer.run = refuse
    (error,) = run_all(peer.target, [tensor(0)], **settings)
    assert (error.code, str(error), error.permanent) == (code, "no room", permanent)
    assert len(seen) == attempts


def test_stream_that_dies_fails_all(run_all, peer):
    def die(requests, context):
        taken = list(itertools.islice(run_requests(requests), 3))
        yield run_answer(taken[0])
        context.abort(grpc.StatusCode.UNAVAILABLE, "going down")

    peer.run = die
    # Eight requests, four at a time: some wait for room when the stream dies.
    first, *errors = values(run_all(peer.target, [tensor(5)] * 8, max_in_flight=4))
    assert first == 5 and len(errors) == 7
    for error in errors:
        assert error.code == grpc.StatusCode.UNAVAILABLE and str(error) == "going down"


def test_stream_that_dies_while_requests_are_written(run_all, peer):
    """grpc.aio reports INTERNAL in place of the server's status."""

    def die(requests, context):
        next(run_requests(requests))
        context.abort(EXHAUSTED, "going down")

    peer.run = die
    for _ in range(5):
        for error in run_all(peer.target, [tensor(5, 2**15)] * 20):
            assert (error.code, str(error)) in (
                (EXHAUSTED, "going down"),
                (
                    grpc.StatusCode.UNAVAILABLE,
                    f"{peer.target} ended the stream while a request was written",
                ),
            )


@pytest.mark.parametrize(
    "reply, fragment",
    [
        (lambda r: b"\xff", "reply: message ends inside"),
        (lambda r: _proto.RunReply(id="nobody").SerializeToString(), "id 'nobody' is of no"),
        (lambda r: _proto.RunReply(id=r.id).SerializeToString(), "must be forward, got None"),
        (lambda r: _proto.RunReply(id=r.id, forward={}).SerializeToString(), "out is missing"),
        (None, "the stream ended before the answer"),
    ],
    ids=["bytes", "id", "content", "tensors", "end"],
)
def test_malformed_replies(run_all, peer, reply, fragment):
    def answer(requests, context):
        for request in itertools.islice(run_requests(requests), 1):
            if reply is not None:
                yield reply(request)

    peer.run = answer
    (error,) = run_all(peer.target, [tensor(0)])
    assert error.code == grpc.StatusCode.INTERNAL and fragment in str(error)


def test_no_more_in_flight_than_asked(run_all, peer):
    arrived, too_many = queue.SimpleQueue(), []

    def in_threes(requests, context):
        reading = threading.Thread(target=lambda: [*map(arrived.put, run_requests(requests))])
        reading.start()
        for _ in range(3):
            three = [arrived.get(timeout=10) for _ in range(3)]
            with contextlib.suppress(queue.Empty):
                too_many.append(arrived.get(timeout=0.1))
            yield from map(run_answer, three)
        reading.join()

    peer.run = in_threes
    results = run_all(peer.target, [tensor(i) for i in range(9)], max_in_flight=3)
    assert values(results) == list(range(9))
    assert not too_many


def test_timeout_of_one_request(run_all, peer):
    """Also of one that waits for room; the rest of the stream goes on."""

    def answer_only_nine(requests, context):
        for request in run_requests(requests):
            if request.raw[0] == tensor(9).tobytes():
                yield run_answer(request)

    peer.run = answer_only_nine
    inputs = [tensor(9), tensor(0), tensor(0), tensor(0)]
    first, *errors = values(run_all(peer.target, inputs, max_in_flight=2, timeout=2))
    assert first == 9
    for error in errors:
        assert error.code == grpc.StatusCode.DEADLINE_EXCEEDED
        assert str(error).startswith(f"deadline exceeded at {peer.target}")


def test_requests_have_the_default_timeout(run_all, peer, monkeypatch):
    """A pipeline whose server answered nothing waited without limit."""
    monkeypatch.setattr(_channel, "DEFAULT_SECONDS", 0.3)
    peer.run = lambda requests, context: (run_answer(r) for r in run_requests(requests) if 0)
    (error,) = run_all(peer.target, [tensor(0)])
    assert error.code == grpc.StatusCode.DEADLINE_EXCEEDED


def test_thousands_of_timeouts_that_are_called_off(peer):
    """They are cancelled in any order; only the shortest one expires."""

    def answer_all_but_zero(requests, context):
        for request in run_requests(requests):
            if request.raw[0] != tensor(0).tobytes():
                yield run_answer(request)

    peer.run = answer_all_but_zero
    with attnd.Client(peer.target) as client, client.pipeline() as p:
        futures = [p.forward(tensor(i), timeout=100 + i % 7) for i in range(1, 2000)]
        late = p.forward(tensor(0), timeout=0.2)
        assert late.exception(timeout=20).code == grpc.StatusCode.DEADLINE_EXCEEDED
        assert values(future.result() for future in futures) == list(range(1, 2000))
        assert len(p._alarms._alarms) < 200


def test_no_server_listens(run_all):
    (error,) = run_all("127.0.0.1:1", [tensor(0)])
    assert error.code == grpc.StatusCode.UNAVAILABLE
    assert str(error).startswith("cannot reach attnd server at 127.0.0.1:1: failed to connect")
    assert "Connection refused. Is it running?" in str(error)


def test_wrong_arguments(run_all, peer):
    first, error, last = values(run_all(peer.target, [tensor(1), np.ones(3), tensor(2)]))
    assert (first, last) == (1, 2)
    assert error.code == grpc.StatusCode.INVALID_ARGUMENT and "got float64" in str(error)
    with pytest.raises(attnd.Error, match="pipeline: max_in_flight must be >= 1, got 0"):
        run_all(peer.target, [], max_in_flight=0)


def test_empty_pipeline(run_all, peer):
    assert run_all(peer.target, []) == []


def test_server_answers_like_the_unary_call(run_all, server, client, rng):
    # One of them above 1 MiB, which is announced.
    inputs = [noise(rng, (1, 2, n, 64)) for n in (*range(1, 80), 4096)]
    for q, reply in zip(inputs, run_all(server.target, inputs), strict=True):
        expected = client.forward(q, q, q)
        assert same_bits(reply.out, expected.out) and same_bits(reply.lse, expected.lse)


def test_server_refuses_one_and_answers_the_others(run_all, server, rng):
    good = noise(rng, (1, 1, 8, 16))
    bad = np.zeros((1, 1, 8), np.float32)
    first, error, last = run_all(server.target, [good, bad, good])
    assert same_bits(first.out, last.out)
    assert error.code == grpc.StatusCode.INVALID_ARGUMENT and error.permanent


def test_server_answers_in_its_own_order(server, client, rng):
    q = noise(rng, (1, 1, 64, 32))
    order = []
    with client.pipeline() as p:
        with Busy(client, server, held=True):
            low = p.forward(q, q, q, priority=-1)
            low.add_done_callback(lambda _: order.append("low"))
            assert eventually(lambda: server.metric("attnd_queue_requests") == 1)
            high = p.backward(q, q, q, q, priority=1)
            high.add_done_callback(lambda _: order.append("high"))
            assert eventually(lambda: server.metric("attnd_queue_requests") == 2)
    assert order == ["high", "low"]
    assert low.result().out.shape == high.result().q.shape == q.shape


def test_server_drops_requests_whose_client_left(server, client, rng):
    q = noise(rng, (1, 1, 64, 32))
    with Busy(client, server, held=True):
        with pytest.raises(KeyError), client.pipeline() as p:
            waiting = p.forward(q, q, q)
            assert eventually(lambda: server.metric("attnd_queue_requests") == 1)
            raise KeyError
        assert waiting.exception().code == grpc.StatusCode.CANCELLED
        assert eventually(lambda: server.metric("attnd_queue_requests") == 0)
