"""Clients that read neither replies nor pages: memory that waits for them is bounded, others are
served, and all of it is freed once they have left."""

import socket

import pytest

import attnd
from bad_input_cases import T, forward
from helpers import eventually, noise
from raw_http2 import RawConnection, framed

MIB = 1 << 20
BUDGET = 256 * MIB
READERS = 24
# 0.6 MB that become a reply of 32 MiB.
TENSORS = {
    "q": T((1, 8, 2048, 8), payload=bytes(8 * 2048 * 8 * 4)),
    "k": T((1, 1, 16, 8), payload=bytes(16 * 8 * 4)),
    "v": T((1, 1, 16, 512), payload=bytes(16 * 512 * 4)),
}
PAGE_READERS = 600


@pytest.fixture
def server(start_server):
    return start_server("--budget-bytes", str(BUDGET))


@pytest.fixture
def client(server):
    with attnd.Client(server.target, timeout=60, retries=0) as one:
        yield one


def test_replies(server, client, rng):
    q = noise(rng, (1, 2, 64, 32))
    client.forward(q, q, q)
    idle = server.rss()
    message = framed(forward("softmax {}", TENSORS))
    readers = []
    for _ in range(READERS):
        reader = RawConnection(server.target)
        stream = reader.open("Forward", attnd_message_bytes=str(len(message) - 5))
        assert reader.send(stream, message) == len(message)
        readers.append(reader)

    def held():
        return server.metric("attnd_budget_charged_bytes")

    # Replies of 32 MiB wait until the budget has no room for another.
    assert eventually(lambda: held() > BUDGET - 64 * MIB, 30)
    for _ in range(20):
        assert client.forward(q, q, q).out.shape == q.shape
    assert held() <= BUDGET
    assert server.peak_rss() - idle < 2 * BUDGET
    for reader in readers:
        reader.close()
    assert eventually(lambda: held() == 0, 30)


def ask_for_metrics(server):
    host, _, port = server.http.removeprefix("http://").rpartition(":")
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.settimeout(20)
    one.connect((host, int(port)))
    one.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    return one


def test_pages(server, client):
    """Hundreds of connections request the metrics and read nothing."""
    server.metrics()
    idle, files = server.rss(), server.metric("process_open_fds")
    readers = [ask_for_metrics(server) for _ in range(PAGE_READERS)]
    assert server.get("/healthz")[0] == 200
    assert client.health() == "SERVING"
    assert server.metric("process_open_fds") < files + 200
    assert server.rss() - idle < 64 * MIB
    for reader in readers:
        reader.close()
