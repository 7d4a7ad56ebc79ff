"""An engine with two devices of their own memory: `device` of a request is obeyed.

The strict server has the strict device under the name "cpu" and, where asked, the processor itself
under "plain:0" beside it.
"""

import numpy as np
import pytest

import attnd
import server_process

STRICT = server_process.SERVER.resolve().parent.parent / "tests/attnd-server-strict"


@pytest.fixture
def two(start_server, monkeypatch):
    if not STRICT.exists():
        pytest.skip(f"the strict server was not built: no {STRICT}")
    monkeypatch.setattr(server_process, "SERVER", STRICT)
    monkeypatch.setenv("STRICT_DEVICE_BESIDE", "1")
    server = start_server()
    with attnd.Client(server.target) as client:
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
