"""A server that stands still for a while (SIGSTOP, SIGCONT): calls that waited are answered."""

import signal
import threading
import time

import attnd
from helpers import eventually, noise
from stopped_thread import stands_still


def test_calls_survive(start_server, rng):
    server = start_server()
    q = noise(rng, (1, 2, 64, 32))
    replies = []
    with attnd.Client(server.target, timeout=60, retries=0) as client:
        expected = client.forward(q, q, q).out
        server.signal(signal.SIGSTOP)
        assert eventually(lambda: stands_still(server.pid))
        threads = [
            threading.Thread(target=lambda: replies.append(client.forward(q, q, q).out))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        time.sleep(2)
        assert not replies
        server.signal(signal.SIGCONT)
        for thread in threads:
            thread.join()
        assert len(replies) == 8 and all((reply == expected).all() for reply in replies)
        assert server.get("/healthz")[0] == 200
    assert server.metric("attnd_refused_total") == 0
    assert server.stop() == 0
