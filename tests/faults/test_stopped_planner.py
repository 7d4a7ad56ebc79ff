"""A planner that stands still: places to wait for it are bounded, and waiting calls can be
cancelled. Requests that were refused or cancelled there did not appear in log and metrics."""

import grpc
import pytest

import stubs
from bad_input_cases import T, forward
from helpers import eventually, refusals
from long_work import open_channel
from raw_http2 import SERVICE, RawConnection, framed
from run_stream import RunStream, carry
from stopped_thread import StoppedThread

CODES = grpc.StatusCode
# A head too large for the polling thread; tensors without names, which are refused.
LARGE_HEAD = b"\x1a\x00" * 10_000
PLACES, OF_ONE_CLIENT = 256, 128


@pytest.fixture
def server(start_server):
    return start_server()


def start(channel, rpc, count, **options):
    size = [("attnd-message-bytes", str(len(LARGE_HEAD)))]
    call = channel.unary_unary(SERVICE + rpc)
    return [call.future(LARGE_HEAD, metadata=size, **options) for _ in range(count)]


def arrive(channel):
    """Once another call of the connection is answered, the server has what was sent before."""
    channel.unary_unary(SERVICE + "ServerInfo")(b"", timeout=30)


def ended(server, rpc):
    """Calls of the rpc by code."""
    name = "attnd_calls_total"
    codes = ("OK", "CANCELLED", "DEADLINE_EXCEEDED", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED")
    rpc = f"attn.v1.AttentionService/{rpc}"
    counts = {code: server.metric(name, rpc=rpc, code=code) for code in codes}
    return {code: count for code, count in counts.items() if count}


@pytest.mark.parametrize("rpc", ["Forward", "Estimate"])
def test_one_client_has_half_of_the_places(server, rpc):
    extra = 40
    with open_channel(server.target) as channel:
        with StoppedThread(server.pid, "planner"):
            calls = start(channel, rpc, OF_ONE_CLIENT + extra)
            assert eventually(lambda: ended(server, rpc) == {"RESOURCE_EXHAUSTED": extra}, 30)
        details = [call.details() for call in calls if call.code() == CODES.RESOURCE_EXHAUSTED]
    waits = f"request: {OF_ONE_CLIENT} requests wait to be planned, {OF_ONE_CLIENT} of them from"
    assert len(details) == extra and all(text.startswith(waits) for text in details)
    assert [call.code() for call in calls].count(CODES.INVALID_ARGUMENT) == OF_ONE_CLIENT
    if rpc == "Forward":
        assert refusals(server) == {"queue_full": extra, "invalid": OF_ONE_CLIENT}


@pytest.mark.parametrize("rpc", ["Forward", "Estimate"])
def test_a_cancelled_call_is_not_planned(server, rpc):
    open_calls = {"name": "attnd_open_calls", "rpc": f"attn.v1.AttentionService/{rpc}"}
    with open_channel(server.target) as channel:
        with StoppedThread(server.pid, "planner"):
            calls = start(channel, rpc, 3)
            # Of a client that does not cancel at its deadline, which might arrive before that.
            raw = RawConnection(server.target)
            head = {"attnd_message_bytes": str(len(LARGE_HEAD)), "grpc_timeout": "1S"}
            late = [raw.open(rpc, **head) for _ in range(2)]
            for stream in late:
                raw.send(stream, framed(LARGE_HEAD))
            assert eventually(lambda: server.metric(**open_calls) == 5)
            arrive(channel)
            assert [raw.status(stream) for stream in late] == [CODES.DEADLINE_EXCEEDED.value[0]] * 2
            raw.close()
            for call in calls:
                call.cancel()
            arrive(channel)
        assert eventually(lambda: server.metric(**open_calls) == 0)
    if rpc == "Forward":
        assert refusals(server) == {"cancelled": 3, "deadline": 2}
    assert ended(server, rpc) == {"CANCELLED": 3, "DEADLINE_EXCEEDED": 2}


def test_streams_wait_when_calls_have_no_place(server):
    """They ended with all their requests, or polled for a place without a pause."""
    streams = 20
    with open_channel(server.target) as channel:
        with StoppedThread(server.pid, "planner"):
            calls = start(channel, "Forward", OF_ONE_CLIENT + 1)
            assert eventually(lambda: ended(server, "Forward") == {"RESOURCE_EXHAUSTED": 1}, 30)
            runs = [RunStream(channel, timeout=60) for _ in range(streams)]
            for run in runs:
                run.send(carry("1", forward() + LARGE_HEAD))
                run.half_close()
            arrive(channel)
            assert server.metric("attnd_open_calls", rpc="attn.v1.AttentionService/Run") == streams
        for run in runs:
            replies, code, text = run.rest()
            assert code == CODES.OK, text
            assert [reply.error.code for reply in replies] == [CODES.INVALID_ARGUMENT.value[0]]
        assert sum(call.code() == CODES.INVALID_ARGUMENT for call in calls) == OF_ONE_CLIENT


def test_requests_of_a_closed_stream_are_not_parsed(server):
    """The planner takes longer for a few streams that stay than for many that left."""
    request = carry("1", forward() + b"\x1a\x00" * 100_000)
    open_runs = {"name": "attnd_open_calls", "rpc": "attn.v1.AttentionService/Run"}
    planner = StoppedThread(server.pid, "planner")

    def spent(streams, leave):
        """Seconds that the planner takes for streams with a request each."""
        with planner:
            before, received = planner.cpu_seconds(), server.metric("attnd_received_bytes_total")
            runs = [RunStream(channel, timeout=60) for _ in range(streams)]
            for run in runs:
                run.send(request)
            all_bytes = received + streams * len(request)
            assert eventually(lambda: server.metric("attnd_received_bytes_total") == all_bytes, 30)
            for run in runs if leave else []:
                run.call.cancel()
            assert eventually(lambda: server.metric(**open_runs) == (0 if leave else streams))
            # This call is planned after them.
            runs.append(RunStream(channel, timeout=60))
            runs[-1].send(carry("1", forward() + LARGE_HEAD))
        for run in runs[-1:] if leave else runs:
            run.half_close()
            assert len(run.rest()[0]) == 1
        return planner.cpu_seconds() - before

    with open_channel(server.target) as channel:
        assert spent(streams=20, leave=True) < spent(streams=4, leave=False)


def test_bytes_of_a_stream_count_until_the_planner_releases_them(server):
    bytes_of_q = 4 << 20
    q = T((1, 1, bytes_of_q // 256, 64), payload=bytes(bytes_of_q))

    def charged():
        return server.metric("attnd_budget_charged_bytes")

    with open_channel(server.target) as channel:
        with StoppedThread(server.pid, "planner"):
            run = RunStream(channel, timeout=60)
            run.send_whole("1", forward("local { window_left: 1 }", {"q": q}) + LARGE_HEAD)
            assert eventually(
                lambda: server.metric("attnd_received_bytes_total") >= bytes_of_q, seconds=30
            )
            run.call.cancel()
            open_runs = {"name": "attnd_open_calls", "rpc": "attn.v1.AttentionService/Run"}
            assert eventually(lambda: server.metric(**open_runs) == 0)
            assert charged() >= bytes_of_q
        assert eventually(lambda: charged() == 0)
