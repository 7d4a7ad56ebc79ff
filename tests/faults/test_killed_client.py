"""A client that is killed with a hundred requests in flight leaves nothing on the server."""

import os
import subprocess
import sys

import attnd
from helpers import Busy, eventually, noise

CALLS = 100
# Half on a stream, half as single calls; nothing is read back before the process is killed.
CLIENT = f"""
import asyncio, sys, numpy as np, attnd

async def main():
    q = np.ones((1, 4, 512, 64), np.float32)
    async with attnd.aio.Client(sys.argv[1]) as client, client.pipeline({CALLS}) as pipeline:
        print(await client.health(), flush=True)
        sys.stdin.readline()
        calls = [way.forward(q, q, q) for way in (client, pipeline) for _ in range({CALLS // 2})]
        await asyncio.gather(*calls)

asyncio.run(main())
"""
GAUGES = (
    "attnd_inflight_requests",
    "attnd_queue_requests",
    "attnd_queue_bytes",
    "attnd_budget_charged_bytes",
)


def is_quiet(server):
    return not any(server.metric(name) for name in GAUGES)


def kill_a_client(server, client):
    """Its requests wait behind a long one, so that none is answered before it dies."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", CLIENT, server.target]
    with subprocess.Popen(command, env=environment, text=True, **pipes) as child:
        try:
            assert child.stdout.readline() == "SERVING\n"
            with Busy(client, server, held=True) as busy:
                child.stdin.write("go\n")
                child.stdin.flush()
                assert eventually(lambda: server.metric("attnd_inflight_requests") > CALLS, 30)
                child.kill()
        finally:
            child.kill()
    assert busy.error is None


def test_gauges_and_memory_return(start_server, rng):
    limits = ["--budget-bytes", "1GiB", "--threads", "1", "--max-parked", "64"]
    server = start_server(*limits, "--max-running", "1")
    q = noise(rng, (1, 2, 64, 32))
    with attnd.Client(server.target, timeout=60) as client:
        resident = []
        for _ in range(2):
            kill_a_client(server, client)
            assert eventually(lambda: is_quiet(server), 20)
            assert client.forward(q, q, q).out.shape == q.shape
            resident.append(server.rss())
        # The second one reuses the memory that the first one freed.
        assert resident[1] < resident[0] + (64 << 20), resident
        refused = {"reason": "cancelled"}
        assert server.metric("attnd_refused_total", **refused) >= CALLS
    assert server.stop() == 0
