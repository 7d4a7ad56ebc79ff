"""Unread replies occupied the budget for their whole time limit, while others waited for it."""

import time

import grpc

from bad_input_cases import T, forward
from helpers import eventually
from raw_http2 import SERVICE, RawConnection, framed

MIB = 1 << 20
BUDGET = 64 * MIB
# A few KB that become a reply of 10 MiB.
WIDE = {"q": T((1, 1, 2560, 1)), "k": T((1, 1, 1, 1)), "v": T((1, 1, 1, 1024))}
UPLOAD = {name: T((1, 20, 1024, 64)) for name in "qkv"}  # 15 MiB, charged twice


def test_they_are_given_up_while_others_wait(start_server):
    server = start_server("--budget-bytes", str(BUDGET))
    message = forward("softmax {}", WIDE)
    lazy = RawConnection(server.target)
    for _ in range(4):
        stream = lazy.open("Forward", attnd_message_bytes=str(len(message)))
        lazy.send(stream, framed(message))
    assert eventually(lambda: server.metric("attnd_answer_seconds_count") == 4)
    assert server.metric("attnd_budget_charged_bytes") > 40 * MIB

    upload = forward("local { window_left: 1 }", UPLOAD)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.target, options) as channel:
        call = channel.unary_unary(SERVICE + "Forward")
        started = time.monotonic()
        future = call.future(
            upload, timeout=60, metadata=[("attnd-message-bytes", str(len(upload)))]
        )
        assert future.code() == grpc.StatusCode.OK, future.details()
    # 40 s by their size alone.
    assert time.monotonic() - started < 25
    lazy.close()
