"""Gradients that need not be deterministic are the library's of a CUDA device, and others are not.

On the emulated CUDA runtime with its stand-in for cuDNN, which rounds at other places than own
kernels do.
"""

import numpy as np
import pytest

import attnd
import server_process
from helpers import noise, relative_error
from server_process import EMULATED, built

# As much as the library is asked for at least.
SHAPE = (1, 16, 512, 56)


@pytest.fixture
def client(start_server, monkeypatch):
    """Of a server on an emulated device that has proven its libraries."""
    monkeypatch.setattr(server_process, "SERVER", built(EMULATED))
    server = start_server("--device", "cuda", "--self-test", "true")
    with attnd.Client(server.target) as client:
        yield client


def test_a_request_says_so(client, rng):
    tensors = [noise(rng, SHAPE, np.float16) for _ in range(4)]

    own, sooner = (client.backward(*tensors, deterministic=which) for which in (True, False))

    for name in "qkv":
        ours, theirs = getattr(own, name), getattr(sooner, name)
        assert (ours != theirs).any(), name
        assert relative_error(theirs, ours) < 2e-3, name
    kinds = [client.estimate(SHAPE, SHAPE, SHAPE, dtype=np.float16, backward=True,
                             deterministic=which).workspace_bytes for which in (True, False)]
    assert own.stats.peak_workspace_bytes <= kinds[0]
    assert sooner.stats.peak_workspace_bytes <= kinds[1]
