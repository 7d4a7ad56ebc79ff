"""Requests that take long, sent so that they can be cancelled."""

import contextlib

import grpc
import numpy as np

from attnd import _calls

ANY_SIZE = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


@contextlib.contextmanager
def open_channel(target):
    # A new connection, not one that another channel of the process already has.
    own = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(target, options=ANY_SIZE + own) as channel:
        yield channel


def begin(channel, q, *, direction="forward", method="softmax", options=None, timeout=None, **head):
    """The future of a call that is sent at once."""
    build = _calls.forward_request if direction == "forward" else _calls.backward_request
    grads = [] if direction == "forward" else [{"out": q}]
    request = build(q, q, q, *grads, method, options or {}, {}, "BHND", **head)
    call = channel.unary_unary(_calls.SERVICE + direction.capitalize())
    return call.future(request.message(), timeout=timeout)


def input_of(client, seconds, *, method="softmax", options=None, direction="forward", width=4):
    """A q (= k = v) whose attention is predicted to take at least so long; little to send."""
    n = 256
    while True:
        shape = (1, 1, n, width)
        plan = client.estimate(
            shape, shape, shape, method=method, options=options, backward=direction == "backward"
        )
        if plan.seconds >= seconds:
            return np.zeros(shape, np.float32)
        n *= 2
