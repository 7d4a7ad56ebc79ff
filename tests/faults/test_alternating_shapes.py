"""Requests of lengths that keep changing run together: shapes do not cut batches short."""

import threading

import attnd
from helpers import Busy, eventually, noise

REQUESTS = 16


def test_lengths_that_alternate_share_a_batch(start_server, rng):
    server = start_server("--max-running", "1")
    with attnd.Client(server.target, timeout=120) as client:
        tensors = [noise(rng, (1, 2, 30 + 7 * i, 16)) for i in range(REQUESTS)]
        threads = [threading.Thread(target=client.forward, args=(q, q, q)) for q in tensors]
        with Busy(client, server, seconds=1):
            batches = server.metric("attnd_dispatch_total")
            for thread in threads:
                thread.start()
            assert eventually(lambda: server.metric("attnd_queue_requests") == REQUESTS)
        for thread in threads:
            thread.join()
        # One batch; two where the first took some before the last had come.
        assert server.metric("attnd_dispatch_total") - batches <= 2
