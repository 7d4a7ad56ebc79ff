"""Run on the wire: many requests on one stream, and how it ends. Its rules: test_run_rules.py."""

import signal
import time

import grpc
import pytest
from google.protobuf.message import DecodeError

import attnd
from bad_input_cases import CASES, T, backward, forward
from helpers import Busy, eventually, long_input, noise
from one_lane import client, server  # noqa: F401
from run_stream import SERVICE, RunStream, announce, attention, carry

OK, DEADLINE = grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED
ANY_SIZE = [("grpc.max_receive_message_length", -1)]
GOOD = carry("good", forward())


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(server.target, ANY_SIZE) as one:
        yield one


@pytest.fixture
def open_run():
    """Opens streams for one test: open_run(channel, ...). They are cancelled at its end."""
    opened = []

    def start(channel, **options):
        opened.append(RunStream(channel, **options))
        return opened[-1]

    yield start
    for stream in opened:
        stream.close()


@pytest.fixture
def run(channel, open_run):
    return open_run(channel)


@pytest.fixture
def own(start_server):
    """A server for one test, with a client and a channel: own(*flags)."""
    closing = []

    def start(*flags):
        server = start_server("--max-running", "1", *flags)
        client = attnd.Client(server.target, timeout=60)
        channel = grpc.insecure_channel(server.target, ANY_SIZE)
        closing.extend([client, channel])
        return server, client, channel

    yield start
    for each in closing:
        each.close()


def sent(rng, shape, direction="forward", spec="softmax {}", **fields):
    """The message of a unary call with noise in its tensors."""
    names = "qkv" if direction == "forward" else ["q", "k", "v", "grad_out"]
    tensors = {name: T(shape, payload=noise(rng, shape).tobytes()) for name in names}
    if direction == "forward":
        return forward(spec, tensors, **fields)
    return backward(tensors, lambda r: r.method.CopyFrom(spec_of(spec)), **fields)


def spec_of(text):
    return attention.ForwardRequest.FromString(forward(text)).method


def long_request(client, seconds):
    """A forward that takes at least about as long."""
    q = long_input(client, seconds)
    return forward(tensors={name: T(q.shape, payload=q.tobytes()) for name in "qkv"})


def unary(channel, direction, message):
    call = channel.unary_unary(SERVICE + direction.capitalize())
    kind = attention.ForwardReply if direction == "forward" else attention.BackwardReply
    return kind.FromString(call(message, timeout=60))


def results(reply, raw):
    """What must be equal to the bit, by name."""
    return {
        tensor.name: (tensor.dtype, tuple(tensor.shape), raw[tensor.raw_index])
        for tensor in reply.tensors
    }


def unary_results(channel, direction, message):
    reply = unary(channel, direction, message)
    return results(reply, reply.raw)


def test_replies_equal_those_of_unary_calls(channel, run, rng):
    specs = ["softmax { causal: true }", "local { window_left: 7 }", "linear_attention {}"]
    messages = {}
    for index in range(24):
        direction = ["forward", "backward"][index % 2]
        shape = (1 + index % 3, 2, 17 + 5 * index, 8)
        messages[f"{index}"] = direction, sent(rng, shape, direction, specs[index % 3])

    for id, (direction, message) in messages.items():
        run.send(carry(id, message, direction))
    run.half_close()
    replies, code, text = run.rest()

    assert (code, text) == (OK, "")
    assert sorted(reply.id for reply in replies) == sorted(messages)
    for reply in replies:
        direction, message = messages[reply.id]
        assert reply.WhichOneof("content") == direction
        inner = getattr(reply, direction)
        assert not inner.id and not inner.raw
        expected = unary(channel, direction, message)
        assert results(inner, reply.raw) == results(expected, expected.raw)
        assert inner.stats.flops == expected.stats.flops


def test_more_requests_than_a_stream_may_have_open(run, rng):
    message = sent(rng, (1, 1, 5, 4))
    ids = [f"request {i}" for i in range(700)]
    run.send(*(carry(id, message) for id in ids))
    run.half_close()
    replies, code, _ = run.rest()
    assert code == OK
    assert sorted(reply.id for reply in replies) == sorted(ids)
    assert {reply.WhichOneof("content") for reply in replies} == {"forward"}


