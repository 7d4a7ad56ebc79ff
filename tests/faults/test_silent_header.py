"""One call that declares the whole budget and sends nothing: others waited for minutes."""

import time

import grpc
import pytest

import attnd
from bad_input_cases import T, forward
from helpers import eventually, noise
from raw_http2 import SERVICE, RawConnection

MIB = 1 << 20
BUDGET = 64 * MIB
SHAPE = (1, 32, 512, 64)  # 4 MiB
CODES = grpc.StatusCode
WAITS = "wait to be read already"


@pytest.fixture
def server(start_server):
    return start_server("--budget-bytes", str(BUDGET))


@pytest.fixture
def upload():
    """A forward of 12 MiB that is quick to compute."""
    tensors = {name: T(SHAPE, payload=bytes(SHAPE[1] * SHAPE[2] * SHAPE[3] * 4)) for name in "qkv"}
    return forward("local { window_left: 1 }", tensors)


def connect(target):
    """A new connection."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    channel = grpc.insecure_channel(target, options)
    grpc.channel_ready_future(channel).result(30)
    return channel


def start(channel, message):
    metadata = [("attnd-message-bytes", str(len(message)))]
    return channel.unary_unary(SERVICE + "Forward").future(message, timeout=60, metadata=metadata)


def holds_most(server):
    return server.metric("attnd_budget_charged_bytes") > BUDGET // 2


def test_credit_comes_back_when_nothing_arrives(server, upload, rng):
    channel = connect(server.target)
    silent = RawConnection(server.target)
    stream = silent.open("Forward", attnd_message_bytes=str(60 * MIB))
    assert eventually(lambda: holds_most(server))
    # A part of the budget is kept for small requests.
    q = noise(rng, (1, 2, 32, 32))
    with attnd.Client(server.target, timeout=30) as client:
        assert client.forward(q, q, q).out.shape == q.shape
    started = time.monotonic()
    call = start(channel, upload)
    assert call.code() == CODES.OK, call.details()
    # Twenty seconds by its size alone.
    assert time.monotonic() - started < 12
    assert silent.status(stream) == CODES.RESOURCE_EXHAUSTED.value[0]
    silent.close()


def test_one_client_does_not_hold_all_places_to_wait(start_server, upload, tmp_path):
    """Each connection to a Unix socket counts as a client."""
    path = f"unix:{tmp_path}/attnd.sock"
    server = start_server("--budget-bytes", str(BUDGET), "--grpc", path)
    first, other = connect(server.target), connect(path)
    silent = RawConnection(server.target)
    silent.open("Forward", attnd_message_bytes=str(60 * MIB))
    assert eventually(lambda: holds_most(server))
    waiting = [start(first, upload) for _ in range(4)]
    assert eventually(lambda: server.metric("attnd_parked_requests") == 4)
    assert WAITS in start(first, upload).details()

    call = start(other, upload)
    assert eventually(lambda: any(one.done() for one in waiting))
    assert WAITS in next(one for one in waiting if one.done()).details()
    assert call.code() == CODES.OK or WAITS not in call.details()
    silent.close()
