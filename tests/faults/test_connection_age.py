"""Connections that are asked to end at their age: no call is lost."""

import re
import threading

import attnd
from helpers import eventually, noise
from raw_http2 import RawConnection


def test_no_call_is_lost(start_server, rng):
    server = start_server("--max-connection-age", "300ms", "--log-level", "debug")
    q = noise(rng, (1, 2, 64, 32))
    failed = []

    def loop(client):
        for _ in range(50):
            try:
                client.forward(q, q, q)
            except attnd.Error as error:
                failed.append(error)
            pause.wait(0.03)

    pause = threading.Event()
    with attnd.Client(server.target, timeout=60) as client:
        threads = [threading.Thread(target=loop, args=(client,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    peers = set(re.findall(r"peer=(\S+)", server.log()))
    assert len(peers) > 2, "the connections were not ended"
    assert server.stop() == 0


def test_those_that_answer_no_ping_are_closed(start_server):
    """A client that has left without closing its connection, as behind a network that was cut."""
    server = start_server("--keepalive", "500ms", "--keepalive-timeout", "500ms")
    gone = RawConnection(server.target)
    assert eventually(lambda: server.metric("attnd_connections") == 1)
    assert eventually(lambda: server.metric("attnd_connections") == 0, 15)
    gone.close()


def test_idle_ones_are_closed(start_server, rng):
    server = start_server("--max-connection-idle", "200ms", "--log-level", "debug")
    q = noise(rng, (1, 2, 64, 32))
    with attnd.Client(server.target, timeout=60) as client:
        for _ in range(3):
            client.forward(q, q, q)
            assert eventually(lambda: server.metric("attnd_connections") == 0)
    assert eventually(lambda: len(set(re.findall(r"peer=(\S+)", server.log()))) == 3)
