"""When a refused request is sent again: one policy for unary calls and for the Run stream."""

import json
import random
import threading

import grpc

RETRYABLE = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
# gRPC makes five attempts at most, even if a policy names more.
MAX_RETRIES = 4

_FIRST_SECONDS, _MAX_SECONDS, _FACTOR, _JITTER = 0.1, 2.0, 2.0, 0.2
# A burst of refusals is sent again. Where refusals last, only one request is sent again for every
# ten that succeed: the load on a full server stays near what its clients need.
_TOKENS, _TOKENS_PER_SUCCESS = 100, 0.1
# A large message that is refused on a stream was sent whole: it counts as one refusal more for
# each 16 MiB.
_BYTES_PER_TOKEN = 2**24
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
    throttling = {"maxTokens": _TOKENS, "tokenRatio": _TOKENS_PER_SUCCESS}
    calls = [{"name": names, "retryPolicy": policy}]
    return json.dumps({"methodConfig": calls, "retryThrottling": throttling})


def delay_seconds(retry: int) -> float:
    """Before retry 0, 1, ...: as gRPC waits between the attempts of a unary call."""
    seconds = min(_FIRST_SECONDS * _FACTOR**retry, _MAX_SECONDS)
    return seconds * random.uniform(1 - _JITTER, 1 + _JITTER)


class Bucket:
    """What a client's streams may send again; gRPC has the same for unary calls. Thread safe.

    A refusal takes a token, a success gives a tenth of one back; nothing is sent again while half
    of the bucket or less is left.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens = float(_TOKENS)  # guarded by _lock

    def refused(self, message_bytes: int) -> bool:
        """Whether the request may be sent again."""
        with self._lock:
            self._tokens = max(0.0, self._tokens - 1 - message_bytes / _BYTES_PER_TOKEN)
            return self._tokens > _TOKENS / 2

    def succeeded(self) -> None:
        with self._lock:
            self._tokens = min(_TOKENS, self._tokens + _TOKENS_PER_SUCCESS)
