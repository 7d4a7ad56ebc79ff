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

STRICT = server_process.SERVER.parent.parent / "tests/attnd-server-strict"


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
    # By prediction the other one, whose memory is not the host's, takes longer.
    assert [a.stats.device for a in answers.values()] == ["plain:0", "cpu", "plain:0"]
    for answer in answers.values():
        np.testing.assert_array_equal(answer.out, answers["cpu"].out)


def test_a_request_that_names_no_device_runs_where_it_is_done_first(start_two):
    """It ran on the first device, whatever waited there."""
    server = start_two("--max-running", "1")
    q, k, v = qkv()
    with attnd.Client(server.target) as client:
        assert client.forward(q, k, v).stats.device == "plain:0"
        assert client.estimate(q.shape, k.shape, v.shape).device == "plain:0"
        with Busy(client, server, seconds=1.5, device="plain:0"):
            assert client.forward(q, k, v).stats.device == "cpu"
            assert client.estimate(q.shape, k.shape, v.shape).device == "cpu"
            assert client.estimate(q.shape, k.shape, v.shape, device="plain:0").device == "plain:0"
        assert client.forward(q, k, v).stats.device == "plain:0"


def test_a_full_queue_leaves_the_other_device(start_two):
    server = start_two("--max-running", "1", "--max-queue", "1")
    q, k, v = qkv()
    with attnd.Client(server.target, retries=0) as client, ThreadPoolExecutor(2) as threads:
        with Busy(client, server, seconds=1.5, device="plain:0"):
            waiting = threads.submit(client.forward, q, k, v, device="plain:0")
            assert eventually(lambda: server.metric("attnd_queue_requests") == 1)
            for _ in range(3):
                assert client.forward(q, k, v).stats.device == "cpu"
        assert waiting.result().stats.device == "plain:0"


def test_a_request_too_large_for_one_device_runs_on_the_other(start_two, monkeypatch):
    monkeypatch.setenv("STRICT_DEVICE_MEMORY", str(1 << 20))
    server = start_two("--max-running", "1")
    q = np.zeros((1, 1, 4096, 64), np.float32)
    with attnd.Client(server.target, retries=0) as client:
        with Busy(client, server, seconds=1, device="plain:0"):
            answer = client.forward(q, q, q, method="local", options={"window_left": 1})
            assert answer.stats.device == "plain:0"


def test_the_devices_are_listed(two):
    assert [device.name for device in two.info().devices] == ["cpu", "plain:0"]
    assert {method.support.devices for method in two.methods()} == {("cpu", "plain:0")}


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
            ("attnd_tokens_total", "attnd_flops_total", "attnd_batch_compute_seconds_total",
             "attnd_memory_peak_bytes", "attnd_lane_busy_seconds_total") for device in ("cpu", "plain:0")]
    assert not any(work[::2])
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
            answer = client.forward(part, part, part, method="local", options={"window_left": 1},
                                    device="cpu")
            assert answer.stats.device == "cpu"


def test_the_budget_of_a_device_is_a_metric(start_two, monkeypatch):
    monkeypatch.setenv("STRICT_DEVICE_MEMORY", str(8 << 20))
    server = start_two()
    budgets = {name: [(labels["device"], value) for found, labels, value
                      in samples(server.metrics()) if found == f"attnd_device_budget{name}_bytes"]
               for name in ("", "_charged")}
    # The server's budget covers plain:0, whose memory is the host's.
    assert budgets == {"": [("cpu", 4 << 20)], "_charged": [("cpu", 0)]}


def test_host_memory_beside_a_device_is_called_that(start_two):
    """Integers counted as inputs of the device, and all of it as memory of the first device."""
    server = start_two()
    q = np.zeros((1, 8, 8192, 64), np.float32)  # 16 MiB
    ids = np.zeros((1, 8192), np.int32)  # 32 KiB

    def inputs():
        return {labels["device"]: value for name, labels, value in samples(server.metrics())
                if name == "attnd_memory_bytes" and labels["kind"] == "inputs"}

    with attnd.Client(server.target, timeout=120) as client, ThreadPoolExecutor(1) as threads:
        assert inputs() == {"cpu": 0, "plain:0": 0}
        running = threads.submit(client.forward, q, q, q, device="cpu",
                                 tensors={"segment_ids_q": ids, "segment_ids_kv": ids})
        assert eventually(lambda: inputs() == {
            "cpu": 3 * q.nbytes, "plain:0": 0, "host": 2 * ids.nbytes})
        assert running.result().stats.device == "cpu"
    assert eventually(lambda: inputs() == {"cpu": 0, "plain:0": 0, "host": 0})
    peaks = [server.metric("attnd_memory_peak_bytes", device=name) for name in ("cpu", "host")]
    assert peaks[0] >= 4 * q.nbytes > peaks[1] >= q.nbytes


def test_integers_are_not_charged_to_a_device(start_two, monkeypatch):
    """They were, although they stay on the host."""
    monkeypatch.setenv("STRICT_DEVICE_MEMORY", str(1 << 20))
    server = start_two()
    q = np.zeros((1, 1, 4096, 64), np.float32)
    ids = np.zeros((1, 4096), np.int32)
    request = {"method": "local", "options": {"window_left": 1}, "device": "cpu",
               "tensors": {"segment_ids_q": ids, "segment_ids_kv": ids}}
    with attnd.Client(server.target, retries=0) as client:
        plan = client.estimate(q.shape, q.shape, q.shape, **request)
        need = 3 * q.nbytes + plan.workspace_bytes
        with pytest.raises(attnd.Error, match=f"needs {need} bytes of cpu, its budget is 524288"):
            client.forward(q, q, q, **request)


def test_the_log_describes_each_device(start_two, monkeypatch):
    """It described the first one."""
    monkeypatch.setenv("STRICT_DEVICE_MEMORY", str(8 << 20))
    server = start_two()
    assert eventually(lambda: "serving" in server.log())
    lines = [line for line in server.log().splitlines() if " device=" in line]
    assert len(lines) == 2, lines
    assert "attnd-server " in lines[0] and " device=cpu " in lines[0]
    assert "further device device=plain:0 " in lines[1]
    budget = int(server.metric("attnd_budget_bytes"))
    assert [int(line.rpartition("budget_bytes=")[2]) for line in lines] == [4 << 20, budget]
    assert all("peak_gflops=" in line for line in lines)
