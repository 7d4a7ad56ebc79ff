"""A server without room: every caller sent its request five times while the overload lasted."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

import attnd
from attnd import _retry
from peer import Peer, first_tensor, run_answer, run_error, run_requests

Q = np.ones((1, 1, 2, 8), np.float32)
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
CALLERS = 150
# Retries until half of the 100 tokens are gone, and none afterwards.
MOST_ATTEMPTS = CALLERS + 50


class Full(Peer):
    """Refuses everything while `is_full`, and counts."""

    def __init__(self):
        super().__init__(workers=8)
        self.is_full = True
        self.attempts = 0
        self.answer, self.run = self._answer_call, self._answer_stream

    def _answer_call(self, request, context):
        self.attempts += 1
        if self.is_full:
            context.abort(EXHAUSTED, "queue: full")
        return first_tensor(request, context)

    def _answer_stream(self, requests, context):
        for request in run_requests(requests):
            self.attempts += 1
            yield run_error(request, EXHAUSTED, "queue: full") if self.is_full else run_answer(request)


def calls(client, inputs):
    def call(q):
        try:
            return client.forward(q, q, q)
        except attnd.Error as error:
            return error

    with ThreadPoolExecutor(CALLERS) as pool:
        return list(pool.map(call, inputs))


def pipeline(client, inputs):
    with client.pipeline(len(inputs)) as p:
        futures = [p.forward(q, q, q) for q in inputs]
    return [future.exception() or future.result() for future in futures]


async def aio_calls(client, inputs):
    return await asyncio.gather(*(client.forward(q, q, q) for q in inputs), return_exceptions=True)


async def aio_pipeline(client, inputs):
    async with client.pipeline(len(inputs)) as p:
        return await asyncio.gather(*(p.forward(q, q, q) for q in inputs), return_exceptions=True)


def send_blocking(way, target, waves, between, settings):
    results = []
    with attnd.Client(target, timeout=60, **settings) as client:
        for inputs in waves:
            results.append(way(client, inputs))
            between()
    return results


def send_with_asyncio(way, target, waves, between, settings):
    async def run():
        results = []
        async with attnd.aio.Client(target, timeout=60, **settings) as client:
            for inputs in waves:
                results.append(await way(client, inputs))
                between()
        return results

    return asyncio.run(run())


@pytest.fixture(params=[calls, pipeline, aio_calls, aio_pipeline], ids=lambda way: way.__name__)
def send(request):
    """Sends waves of inputs with one client, `between` them; the results of each wave."""
    way = request.param
    send = send_with_asyncio if way in (aio_calls, aio_pipeline) else send_blocking

    def send_waves(target, waves, between=lambda: None, **settings):
        return send(way, target, waves, between, settings)

    return send_waves


@pytest.fixture
def full():
    one = Full()
    yield one
    one.stop()


def test_callers_share_what_may_be_sent_again(send, full):
    (results,) = send(full.target, [[Q] * CALLERS])
    assert {result.code for result in results} == {EXHAUSTED}
    assert CALLERS < full.attempts <= MOST_ATTEMPTS


def test_successes_give_retries_back(send, full):
    attempts = []

    def turn():
        attempts.append(full.attempts)
        full.attempts = 0
        full.is_full = not full.is_full

    # The first wave empties the bucket, the second one fills it to more than a half.
    *_, (last,) = send(full.target, [[Q] * CALLERS, [Q] * 600, [Q]], turn, retries=1)
    assert last.code == EXHAUSTED
    assert attempts[1:] == [600, 2]


def test_large_messages_of_a_stream_count_for_more():
    """A message of 64 MiB is sent whole before its refusal, and each one was sent five times."""
    small, large = _retry.Bucket(), _retry.Bucket()
    assert sum(small.refused(message_bytes=100) for _ in range(100)) == 49
    assert sum(large.refused(message_bytes=64 << 20) for _ in range(100)) == 9


@pytest.mark.parametrize("way", ["blocking", "asyncio"])
def test_a_server_says_when(way):
    """The client waits for the time in `grpc-retry-pushback-ms` before the next attempt."""
    times = []

    def refuse_once(request, context):
        times.append(time.monotonic())
        if len(times) == 1:
            context.set_trailing_metadata([("grpc-retry-pushback-ms", "700")])
            context.abort(EXHAUSTED, "queue: full")
        return first_tensor(request, context)

    peer = Peer()
    peer.answer = refuse_once
    try:
        if way == "blocking":
            with attnd.Client(peer.target) as client:
                client.forward(Q, Q, Q)
        else:

            async def call():
                async with attnd.aio.Client(peer.target) as client:
                    await client.forward(Q, Q, Q)

            asyncio.run(call())
    finally:
        peer.stop()
    first, second = times
    # By the client's own backoff the first wait would be 0.12 s at most.
    assert second - first > 0.6
