"""Four `Run` streams of one client filled the queue: requests of all other clients were refused."""

import attnd
from helpers import eventually, noise
from long_work import begin, input_of, open_channel

PLACES = 16


def test_another_client_gets_a_place(start_server, rng, tmp_path):
    socket = f"unix:{tmp_path}/queue"
    limits = ["--max-queue", str(PLACES), "--max-running", "1", "--max-request-seconds", "0"]
    server = start_server("--grpc", socket, *limits)
    q = noise(rng, (1, 1, 16, 8))
    mine = attnd.Client(socket, timeout=60, retries=0)
    other = attnd.Client(server.target, timeout=60, retries=0)
    with mine, other, open_channel(server.target) as channel:
        busy = begin(channel, input_of(other, seconds=100))
        assert eventually(lambda: server.metric("attnd_dispatch_total") == 1, 30)
        streams = [mine.pipeline() for _ in range(4)]
        results = []
        for stream in streams:
            stream.__enter__()
            results += [stream.forward(q, q, q) for _ in range(PLACES // 4)]
        assert eventually(lambda: server.metric("attnd_queue_requests") == PLACES, 30)

        waits = begin(channel, q)
        assert eventually(lambda: sum(result.done() for result in results) == 1, 30)
        refused = next(result for result in results if result.done()).exception()
        assert "a client with fewer took its place, retry later" in str(refused)
        assert server.metric("attnd_queue_requests") == PLACES

        busy.cancel()
        waits.result(timeout=60)
        for stream in streams:
            stream.__exit__(None, None, None)
        assert sum(result.exception() is None for result in results) == PLACES - 1
