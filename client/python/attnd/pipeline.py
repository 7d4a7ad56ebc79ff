"""Many requests on one stream, for the blocking client."""

import concurrent.futures
import queue
import sched
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

import grpc

from attnd import _run
from attnd._base import TensorCalls
from attnd._calls import TensorRequest
from attnd._channel import Settings
from attnd._error import Error, closed, from_rpc
from attnd._results import BackwardResult, ForwardResult


class Pipeline(TensorCalls[Future[ForwardResult], Future[BackwardResult]]):
    """Made by Client.pipeline. forward and backward answer at once with a Future, whose result or
    attnd.Error comes when the server answers, in any order. Thread safe.

        with client.pipeline(max_in_flight=64) as p:
            futures = [p.forward(q, k, v) for q, k, v in inputs]
        outs = [f.result().out for f in futures]

    With max_in_flight requests unanswered, the next call waits for an answer first. What the server
    has no room for is sent again as in Client. A timeout counts from the call; a request whose time
    is over counts as unanswered until the server answers it. Futures cannot be cancelled. Their
    callbacks run on the pipeline's threads: they must not wait, nor call forward or backward.

    Leaving the context waits for every answer; leaving it by an exception fails what is unanswered
    with CANCELLED. A stream that dies fails it with the stream's own error, and every later call.
    """

    def __init__(self, settings: Settings, stub: Callable[..., Any], max_in_flight: int):
        self._settings = settings
        self._stub = stub
        self._slots = threading.Semaphore(_run.check_max_in_flight(max_in_flight))
        self._outbox: queue.SimpleQueue[Sequence[bytes] | None] = queue.SimpleQueue()
        self._alarms = _Alarms()
        self._run = _run.Run(
            settings.retries, self._outbox.put, self._alarms.after, self._slots.release
        )

    def __enter__(self) -> "Pipeline":
        self._run.open()
        try:
            self._call = self._stub(self._messages(), metadata=self._settings.metadata)
        except ValueError as error:
            # gRPC's word for a channel that was closed.
            raise closed() from error
        self._reader = threading.Thread(target=self._read, name="attnd-pipeline", daemon=True)
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            waiting = self._run.close()
            if kind is None:
                concurrent.futures.wait(waiting)
        finally:
            # What nobody waits for any more the server need not compute.
            if self._run.fail(_run.left()):
                self._call.cancel()
            self._outbox.put(None)
            self._reader.join()
            self._alarms.stop()

    def _send(self, build: Callable[[], TensorRequest[Any]], timeout: float | None) -> Any:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        seconds = self._settings.seconds(timeout)
        if seconds is not None:
            expire = partial(_run.settle, future, error=_run.late(self._settings.target))
            cancel = self._alarms.after(seconds, expire)
            future.add_done_callback(lambda _: cancel())
        try:
            request = build()
            if not self._slots.acquire(timeout=seconds):
                raise _run.late(self._settings.target)
            self._run.submit(request, future)
        except Error as error:
            _run.settle(future, error=error)
        return future

    def _messages(self) -> Iterator[bytes]:
        while (messages := self._outbox.get()) is not None:
            yield from messages

    def _read(self) -> None:
        error = _run.ended()
        try:
            for reply in self._call:
                self._run.receive(reply)
        except grpc.RpcError as failure:
            error = from_rpc(failure, self._settings.target)
        except Error as failure:
            error = failure
            self._call.cancel()
        finally:
            self._run.fail(error)
            self._outbox.put(None)


class _Alarms:
    """Calls functions later, on one thread, which exists once there is something to call."""

    def __init__(self) -> None:
        self._due = sched.scheduler(time.monotonic)
        self._changed = threading.Event()
        self._is_stopped = False
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._thread: threading.Thread | None = None

    def after(self, seconds: float, function: Callable[[], object]) -> Callable[[], None]:
        """Answers with what calls it off."""
        event = self._due.enter(seconds, 0, function)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="attnd-alarms", daemon=True)
                self._thread.start()
        self._changed.set()
        return partial(self._cancel, event)

    def stop(self) -> None:
        self._is_stopped = True
        self._changed.set()
        if self._thread is not None:
            self._thread.join()

    def _cancel(self, event: sched.Event) -> None:
        # ValueError: it was called.
        with suppress(ValueError):
            self._due.cancel(event)

    def _work(self) -> None:
        while not self._is_stopped:
            self._changed.wait(self._due.run(blocking=False))
            self._changed.clear()
