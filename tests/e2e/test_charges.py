"""The charges of requests, the reasons of refusals, and that each refusal counts once."""

import grpc
import numpy as np
import pytest

import attnd
from attnd import _calls
from bad_input_cases import T, forward
from helpers import Busy, eventually, noise, refusals
from run_stream import RunStream, announce, carry

def test_workspace_is_charged_while_a_request_waits(start_server, rng):
    server = start_server("--max-running", "1")
    q = noise(rng, (1, 4, 512, 32))
    request = _calls.backward_request(q, q, q, {"out": q}, "softmax", {}, {}, "BHND")
    message = request.message()
    with attnd.Client(server.target, timeout=60) as client:
        plan = client.estimate(q.shape, q.shape, q.shape, backward=True)
        assert plan.workspace_bytes > 4 * q.nbytes, "the inputs would hide the workspace"
        with grpc.insecure_channel(server.target) as channel:
            with Busy(client, server, held=True):
                call = channel.unary_unary(_calls.SERVICE + "Backward").future(message)
                assert eventually(lambda: server.metric("attnd_queue_requests") == 1)
                least = len(message) + plan.workspace_bytes
                assert least <= server.metric("attnd_queue_bytes") < least * 1.1
            call.result(timeout=60)
        assert eventually(lambda: server.metric("attnd_queue_bytes") == 0)


def refuse(client, code, text, *arrays, **options):
    with pytest.raises(attnd.Error) as caught:
        client.forward(*arrays, **options)
    assert caught.value.code == code
    assert text in str(caught.value)


def test_each_refusal_counts_once(start_server, rng):
    server = start_server("--budget-bytes", "4MiB", "--max-message-bytes", "3MiB")
    small = noise(rng, (1, 1, 8, 8))
    with attnd.Client(server.target, timeout=60, retries=0) as client:
        # By its size as received, its plan, its header, its outputs, its envelope.
        wide = noise(rng, (1, 1, 8192, 24))
        needs = grpc.StatusCode.RESOURCE_EXHAUSTED
        refuse(client, needs, "request: needs", wide, wide + 1, wide + 2)
        assert refusals(server) == {"bytes": 1}
        large = np.zeros((1, 1, 1 << 18, 1), np.float32)
        refuse(client, needs, "Received message larger than max", large, large + 1, large + 2)
        assert refusals(server) == {"bytes": 2}
        q, k, v = (np.zeros((1, 1, n, d), np.float32) for n, d in ((1 << 14, 1), (8, 1), (8, 64)))
        bad = grpc.StatusCode.INVALID_ARGUMENT
        refuse(client, bad, "softmax: outputs must fit a message of 3145728 bytes, got", q, k, v)
        assert refusals(server) == {"bytes": 2, "invalid": 1}
        refuse(client, bad, "priority", small, small, small, priority=101)
        assert refusals(server) == {"bytes": 2, "invalid": 2}
        with grpc.insecure_channel(server.target) as channel:
            # Found out once it has arrived: its caller did not declare its size.
            call = channel.unary_unary(_calls.SERVICE + "Forward").future(bytes((3 << 20) + 1))
            assert "Received message larger than max" in call.details()
        assert refusals(server) == {"bytes": 3, "invalid": 2}
        assert client.forward(small, small, small).out.shape == small.shape
        assert server.metric("attnd_requests_total", code="OK") == 1
        assert server.metric("attnd_requests_total") == 6


def test_received_bytes_of_what_is_refused_count_once(start_server):
    server = start_server("--max-message-bytes", "1MiB")
    seen = 0

    def received():
        nonlocal seen
        before, seen = seen, server.metric("attnd_received_bytes_total")
        return seen - before

    invalid = forward("local {}", {"q": T((1, 1, 64, 8))})
    with grpc.insecure_channel(server.target) as channel:
        call = channel.unary_unary(_calls.SERVICE + "Forward")

        def refuse(message, text, *metadata):
            assert text in call.future(message, metadata=metadata, timeout=30).details()

        refuse(invalid, "local: ")
        assert received() == len(invalid)
        refuse(bytes(2**20 + 1), "larger than max")
        assert received() == 2**20 + 1
        # One byte more than declared; known once it has arrived.
        short = ("attnd-message-bytes", str(len(invalid) - 1))
        refuse(invalid, "metadata: attnd-message-bytes must be >= the size of the message", short)
        assert received() == len(invalid)
        # Refused unread.
        refuse(invalid, "larger than max", ("attnd-message-bytes", str(2**21)))
        assert received() == 0
        run = RunStream(channel)
        announced = [announce("1", 2**20), carry("1", invalid)]
        run.send(*announced, carry("2", invalid))
        assert {reply.error.code for reply in run.take(2)} == {3}
        assert received() == sum(map(len, announced)) + len(announced[1])
        # Their callers have left, so nothing is charged for them.
        assert eventually(lambda: server.metric("attnd_budget_charged_bytes") == 0)
        run.close()
    assert refusals(server) == {"invalid": 4, "bytes": 2}


def test_memory_of_the_host_is_charged(start_server, rng):
    """The keys drawn for a request were not charged: ten times the size of its payloads."""
    server = start_server("--max-running", "1")
    q = noise(rng, (1, 1, 8192, 1))
    draws = {"num_random": 64}
    request = _calls.forward_request(q, q, q, "random", draws, {}, "BHND")
    message = request.message()
    with attnd.Client(server.target, timeout=60) as client:
        plan = client.estimate(*[q.shape] * 3, method="random", options=draws)
        shown = len(message) + max(plan.workspace_bytes, plan.input_bytes)
        with grpc.insecure_channel(server.target) as channel:
            with Busy(client, server, held=True):
                call = channel.unary_unary(_calls.SERVICE + "Forward").future(message)
                assert eventually(lambda: server.metric("attnd_queue_requests") == 1)
                assert server.metric("attnd_queue_bytes") - shown >= 8192 * 64 * 4
            call.result(timeout=60)


def test_flops_are_those_of_the_visible_pairs(client, rng):
    heads, n, width = 2, 96, 16
    q = noise(rng, (1, heads, n, width))
    ids = np.sort(rng.integers(0, 5, (1, n))).astype(np.int32)
    tensors = {"segment_ids_q": ids, "segment_ids_kv": ids}
    pairs = heads * int((ids[0][:, None] == ids[0][None, :]).sum())
    forward = client.forward(q, q, q, tensors=tensors).stats
    backward = client.backward(q, q, q, q, tensors=tensors).stats
    assert forward.visible_pairs == backward.visible_pairs == pairs
    assert forward.flops == 4 * width * pairs
    assert backward.flops == 2.5 * forward.flops
