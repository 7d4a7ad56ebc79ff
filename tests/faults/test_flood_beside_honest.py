"""When one call sent more than it declared, all calls of its connection that expected a message
ended with INVALID_ARGUMENT, which clients do not send again."""

import time

import pytest

from bad_input_cases import T, forward
from raw_http2 import RawConnection, framed

MIB = 1 << 20
# 24 MiB of keys and values for a small answer.
KEYS = T((1, 1, 49152, 64), payload=bytes(12 * MIB))
TENSORS = {"q": T((1, 1, 8, 64), payload=bytes(2048)), "k": KEYS, "v": KEYS}
OK, UNAVAILABLE = 0, 14
REFUSED = (3, 8)  # INVALID_ARGUMENT, RESOURCE_EXHAUSTED
HEALTH = "/grpc.health.v1.Health/Check"


@pytest.fixture
def raw(start_server):
    one = RawConnection(start_server().target)
    yield one
    one.close()


def flood(raw, stream):
    """Sends to `stream` until it ends, in pieces, so that the machine's speed does not matter."""
    message = framed(bytes(128 * MIB))
    sent = 0
    while stream not in raw.ended and sent < len(message):
        sent += raw.send(stream, message[sent : sent + MIB], seconds=1)
        time.sleep(0.02)
    assert sent < len(message)


def test_one_whose_size_is_known_goes_on(raw):
    upload = framed(forward("softmax {}", TENSORS))
    honest = raw.open("Forward", attnd_message_bytes=str(len(upload) - 5))
    half = len(upload) // 2
    assert raw.send(honest, upload[:half]) == half
    liar = raw.open_path(HEALTH)
    flood(raw, liar)
    assert raw.status(liar) in REFUSED
    assert honest not in raw.ended
    assert raw.send(honest, upload[half:], seconds=30) == len(upload) - half
    assert raw.status(honest, seconds=30) == OK


def test_if_two_calls_are_suspect_both_may_retry(raw):
    beside = raw.open_path(HEALTH)
    liar = raw.open("Forward", attnd_message_bytes="100")
    flood(raw, liar)
    assert raw.status(liar) == UNAVAILABLE
    assert raw.status(beside) == UNAVAILABLE
