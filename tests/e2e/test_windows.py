"""Streams whose client sends as far ahead as the server lets it."""

import time

import numpy as np
import pytest

from bad_input_cases import T, forward
from helpers import refusals
from raw_http2 import CHUNK, RawConnection, framed
from run_stream import carry

WIDE = 2**25  # what gRPC's bandwidth probe lets a window grow to


@pytest.fixture
def wide(server):
    raw = RawConnection(server.target)
    assert raw.widen(WIDE), f"the server announces {raw.window()} bytes"
    yield raw
    raw.close()


# Regression: on a busy machine, where windows grow, a client that sent ahead while its replies did
# not leave lost its stream for a message that it did not announce.
def test_streams_that_are_not_read_may_be_sent_their_windows(server, client, wide):
    before = refusals(server)
    runs = [wide.open("Run") for _ in range(3)]
    tensor = T((1, 1, 32, 40), payload=np.zeros((32, 40), np.float32).tobytes())
    request = forward("local { window_left: 1 }", {name: tensor for name in "qkv"})
    # Each in a frame of its own. Their replies, of which the client takes 64 KiB in all, stop the
    # streams.
    messages = [framed(carry(f"{i:05}", request)) for i in range(3000)]
    size = len(messages[0])
    assert size < CHUNK
    sent = dict.fromkeys(runs, 0)
    end = time.monotonic() + 90
    while sum(sent.values()) < 2.6 * WIDE and time.monotonic() < end:
        for run, at in sent.items():
            rest = messages[at // size][at % size :]
            sent[run] += wide.send(run, rest, seconds=0.01)
    assert sum(sent.values()) >= 2.6 * WIDE, sent
    assert refusals(server) == before
    assert client.health() == "SERVING"
