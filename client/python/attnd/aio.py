"""The asyncio twin of attnd.Client: the same calls as coroutines.

    async with attnd.aio.Client("127.0.0.1:8001") as c:
        r = await c.forward(q, k, v, method="local", options={"window_left": 64})
        async with c.pipeline() as p:
            results = await asyncio.gather(*(p.forward(q, k, v) for q, k, v in inputs))

Everything else is as in attnd.Client.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import cached_property
from typing import Any

import grpc
import grpc.aio
import numpy as np

from attnd import _calls, _run
from attnd._arrays import Array
from attnd._base import BaseClient, TensorCalls
from attnd._calls import TensorRequest
from attnd._channel import Settings
from attnd._error import Error, closed, from_rpc
from attnd._results import BackwardResult, Estimate, ForwardResult, MethodInfo, ServerInfo

__all__ = ["Client", "Pipeline"]

_Forward = Coroutine[Any, Any, ForwardResult]
_Backward = Coroutine[Any, Any, BackwardResult]


class Client(BaseClient[_Forward, _Backward]):
    """attnd.Client with coroutines: arguments, results and errors are the same.

    Made anywhere, used on one event loop, by any number of tasks. Cancelling a task cancels its
    call, on the server too. A call reads its arrays when it is first awaited.
    """

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends calls that are still running."""
        await self._channel.close()

    def pipeline(self, max_in_flight: int = 64) -> "Pipeline":
        """Many requests on one stream, at most max_in_flight of them unanswered; see Pipeline."""
        return Pipeline(self._settings, self._channel.stream_stream(_calls.RUN), max_in_flight)

    async def estimate(
        self,
        q_shape: Sequence[int] | Array | None = None,
        k_shape: Sequence[int] | Array | None = None,
        v_shape: Sequence[int] | Array | None = None,
        *,
        method: str = "softmax",
        options: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Any] | None = None,
        dtype: Any = np.float32,
        backward: bool = False,
        deterministic: bool = True,
        layout: str = "BHND",
        device: str | None = None,
        timeout: float | None = None,
    ) -> Estimate:
        """As attnd.Client.estimate."""
        shapes = {"q": q_shape, "k": k_shape, "v": v_shape}
        request = _calls.estimate_request(
            shapes, dtype, method, options, tensors, layout, backward, deterministic, device
        )
        return _calls.estimate_result(await self._call(_calls.ESTIMATE, request, timeout))

    async def methods(self, *, timeout: float | None = None) -> list[MethodInfo]:
        """As attnd.Client.methods."""
        return _calls.methods_result(await self._call(_calls.LIST_METHODS, b"", timeout))

    async def info(self, *, timeout: float | None = None) -> ServerInfo:
        return _calls.info_result(await self._call(_calls.SERVER_INFO, b"", timeout))

    async def health(self, service: str = "", *, timeout: float | None = None) -> str:
        """ "SERVING", "NOT_SERVING" or "SERVICE_UNKNOWN"."""
        request = _calls.health_request(service)
        return _calls.health_result(await self._call(_calls.HEALTH_CHECK, request, timeout))

    @cached_property
    def _channel(self) -> Any:
        # A channel belongs to the loop on which it is made: the one of the first call.
        return self._settings.open(grpc.aio)

    async def _send(self, build: Callable[[], TensorRequest[Any]], timeout: float | None) -> Any:
        request = build()
        message = request.message()
        metadata = self._settings.metadata_for(message, request.head)
        return request.result(await self._call(request.path, message, timeout, metadata))

    async def _call(
        self, path: str, message: bytes, timeout: float | None, metadata: Any = None
    ) -> bytes:
        seconds = self._settings.seconds(timeout)
        metadata = metadata or self._settings.metadata
        try:
            call = self._channel.unary_unary(path)(message, timeout=seconds, metadata=metadata)
            reply: bytes = await call
            return reply
        except grpc.RpcError as error:
            raise from_rpc(error, self.target) from None
        except grpc.aio.UsageError as error:
            # gRPC's word for a channel that was closed.
            raise closed() from error
        except asyncio.CancelledError as error:
            # gRPC cancels a call alike when its task is cancelled and when the channel is closed.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise closed() from error


class Pipeline(TensorCalls[_Forward, _Backward]):
    """Made by Client.pipeline. forward and backward are answered as the server is done, in any
    order; a call does nothing before it is awaited, so gather them or make tasks of them.

    With max_in_flight requests unanswered, the next call waits for an answer first. What the server
    has no room for is sent again as in Client. A request whose time is over or whose task is
    cancelled counts as unanswered until the server answers it.

    Leaving the context waits for every answer; leaving it by an exception fails unanswered requests
    with CANCELLED. A stream that dies fails them, and every later call, with the stream's error;
    with UNAVAILABLE if it dies while a request is written, as grpc.aio then loses the error.
    """

    def __init__(self, settings: Settings, stub: Callable[..., Any], max_in_flight: int):
        self._settings = settings
        self._stub = stub
        self._slots = asyncio.Semaphore(_run.check_max_in_flight(max_in_flight))
        self._outbox: asyncio.Queue[Sequence[bytes] | None] = asyncio.Queue()
        self._run = _run.Run(
            settings.retries,
            settings.bucket,
            self._outbox.put_nowait,
            self._later,
            self._slots.release,
        )

    async def __aenter__(self) -> "Pipeline":
        self._run.open()
        try:
            self._call = self._stub(self._messages(), metadata=self._settings.metadata)
        except grpc.aio.UsageError as error:
            # gRPC's word for a channel that was closed.
            raise closed() from error
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            waiting = self._run.close()
            if kind is None and waiting:
                await asyncio.wait(waiting)
        finally:
            # The server need not compute what no caller waits for.
            if self._run.fail(_run.left()):
                self._call.cancel()
            self._outbox.put_nowait(None)
            await self._reader

    async def _send(self, build: Callable[[], TensorRequest[Any]], timeout: float | None) -> Any:
        request = build()
        promise = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._settings.seconds(timeout)):
                await self._slots.acquire()
                self._run.submit(request, promise)
                return await promise
        except TimeoutError:
            raise _run.late(self._settings.target) from None

    async def _messages(self) -> AsyncIterator[bytes]:
        while (messages := await self._outbox.get()) is not None:
            for message in messages:
                yield message

    async def _read(self) -> None:
        error = _run.ended()
        try:
            async for reply in self._call:
                self._run.receive(reply)
        except grpc.RpcError as failure:
            error = from_rpc(failure, self._settings.target)
        except Error as failure:
            error = failure
            self._call.cancel()
        except asyncio.CancelledError:
            # The call was, by us or by Client.close.
            error = closed()
        finally:
            self._run.fail(error)
            self._outbox.put_nowait(None)

    @staticmethod
    def _later(seconds: float, function: Callable[[], object]) -> object:
        return asyncio.get_running_loop().call_later(seconds, function)
