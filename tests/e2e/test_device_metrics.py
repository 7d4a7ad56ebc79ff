"""Metrics of devices: launches, copies and errors as counted, and what a driver reads.

The server on the emulated CUDA runtime reads a stand-in for NVIDIA's management library
(tests/cuda/nvml) where LD_LIBRARY_PATH leads to it.
"""

import re
import sys

import numpy as np
import pytest

import attnd
import server_process
from helpers import eventually
from server_process import BUILD, EMULATED, REPOSITORY, STRICT, built, samples
from stopped_thread import StoppedThread

READ = ("utilisation_ratio", "power_watts", "temperature_celsius", "memory_bytes")


@pytest.fixture
def start(start_server, monkeypatch):
    """Starts the program: start(program, *flags, **environment)."""

    def start_program(program, *flags, **variables):
        monkeypatch.setattr(server_process, "SERVER", built(program))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        # Its kernels are tested elsewhere, and planned faults are meant for requests.
        is_own = program == EMULATED and "--self-test" not in flags
        own = ("--self-test", "false") if is_own else ()
        return start_server(*own, *flags)

    return start_program


def of_devices(server):
    """{(family, other labels): {device: value}}"""
    found = {}
    for name, labels, value in samples(server.metrics()):
        if name.startswith("attnd_device_"):
            device = labels.pop("device")
            rest = tuple(labels.values())
            found.setdefault((name.removeprefix("attnd_device_"), *rest), {})[device] = value
    return found


def test_work_of_each_device(start):
    server = start(STRICT, STRICT_DEVICE_BESIDE="1")
    q = np.zeros((1, 2, 64, 16), np.float32)
    before = of_devices(server)
    assert before.keys() == {("launches_total",), ("copied_bytes_total", "to_device"),
                             ("copied_bytes_total", "to_host"), ("errors_total", "failed"),
                             ("errors_total", "memory")}
    with attnd.Client(server.target) as client:
        client.forward(q, q, q, device="cpu")
    after = of_devices(server)
    # That of plain:0 is the host's: nothing is copied, and no series says so.
    assert after["copied_bytes_total", "to_device"] == {"cpu": 3 * q.nbytes}
    assert after["copied_bytes_total", "to_host"].keys() == {"cpu"}
    assert after["copied_bytes_total", "to_host"]["cpu"] >= q.nbytes
    # Its peak was measured with launches, too.
    launches = {device: after["launches_total",][device] - before["launches_total",][device]
                for device in ("cpu", "plain:0")}
    assert launches["cpu"] > 0 == launches["plain:0"]
    assert after["errors_total", "failed"] == {"cpu": 0, "plain:0": 0}
    stuck = [labels["part"] for name, labels, _ in samples(server.metrics())
             if name == "attnd_stuck_seconds"]
    lanes = [part for part in stuck if part.startswith("lane ")]
    assert {"lane 0", f"lane {len(lanes) - 1} of plain:0"} <= set(lanes)


def test_batches_without_memory_run_in_parts(start):
    """And are counted; a request that finds no memory alone is refused."""
    q = np.zeros((1, 1, 4096, 64), np.float32)  # 1 MiB, so that the inputs of two requests fit
    server = start(STRICT, "--max-running", "1", STRICT_DEVICE_MOST=str(15 << 19))
    request = {"method": "local", "options": {"window_left": 1}}
    with attnd.Client(server.target, retries=0) as client:
        with client.pipeline() as pipeline:
            with StoppedThread(server.pid, "lane-0"):  # they wait for it together
                answers = [pipeline.forward(q, q, q, **request) for _ in range(6)]
                assert eventually(lambda: server.metric("attnd_queue_requests") == 6)
            for answer in answers:
                np.testing.assert_array_equal(answer.result(timeout=60).out, q)
        assert server.metric("attnd_device_errors_total", kind="memory") > 0
        large = np.zeros((1, 1, 16384, 64), np.float32)
        with pytest.raises(attnd.Error, match="no memory") as error:
            client.forward(large, large, large, **request)
        assert error.value.code.name == "RESOURCE_EXHAUSTED"
        client.forward(q, q, q, **request)
    assert server.metric("attnd_device_errors_total", kind="failed") == 0


def test_what_the_driver_reads(start):
    server = start(EMULATED, EMULATED_CUDA_DEVICES="2", EMULATED_CUDA_MEMORY=str(8 << 30),
                   LD_LIBRARY_PATH=str(BUILD / "tests/fake_nvml"))
    read = of_devices(server)

    def both(value):
        return {"cuda:0": value, "cuda:1": value}

    assert read["utilisation_ratio",] == both(0.42)
    assert read["power_watts",] == both(123.5)
    assert read["temperature_celsius",] == both(61)
    assert read["memory_bytes", "used"] == both(3 << 30)
    assert read["memory_bytes", "total"] == both(8 << 30)
    assert read["errors_total", "failed"] == {"cpu": 0, **both(0)}
    # Nine tenths of what is free, less what may be kept for reuse.
    (budget,) = {value for value in read["budget_bytes",].values()}
    assert (4 << 30) < budget < (8 << 30)


def test_without_the_library_nothing_is_read(start):
    read = of_devices(start(EMULATED))
    assert not [key for key in read if key[0] in READ]


def test_the_dashboards_know_what_they_cannot_see(start, monkeypatch):
    """The list of tests/dashboard is what a CUDA device adds to the metrics of the processor."""
    sys.path.insert(0, str(REPOSITORY / "tests/dashboard"))
    from expressions import OF_DEVICES

    def families(*flags, **variables):
        page = start(EMULATED, *flags, LD_LIBRARY_PATH=str(BUILD / "tests/fake_nvml"),
                     **variables).metrics()
        return set(re.findall(r"^# TYPE (\S+)", page, re.M))

    served = families("--self-test", "true")
    # Of a device whose blocks have too little memory.
    served |= families("--device", "auto", EMULATED_CUDA_SHARED=str(99 << 10))
    monkeypatch.delenv("EMULATED_CUDA_SHARED")
    assert served - families("--device", "cpu") == OF_DEVICES


def test_what_a_device_has_proven(start):
    server = start(EMULATED, "--self-test", "true")
    with attnd.Client(server.target) as client:
        info = client.info()
    cpu, cuda = info.devices
    assert info.note == "" and cpu.self_tests == () and cuda.self_test_seconds > 0
    assert {test.primitive for test in cuda.self_tests} >= {
        "attend", "scan_grad", "sort", "fft", "matmul (cuBLASLt)", "fft (cuFFT)", "attend (cuDNN)",
        "attend in bands (cuDNN)", "attend_grad (cuDNN)"}
    assert all(not test.failure and test.launches > 0 for test in cuda.self_tests)
    assert server.metric("attnd_device_self_test_passed") == len(cuda.self_tests)
