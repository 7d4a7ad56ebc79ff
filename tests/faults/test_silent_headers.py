"""Calls that declared messages and sent nothing took the whole budget together: small requests,
which need no declaration, were refused for minutes."""

import time

import grpc
import pytest

import attnd
from bad_input_cases import T, forward
from helpers import eventually, noise, refusals
from raw_http2 import SERVICE, RawConnection

MIB = 1 << 20
BUDGET = 64 * MIB
CODES = grpc.StatusCode


@pytest.fixture
def server(start_server):
    return start_server("--budget-bytes", str(BUDGET))


def test_many_headers_leave_room_for_small_requests(server, rng):
    silent = RawConnection(server.target)
    left = BUDGET
    while left > 256 << 10:
        size = min(30 * MIB, left // 2)
        silent.open("Forward", attnd_message_bytes=str(size))
        left -= 2 * size
    assert eventually(lambda: server.metric("attnd_budget_charged_bytes") > BUDGET // 2)
    assert eventually(lambda: server.metric("attnd_inflight_requests") == 2)

    q = noise(rng, (1, 2, 64, 32))
    with attnd.Client(server.target, timeout=30) as client:
        for _ in range(3):
            assert client.forward(q, q, q).out.shape == q.shape
    assert "bytes" not in refusals(server)
    silent.close()


def test_refused_requests_end_the_patience_with_silent_ones(server):
    """A message of a few KB whose answer takes 10 MiB: more than the free rest of the budget."""
    tensors = {"q": T((1, 1, 2560, 1)), "k": T((1, 1, 1, 1)), "v": T((1, 1, 1, 1024))}
    message = forward("softmax {}", tensors)
    silent = RawConnection(server.target)
    stream = silent.open("Forward", attnd_message_bytes=str(30 * MIB))
    assert eventually(lambda: server.metric("attnd_budget_charged_bytes") > BUDGET // 2)

    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.target, options) as channel:
        call = channel.unary_unary(SERVICE + "Forward")
        metadata = [("attnd-message-bytes", str(len(message)))]

        def refusal():
            future = call.future(message, timeout=30, metadata=metadata)
            return None if future.code() == CODES.OK else future.details()

        assert "are free, retry later" in refusal()
        end = time.monotonic() + 20  # 60 s by its size alone
        while refusal() is not None and time.monotonic() < end:
            time.sleep(0.3)
        assert time.monotonic() < end
    assert silent.status(stream) == CODES.RESOURCE_EXHAUSTED.value[0]
    silent.close()
