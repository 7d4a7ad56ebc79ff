"""A server that runs one batch at a time, for tests in which requests wait for a busy lane.

A test file that imports these fixtures uses them instead of those of its folder.
"""

import pytest

import attnd
from fixtures import serve


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    yield from serve(tmp_path_factory.mktemp("server"), "--max-running", "1")


@pytest.fixture(scope="session")
def client(server):
    with attnd.Client(server.target, timeout=60) as one:
        yield one
