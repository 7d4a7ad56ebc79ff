"""A new client for each test, for test files that start a `server` for each test.

A test file that imports it uses it instead of that of its folder.
"""

import pytest

import attnd


@pytest.fixture
def client(server):
    with attnd.Client(server.target, timeout=60) as one:
        yield one
