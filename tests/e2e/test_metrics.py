"""/metrics reports the work done: counters add up, gauges return to 0, the page is well formed."""

import shutil
import subprocess

import numpy as np
import pytest

import attnd
from helpers import OPTIONS, ORACLES, Busy, eventually, noise
from one_lane import client, server  # noqa: F401
from server_process import DEVICE, samples


@pytest.fixture
def fresh(start_server):
    server = start_server()
    with attnd.Client(server.target, timeout=60) as client:
        yield server, client


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("method", ORACLES)
def test_counters_add_up(fresh, rng, method, direction):
    server, client = fresh
    received = server.metric("attnd_received_bytes_total")
    sent = server.metric("attnd_sent_bytes_total")
    flops = tokens = request_bytes = reply_bytes = 0
    compute_seconds = 0.0
    for n in (10, 65, 200):
        q = noise(rng, (2, 3, n, 16))
        send = {"method": method, "options": OPTIONS[method]}
        if direction == "forward":
            reply = client.forward(q, q.copy(), q.copy(), **send)
            request_bytes += 3 * q.nbytes
            reply_bytes += reply.out.nbytes + reply.lse.nbytes
        else:
            reply = client.backward(q, q.copy(), q.copy(), q.copy(), **send)
            request_bytes += 4 * q.nbytes
            reply_bytes += 3 * q.nbytes
        flops += reply.stats.flops
        tokens += 2 * n
        compute_seconds += reply.stats.compute_seconds

    labels = {"method": method, "direction": direction}

    def total(name, **more):
        return server.metric(name, **labels, **more)

    # Counted when the answer has left; the page waits for that.
    assert total("attnd_requests_total", code="OK") == 3
    assert total("attnd_requests_total") == 3
    assert total("attnd_tokens_total", device=DEVICE) == tokens
    assert np.isclose(total("attnd_flops_total", device=DEVICE), flops)
    for phase in ("queue", "gather", "compute", "answer", "request"):
        assert eventually(lambda p=phase: total(f"attnd_{p}_seconds_count") == 3), phase
    assert np.isclose(total("attnd_compute_seconds_sum"), compute_seconds, rtol=1e-3)
    assert np.isclose(total("attnd_batch_compute_seconds_total", device=DEVICE), compute_seconds,
                      rtol=1e-3)
    assert total("attnd_request_seconds_sum") >= compute_seconds
    assert total("attnd_workspace_peak_bytes_count") == 3
    assert server.metric("attnd_batch_requests_sum", method=method) == 3
    assert server.metric("attnd_batch_tokens_sum", method=method) == tokens
    assert server.metric("attnd_dispatch_total") == 3
    assert server.metric("attnd_lane_busy_seconds_total") >= compute_seconds
    # Heads of messages are small beside the payloads.
    got = server.metric("attnd_received_bytes_total") - received
    gave = server.metric("attnd_sent_bytes_total") - sent
    assert request_bytes <= got <= request_bytes + 3 * 1024
    assert reply_bytes <= gave <= reply_bytes + 3 * 1024


def test_refusals_are_counted(fresh, rng):
    server, client = fresh
    q = noise(rng, (1, 1, 4, 8))
    with pytest.raises(attnd.Error):
        client.forward(q, q, q, method="local", options={"window_left": -5})

    assert eventually(lambda: server.metric("attnd_refused_total", reason="invalid") == 1)
    assert (
        server.metric(
            "attnd_requests_total", method="local", direction="forward", code="INVALID_ARGUMENT"
        )
        == 1
    )
    assert server.metric("attnd_tokens_total") == 0


def test_gauges_rise_and_come_back(fresh, rng):
    server, client = fresh
    with Busy(client, server) as busy:
        assert server.metric("attnd_inflight_requests") == 1
        assert eventually(lambda: server.metric("attnd_memory_bytes", kind="workspace") > 0)
        assert busy.is_running()
    assert busy.error is None
    assert eventually(lambda: server.metric("attnd_inflight_requests") == 0)
    assert eventually(lambda: server.metric("attnd_memory_bytes", kind="workspace") == 0)
    for name in ("requests", "bytes", "oldest_seconds"):
        assert server.metric(f"attnd_queue_{name}") == 0
    assert server.metric("attnd_budget_bytes") > 2**20
    assert server.metric("attnd_memory_peak_bytes") > 0


def test_page_is_clean_and_bounded(fresh, rng):
    server, client = fresh

    def ask(n):
        q = noise(rng, (1, 1, n, 8))
        client.forward(q, q, q)
        with pytest.raises(attnd.Error):
            client.forward(q, q, q, device=f"cuda:{n}")
        return server.metrics()

    before = {(name, *labels.items()) for name, labels, _ in samples(ask(3))}
    for n in range(4, 20):
        text = ask(n)
    after = {(name, *labels.items()) for name, labels, _ in samples(text)}
    assert after == before, "series grow with requests"

    promtool = shutil.which("promtool")
    assert promtool, "promtool is missing: deploy/install-deps --test installs it"
    lint = subprocess.run(
        [promtool, "check", "metrics"], input=text, text=True, capture_output=True
    )
    assert lint.returncode == 0 and not lint.stdout + lint.stderr, lint.stdout + lint.stderr
    for name in ("attnd_build_info", "process_resident_memory_bytes", "process_cpu_seconds_total"):
        assert f"\n{name}" in text
