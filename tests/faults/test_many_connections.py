"""Thousands of connections that send little: bounded number and memory, others unaffected."""

import socket

import grpc
import pytest

import attnd
from helpers import eventually, noise
from raw_http2 import HELLO

MIB = 1 << 20
IDLE = 2000


def connect(server, count, hello=HELLO):
    host, _, port = server.target.rpartition(":")
    made = [socket.create_connection((host, int(port)), timeout=20) for _ in range(count)]
    for one in made:
        one.sendall(hello)
    return made


def test_two_thousand_idle_ones(start_server, rng):
    server = start_server()
    q = noise(rng, (1, 2, 64, 32))
    with attnd.Client(server.target, timeout=30) as client:
        client.forward(q, q, q)
        idle = server.rss()
        crowd = connect(server, IDLE)
        files = {"name": "process_open_fds"}
        assert eventually(lambda: server.metric(**files) > IDLE)
        for _ in range(20):
            client.forward(q, q, q)
        assert server.rss() - idle < 200 * MIB
        # A new client, too.
        with attnd.Client(server.target, timeout=30) as another:
            assert another.forward(q, q, q).out.shape == q.shape
        for one in crowd:
            one.close()
        assert eventually(lambda: server.metric(**files) < 200)


def test_one_client_has_its_share(start_server):
    server = start_server("--max-connections", "40", "--max-connections-per-client", "10")
    crowd = connect(server, 10)
    assert eventually(lambda: all(said(one) for one in crowd))
    with attnd.Client(server.target, timeout=10, retries=0) as client:
        with pytest.raises(attnd.Error) as caught:
            client.health()
    assert caught.value.code == grpc.StatusCode.UNAVAILABLE
    words = "connection: ipv4:127.0.0.1 has 10 already, which is the limit of one client"
    assert eventually(lambda: words in server.log())
    late = connect(server, 1)[0]
    assert eventually(lambda: words.encode() in said(late))
    for one in crowd:
        one.close()
    with attnd.Client(server.target, timeout=20) as client:
        assert eventually(lambda: serves(client))


def said(connection):
    """What the server has sent so far; it stays in the socket to be read."""
    try:
        return connection.recv(4096, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""


def serves(client):
    try:
        return client.health() == "SERVING"
    except attnd.Error:
        return False


def test_trickled_headers_on_the_page_port(start_server):
    server = start_server()
    host, _, port = server.http.removeprefix("http://").rpartition(":")
    crowd = [socket.create_connection((host, int(port)), timeout=20) for _ in range(400)]
    for turn in range(5):
        for one in crowd:
            try:
                one.sendall(b"GET /metrics HTTP/1.1\r\n"[turn : turn + 1])
            except OSError:
                pass
        assert server.get("/healthz")[0] == 200
        assert "process_open_fds" in server.metrics()
    for one in crowd:
        one.close()
