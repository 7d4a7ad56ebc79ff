"""The server refuses every bad request with the exact text and keeps no trace of it."""

import contextlib
import itertools
import threading

import grpc
import numpy as np
import pytest

from bad_input_cases import CASES, T, backward, forward
from helpers import eventually, noise, same_bits

SERVICE = "/attn.v1.AttentionService/"
GOOD = forward()


class Wire:
    """Calls with bytes in and bytes out."""

    def __init__(self, target, **options):
        self.channel = grpc.insecure_channel(target, **options)

    def start(self, rpc, message):
        return self.channel.unary_unary(SERVICE + rpc).future(message, timeout=30)

    def outcome(self, rpc, message):
        """Code and text."""
        call = self.start(rpc, message)
        return call.code(), call.details()


@contextlib.contextmanager
def wire_to(target, **options):
    wire = Wire(target, **options)
    yield wire
    wire.channel.close()


@pytest.fixture(scope="module")
def wire(server):
    with wire_to(server.target) as one:
        yield one


def expected(case):
    return case.code, "\n".join(case.lines)


def test_table_is_large_and_named():
    names = [case.name for case in CASES]
    assert len(names) >= 45 and len(set(names)) == len(names)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_refused(server, wire, case):
    assert wire.outcome(case.rpc, case.message) == expected(case)
    assert wire.outcome("Forward", GOOD) == (grpc.StatusCode.OK, "")


def test_the_base_of_all_cases_is_good(wire):
    assert wire.outcome("Forward", GOOD) == (grpc.StatusCode.OK, "")
    assert wire.outcome("Backward", backward()) == (grpc.StatusCode.OK, "")


def test_many_reasons_are_cut_to_what_a_trailer_carries(wire):
    wrong = forward(tensors={f"tensor_{i}": T((2,), payload=b"") for i in range(200)})
    code, text = wire.outcome("Forward", wrong)
    lines = text.split("\n")
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert len(text) <= 4000
    assert lines[0] == 'request: tensor "tensor_0" payload must be 8 bytes for float32 [2], got 0'
    # 200 payloads, and 200 tensors that softmax does not take.
    assert lines[-1] == f"and {400 - (len(lines) - 1)} more reasons"


def test_message_above_the_limit(start_server):
    with wire_to(start_server("--max-message-bytes", "65536").target) as wire:
        too_long = (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "Received message larger than max (65537 vs. 65536)",
        )
        assert wire.outcome("Forward", bytes(65537)) == too_long
        assert wire.outcome("Forward", bytes(65536))[0] == grpc.StatusCode.INVALID_ARGUMENT
        assert wire.outcome("Forward", GOOD)[0] == grpc.StatusCode.OK


def test_call_without_message(wire):
    call = wire.channel.stream_unary(SERVICE + "Forward")
    with pytest.raises(grpc.RpcError) as refused:
        call(iter(()), timeout=30)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == "request: a whole message is required, got none"


def test_compressed_message(server, wire):
    with wire_to(server.target, compression=grpc.Compression.Gzip) as compressed:
        code, text = compressed.outcome("Forward", forward(id="x" * 200))
    assert code == grpc.StatusCode.UNIMPLEMENTED
    assert "gzip" in text
    assert wire.outcome("Forward", GOOD)[0] == grpc.StatusCode.OK


def test_ten_thousand_refusals_leave_no_memory_behind(start_server):
    # A new server: memory that other tests left in the allocator would hide growth.
    server = start_server("--log-level", "warning")
    cases = [case for case in CASES if case.rpc in ("Forward", "Backward")]
    with wire_to(server.target) as wire:

        def refuse(count):
            """In waves, so that the queue of the client stays short."""
            pending = itertools.islice(itertools.cycle(cases), count)
            while wave := list(itertools.islice(pending, 100)):
                calls = [wire.start(case.rpc, case.message) for case in wave]
                for case, call in zip(wave, calls, strict=True):
                    assert (call.code(), call.details()) == expected(case)

        refuse(1000)
        before = server.rss()
        refuse(10_000)
        growth = server.rss() - before
        assert eventually(lambda: server.metric("attnd_inflight_requests") == 0)
        assert wire.outcome("Forward", GOOD)[0] == grpc.StatusCode.OK
    assert growth < 8 << 20, f"{growth / 2**20:.1f} MiB"


def test_good_requests_beside_bad_ones_are_not_touched(wire, client, rng):
    q, k, v = (noise(rng, shape) for shape in [(1, 4, 100, 32), (1, 2, 130, 32), (1, 2, 130, 16)])
    calls = [("softmax", {"causal": True}), ("local", {"window_left": 9}), ("linear_attention", {})]
    alone = [client.forward(q, k, v, method=m, options=options) for m, options in calls]
    stop = threading.Event()
    refusals = []

    def pester():
        for case in itertools.cycle(CASES):
            if stop.is_set():
                return
            refusals.append((case, wire.outcome(case.rpc, case.message)))

    pesterers = [threading.Thread(target=pester) for _ in range(4)]
    for thread in pesterers:
        thread.start()
    try:
        rounds = 0
        while rounds < 50 or (len(refusals) <= len(CASES) and rounds < 5000):
            rounds += 1
            for (method, options), want in zip(calls, alone, strict=True):
                got = client.forward(q, k, v, method=method, options=options)
                assert same_bits(got.out, want.out) and same_bits(got.lse, want.lse)
    finally:
        stop.set()
        for thread in pesterers:
            thread.join()
    assert len(refusals) > len(CASES)
    for case, outcome in refusals:
        assert outcome == expected(case)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_data(client, rng, value):
    q, k, v = (noise(rng, (2, 2, 70, 8)) for _ in "qkv")
    good = client.forward(q, k, v)
    v[1, 0, 3, 0] = value
    reply = client.forward(q, k, v)
    # They affect the rows that see them and no others.
    assert not np.isfinite(reply.out[1, 0, :, 0]).any()
    assert same_bits(reply.out[0], good.out[0])
    assert same_bits(reply.out[1, 1], good.out[1, 1])
    assert same_bits(reply.out[1, 0, :, 1:], good.out[1, 0, :, 1:])
