"""Frames that carry nothing: eight connections of them, opened again when they were cut off, took the
polling thread for 1 to 4 s at a time. The only limit was 80 MiB of bytes, 9 million SETTINGS."""

import itertools
import struct
import threading
import time

import grpc
import pytest

import attnd
from helpers import eventually, noise
from raw_http2 import DATA, END_HEADERS, HEADERS, RESET, SETTINGS, Flood, frame, request_headers

PRIORITY, PING, GOAWAY, WINDOW_UPDATE, UNKNOWN = 2, 6, 7, 8, 0x77
CONNECTIONS = 8
# CPU seconds of the server for each connection that is cut off: 0.1 to 0.3 with the fault, else
# 2e-4.
CPU_SECONDS = 0.02
OPEN = frame(HEADERS, END_HEADERS, 1, request_headers("/attn.v1.AttentionService/Forward"))
WORDS = "more frames that carry nothing than its calls need"
FLOODS = {
    "settings": frame(SETTINGS, 0, 0),
    "window size": frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 100))
    + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 200000)),
    "many settings": frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535) * 2000),
    "priority": frame(PRIORITY, 0, 1, b"\0\0\0\0\1"),
    "goaway": frame(GOAWAY, 0, 0, bytes(8)),
    "unknown": frame(UNKNOWN, 0, 0),
    "window": frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)),
    "ping answers": frame(PING, 1, 0, bytes(8)),
    "reset": frame(RESET, 0, 1, bytes(4)),
    "empty data": frame(DATA, 0, 1),
    "one byte": frame(DATA, 0, 1, b"\0"),
}


class Floods:
    """Connections of one kind of frame; each is opened again as soon as it is cut off."""

    def __init__(self, target, frames):
        self._target, self._piece = target, frames * (65536 // len(frames))
        self._goes_on = True
        self._threads = [threading.Thread(target=self._run) for _ in range(CONNECTIONS)]
        for thread in self._threads:
            thread.start()

    def _run(self):
        while self._goes_on:
            try:
                flood = Flood(self._target, itertools.chain([OPEN], itertools.repeat(self._piece, 2000)))
            except OSError:
                continue
            while self._goes_on and flood.is_sending() and not flood.was_cut_off:
                time.sleep(0.005)
            flood.close()

    def stop(self):
        self._goes_on = False
        for thread in self._threads:
            thread.join(30)


@pytest.mark.parametrize("name", FLOODS)
def test_the_server_has_time_for_others(start_server, name):
    server = start_server()

    def cut_off():
        return server.metric("attnd_connections_cut_off_total")

    with attnd.Client(server.target, timeout=60) as client:
        client.health()
        floods = Floods(server.target, FLOODS[name])
        try:
            assert eventually(lambda: cut_off() >= 2 * CONNECTIONS, 30)
            for _ in range(5):
                assert client.health() == "SERVING"
            # A new connection gets no new allowance after one that was cut off.
            cpu, before = server.cpu_seconds(), cut_off()
            assert eventually(lambda: cut_off() >= before + 20, 30)
            spent = server.cpu_seconds() - cpu
            assert spent / (cut_off() - before) < CPU_SECONDS
        finally:
            floods.stop()
        assert eventually(lambda: WORDS in server.log())


def test_ordinary_clients_are_not_cut_off(start_server, rng):
    """Small calls, large replies, and callers who cancel."""
    server = start_server()
    q = noise(rng, (1, 1, 16, 8))
    large = noise(rng, (1, 4, 65536, 64))
    with attnd.Client(server.target, timeout=60) as client:
        for _ in range(300):
            client.forward(q, q, q)
        for _ in range(2):
            assert client.forward(large, large, large, method="local", options={"window_left": 16}).out.size == large.size
    with grpc.insecure_channel(server.target) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        calls = [check.future(b"", timeout=60) for _ in range(5000)]
        for call in calls[::2]:
            call.cancel()
        assert all(call.code().value[0] == 0 for call in calls[1::2])
    assert server.metric("attnd_connections_cut_off_total") == 0
