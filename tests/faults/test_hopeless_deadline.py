"""Work that cannot meet its deadline held the lane for minutes after its client had gone."""

import grpc
import numpy as np
import pytest

import attnd
from helpers import eventually
from long_work import begin, input_of, open_channel


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


def test_what_waits_ahead_refuses_it_before_it_is_read(start_server):
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


def test_what_takes_longer_than_any_request_may_is_refused(start_server):
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
