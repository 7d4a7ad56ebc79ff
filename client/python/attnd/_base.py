"""What the blocking client, the asyncio client and their pipelines have in common."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from attnd import _calls, _channel, _retry

ForwardT = TypeVar("ForwardT")
BackwardT = TypeVar("BackwardT")


class TensorCalls(ABC, Generic[ForwardT, BackwardT]):
    """forward and backward. Their results come as ForwardT and BackwardT: themselves, awaitables
    or futures.
    """

    def forward(
        self,
        q: Any = None,
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
    ) -> ForwardT:
        """out = attention(q, k, v), as a ForwardResult.

        options: those of the method by name; enums as strings, a list of ints also as one int.
        tensors: every other tensor of the method by name; integer arrays are sent as int32, bool
        and masks of 0 and 1 as uint8. q, k and v may be None where the method allows it. device:
        "cpu", "cuda:0" or None, the server's choice. priority: -100..100, higher runs first;
        servers allow 0 at most, unless --max-priority is higher or the request comes through a Unix
        socket. timeout: seconds, retries included; None is the client's.
        """
        head = {"device": device, "priority": priority}
        result: ForwardT = self._send(
            partial(_calls.forward_request, q, k, v, method, options, tensors, layout, **head),
            timeout,
        )
        return result

    def backward(
        self,
        q: Any = None,
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
        deterministic: bool = True,
        layout: str = "BHND",
        timeout: float | None = None,
    ) -> BackwardT:
        """Gradients of every differentiable tensor that is sent, as a BackwardResult.

        grad_out, grad_lse and grad_tensors (by the output's name) are the gradients of the
        outputs; one that is None is zero. deterministic: equal requests get equal bits; if False,
        cuDNN may compute large attention of float16 or bfloat16 on a CUDA device sooner, by sums
        in any order of numbers that it rounds to 16 bits. The rest is as in forward.
        """
        grads = {"out": grad_out, "lse": grad_lse, **(grad_tensors or {})}
        # Servers that do not know the field serve requests without it.
        order = {} if deterministic else {"deterministic": False}
        head = {"device": device, "priority": priority, **order}
        result: BackwardT = self._send(
            partial(
                _calls.backward_request, q, k, v, grads, method, options, tensors, layout, **head
            ),
            timeout,
        )
        return result

    @abstractmethod
    def _send(self, build: Callable[[], _calls.TensorRequest[Any]], timeout: float | None) -> Any:
        """Builds the request, which may raise Error, sends it and answers with its result."""


class BaseClient(TensorCalls[ForwardT, BackwardT]):
    """The constructor of both clients; see Client for its arguments."""

    def __init__(
        self,
        target: str = "127.0.0.1:8001",
        *,
        timeout: float | None = None,
        tls: bool | str | os.PathLike[str] | None = None,
        token: str | None = None,
        retries: int = _retry.MAX_RETRIES,
    ):
        self.__setstate__(_channel.settings(target, timeout, tls, token, retries))

    def __getstate__(self) -> _channel.Settings:
        """For pickle: all of a client but its connection, the token included."""
        return self._settings

    def __setstate__(self, settings: _channel.Settings) -> None:
        self.target = settings.target
        self._settings = settings
        self._start()

    def _start(self) -> None:
        """The end of construction."""
