"""Clients that send a byte now and then: a declared message, a message without size, headers, a
frame. Others are served, and nothing remains once they have left."""

import socket
import time

import attnd
from helpers import eventually, noise
from raw_http2 import HELLO, RawConnection, framed

WRITERS = 40
ROUNDS = 20


def test_other_clients_are_not_affected(start_server, rng):
    server = start_server("--budget-bytes", "256MiB")
    q = noise(rng, (1, 2, 64, 32))
    message = framed(bytes(1 << 20))
    host, _, port = server.target.rpartition(":")
    with attnd.Client(server.target, timeout=30, retries=0) as client:
        client.forward(q, q, q)
        idle = server.rss()
        writers = []
        for index in range(WRITERS):
            writer = RawConnection(server.target)
            declared = {"attnd_message_bytes": str(1 << 20)} if index % 2 else {}
            writers.append((writer, writer.open("Forward", **declared)))
        trickles = [socket.create_connection((host, int(port))) for _ in range(WRITERS)]
        for turn in range(ROUNDS):
            for writer, stream in writers:
                writer.send(stream, message[turn : turn + 1])
            for one in trickles:
                one.sendall(HELLO[turn : turn + 1])
            assert client.forward(q, q, q).out.shape == q.shape
            assert server.get("/healthz")[0] == 200
            time.sleep(0.01)
        assert server.rss() - idle < 64 << 20
        for writer, _ in writers:
            writer.close()
        for one in trickles:
            one.close()
        assert eventually(lambda: server.metric("attnd_budget_charged_bytes") == 0)
        assert eventually(lambda: server.metric("attnd_parked_requests") == 0)
