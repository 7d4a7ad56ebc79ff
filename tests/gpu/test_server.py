"""Requests to a server on the device of this machine, against NumPy in float64."""

import json
import os
import pathlib
import subprocess
import time

import numpy as np
import pytest

import attnd

PACK = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    ports = tmp_path_factory.mktemp("server") / "ports.json"
    server = os.environ.get("ATTND_SERVER", PACK / "bin/attnd-server")
    process = subprocess.Popen([server, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0",
                                "--ports-file", ports, "--device", "cuda:0"])
    try:
        # Libraries compile a plan for each row of the self-test: half a second each.
        for _ in range(900):
            if ports.exists() or process.poll() is not None:
                break
            time.sleep(0.1)
        assert process.poll() is None, "the server ended"
        with attnd.Client(f"127.0.0.1:{json.loads(ports.read_text())['grpc']}") as connected:
            yield connected
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()


def exact(q, k, v):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return scores / scores.sum(-1, keepdims=True) @ v


def test_softmax_of_the_device(client):
    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal((2, 4, 300, 64)).astype(np.float32) for _ in range(3))
    reply = client.forward(q, k, v, method="softmax")
    assert reply.stats.device == "cuda:0"
    assert np.abs(reply.out - exact(q, k, v)).max() < 2e-6


def test_the_device_is_whole(client):
    info = client.info()
    assert info.unusable_devices == ()
    device, = info.devices
    failed = [f"{test.primitive} of {test.dtype}: {test.failure}" for test in device.self_tests if test.failure]
    assert device.self_tests and not failed
    print(f"self-test: {len(device.self_tests)} rows in {device.self_test_seconds:.2f} s")


def test_every_method_runs_on_it(client):
    methods = client.methods()
    assert len(methods) == 34
    assert [m.id for m in methods if "cuda:0" not in m.support.devices] == []


def test_gradients_of_the_device(client):
    """d(sum of out)/dv is, of each key, the sum of the weights that it gets."""
    random = np.random.default_rng(3)
    q, k, v = (random.standard_normal((1, 2, 200, 64)).astype(np.float32) for _ in range(3))
    result = client.backward(q, k, v, np.ones_like(v), method="softmax")
    assert result.stats.device == "cuda:0"
    weights = exact(q, k, np.broadcast_to(np.eye(200), (1, 2, 200, 200)))
    expected = weights.sum(-2)[..., None]
    assert np.abs(result.v - expected).max() < 1e-5 * expected.max()


def test_many_requests_at_once(client):
    from concurrent.futures import ThreadPoolExecutor

    random = np.random.default_rng(2)
    sent = [tuple(random.standard_normal((1, 2, n, 32)).astype(np.float32) for _ in range(3))
            for n in range(50, 90)]
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda x: client.forward(*x, method="softmax"), sent))
    for (q, k, v), reply in zip(sent, replies):
        assert np.abs(reply.out - exact(q, k, v)).max() < 2e-6
        alone = client.forward(q, k, v, method="softmax")
        assert np.array_equal(alone.out, reply.out), "a result depends on its batch"
