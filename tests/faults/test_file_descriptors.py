"""File descriptors run out: the server never accepted again, and logged nothing."""

import resource
import socket
import time

import attnd
from helpers import eventually, noise

FILES = 64
CONNECTIONS = 80


def limit_files(server, count):
    limits = (count, resource.prlimit(server.pid, resource.RLIMIT_NOFILE)[1])
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)


def connect(server, count):
    """Connections that send enough to count as HTTP/2."""
    host, _, port = server.target.rpartition(":")
    made = [socket.create_connection((host, int(port)), timeout=10) for _ in range(count)]
    for one in made:
        one.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    return made


def answers(server, rng):
    q = noise(rng, (1, 2, 64, 32))
    with attnd.Client(server.target, timeout=5, retries=0) as client:
        try:
            return client.forward(q, q, q).out.shape == q.shape
        except attnd.Error:
            return False


def test_accepts_again_after_exhaustion(start_server, rng):
    """The limit drops below what the server has read at its start: accept fails."""
    server = start_server()
    limit_files(server, FILES)
    crowd = connect(server, CONNECTIONS)
    assert eventually(lambda: "cannot accept a connection" in server.log())
    for one in crowd:
        one.close()
    assert eventually(lambda: answers(server, rng), 20)
    assert server.metric("process_open_fds") < FILES
    assert server.stop() == 0


def test_few_files_mean_few_connections(start_server, rng):
    """With a low limit the server accepts fewer connections and refuses others with the reason."""
    server = start_server(files=FILES)
    crowd = connect(server, CONNECTIONS)
    assert eventually(lambda: "reason=" in server.log())
    refused = [one for one in crowd if b"connection: " in received(one)]
    assert CONNECTIONS - FILES < len(refused) < CONNECTIONS
    # Pages are served all the while.
    assert server.get("/healthz")[0] == 200
    for one in crowd:
        one.close()
    assert eventually(lambda: answers(server, rng), 20)
    assert "cannot accept" not in server.log()
    assert server.stop() == 0


def test_pages_come_back_after_exhaustion(start_server):
    """Without a descriptor for the connection, a library's accept loop retries without a pause."""
    server = start_server()
    limits = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    host, _, port = server.http.removeprefix("http://").rpartition(":")
    limit_files(server, 4)
    with socket.create_connection((host, int(port)), timeout=20) as one:
        one.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        before = server.cpu_seconds()
        time.sleep(2)
        # A loop would take most of it.
        assert server.cpu_seconds() - before < 0.5
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)
        assert one.recv(4096).startswith(b"HTTP/1.1 200 ")
    assert server.get("/healthz")[0] == 200
    assert server.stop() == 0


def received(connection):
    """What the server has sent, without waiting for more."""
    connection.settimeout(0.5)
    try:
        return connection.recv(4096)
    except (TimeoutError, ConnectionResetError):
        return b""


def test_the_soft_limit_is_raised(start_server):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    server = start_server(files=(256, hard))
    assert server.metric("process_max_fds") == hard
    assert server.stop() == 0
