"""The Run protocol without its transport: many requests on one stream, answered in any order."""

import asyncio
import concurrent.futures
import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import grpc

from attnd import _proto, _retry, _wire
from attnd._calls import TensorRequest
from attnd._error import Error, invalid, malformed
from attnd._notes import Note

# A larger message is announced, so that the server reads it when it has room.
ANNOUNCED_ABOVE_BYTES = 2**20

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_NOT_ENTERED = Error(
    grpc.StatusCode.FAILED_PRECONDITION, "pipeline: must be entered, as in `with pipeline() as p`"
)


class Promise(Protocol):
    """What asyncio.Future and concurrent.futures.Future share."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: Any, /) -> None: ...


@dataclass(eq=False)
class _Flight:
    """One request until it is answered."""

    request: TensorRequest[Any]
    messages: Sequence[bytes]
    promise: Promise
    retries: int = 0


class Run:
    """The unanswered requests of one stream. Thread safe.

    send: takes the messages of one request, which stay together on the stream. later: calls a
    function after some seconds. release: a request no longer counts as unanswered. Promises are
    settled without a lock held; one that its owner settled or cancelled first stays as it is.
    """

    def __init__(
        self,
        retries: int,
        bucket: _retry.Bucket,
        send: Callable[[Sequence[bytes]], object],
        later: Callable[[float, Callable[[], object]], object],
        release: Callable[[], object],
    ):
        self._retries = retries
        self._bucket = bucket
        self._send = send
        self._later = later
        self._release = release
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._flights: dict[str, _Flight] = {}
        self._refusal: Error | None = _NOT_ENTERED

    def open(self) -> None:
        """The stream begins. Error where it did before."""
        with self._lock:
            if self._refusal is not _NOT_ENTERED:
                raise Error(
                    grpc.StatusCode.FAILED_PRECONDITION, "pipeline: cannot be entered twice"
                )
            self._refusal = None

    def submit(self, request: TensorRequest[Any], promise: Promise) -> None:
        """Sends the request. Error where the stream takes none any more; then it is released."""
        id = str(next(self._ids))
        # The message holds the arrays' data, so nothing keeps the arrays until the answer.
        flight = _Flight(replace(request, payloads=()), _messages(id, request), promise)
        with self._lock:
            refusal = self._refusal
            if refusal is None:
                self._flights[id] = flight
        if refusal is not None:
            self._release()
            raise Error(*refusal.args)
        self._send(flight.messages)

    def receive(self, reply: bytes) -> None:
        """Takes a message of the server. Error when it breaks the protocol: the stream is lost."""
        try:
            head, raw = _wire.split(reply, _proto.RunReply)
        except ValueError as error:
            raise malformed(error) from error
        with self._lock:
            flight = self._flights.get(head.id)
        if flight is None:
            raise malformed(f"id {head.id!r} is of no unanswered request")
        try:
            result = _result_of(flight, head, raw)
        except Error as error:
            if self._may_pass(flight, error):
                seconds = _retry.delay_seconds(flight.retries)
                flight.retries += 1
                self._later(seconds, partial(self._send_again, head.id, flight))
                return
            self._answered(head.id, error=error)
        except Note as note:
            # The caller's filters make errors of warnings: of this request, not of the stream.
            self._answered(head.id, error=note)
        else:
            self._bucket.succeeded()
            self._answered(head.id, result)

    def close(self) -> list[Any]:
        """Refuses further requests; the promises that are still to be settled."""
        with self._lock:
            self._refuse(Error(grpc.StatusCode.CANCELLED, "pipeline: is closed"))
            promises = [flight.promise for flight in self._flights.values()]
        return [promise for promise in promises if not promise.done()]

    def fail(self, error: Error) -> bool:
        """Refuses further requests and fails the unanswered ones; False where there is none."""
        with self._lock:
            self._refuse(error)
            flights, self._flights = self._flights, {}
        for flight in flights.values():
            self._release()
            settle(flight.promise, error=Error(*error.args))
        return bool(flights)

    def _refuse(self, error: Error) -> None:
        # The first reason is the cause of those that follow.
        self._refusal = self._refusal or error

    def _may_pass(self, flight: _Flight, error: Error) -> bool:
        return (
            error.code in _retry.RETRYABLE
            and not error.permanent
            and self._bucket.refused(sum(map(len, flight.messages)))
            and flight.retries < self._retries
            and not flight.promise.done()
        )

    def _send_again(self, id: str, flight: _Flight) -> None:
        # Its caller may have left meanwhile.
        if flight.promise.done():
            self._answered(id)
        else:
            self._send(flight.messages)

    def _answered(self, id: str, result: Any = None, error: Error | Note | None = None) -> None:
        with self._lock:
            flight = self._flights.pop(id, None)
        if flight is not None:
            self._release()
            settle(flight.promise, result, error)


def check_max_in_flight(count: int) -> int:
    if count < 1:
        raise invalid([f"pipeline: max_in_flight must be >= 1, got {count}"])
    return count


def settle(promise: Promise, result: Any = None, error: Error | Note | None = None) -> None:
    # Its owner may settle it first: at a deadline, or by a cancellation.
    with suppress(asyncio.InvalidStateError, concurrent.futures.InvalidStateError):
        if error is None:
            promise.set_result(result)
        else:
            promise.set_exception(error)


def late(target: str) -> Error:
    """The error of a request that passed its deadline before it was answered."""
    return Error(
        grpc.StatusCode.DEADLINE_EXCEEDED, f"deadline exceeded at {target}: not answered in time"
    )


def left() -> Error:
    """The error of requests whose callers have left."""
    return Error(grpc.StatusCode.CANCELLED, "pipeline: left before the answer")


def ended() -> Error:
    """The error of requests that are unanswered when a stream ends with OK."""
    return malformed("the stream ended before the answer")


def _messages(id: str, request: TensorRequest[Any]) -> Sequence[bytes]:
    message = request.run_message(id)
    if len(message) <= ANNOUNCED_ABOVE_BYTES:
        return (message,)
    announcement = _proto.RunRequest(id=id, next_message_bytes=len(message))
    return (announcement.SerializeToString(), message)


def _result_of(flight: _Flight, head: Any, raw: Sequence[memoryview]) -> Any:
    content = head.WhichOneof("content")
    if content == "error":
        code = _CODES.get(head.error.code, grpc.StatusCode.UNKNOWN)
        raise Error(code, head.error.message or code.name, head.error.permanent)
    if content != flight.request.name:
        raise malformed(f"content must be {flight.request.name}, got {content}")
    return flight.request.result_of(getattr(head, content), raw)