def test_replies_come_as_they_are_done(server, client, run, rng):
    with Busy(client, server, held=True):
        # The first one takes long enough for the order of the ends to be certain.
        run.send(carry("first", sent(rng, (1, 1, 900, 64), "backward", priority=-100), "backward"))
        run.send(carry("second", sent(rng, (1, 1, 5, 4), spec="local { window_left: 1 }")))
        assert eventually(lambda: server.metric("attnd_queue_requests") == 2)
    assert [reply.id for reply in run.take(2)] == ["second", "first"]


def test_large_requests_are_announced(channel, run, rng):
    message = sent(rng, (1, 4, 1024, 64), spec="local { window_left: 4 }")  # 3 MiB
    whole = carry("large", message)
    expected = unary_results(channel, "forward", message)
    # A bound of the size will do.
    for size in (len(whole), len(whole) + 1, 2 * len(whole)):
        run.send(announce("large", size), whole, GOOD)
        found = {reply.id: reply for reply in run.take(2)}
        assert results(found["large"].forward, found["large"].raw) == expected
        assert found["good"].HasField("forward")
    run.send(announce("good", 10**6), GOOD)
    assert run.take()[0].HasField("forward")
    run.half_close()
    assert run.rest() == ([], OK, "")


def carried(case):
    """Whether a RunRequest that keeps the rules of the stream can carry the case."""
    kinds = {"Forward": attention.ForwardRequest, "Backward": attention.BackwardRequest}
    if case.rpc not in kinds or case.lines[0].startswith("message:"):
        return False
    try:
        return not kinds[case.rpc].FromString(case.message).id
    except DecodeError:
        return False


def test_refusals_have_the_words_of_unary_calls_and_harm_no_neighbour(run):
    cases = {case.name: case for case in CASES if carried(case)}
    assert len(cases) > 40
    for name, case in cases.items():
        run.send(carry(name, case.message, case.rpc.lower()), carry("beside " + name, forward()))
    run.half_close()
    replies, code, text = run.rest()
    assert (code, text) == (OK, "")
    found = {reply.id: reply for reply in replies}
    assert len(replies) == len(found) == 2 * len(cases)
    for name, case in cases.items():
        error = found[name].error
        assert (error.code, error.message) == (case.code.value[0], "\n".join(case.lines)), name
        assert found["beside " + name].HasField("forward"), name


def test_half_close_with_work_in_flight(server, client, run):
    with Busy(client, server):
        run.send(*(carry(f"{i}", forward()) for i in range(5)))
        run.half_close()
        replies, code, _ = run.rest()
    assert code == OK
    assert sorted(reply.id for reply in replies) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_work_in_flight_ends_with_its_stream(server, client, channel, open_run, end):
    def lost():
        # The client's clock may come first; the server then sees a cancellation.
        codes = ["CANCELLED"] if end == "cancel" else ["CANCELLED", "DEADLINE_EXCEEDED"]
        return sum(server.metric("attnd_requests_total", code=code) for code in codes)

    before = lost()
    with Busy(client, server, held=True):
        run = open_run(channel, timeout=30 if end == "cancel" else 1)
        run.send(*(carry(f"{i}", forward()) for i in range(6)))
        if end == "cancel":
            assert eventually(lambda: server.metric("attnd_queue_requests") == 6)
            run.call.cancel()
        expected = {"cancel": "CANCELLED", "deadline": "DEADLINE_EXCEEDED"}[end]
        replies, code, _ = run.rest()
        assert code.name == expected
        # A request is refused if the lane is predicted to be busy past its deadline.
        assert all(reply.error.code == DEADLINE.value[0] for reply in replies)
        assert end == "deadline" or not replies
        # Waiting work is dropped at once, not when a lane comes to it.
        assert eventually(lambda: server.metric("attnd_queue_requests") == 0)
        assert eventually(lambda: lost() == before + 6)
    assert eventually(lambda: server.metric("attnd_inflight_requests") == 0)
    assert client.health() == "SERVING"


