"""Far more requests than there is room for: a refusal costs next to nothing, accepted requests are
answered, and afterwards nothing is left. How fast: tests/soak/run overload.
"""

import asyncio
import os
import pathlib

import grpc

import attnd
from helpers import eventually, noise

ALONE, WAVES, CALLS = 20, 5, 40
QUEUE = 8
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_refusals_leave_the_processors_to_what_is_taken(start_server, rng):
    # 0.1 GFLOP in 0.4 MB.
    q = noise(rng, (1, 1, 2048, 16))
    server = start_server("--max-queue", str(QUEUE), "--max-batch", "1")
    with attnd.Client(server.target, retries=0) as client:
        start = cpu_seconds(server.pid)
        for _ in range(ALONE):
            client.forward(q, q, q)
        alone = (cpu_seconds(server.pid) - start) / ALONE

    async def flood():
        async with attnd.aio.Client(server.target, retries=0) as client:
            results = []
            for _ in range(WAVES):
                calls = (client.forward(q, q, q) for _ in range(CALLS))
                results += await asyncio.gather(*calls, return_exceptions=True)
            return results

    start = cpu_seconds(server.pid)
    results = asyncio.run(flood())
    spent = cpu_seconds(server.pid) - start
    errors = [result for result in results if isinstance(result, attnd.Error)]
    answered = len(results) - len(errors)
    assert {error.code for error in errors} == {EXHAUSTED}
    assert answered >= WAVES * QUEUE
    assert spent / answered < 2 * alone + 0.005, (spent, answered, alone)
    assert eventually(lambda: server.metric("attnd_inflight_requests") == 0)
    assert server.metric("attnd_budget_charged_bytes") == 0
    with attnd.Client(server.target, retries=0) as client:
        assert client.forward(q, q, q).out.shape == q.shape
