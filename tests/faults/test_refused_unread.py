"""Megabytes were read of requests whose heads alone show that they cannot end in time."""

import asyncio

import grpc
import numpy as np
import pytest

import attnd
import attnd.aio
from attnd import _calls
from bad_input_cases import T, forward
from helpers import refusals
from long_work import input_of, open_channel
from test_cpp_client import LOAD, run

FORWARD = _calls.SERVICE + "Forward"


@pytest.fixture
def server(start_server):
    return start_server("--max-request-seconds", "1000s")


def received(server):
    return server.metric("attnd_received_bytes_total")


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_request_that_would_miss_its_deadline(server, direction):
    with attnd.Client(server.target, timeout=60, retries=0) as client:
        q = input_of(client, seconds=100, direction=direction)
        send = client.forward if direction == "forward" else client.backward
        grads = () if direction == "forward" else (q,)
        with pytest.raises(attnd.Error) as caught:
            send(q, q, q, *grads, timeout=10)
    assert caught.value.code == grpc.StatusCode.DEADLINE_EXCEEDED
    assert "request: the deadline must leave the predicted" in str(caught.value)
    assert received(server) == 0
    assert refusals(server) == {"deadline": 1}
    labels = {"method": "softmax", "direction": direction, "code": "DEADLINE_EXCEEDED"}
    assert server.metric("attnd_requests_total", **labels) == 1


def test_a_request_that_would_take_too_long(server):
    with attnd.Client(server.target, timeout=None, retries=0) as client:
        q = input_of(client, seconds=2000)
        with pytest.raises(attnd.Error, match="predicted seconds must be <= 1000"):
            client.forward(q, q, q)
    assert received(server) == 0
    assert refusals(server) == {"seconds": 1}


def test_of_every_client(server):
    with attnd.Client(server.target, timeout=60) as client:
        q = input_of(client, seconds=100)

    async def forward_late():
        async with attnd.aio.Client(server.target, timeout=10, retries=0) as client:
            await client.forward(q, q, q)

    with pytest.raises(attnd.Error, match="the deadline must leave"):
        asyncio.run(forward_late())
    shape = ("--heads", "1", "--dim", "4", "--lengths", str(q.shape[2]))
    run(LOAD, "--target", server.target, *shape, "--timeout", "10", "--duration", "0.2", code=1)
    assert received(server) == 0
    assert refusals(server)["deadline"] >= 2


@pytest.mark.parametrize("head", [b"", b"\xff" * 40, b"\x12" * 3000], ids=["none", "bad", "long"])
def test_a_head_without_content_refuses_nothing(server, head):
    message = forward("softmax{}", {name: T((1, 1, 8, 4)) for name in "qkv"})
    with open_channel(server.target) as channel:
        call = channel.unary_unary(FORWARD)
        call(message, timeout=60, metadata=[("attnd-head-bin", head)])
    assert server.metric("attnd_requests_total", method="softmax", code="OK") == 1


def test_other_metadata_has_as_much_room_beside_it(server):
    """Both together were beyond the limit of gRPC: the call failed because of the head."""
    message = forward("softmax{}", {name: T((1, 1, 8, 4)) for name in "qkv"})
    metadata = [("attnd-head-bin", bytes(2048)), ("token", "x" * 7000)]
    with open_channel(server.target) as channel:
        assert channel.unary_unary(FORWARD)(message, timeout=60, metadata=metadata)


def test_values_that_the_head_lacks_refuse_nothing(server):
    """Shapes that would take minutes, with lengths of one token each."""
    with attnd.Client(server.target, timeout=60, retries=0) as client:
        q = input_of(client, seconds=100)
        one = np.ones(1, np.int32)
        lengths = {"q_lengths": one, "kv_lengths": one}
        out = client.forward(q, q, q, tensors=lengths, timeout=30).out
    assert out.shape == q.shape
    assert refusals(server) == {}
