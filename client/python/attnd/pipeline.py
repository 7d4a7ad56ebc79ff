"""Many requests on one stream, for the blocking client."""

import concurrent.futures
import heapq
import itertools
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
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

    Leaving the context waits for every answer; leaving it by an exception fails unanswered requests
    with CANCELLED. A stream that dies fails them, and every later call, with the stream's error.
    """

    def __init__(self, settings: Settings, stub: Callable[..., Any], max_in_flight: int):
        self._settings = settings
        self._stub = stub
        self._slots = threading.Semaphore(_run.check_max_in_flight(max_in_flight))
        self._outbox: queue.SimpleQueue[Sequence[bytes] | None] = queue.SimpleQueue()
        self._alarms = _Alarms()
        self._run = _run.Run(
            settings.retries,
            settings.bucket,
            self._outbox.put,
            self._alarms.after,
            self._slots.release,
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
            # The server need not compute what no caller waits for.
            if self._run.fail(_run.left()):
                self._call.cancel()
            self._outbox.put(None)
            self._reader.join()
            self._alarms.stop()

    def _send(self, build: Callable[[], TensorRequest[Any]], timeout: float | None) -> Any:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        try:
            seconds = self._settings.seconds(timeout)
            if seconds is not None:
                self._expire_after(seconds, future)
            request = build()
            if not self._slots.acquire(timeout=seconds):
                raise _run.late(self._settings.target)
            self._run.submit(request, future)
        except Error as error:
            _run.settle(future, error=error)
        return future

    def _expire_after(self, seconds: float, future: Future[Any]) -> None:
        expire = partial(_run.settle, future, error=_run.late(self._settings.target))
        call_off = self._alarms.after(seconds, expire)
        future.add_done_callback(lambda _: call_off())

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


@dataclass(order=True)
class _Alarm:
    due: float
    number: int
    function: Callable[[], object] | None = field(compare=False)  # None: called, or cancelled


class _Alarms:
    """Calls functions later, on one thread, which starts with the first of them. Nearly all are
    cancelled before they are due; that does not wake the thread.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Guarded by _changed.
        self._is_stopped = False
        self._alarms: list[_Alarm] = []  # a heap
        self._called_off = 0
        self._numbers = itertools.count()
        self._wakes_at = math.inf
        self._thread: threading.Thread | None = None

    def after(self, seconds: float, function: Callable[[], object]) -> Callable[[], None]:
        """Returns a function that cancels it."""
        with self._changed:
            alarm = _Alarm(time.monotonic() + seconds, next(self._numbers), function)
            heapq.heappush(self._alarms, alarm)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="attnd-alarms", daemon=True)
                self._thread.start()
            elif alarm.due < self._wakes_at:
                self._changed.notify()
        return partial(self._call_off, alarm)

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _call_off(self, alarm: _Alarm) -> None:
        with self._changed:
            if alarm.function is None:
                return
            alarm.function = None
            self._called_off += 1
            # They stay in the heap, but never as its larger part.
            if self._called_off > 32 + len(self._alarms) // 2:
                self._alarms = [alarm for alarm in self._alarms if alarm.function is not None]
                heapq.heapify(self._alarms)
                self._called_off = 0

    def _work(self) -> None:
        while (functions := self._next_functions()) is not None:
            for function in functions:
                function()

    def _next_functions(self) -> list[Callable[[], object]] | None:
        """The functions of the alarms that are due, once some are; None once stopped."""
        functions: list[Callable[[], object]] = []
        with self._changed:
            while not self._is_stopped:
                while self._alarms and self._alarms[0].due <= time.monotonic():
                    alarm = heapq.heappop(self._alarms)
                    if alarm.function is None:
                        self._called_off -= 1
                    else:
                        functions.append(alarm.function)
                        alarm.function = None
                if functions:
                    return functions
                self._wakes_at = self._alarms[0].due if self._alarms else math.inf
                wait = self._wakes_at - time.monotonic()
                self._changed.wait(wait if wait < threading.TIMEOUT_MAX else None)
        return None
