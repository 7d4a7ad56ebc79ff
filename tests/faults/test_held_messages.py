"""Most of a message on each of many streams, then nothing: the server held a GiB without limit and
without charging it, and honest uploads failed for lack of gRPC's buffers."""

import time

import attnd
from bad_input_cases import T, forward
from helpers import eventually, noise
from raw_http2 import RawConnection, framed
from run_stream import carry
from stopped_thread import StoppedThread

MIB = 1 << 20
STREAMS = 64
MOST = framed(bytes(MIB - 5))[: MIB - 4096]
EXHAUSTED = 8


def test_messages_of_streams_that_do_not_end(start_server, rng):
    # gRPC's buffers are 96 MiB.
    server = start_server("--budget-bytes", "64MiB")
    q = noise(rng, (1, 8, 1024, 64))
    refused = {"reason": "bytes"}
    silent, raw = RawConnection(server.target), RawConnection(server.target)
    idle = silent.open("Run")
    streams = [raw.open("Run") for _ in range(STREAMS)]
    before = server.metric("attnd_refused_total", **refused)
    for stream in streams:
        raw.send(stream, MOST)

    end = time.monotonic() + 60
    while len(raw.ended) < STREAMS and time.monotonic() < end:
        raw.listen(0.1)
    assert {trailers["grpc-status"] for trailers in raw.ended.values()} == {str(EXHAUSTED)}
    assert sorted(raw.ended) == streams
    text = raw.ended[streams[-1]]["grpc-message"]
    words = "stream: a message must arrive within 1 s while the server's buffers fill up, "
    assert text == words + "one of this connection did not, retry later"
    counted = server.metric("attnd_refused_total", **refused) - before
    assert counted == STREAMS

    # Its connection, other connections and idle streams go on.
    late = raw.open("Run")
    raw.listen(0.1)
    silent.listen(0.1)
    assert late not in raw.ended and idle not in silent.ended
    with attnd.Client(server.target, timeout=30) as client:
        assert client.forward(q, q, q, method="local", options={"window_left": 8}).out.shape
    assert eventually(lambda: "messages of streams do not arrive" in server.log())
    raw.close()
    silent.close()


def test_messages_of_streams_that_have_ended(start_server):
    """A stream that waits for its last answer to end with a drain counted as refused, too."""
    server = start_server("--budget-bytes", "64MiB", "--max-running", "1", "--drain-timeout", "60s")
    request = forward("softmax {}", {name: T((1, 1, 1, 1), payload=bytes(4)) for name in "qkv"})
    raw = RawConnection(server.target)
    with StoppedThread(server.pid, "lane-0"):
        streams = [raw.open("Run") for _ in range(STREAMS)]
        for stream in streams:
            raw.send(stream, framed(carry("1", request)))
        assert eventually(lambda: server.metric("attnd_inflight_requests") == STREAMS)
        server.signal()
        assert eventually(lambda: server.get("/readyz")[0] == 503)
        for stream in streams:
            raw.send(stream, MOST)
        assert eventually(lambda: "messages of streams do not arrive" in server.log())
        assert server.metric("attnd_refused_total", reason="bytes") == 0
    assert server.wait() == 0
    raw.close()
