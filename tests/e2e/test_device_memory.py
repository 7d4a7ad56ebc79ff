"""Requests and the memory of a CUDA device: what its budget admits waits and is answered, what it can
never hold is refused.

On the emulated CUDA runtime, with a device of a few MiB.
"""

import time

import numpy as np
import pytest

import attnd
import server_process
from helpers import (BOUND, ORACLES, eventually, noise, refusals, relative_error, same_bits,
                     together)
from server_process import EMULATED, built

LOCAL = {"method": "local", "options": {"window_left": 1}}


@pytest.fixture
def start(start_server, monkeypatch):
    """Starts a server on an emulated device: start(*flags, **environment)."""
    monkeypatch.setattr(server_process, "SERVER", built(EMULATED))

    def start_it(*flags, **variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return start_server("--device", "cuda", "--self-test", "false", *flags)

    return start_it


def test_what_the_budget_of_a_device_cannot_hold_is_refused(start, rng):
    server = start(EMULATED_CUDA_MEMORY=str(8 << 20))
    budget = int(server.metric("attnd_device_budget_bytes", device="cuda:0"))
    assert 4 << 20 < budget < 8 << 20
    small, large = noise(rng, (1, 1, 64, 16)), noise(rng, (1, 1, 1 << 15, 16))  # 2 MiB
    with attnd.Client(server.target, retries=0) as client:
        with pytest.raises(attnd.Error, match=f"bytes of cuda:0, its budget is {budget}") as error:
            client.forward(large, large, large, **LOCAL)
        assert error.value.code.name == "RESOURCE_EXHAUSTED"
        assert refusals(server) == {"bytes": 1}
        assert client.forward(small, small, small, **LOCAL).out.shape == small.shape


def test_patterns_that_take_too_much_are_refused_for_good(start, rng):
    """Which is known once the ids are read: nothing is tried again, others are answered."""
    server = start(EMULATED_CUDA_MEMORY=str(64 << 20))
    most = (64 << 20) * 9 // 10 // 16  # of the nine tenths that a server uses
    n = 1 << 13  # 16,384 tiles of 552 bytes
    q, small = noise(rng, (1, 1, n, 1)), noise(rng, (1, 1, 64, 16))
    ids = rng.integers(0, 8, (1, n), dtype=np.int32)
    with attnd.Client(server.target, retries=4) as client:
        with pytest.raises(attnd.Error, match=f"must take at most {most} bytes") as error:
            client.forward(q, q, q, tensors={"segment_ids_q": ids, "segment_ids_kv": ids})
        assert error.value.code.name == "UNIMPLEMENTED"
        assert client.forward(small, small, small, **LOCAL).out.shape == small.shape
    assert server.metric("attnd_device_errors_total", kind="memory") == 0
    assert eventually(
        lambda: server.metric("attnd_device_budget_charged_bytes", device="cuda:0") == 0)


def test_lists_of_keys_count_as_memory_of_the_device(start, rng):
    """They lie there twice: the keys of each query, and the queries of each key."""
    server = start()
    q = noise(rng, (1, 4, 1024, 8))
    keys = rng.random((1, 4, 1024, 1024)).argpartition(32)[..., :32].astype(np.int32)
    asked = {"method": "random", "tensors": {"rand_keys": keys}}
    with attnd.Client(server.target, timeout=60) as client:
        plan = client.estimate(*[q.shape] * 3, **asked)
        reply = client.forward(q, q, q, **asked)
    assert 2 * keys.nbytes < reply.stats.peak_workspace_bytes <= plan.workspace_bytes


def when_there_is_room(call):
    """Its reply, asked for again as long as there is no room."""
    end = time.monotonic() + 60
    while True:
        try:
            return call()
        except attnd.Error as error:
            if error.code.name != "RESOURCE_EXHAUSTED" or time.monotonic() > end:
                raise
        time.sleep(0.02)


def test_requests_that_fit_only_one_by_one_are_all_answered(start, rng):
    """What finds no room is told to come again; no memory of the device stays charged."""
    server = start(EMULATED_CUDA_MEMORY=str(8 << 20))
    inputs = [noise(rng, (1, 1, 1 << 12, 32)) for _ in range(4)]  # 0.5 MiB each
    with attnd.Client(server.target, timeout=60, retries=0) as client:
        plan = client.estimate(*[inputs[0].shape] * 3, **LOCAL)
        budget = server.metric("attnd_device_budget_bytes", device="cuda:0")
        assert budget < 2 * (plan.input_bytes + plan.workspace_bytes), "two fit"
        alone = [client.forward(q, q, q, **LOCAL).out for q in inputs]
        replies = together([
            lambda q=q: when_there_is_room(lambda: client.forward(q, q, q, **LOCAL)) for q in inputs
        ])
        assert all(same_bits(reply.out, one) for reply, one in zip(replies, alone, strict=True))
    assert refusals(server).keys() == {"bytes"}
    assert eventually(
        lambda: server.metric("attnd_device_budget_charged_bytes", device="cuda:0") == 0)


# The first ones of a server: inputs, outputs, scratch of the lane.
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6, 7, 8])
def test_an_allocation_that_fails_is_one_refusal(start, rng, number):
    """As another process may cause it, although the budget has room."""
    server = start(EMULATED_CUDA_FAULT=f"alloc:{number}")
    q = noise(rng, (1, 2, 33, 8))
    with attnd.Client(server.target, retries=0, timeout=60) as client:
        with pytest.raises(attnd.Error, match="no memory") as error:
            client.forward(q, q, q)
        assert error.value.code.name == "RESOURCE_EXHAUSTED"
        assert refusals(server) == {"bytes": 1}
        assert server.metric("attnd_device_errors_total", kind="memory") == 1
        exact = ORACLES["softmax"].forward({"q": q, "k": q, "v": q}, {})["out"]
        assert relative_error(client.forward(q, q, q).out, exact) < BOUND[np.float32]
    assert server.metric("attnd_device_errors_total", kind="failed") == 0
    assert eventually(
        lambda: server.metric("attnd_device_budget_charged_bytes", device="cuda:0") == 0)
    assert server.stop() == 0
