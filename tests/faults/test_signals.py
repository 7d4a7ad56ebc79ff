"""SIGHUP ended the server without a drain; a second SIGTERM must end it at once."""

import signal
import time

import attnd
from helpers import Busy, eventually


def test_a_closed_terminal_ends_no_service(start_server):
    server = start_server()
    server.signal(signal.SIGHUP)
    with attnd.Client(server.target, timeout=20) as client:
        assert client.health() == "SERVING"
    assert server.stop() == 0


def test_a_second_signal_ends_what_the_first_drains(start_server):
    server = start_server("--drain-timeout", "60s")
    with attnd.Client(server.target, timeout=20, retries=0) as client:
        with Busy(client, server, seconds=5):
            server.signal(signal.SIGTERM)
            assert eventually(lambda: "draining" in server.log())
            assert server.process.poll() is None
            started = time.monotonic()
            server.signal(signal.SIGTERM)
            assert server.wait(20) == 1
            assert time.monotonic() - started < 10
    assert "second signal: leaving without answering what is in flight" in server.log()


def test_two_signals_at_once_end_an_idle_server(start_server):
    server = start_server()
    server.signal(signal.SIGTERM)
    server.signal(signal.SIGTERM)
    # The server sees both as one signal until it has handled the first.
    assert server.wait(20) in (0, 1)
