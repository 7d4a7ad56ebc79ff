"""Each call as a pair of pure functions: arguments to request bytes, reply bytes to a result.

No transport here: the blocking client and an asyncio one differ only in how bytes travel.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import numpy as np

from attnd import _proto, _spec, _wire
from attnd._arrays import Array, TensorList, arrays_of
from attnd._error import Error, invalid
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
HEALTH = "/grpc.health.v1.Health/"


def forward_request(
    q: Any, k: Any, v: Any, method: str, options: Any, tensors: Any, layout: str, **head: Any
) -> bytes:
    spec, reasons = _spec_of(method, options)
    sent = TensorList(method, layout)
    _add_all(sent, {"q": q, "k": k, "v": v}, tensors)
    return _tensor_message(_proto.ForwardRequest, spec, sent, reasons, head)


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
) -> bytes:
    spec, reasons = _spec_of(method, options)
    sent = TensorList(method, layout)
    _add_all(sent, {"q": q, "k": k, "v": v}, tensors)
    for name, grad in grads.items():
        sent.add(f"grad_{name}", grad, has_layout=True)
    return _tensor_message(_proto.BackwardRequest, spec, sent, reasons, head)


def estimate_request(
    shapes: Mapping[str, Sequence[int] | None],
    dtype: Any,
    method: str,
    options: Any,
    tensors: Mapping[str, Any] | None,
    layout: str,
    backward: bool,
    device: str | None,
) -> bytes:
    spec, reasons = _spec_of(method, options)
    sent = TensorList(method, layout)
    for name, shape in shapes.items():
        sent.describe(name, shape, dtype, has_layout=True)
    for name, value in (tensors or {}).items():
        if isinstance(value, tuple) and len(value) == 2 and not np.isscalar(value[0]):
            sent.describe(name, *value)
        else:
            array = np.asarray(value)
            sent.describe(name, array.shape, array.dtype)
    q, v = shapes["q"], shapes["v"]
    if backward and q is not None:
        sent.describe("grad_out", (*q[:-1], (v or q)[-1]), dtype, has_layout=True)
    _raise(reasons + sent.reasons)
    request = _proto.EstimateRequest(
        method=spec, tensors=sent.tensors, backward=backward, device=device or ""
    )
    return bytes(request.SerializeToString())


def forward_result(reply: bytes) -> ForwardResult:
    arrays, stats = _tensor_reply(reply, _proto.ForwardReply)
    if "out" not in arrays:
        raise Error(grpc.StatusCode.INTERNAL, "reply: out is missing")
    out, lse = arrays.pop("out"), arrays.pop("lse", None)
    return ForwardResult(out, lse, arrays, stats)


def backward_result(reply: bytes) -> BackwardResult:
    arrays, stats = _tensor_reply(reply, _proto.BackwardReply)
    q, k, v = (arrays.pop(name, None) for name in ("q", "k", "v"))
    return BackwardResult(q, k, v, arrays, stats)


def estimate_result(reply: bytes) -> Estimate:
    return from_message(Estimate, _proto.EstimateReply.FromString(reply))


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
    for name, value in qkv.items():
        sent.add(name, value, has_layout=True)
    for name, value in (tensors or {}).items():
        sent.add(name, value)


def _tensor_message(
    kind: Any, spec: Any, sent: TensorList, reasons: list[str], head: Mapping[str, Any]
) -> bytes:
    _raise(reasons + sent.reasons)
    request = kind(method=spec, tensors=sent.tensors)
    for name, value in head.items():
        if value is not None:
            try:
                setattr(request, name, value)
            except (TypeError, ValueError) as error:
                raise invalid([f"request: {name} {error}, got {value!r}"]) from None
    return _wire.join(request, sent.payloads)


def _tensor_reply(reply: bytes, kind: Any) -> tuple[dict[str, Array], Stats]:
    try:
        head, raw = _wire.split(reply, kind)
        return arrays_of(head.tensors, raw), from_message(Stats, head.stats)
    except ValueError as error:
        raise Error(grpc.StatusCode.INTERNAL, f"reply: {error}") from error


def _raise(reasons: list[str]) -> None:
    if reasons:
        raise invalid(reasons)
