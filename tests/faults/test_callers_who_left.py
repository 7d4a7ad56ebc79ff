"""Requests of pipelines whose caller has left: they are not sent again, and each holds its place
exactly until it is answered.
"""

import asyncio
import contextlib
import queue
import threading
import time

import grpc
import numpy as np
import pytest

import attnd
from attnd import _retry
from peer import Peer, run_answer, run_error, run_requests

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def tensor(value):
    return np.full((1, 1, 2, 8), value, np.float32)


def value_of(request):
    return np.frombuffer(request.raw[0], np.float32)[0]


class Quiet(Peer):
    """Answers with what a test puts into `replies`; collects requests in `arrived`."""

    def __init__(self):
        super().__init__()
        self.arrived, self.replies = queue.SimpleQueue(), queue.SimpleQueue()
        self.run = self._run_stream

    def _run_stream(self, requests, context):
        reading = threading.Thread(target=self._read, args=(requests,))
        reading.start()
        yield from iter(self.replies.get, None)
        reading.join()

    def _read(self, requests):
        with contextlib.suppress(grpc.RpcError):
            for request in run_requests(requests):
                self.arrived.put(request)
        self.replies.put(None)

    def take(self):
        return self.arrived.get(timeout=20)

    def is_quiet(self, seconds=0.1):
        try:
            self.arrived.get(timeout=seconds)
        except queue.Empty:
            return True
        return False


@pytest.fixture
def peer():
    one = Quiet()
    yield one
    one.stop()


def blocking(target, inputs, timeouts):
    with attnd.Client(target) as client, client.pipeline(max_in_flight=1) as p:
        futures = [p.forward(q, timeout=t) for q, t in zip(inputs, timeouts, strict=True)]
        return [future.exception() or future.result() for future in futures]


def with_asyncio(target, inputs, timeouts):
    async def run():
        async with attnd.aio.Client(target) as client, client.pipeline(max_in_flight=1) as p:
            calls = [p.forward(q, timeout=t) for q, t in zip(inputs, timeouts, strict=True)]
            return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(run())


@pytest.fixture(params=[blocking, with_asyncio], ids=["blocking", "asyncio"])
def send(request):
    return request.param


@pytest.mark.parametrize(
    "refusal_seconds, retry_seconds", [(3, 30), (0, 3)], ids=["before", "after"]
)
def test_a_call_whose_caller_left_is_not_sent_again(
    send, peer, monkeypatch, refusal_seconds, retry_seconds
):
    """The caller leaves after a second: before the refusal, or while the request awaits its retry."""
    monkeypatch.setattr(_retry, "delay_seconds", lambda retry: retry_seconds)
    seen = []

    def refuse_the_first(requests, context):
        for request in run_requests(requests):
            seen.append(value_of(request))
            if len(seen) > 1:
                yield run_answer(request)
            else:
                time.sleep(refusal_seconds)
                yield run_error(request, EXHAUSTED)

    peer.run = refuse_the_first
    # The second one takes the only place once the server has ended the first one.
    error, result = send(peer.target, [tensor(1), tensor(2)], [1, 60])
    assert error.code == grpc.StatusCode.DEADLINE_EXCEEDED
    assert result.out.flat[0] == 2
    assert seen == [1, 2]


def test_cancelled_tasks_give_their_place_back_once(peer):
    """At the server's answer, not at the cancellation."""

    async def run():
        async with attnd.aio.Client(peer.target) as client, client.pipeline(max_in_flight=2) as p:

            def start(*values):
                return [asyncio.create_task(p.forward(tensor(value))) for value in values]

            async def cancel(tasks):
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                assert all(task.cancelled() for task in tasks)

            sent = start(1, 2)
            first = [await asyncio.to_thread(peer.take) for _ in sent]
            waiting = start(3)
            await asyncio.sleep(0)
            await cancel(sent + waiting)
            rest = start(4, 5, 6, 7)
            assert await asyncio.to_thread(peer.is_quiet)

            open_requests = first
            for _ in rest:
                peer.replies.put(run_answer(open_requests.pop(0)))
                open_requests.append(await asyncio.to_thread(peer.take))
                assert await asyncio.to_thread(peer.is_quiet)
            for request in open_requests:
                peer.replies.put(run_answer(request))
            return [result.out.flat[0] for result in await asyncio.gather(*rest)]

    assert asyncio.run(run()) == [4, 5, 6, 7]
