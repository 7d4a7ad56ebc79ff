"""A new client for each test, for test files whose `server` is the test's own.

A test file that imports it uses it instead of that of its folder.
"""

import pytest

import attnd


@pytest.fixture
def client(server):
    with attnd.Client(server.target, timeout=60) as one:
        yield one