def test_a_client_that_never_reads_its_replies(own, open_run, rng):
    server, client, channel = own()
    q = noise(rng, (1, 1, 16, 8))
    client.forward(q, q, q)
    idle = server.rss()
    message = sent(rng, (1, 1, 256, 64), spec="local { window_left: 1 }")  # reply: 65 KiB
    run = open_run(channel)
    run.send(*(carry(f"{i}", message) for i in range(1500)))

    def answered():
        return server.metric("attnd_requests_total")

    before = -1
    while before != (before := answered()):
        time.sleep(0.5)

    assert 1 < answered() < 600
    assert server.peak_rss() - idle < 128 << 20
    assert client.forward(q, q, q).out.shape == q.shape
    # The server slows the stream down and does not end it: a client that reads on gets all replies.
    run.half_close()
    replies, code, text = run.rest()
    assert code == OK, text
    assert len({reply.id for reply in replies}) == 1500


def test_a_full_queue_refuses_requests_not_streams(own, open_run):
    server, client, channel = own("--max-queue", "2")
    run = open_run(channel)
    with Busy(client, server, held=True):
        run.send(*(carry(f"{i}", forward()) for i in range(4)))
        refused = run.take(2)
    run.half_close()
    replies, code, _ = run.rest()
    assert code == OK
    assert [reply.id for reply in refused] == ["2", "3"]
    assert {reply.error.code for reply in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]}
    assert not any(reply.error.permanent for reply in refused)
    assert sorted(reply.id for reply in replies) == ["0", "1"]


def test_a_request_above_the_budget_is_refused_for_good(own, open_run, rng):
    _, _, channel = own("--budget-bytes", "1MiB")
    run = open_run(channel)
    run.send(carry("x", sent(rng, (1, 1, 1000, 64))), GOOD)
    replies = {reply.id: reply for reply in run.take(2)}
    assert "x" in replies, replies
    error = replies["x"].error
    assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert error.permanent and "the server's budget is 1048576" in error.message


def test_drain_answers_what_is_in_flight(own, open_run):
    server, client, channel = own("--drain-delay", "300ms", "--drain-timeout", "60s")
    busy, idle = open_run(channel), open_run(channel)
    idle.send(GOOD)
    idle.take()
    busy.send_whole("long", long_request(client, 0.6))
    busy.send(carry("short", forward()))
    assert eventually(lambda: server.metric("attnd_inflight_requests") == 2)

    server.signal(signal.SIGTERM)

    assert idle.rest()[1] == grpc.StatusCode.UNAVAILABLE
    replies, code, text = busy.rest()
    assert sorted(reply.id for reply in replies) == ["long", "short"]
    assert all(reply.HasField("forward") for reply in replies)
    assert code == grpc.StatusCode.UNAVAILABLE and "draining" in text
    assert server.wait(30) == 0


def test_idle_streams_do_not_hold_up_a_stop(own, open_run):
    server, _, channel = own("--drain-timeout", "300s")
    streams = [open_run(channel) for _ in range(20)]
    for stream in streams:
        stream.send(GOOD)
        stream.take()
    # A stream that blocked the stop would block it for 300 s.
    server.signal(signal.SIGTERM)
    assert server.wait(30) == 0
    for stream in streams:
        replies, code, text = stream.rest()
        assert not replies and code == grpc.StatusCode.UNAVAILABLE and "draining" in text


def test_streams_beside_each_other(server, channel, open_run, rng):
    streams = [open_run(channel) for _ in range(40)]
    message = sent(rng, (1, 2, 33, 8))
    expected = unary_results(channel, "forward", message)
    for stream in streams:
        stream.send(*(carry(f"{i}", message) for i in range(10)))
        stream.half_close()
    for stream in streams:
        replies, code, _ = stream.rest()
        assert code == OK and sorted(reply.id for reply in replies) == [f"{i}" for i in range(10)]
        for reply in replies:
            assert results(reply.forward, reply.raw) == expected
    assert eventually(lambda: server.metric("attnd_inflight_requests") == 0)
