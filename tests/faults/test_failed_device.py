"""A device that fails for good: its requests get UNAVAILABLE, the server stops serving and ends
with exit code 4.

The strict device fails at a launch that the environment names. It is called "cpu"; "plain:0" beside
it goes on.
"""

import urllib.error
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import attnd
import server_process
from helpers import eventually, long_input
from server_process import EMULATED, STRICT, built

FAILED = "device: cpu failed: a launch was made to fail"


@pytest.fixture
def start(start_server, monkeypatch):
    """Starts the program: start(program, *flags, **environment)."""

    def start_program(program, *flags, **variables):
        monkeypatch.setattr(server_process, "SERVER", built(program))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        # Its kernels are tested elsewhere, and planned faults are meant for requests.
        own = ("--self-test", "false") if program == EMULATED else ()
        return start_server(*own, *flags)

    return start_program


def q_of(n=33):
    return np.random.default_rng(3).standard_normal((1, 2, n, 8), dtype=np.float32)


def assert_failed(future, message=FAILED):
    with pytest.raises(attnd.Error, match=message) as error:
        future.result(timeout=30)
    assert error.value.code.name == "UNAVAILABLE"


def test_what_runs_and_waits_on_it_is_answered(start):
    server = start(STRICT, "--max-running", "1", STRICT_DEVICE_BESIDE="1",
                   STRICT_DEVICE_FAILS_AT="2")
    q = q_of()
    with attnd.Client(server.target, retries=0) as client, ThreadPoolExecutor(5) as threads:
        long = long_input(client, 1.5)
        # The second launch of a backward is its gradient, about a second later.
        running = threads.submit(client.backward, long, long, long, np.ones_like(long),
                                 device="cpu")
        assert eventually(lambda: server.metric("attnd_dispatch_total") == 1)
        waiting = [threads.submit(client.forward, q, q, q, device="cpu") for _ in range(2)]
        other = threads.submit(client.forward, long, long, long, device="plain:0")
        assert eventually(lambda: server.metric("attnd_queue_requests") == 2)
        assert server.get("/readyz")[0] == 200
        for future in (running, *waiting):
            assert_failed(future)
        assert other.result(timeout=60).stats.device == "plain:0"
    assert server.wait() == 4
    lines = [line for line in server.log().splitlines() if FAILED in line]
    assert len([line for line in lines if " error " in line]) == 1, server.log()


def test_a_short_drain_ends_by_itself(start):
    """Symptom: the failure is shown for six seconds, after five of which the process gave up."""
    server = start(STRICT, "--drain-delay", "0s", "--drain-timeout", "100ms",
                   STRICT_DEVICE_FAILS_AT="1")
    q = q_of()
    with attnd.Client(server.target, retries=0) as client, ThreadPoolExecutor(1) as threads:
        assert_failed(threads.submit(client.forward, q, q, q))
    assert server.wait() == 4
    assert "the drain does not end" not in server.log()


def test_health_and_requests_until_it_ends(start):
    """With a delay before the drain closes the listeners, as load balancers need it."""
    server = start(STRICT, "--drain-delay", "4s", STRICT_DEVICE_FAILS_AT="1")
    q = q_of()
    with attnd.Client(server.target, retries=0) as client, ThreadPoolExecutor(1) as threads:
        assert_failed(threads.submit(client.forward, q, q, q))
        assert eventually(lambda: server.get("/readyz")[0] == 503)
        assert server.get("/healthz")[0] == 200
        with pytest.raises(attnd.Error) as error:
            client.forward(q, q, q)
        assert error.value.code.name == "UNAVAILABLE"
        assert server.metric("attnd_device_errors_total", device="cpu", kind="failed") == 1
    assert server.wait() == 4
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        server.get("/readyz")


def test_a_second_signal_does_not_change_the_code(start):
    server = start(STRICT, "--drain-delay", "30s", STRICT_DEVICE_FAILS_AT="1")
    q = q_of()
    with attnd.Client(server.target, retries=0) as client, ThreadPoolExecutor(1) as threads:
        assert_failed(threads.submit(client.forward, q, q, q))
    assert eventually(lambda: "draining" in server.log())
    server.signal()
    assert server.wait(10) == 4


@pytest.mark.parametrize("fault", ["copy:1", "launch:1"])
def test_a_sticky_error_of_a_cuda_device(start, fault):
    """The driver reports it from then on at every call."""
    server = start(EMULATED, "--device", "cuda", EMULATED_CUDA_FAULT=fault)
    q = q_of()
    with attnd.Client(server.target, retries=0) as client, ThreadPoolExecutor(4) as threads:
        futures = [threads.submit(client.forward, q, q, q, method="fnet") for _ in range(4)]
        for future in futures:
            with pytest.raises(attnd.Error, match="device: cuda:0 failed: an illegal memory access "
                                                  "was encountered .cudaErrorIllegalAddress.|"
                                                  "draining") as error:
                future.result(timeout=30)
            assert error.value.code.name == "UNAVAILABLE"
    assert server.wait() == 4
