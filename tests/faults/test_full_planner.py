"""A stream with many requests ended with all of them when one had a large head and the planner had
no place for it."""

import grpc

from bad_input_cases import attention, forward
from helpers import eventually
from run_stream import RunStream, carry

SERVICE = "/attn.v1.AttentionService/"
CODES = grpc.StatusCode
CROWD, STREAMS, EACH = 300, 8, 4
# A head of 200 KB in empty tensors, which the planner takes milliseconds for.
LARGE = bytes([attention.ForwardRequest.TENSORS_FIELD_NUMBER << 3 | 2, 0]) * 100000


TRIES = 5  # until the planner is full: it may be quicker than the client


def fill(channel):
    """Sends calls and streams that need more places than the planner has; whether it was full."""
    call = channel.unary_unary(SERVICE + "Forward")
    metadata = [("attnd-message-bytes", str(len(LARGE)))]
    crowd = [call.future(LARGE, timeout=60, metadata=metadata) for _ in range(CROWD)]
    streams = [RunStream(channel, timeout=60) for _ in range(STREAMS)]
    for index in range(EACH):
        for stream in streams:
            stream.send(carry(str(index), forward() + LARGE))
    crowd += [call.future(LARGE, timeout=60, metadata=metadata) for _ in range(CROWD)]
    for stream in streams:
        stream.half_close()
    for stream in streams:
        replies, code, text = stream.rest()
        assert code == CODES.OK, text
        assert {reply.error.code for reply in replies} == {CODES.INVALID_ARGUMENT.value[0]}
        assert len(replies) == EACH
    return any("wait to be planned" in one.details() for one in crowd)


def test_streams_go_on(start_server):
    server = start_server()
    with grpc.insecure_channel(server.target) as channel:
        assert any(fill(channel) for _ in range(TRIES))
    assert eventually(lambda: server.metric("attnd_inflight_requests") == 0)
