"""A deadline that passes while 64 MB are on their way: refused in time, nothing is left behind."""

import grpc
import numpy as np
import pytest

import attnd
from helpers import eventually
from long_work import begin, open_channel


def test_it_leaves_nothing_behind(start_server):
    server = start_server()
    q = np.zeros((1, 8, 10923, 64), np.float32)  # three times 22 MB
    with attnd.Client(server.target, timeout=60) as client:
        for timeout in (0.001, 0.005, 0.02, 0.05):
            with open_channel(server.target) as channel:
                call = begin(channel, q, timeout=timeout)
                with pytest.raises(grpc.RpcError) as caught:
                    call.result()
                assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert eventually(lambda: server.metric("attnd_inflight_requests") == 0, 30)
        assert eventually(lambda: server.metric("attnd_budget_charged_bytes") == 0, 30)
        small = np.zeros((1, 1, 8, 8), np.float32)
        assert client.forward(small, small, small).out.shape == small.shape
    assert server.metric("attnd_requests_total", code="OK") == 1
    assert server.stop() == 0
