"""An engine with two devices, each with separate memory: a request runs on the one that it names.

The strict server has the strict device under the name "cpu" and, where asked, the processor itself
under "plain:0" beside it.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import attnd
import server_process
from helpers import Busy, eventually
from server_process import samples

STRICT = server_process.SERVER.resolve().parent.parent / "tests/attnd-server-strict"


@pytest.fixture
def start_two(start_server, monkeypatch):
    """Starts a server with both devices: start_two(*flags)."""
    if not STRICT.exists():
        pytest.skip(f"the strict server was not built: no {STRICT}")
    monkeypatch.setattr(server_process, "SERVER", STRICT)
    monkeypatch.setenv("STRICT_DEVICE_BESIDE", "1")
    return start_server


@pytest.fixture
def two(start_two):
    with attnd.Client(start_two().target) as client:
        yield client


def qkv(n=33):
    rng = np.random.default_rng(5)
    return [rng.standard_normal((1, 2, n, 8), dtype=np.float32) for _ in range(3)]


def test_each_device_answers_what_names_it(two):
    q, k, v = qkv()
    answers = {device: two.forward(q, k, v, method="local", options={"window_left": 4},
                                   device=device) for device in (None, "cpu", "plain:0")}
    assert [a.stats.device for a in answers.values()] == ["cpu", "cpu", "plain:0"]
    for answer in answers.values():
        np.testing.assert_array_equal(answer.out, answers["cpu"].out)


def test_gradients_come_back_from_a_device_with_memory_of_its_own(two):
    q, k, v = qkv()
    strict, plain = (two.backward(q, k, v, np.ones_like(q), method="softmax", device=device)
                     for device in ("cpu", "plain:0"))
    for name in ("q", "k", "v"):
        np.testing.assert_array_equal(getattr(strict, name), getattr(plain, name))


def test_an_unknown_device_is_refused_with_those_that_are_there(two):
    q, k, v = qkv()
    with pytest.raises(attnd.Error, match=r'device must be cpu, plain:0 or empty, got "cuda:7"'):
        two.forward(q, k, v, method="softmax", device="cuda:7")


@pytest.mark.parametrize("full, free", [("cpu", "plain:0"), ("plain:0", "cpu")])
def test_a_full_queue_of_one_device_refuses_nothing_of_another(start_two, full, free):
    """Requests were admitted by the queue of the first device, even if they named another one."""
    server = start_two("--max-running", "1", "--max-queue", "1")
    q, k, v = qkv()
    large = np.zeros((1, 8, 4096, 64), np.float32)  # its head goes ahead
    with attnd.Client(server.target, retries=0) as client, ThreadPoolExecutor(2) as threads:
        with Busy(client, server, seconds=1.5, device=full):
            waiting = threads.submit(client.forward, q, k, v, device=full)
            assert eventually(lambda: server.metric("attnd_queue_requests") == 1)
            answer = client.forward(q, k, v, method="local", options={"window_left": 4},
                                    device=free)
            assert answer.stats.device == free
            with client.pipeline() as pipeline:
                streamed = pipeline.forward(q, k, v, device=free)
                refused = pipeline.forward(q, k, v, device=full)
                assert streamed.result(timeout=30).stats.device == free
                with pytest.raises(attnd.Error, match="queue is full"):
                    refused.result(timeout=30)
            with pytest.raises(attnd.Error, match="queue is full"):
                client.forward(q, k, v, device=full)
            received = server.metric("attnd_received_bytes_total")
            with pytest.raises(attnd.Error, match="queue is full"):
                client.forward(large, large, large, device=full)
            assert server.metric("attnd_received_bytes_total") == received
        assert waiting.result().stats.device == full


def test_each_device_has_metrics_of_its_own(start_two):
    """The metrics counted the second device's memory, work and lanes as the first one's."""
    server = start_two("--max-running", "2")
    q, k, v = qkv()
    with attnd.Client(server.target) as client:
        client.forward(q, k, v, device="plain:0")
    work = [server.metric(name, device=device) for name in
            ("attnd_tokens_total", "attnd_flops_total", "attnd_memory_peak_bytes",
             "attnd_lane_busy_seconds_total") for device in ("cpu", "plain:0")]
    assert work[::2] == [0, 0, 0, 0]
    assert work[1] == 33 and all(work[1::2])
    lanes = {(labels["device"], labels["lane"]) for name, labels, _ in samples(server.metrics())
             if name == "attnd_lane_busy_seconds_total"}
    assert lanes == {("cpu", "0"), ("cpu", "1"), ("plain:0", "2"), ("plain:0", "3")}


def test_a_device_with_memory_of_its_own_has_a_budget_of_its_own(start_two, monkeypatch):
    """Memory of a device was charged to the host's budget alone."""
    monkeypatch.setenv("STRICT_DEVICE_MEMORY", str(8 << 20))  # a budget of half of it
    server = start_two()
    q = np.zeros((1, 1, 4096, 64), np.float32)  # 1 MiB
    with attnd.Client(server.target, retries=0) as client:
        # Three inputs, one output: more than 4 MiB with lse.
        with pytest.raises(attnd.Error, match=r"needs \d+ bytes of cpu, its budget is 4194304"):
            client.forward(q, q, q, method="local", options={"window_left": 1}, device="cpu")
        client.forward(q, q, q, method="local", options={"window_left": 1}, device="plain:0")
        # Each takes more than half of the budget and frees it with the answer.
        part = q[:, :, :2048]
        for _ in range(3):
            answer = client.forward(part, part, part, method="local", options={"window_left": 1})
            assert answer.stats.device == "cpu"
