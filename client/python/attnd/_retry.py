"""When a refused request is sent again: one policy for unary calls and for the Run stream."""

import json
import random

import grpc

RETRYABLE = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
# gRPC makes five attempts at most, whatever a policy says.
MAX_RETRIES = 4

_FIRST_SECONDS, _MAX_SECONDS, _FACTOR, _JITTER = 0.1, 2.0, 2.0, 0.2
# None of these has an effect on the server. Run is absent: a stream is not one request.
_METHODS = ("Forward", "Backward", "ListMethods", "Estimate", "ServerInfo")


def service_config(retries: int) -> str:
    """gRPC's own retries, for the unary calls of AttentionService."""
    policy = {
        "maxAttempts": retries + 1,
        "initialBackoff": f"{_FIRST_SECONDS}s",
        "maxBackoff": f"{_MAX_SECONDS}s",
        "backoffMultiplier": _FACTOR,
        "retryableStatusCodes": [code.name for code in RETRYABLE],
    }
    names = [{"service": "attn.v1.AttentionService", "method": name} for name in _METHODS]
    return json.dumps({"methodConfig": [{"name": names, "retryPolicy": policy}]})


def delay_seconds(retry: int) -> float:
    """Before retry 0, 1, ...: as gRPC waits between the attempts of a unary call."""
    seconds = min(_FIRST_SECONDS * _FACTOR**retry, _MAX_SECONDS)
    return seconds * random.uniform(1 - _JITTER, 1 + _JITTER)
