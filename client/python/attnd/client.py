"""The blocking client."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import numpy as np

from attnd import _calls, _channel
from attnd._error import Error, from_rpc
from attnd._results import BackwardResult, Estimate, ForwardResult, MethodInfo, ServerInfo


class Client:
    """A connection to one attnd server; made lazily, kept, remade when lost. Thread safe.

    target: "host:port", or "unix:/path".
    timeout: seconds for each call that does not say its own; None waits for ever.
    tls: None for plain text, True for the system's authorities, or the path of a PEM file of them.
    token: sent as `authorization: Bearer` with every call.

    Arrays q, k, v and gradients are [B,H,N,D], or [B,N,H,D] with layout="BNHD"; float32, float16
    or ml_dtypes.bfloat16. Arrays that are not contiguous are copied first. The same array given
    twice (k and v, say) travels once. Every call raises attnd.Error.
    """

    def __init__(
        self,
        target: str = "127.0.0.1:8001",
        *,
        timeout: float | None = None,
        tls: bool | str | os.PathLike[str] | None = None,
        token: str | None = None,
    ):
        self.target = target
        self._timeout = timeout
        self._metadata = _channel.metadata_of(token)
        credentials = _channel.credentials_of(tls)
        options = _channel.options_for(target)
        if credentials is None:
            self._channel = grpc.insecure_channel(target, options)
        else:
            self._channel = grpc.secure_channel(target, credentials, options)
        self._forward = self._unary(_calls.SERVICE + "Forward")
        self._backward = self._unary(_calls.SERVICE + "Backward")
        self._estimate = self._unary(_calls.SERVICE + "Estimate")
        self._list_methods = self._unary(_calls.SERVICE + "ListMethods")
        self._server_info = self._unary(_calls.SERVICE + "ServerInfo")
        self._check = self._unary(_calls.HEALTH + "Check")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends calls that are still running."""
        self._channel.close()

    def forward(
        self,
        q: Any,
        k: Any = None,
        v: Any = None,
        *,
        method: str = "softmax",
        options: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Any] | None = None,
        device: str | None = None,
        priority: int = 0,
        layout: str = "BHND",
        timeout: float | None = None,
    ) -> ForwardResult:
        """out = attention(q, k, v).

        options: those of the method by name; enums as strings. tensors: every other tensor of the
        method by name; integer arrays are sent as int32, bool as uint8. k and v may be None where
        the method allows it. device: "cpu", "cuda:0" or None, the server's choice. priority:
        -100..100, higher runs first.
        """
        request = _calls.forward_request(
            q, k, v, method, options, tensors, layout, device=device, priority=priority
        )
        return _calls.forward_result(self._call(self._forward, request, timeout))

    def backward(
        self,
        q: Any,
        k: Any = None,
        v: Any = None,
        grad_out: Any = None,
        *,
        method: str = "softmax",
        options: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Any] | None = None,
        grad_lse: Any = None,
        grad_tensors: Mapping[str, Any] | None = None,
        device: str | None = None,
        priority: int = 0,
        layout: str = "BHND",
        timeout: float | None = None,
    ) -> BackwardResult:
        """Gradients of every differentiable tensor that is sent.

        grad_out, grad_lse and grad_tensors (by the output's name) are the gradients of the
        outputs; one that is None is zero.
        """
        grads = {"out": grad_out, "lse": grad_lse, **(grad_tensors or {})}
        request = _calls.backward_request(
            q, k, v, grads, method, options, tensors, layout, device=device, priority=priority
        )
        return _calls.backward_result(self._call(self._backward, request, timeout))

    def estimate(
        self,
        q_shape: Sequence[int],
        k_shape: Sequence[int] | None = None,
        v_shape: Sequence[int] | None = None,
        *,
        method: str = "softmax",
        options: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Any] | None = None,
        dtype: Any = np.float32,
        backward: bool = False,
        layout: str = "BHND",
        device: str | None = None,
        timeout: float | None = None,
    ) -> Estimate:
        """Time, FLOPs and memory of a request without its data.

        tensors: the method's other tensors as arrays, or as (shape, dtype). Lengths and offsets
        count as full.
        """
        shapes = {"q": q_shape, "k": k_shape, "v": v_shape}
        request = _calls.estimate_request(
            shapes, dtype, method, options, tensors, layout, backward, device
        )
        return _calls.estimate_result(self._call(self._estimate, request, timeout))

    def methods(self, *, timeout: float | None = None) -> list[MethodInfo]:
        """What the server offers: options, tensors and support of each method."""
        return _calls.methods_result(self._call(self._list_methods, b"", timeout))

    def info(self, *, timeout: float | None = None) -> ServerInfo:
        return _calls.info_result(self._call(self._server_info, b"", timeout))

    def health(self, service: str = "", *, timeout: float | None = None) -> str:
        """ "SERVING", "NOT_SERVING" or "SERVICE_UNKNOWN"."""
        request = _calls.health_request(service)
        return _calls.health_result(self._call(self._check, request, timeout))

    def _unary(self, path: str) -> Callable[..., bytes]:
        # Bytes in, bytes out: gRPC's serialisers are left out.
        call: Callable[..., bytes] = self._channel.unary_unary(path)
        return call

    def _call(self, call: Callable[..., bytes], request: bytes, timeout: float | None) -> bytes:
        seconds = self._timeout if timeout is None else timeout
        try:
            return call(request, timeout=seconds, metadata=self._metadata)
        except grpc.RpcError as error:
            raise from_rpc(error, self.target) from None
        except ValueError as error:
            # gRPC's word for a channel that was closed.
            raise Error(grpc.StatusCode.CANCELLED, f"client is closed: {error}") from error
