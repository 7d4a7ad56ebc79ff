"""The blocking client."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import numpy as np

from attnd import _calls
from attnd._arrays import Array
from attnd._base import BaseClient
from attnd._calls import TensorRequest
from attnd._error import closed, from_rpc
from attnd._results import BackwardResult, Estimate, ForwardResult, MethodInfo, ServerInfo
from attnd.pipeline import Pipeline


class Client(BaseClient[ForwardResult, BackwardResult]):
    """A connection to one attnd server; made lazily, kept, remade when lost. Thread safe.

    target: "host:port", or "unix:/path".
    timeout: seconds for each call, and each request of a pipeline, that sets no timeout; includes
    retries. None is 600, float("inf") no limit.
    tls: None for plain text, True for the system's authorities, or the path of a PEM file of them.
    token: sent as `authorization: Bearer` with every call.
    retries: 0..4, how often a call is sent again that does not reach the server or is refused for
    lack of room: after about 0.1 s, then 0.2, 0.4 and 0.8 s, or after the time that the server
    states. Not for health. Retries cover a burst of refusals, not an overload: each refusal takes
    one of 100 tokens, each success gives 0.1 back, and nothing is sent again while 50 or fewer are
    left. All calls of the process to one target share a bucket, and all pipelines of a client share
    one, in which a message counts as one more for each 16 MiB.

    Arrays q, k, v, out and their gradients are [B,H,N,D], or [B,N,H,D] with layout="BNHD"; other
    tensors and outputs, and their gradients, have the shapes that methods() states in either layout.
    Floats are float32, float16 or ml_dtypes.bfloat16. Arrays that are not contiguous are copied
    first. The same array given twice (k and v, say) travels once. Every call raises attnd.Error.

    A client can be pickled: its settings travel, the token and the authorities of tls among them.
    """

    def _start(self) -> None:
        self._channel = self._settings.open(grpc)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends calls that are still running."""
        self._channel.close()

    def pipeline(self, max_in_flight: int = 64) -> Pipeline:
        """Many requests on one stream, at most max_in_flight of them unanswered; see Pipeline."""
        stub = self._channel.stream_stream(_calls.RUN)
        return Pipeline(self._settings, stub, max_in_flight)

    def estimate(
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
        """Time, FLOPs and memory of a request without its data.

        q_shape, k_shape, v_shape: an array counts with its own shape and dtype, a shape with dtype.
        tensors: the method's other tensors as arrays, or as (shape, dtype). Lengths, offsets and
        cu_seqlens given as arrays count with their values, up to 256 KiB together; given as shapes,
        lengths and offsets count as full and packed sequences as equally long. backward: with the
        gradients among tensors (grad_out, grad_<output>), or with that of out where there are none.
        deterministic: as in backward.
        """
        shapes = {"q": q_shape, "k": k_shape, "v": v_shape}
        request = _calls.estimate_request(
            shapes, dtype, method, options, tensors, layout, backward, deterministic, device
        )
        return _calls.estimate_result(self._call(_calls.ESTIMATE, request, timeout))

    def methods(self, *, timeout: float | None = None) -> list[MethodInfo]:
        """What the server offers: options, tensors and support of each method."""
        return _calls.methods_result(self._call(_calls.LIST_METHODS, b"", timeout))

    def info(self, *, timeout: float | None = None) -> ServerInfo:
        return _calls.info_result(self._call(_calls.SERVER_INFO, b"", timeout))

    def health(self, service: str = "", *, timeout: float | None = None) -> str:
        """ "SERVING", "NOT_SERVING" or "SERVICE_UNKNOWN"."""
        request = _calls.health_request(service)
        return _calls.health_result(self._call(_calls.HEALTH_CHECK, request, timeout))

    def _send(self, build: Callable[[], TensorRequest[Any]], timeout: float | None) -> Any:
        request = build()
        message = request.message()
        metadata = self._settings.metadata_for(message, request.head)
        return request.result(self._call(request.path, message, timeout, metadata))

    def _call(
        self, path: str, message: bytes, timeout: float | None, metadata: Any = None
    ) -> bytes:
        # Bytes in, bytes out: gRPC's serialisers are left out.
        call: Callable[..., bytes] = self._channel.unary_unary(path)
        seconds = self._settings.seconds(timeout)
        try:
            return call(message, timeout=seconds, metadata=metadata or self._settings.metadata)
        except grpc.RpcError as error:
            raise from_rpc(error, self.target) from None
        except ValueError as error:
            # gRPC's word for a channel that was closed.
            raise closed() from error
