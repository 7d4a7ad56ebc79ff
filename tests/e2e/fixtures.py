"""Fixtures of the tests that talk to the real server over real sockets: tests/e2e, tests/faults."""

import numpy as np
import pytest
from safetensors.numpy import load_file

import attnd
from server_process import DATA, Server


@pytest.fixture
def start_server(tmp_path_factory):
    """Starts servers for one test: start_server(*flags). They end with the test."""
    started = []

    def start(*flags, **options):
        started.append(Server(tmp_path_factory.mktemp("server"), *flags, **options))
        return started[-1]

    yield start
    for server in started:
        server.kill()


def serve(folder, *flags):
    """A server that must survive its tests."""
    one = Server(folder, "--max-priority", "100", *flags)
    yield one
    died = one.process.poll()
    code = one.stop()
    assert died is None, f"the server died with {died}:\n{one.log()[-4000:]}"
    assert code == 0, f"the server ended with {code}:\n{one.log()[-4000:]}"


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """One server for all tests that leave it as they found it. It must survive them all."""
    yield from serve(tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="session")
def client(server):
    with attnd.Client(server.target, timeout=60) as one:
        yield one


@pytest.fixture(scope="session")
def genesis():
    """q, k, v float16 [1, 12, 512, 32] of a language model."""
    return load_file(DATA / "genesis_512.safetensors")


@pytest.fixture(scope="session")
def verses():
    """q, k, v float16 [16, 12, 38, 32] with q_lengths and kv_lengths."""
    return load_file(DATA / "verses_ragged.safetensors")


@pytest.fixture
def rng():
    return np.random.default_rng(7)
