"""Work that could not meet its deadline occupied the lane for minutes after its client had left."""

import signal
import time

import grpc
import numpy as np
import pytest

import attnd
from helpers import eventually, long_input, refusals
from long_work import begin, input_of, open_channel
from stopped_thread import stands_still


def test_it_is_refused_at_once_with_its_figures(start_server):
    server = start_server()
    with attnd.Client(server.target, timeout=60, retries=0) as client:
        q = input_of(client, seconds=100)
        before = server.cpu_seconds()
        with pytest.raises(attnd.Error) as caught:
            client.forward(q, q, q, timeout=10)
        assert caught.value.code == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "request: the deadline must leave the predicted" in str(caught.value)
        assert server.cpu_seconds() - before < 5
        assert server.metric("attnd_refused_total", reason="deadline") == 1
        assert server.metric("attnd_dispatch_total") == 0
        assert server.metric("attnd_budget_charged_bytes") == 0
        assert client.health() == "SERVING"


def test_waiting_requests_ahead_refuse_it_before_it_is_read(start_server):
    server = start_server("--max-running", "1", "--max-request-seconds", "0")
    client = attnd.Client(server.target, timeout=60, retries=0)
    with client, open_channel(server.target) as channel:
        q = input_of(client, seconds=100)
        waiting = [begin(channel, q) for _ in range(2)]
        assert eventually(lambda: server.metric("attnd_queue_requests") == 1, 30)
        received = server.metric("attnd_received_bytes_total")
        small = np.zeros((1, 1, 8, 4), np.float32)
        with pytest.raises(attnd.Error) as caught:
            client.forward(small, small, small, timeout=20)
        assert caught.value.code == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "of them for requests ahead" in str(caught.value)
        assert server.metric("attnd_received_bytes_total") == received
        for each in waiting:
            each.cancel()
        assert eventually(lambda: server.metric("attnd_inflight_requests") == 0, 30)


def test_a_request_above_the_limit_of_seconds_is_refused(start_server):
    server = start_server("--max-request-seconds", "50s")
    with attnd.Client(server.target, timeout=60) as client:
        q = input_of(client, seconds=100)
        with pytest.raises(attnd.Error) as caught:
            client.forward(q, q, q)
        assert caught.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "softmax: predicted seconds must be <= 50 (--max-request-seconds), got" in str(
            caught.value
        )
        assert server.metric("attnd_refused_total", reason="seconds") == 1
        assert server.metric("attnd_dispatch_total") == 0


def test_measured_runs_decide(start_server):
    """Refusals used the plans alone and ignored how long earlier runs had taken."""
    server = start_server("--max-request-seconds", "1000s")
    with attnd.Client(server.target, timeout=60, retries=0) as client:
        medium = long_input(client, seconds=0.03)
        too_long, hopeless = input_of(client, seconds=2000), input_of(client, seconds=100)

        def error_of(q, **options):
            with pytest.raises(attnd.Error) as caught:
                client.forward(q, q, q, **options)
            return str(caught.value)

        def predicted():
            """Seconds, of a request above the limit and of one above its deadline."""
            limit = "predicted seconds must be <= 1000 (--max-request-seconds), got "
            deadline = "request: the deadline must leave the predicted "
            texts = [(error_of(too_long), limit), (error_of(hopeless, timeout=5), deadline)]
            for text, words in texts:
                assert words in text
            return [float(text.partition(words)[2].split()[0]) for text, words in texts]

        by_plan = predicted()
        for _ in range(50):
            client.forward(medium, medium, medium)
            if all(now != then for now, then in zip(predicted(), by_plan, strict=True)):
                return
    raise AssertionError(by_plan)


def test_what_takes_twice_the_limit_is_stopped(start_server):
    # On a GPU runs take turns: the limit is that of one of them times --max-running.
    server = start_server("--max-request-seconds", "1s", "--max-running", "1")
    with attnd.Client(server.target, timeout=60) as client, open_channel(server.target) as channel:
        q = long_input(client, seconds=0.3)
        for tries in range(1, 11):
            call = begin(channel, q)
            assert eventually(lambda n=tries: server.metric("attnd_dispatch_total") == n)
            server.signal(signal.SIGSTOP)
            assert eventually(lambda: stands_still(server.pid))
            time.sleep(2.1)
            server.signal(signal.SIGCONT)
            # Else it had ended before.
            if call.code() != grpc.StatusCode.OK:
                break
        assert call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert call.details() == "request: seconds must be <= 1, got no result after twice that"
        assert refusals(server) == {"seconds": 1}
