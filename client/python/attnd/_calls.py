"""Each call as a pair of pure functions: arguments to request bytes, reply bytes to a result.

No transport here: the blocking client and the asyncio one differ only in how bytes travel.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from attnd import _notes, _proto, _spec, _wire
from attnd._arrays import Array, TensorList, arrays_of
from attnd._error import invalid, malformed
from attnd._results import (
    BackwardResult,
    Estimate,
    ForwardResult,
    MethodInfo,
    ServerInfo,
    Stats,
    from_message,
    method_info,
    server_info,
)

SERVICE = "/attn.v1.AttentionService/"
ESTIMATE = SERVICE + "Estimate"
LIST_METHODS = SERVICE + "ListMethods"
RUN = SERVICE + "Run"
SERVER_INFO = SERVICE + "ServerInfo"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"

# Tensors whose values, not only their shapes, decide what a request costs.
_PLANNED = (
    "q_lengths", "kv_lengths", "mem_lengths", "cmem_lengths", "causal_offset", "cu_seqlens_q",
    "cu_seqlens_k",
)

R = TypeVar("R")


@dataclass(frozen=True)
class TensorRequest(Generic[R]):
    """A Forward or Backward, for a unary call or for Run: what to send, how to read the reply.

    It holds views of the caller's arrays until it is serialised.
    """

    name: str  # "forward" or "backward": the field of RunRequest and RunReply
    head: Any  # the message without its payloads
    payloads: Sequence[memoryview]
    reply_type: Any
    make_result: Callable[[dict[str, Array], Stats, tuple[str, ...]], R]

    @property
    def path(self) -> str:
        return SERVICE + self.name.capitalize()

    def message(self) -> bytes:
        return _wire.join(self.head, self.payloads)

    def run_message(self, id: str) -> bytes:
        """The same as a RunRequest, whose payloads are its own field."""
        return _wire.join(_proto.RunRequest(id=id, **{self.name: self.head}), self.payloads)

    def result(self, reply: bytes) -> R:
        try:
            head, raw = _wire.split(reply, self.reply_type)
        except ValueError as error:
            raise malformed(error) from error
        return self.result_of(head, raw)

    def result_of(self, head: Any, raw: Sequence[memoryview]) -> R:
        try:
            arrays = arrays_of(head.tensors, raw)
        except ValueError as error:
            raise malformed(error) from error
        notes = _notes.heed(head.notes)
        return self.make_result(arrays, from_message(Stats, head.stats), notes)


def forward_request(
    q: Any, k: Any, v: Any, method: str, options: Any, tensors: Any, layout: str, **head: Any
) -> TensorRequest[ForwardResult]:
    spec, reasons = _spec_of(method, options)
    sent = TensorList(method, layout)
    _add_all(sent, {"q": q, "k": k, "v": v}, tensors)
    message = _tensor_message(_proto.ForwardRequest, spec, sent, reasons, head)
    return TensorRequest("forward", message, sent.payloads, _proto.ForwardReply, _forward_result)


def backward_request(
    q: Any,
    k: Any,
    v: Any,
    grads: Mapping[str, Any],
    method: str,
    options: Any,
    tensors: Any,
    layout: str,
    **head: Any,
) -> TensorRequest[BackwardResult]:
    spec, reasons = _spec_of(method, options)
    sent = TensorList(method, layout)
    _add_all(sent, {"q": q, "k": k, "v": v}, tensors)
    for name, grad in grads.items():
        sent.add(f"grad_{name}", grad)
    message = _tensor_message(_proto.BackwardRequest, spec, sent, reasons, head)
    return TensorRequest("backward", message, sent.payloads, _proto.BackwardReply, _backward_result)


def estimate_request(
    shapes: Mapping[str, Sequence[int] | Array | None],
    dtype: Any,
    method: str,
    options: Any,
    tensors: Mapping[str, Any] | None,
    layout: str,
    backward: bool,
    deterministic: bool,
    device: str | None,
) -> bytes:
    spec, reasons = _spec_of(method, options)
    sent = TensorList(method, layout)
    for name, shape in shapes.items():
        if shape is None or np.ndim(shape) == 1:
            sent.describe(name, shape, dtype)
        else:
            array = np.asarray(shape)
            sent.describe(name, array.shape, array.dtype)
    for name, value in (tensors or {}).items():
        if isinstance(value, tuple) and len(value) == 2 and not np.isscalar(value[0]):
            sent.describe(name, *value)
        elif name in _PLANNED:
            sent.add(name, value)
        elif value is not None:
            array = np.asarray(value)
            sent.describe(name, array.shape, array.dtype)
    _raise(reasons + sent.reasons)
    request = _proto.EstimateRequest(
        method=spec,
        tensors=sent.tensors,
        backward=backward,
        deterministic=None if deterministic else False,
        device=device or "",
    )
    return _wire.join(request, sent.payloads)


def estimate_result(reply: bytes) -> Estimate:
    message = _proto.EstimateReply.FromString(reply)
    return from_message(Estimate, message, notes=_notes.heed(message.notes))


def methods_result(reply: bytes) -> list[MethodInfo]:
    return [method_info(m) for m in _proto.ListMethodsReply.FromString(reply).methods]


def info_result(reply: bytes) -> ServerInfo:
    return server_info(_proto.ServerInfoReply.FromString(reply))


def health_request(service: str) -> bytes:
    return bytes(_proto.HealthCheckRequest(service=service).SerializeToString())


def health_result(reply: bytes) -> str:
    status = _proto.HealthCheckResponse.FromString(reply).status
    return str(_proto.HealthCheckResponse.ServingStatus.Name(status))


def _spec_of(method: str, options: Mapping[str, Any] | None) -> tuple[Any, list[str]]:
    reasons: list[str] = []
    return _spec.build(method, options, reasons), reasons


def _add_all(sent: TensorList, qkv: Mapping[str, Any], tensors: Any) -> None:
    for name, value in [*qkv.items(), *(tensors or {}).items()]:
        sent.add(name, value)


def _tensor_message(
    kind: Any, spec: Any, sent: TensorList, reasons: list[str], head: Mapping[str, Any]
) -> Any:
    _raise(reasons + sent.reasons)
    request = kind(method=spec, tensors=sent.tensors)
    for name, value in head.items():
        if value is not None:
            try:
                setattr(request, name, value)
            except (TypeError, ValueError) as error:
                raise invalid([f"request: {name} {error}, got {value!r}"]) from None
    return request


def _forward_result(
    arrays: dict[str, Array], stats: Stats, notes: tuple[str, ...]
) -> ForwardResult:
    if "out" not in arrays:
        raise malformed("out is missing")
    out, lse = arrays.pop("out"), arrays.pop("lse", None)
    return ForwardResult(out, lse, arrays, stats, notes)


def _backward_result(
    arrays: dict[str, Array], stats: Stats, notes: tuple[str, ...]
) -> BackwardResult:
    q, k, v = (arrays.pop(name, None) for name in ("q", "k", "v"))
    return BackwardResult(q, k, v, arrays, stats, notes)


def _raise(reasons: list[str]) -> None:
    if reasons:
        raise invalid(reasons)
