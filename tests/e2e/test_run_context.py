"""Entering, leaving and sharing a pipeline, of both clients."""

import asyncio
import itertools
import threading

import grpc
import numpy as np
import pytest

import attnd
from peer import Peer, run_answer, run_answers, run_requests


def tensor(value):
    return np.full((1, 1, 1, 8), value, np.float32)


@pytest.fixture
def peer():
    one = Peer()
    yield one
    one.stop()


def test_backward(peer):
    q = tensor(3)

    async def with_asyncio():
        async with attnd.aio.Client(peer.target) as client, client.pipeline() as p:
            return await p.backward(q, q, q, q)

    with attnd.Client(peer.target) as client, client.pipeline() as p:
        future = p.backward(q, q, q, q)
    for result in (future.result(), asyncio.run(with_asyncio())):
        assert np.array_equal(result.q, q) and result.k is None


def test_use_outside_the_context(peer):
    with attnd.Client(peer.target) as client:
        pipeline = client.pipeline()
        early = pipeline.forward(tensor(0)).exception()
        with pipeline:
            pass
        late = pipeline.forward(tensor(0)).exception()
        with pytest.raises(attnd.Error, match="cannot be entered twice"), pipeline:
            pass
    assert early.code == grpc.StatusCode.FAILED_PRECONDITION and "must be entered" in str(early)
    assert late.code == grpc.StatusCode.CANCELLED and str(late) == "pipeline: is closed"


def test_leaving_by_an_exception_does_not_wait(peer):
    began, cancelled = threading.Event(), threading.Event()

    def never(requests, context):
        context.add_callback(cancelled.set)
        for _ in requests:
            began.set()
        yield from ()

    peer.run = never
    with attnd.Client(peer.target) as client:
        with pytest.raises(KeyError), client.pipeline() as p:
            future = p.forward(tensor(0))
            assert began.wait(10)
            raise KeyError
        assert future.exception().code == grpc.StatusCode.CANCELLED
        assert cancelled.wait(10)

    async def run():
        async with attnd.aio.Client(peer.target) as client:
            with pytest.raises(KeyError):
                async with client.pipeline() as p:
                    task = asyncio.create_task(p.forward(tensor(0)))
                    assert await asyncio.to_thread(began.wait, 10)
                    raise KeyError
            assert await asyncio.to_thread(cancelled.wait, 10)
            return (await asyncio.gather(task, return_exceptions=True))[0]

    began.clear(), cancelled.clear()
    assert asyncio.run(run()).code == grpc.StatusCode.CANCELLED


def test_closed_client(peer):
    client = attnd.Client(peer.target)
    client.close()
    with pytest.raises(attnd.Error, match="client is closed"), client.pipeline():
        pass


def test_threads_share_a_pipeline(peer):
    with attnd.Client(peer.target) as client, client.pipeline(max_in_flight=8) as p:
        futures = [None] * 200

        def submit(start):
            for i in range(start, 200, 4):
                futures[i] = p.forward(tensor(i), timeout=30)

        threads = [threading.Thread(target=submit, args=(start,)) for start in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [future.result().out.flat[0] for future in futures] == list(range(200))


def test_cancelled_task_leaves_the_stream_alone(peer):
    release = threading.Event()

    def late_first(requests, context):
        first, second = itertools.islice(run_requests(requests), 2)
        yield run_answer(second)
        release.wait(10)
        yield run_answer(first)
        yield from run_answers(requests, context)

    peer.run = late_first

    async def run():
        async with attnd.aio.Client(peer.target) as client, client.pipeline() as p:
            first = asyncio.create_task(p.forward(tensor(1)))
            await asyncio.sleep(0)
            assert (await p.forward(tensor(2))).out.flat[0] == 2
            first.cancel()
            release.set()
            return (await p.forward(tensor(3))).out.flat[0]

    assert asyncio.run(run()) == 3
