"""Streams that send what they announced before there is room for it: gRPC receives a window of
each, which was charged to no client and not bounded in total."""

import attnd
from bad_input_cases import T, forward
from helpers import eventually, noise
from raw_http2 import RawConnection, framed
from run_stream import announce
from stopped_thread import StoppedThread

MIB = 1 << 20
STREAMS = 32
# It is charged twice, which does not fit beside the waiting request.
ANNOUNCED = 28 * MIB
HELD = {name: T((1, 1, 1 << 14, 84), payload=bytes(84 << 16)) for name in "qkv"}  # 16 MiB
# gRPC has 128 MiB at most; then it opens no more windows and ends streams.
MOST = 256 * MIB
ROUNDS = 8


def test_the_bytes_that_arrive_are_bounded(start_server, rng):
    server = start_server("--budget-bytes", "64MiB", "--max-running", "1")
    q = noise(rng, (1, 2, 64, 32))
    request = forward("local { window_left: 1 }", HELD)
    message = framed(bytes(ANNOUNCED))
    holder, raw = RawConnection(server.target), RawConnection(server.target)
    with attnd.Client(server.target, timeout=60) as client:
        assert client.forward(q, q, q).out.shape == q.shape
        idle = server.rss()
        with StoppedThread(server.pid, "lane-0"):
            call = holder.open("Forward", attnd_message_bytes=str(len(request)))
            holder.send(call, framed(request))
            assert eventually(lambda: server.metric("attnd_queue_requests") == 1)
            sent = {raw.open("Run"): 0 for _ in range(STREAMS)}
            for stream in sent:
                raw.send(stream, framed(announce("1", ANNOUNCED)))
            assert eventually(lambda: server.metric("attnd_parked_requests") == STREAMS)

            for _ in range(ROUNDS):
                for stream, size in sent.items():
                    sent[stream] += raw.send(stream, message[size : size + 4 * MIB], seconds=0.01)
                assert server.peak_rss() - idle < MOST
        # Others are served beside them.
        assert client.forward(q, q, q).out.shape == q.shape
        raw.close()
        holder.close()
        assert eventually(lambda: server.metric("attnd_budget_charged_bytes") == 0)
