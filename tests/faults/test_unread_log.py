"""Standard error that is not read: after 41 KB of lines the server hung, because the thread that
answers calls waited to write the next one."""

import fcntl
import os
import select

import pytest

import attnd
from helpers import noise

LINES = 600


@pytest.fixture
def unread():
    """Both ends of a pipe of 4 KB that is not read."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def ask(client, rng, times):
    q = noise(rng, (1, 1, 4, 8))
    for turn in range(times):
        if turn % 2:
            client.forward(q, q, q)
        else:
            with pytest.raises(attnd.Error, match="window_left"):
                client.forward(q, q, q, method="local", options={"window_left": -5})


def test_calls_are_answered_and_the_server_stops(start_server, rng, unread):
    reader, writer = unread
    server = start_server("--log-level", "debug", output=writer)
    with attnd.Client(server.target, timeout=20) as client:
        # Some 300 bytes each: the pipe is full after 15, the queue behind it after a few thousand.
        ask(client, rng, LINES)
        assert client.health() == "SERVING"
    assert server.get("/healthz")[0] == 200
    assert server.metric("attnd_log_lines_dropped_total") == 0
    assert server.stop() == 0


def test_lines_that_were_lost_are_counted_and_the_latest_come(start_server, rng, unread):
    reader, writer = unread
    server = start_server("--log-level", "debug", output=writer)
    with attnd.Client(server.target, timeout=20) as client:
        # 1024 lines wait at most.
        for _ in range(100):
            ask(client, rng, 50)
            if server.metric("attnd_log_lines_dropped_total") > 0:
                break
        assert server.metric("attnd_log_lines_dropped_total") > 0
        assert client.health() == "SERVING"
        q = noise(rng, (1, 1, 4, 8))
        with pytest.raises(attnd.Error):
            client.forward(q, q, q, method="local", options={"window_left": -7})
    # Reading begins again.
    assert b"log lines were lost here" in read_until(reader, b"got -7")
    assert server.stop() == 0
    read_until(reader, b"drained")


def read_until(reader, words):
    text = b""
    while words not in text:
        assert select.select([reader], [], [], 20)[0], text[-1000:]
        text += os.read(reader, 1 << 16)
    return text
