"""How long small calls take beside a request of minutes: p50 and p99, idle and beside, in turns.

Goal: a p99 below five times the idle one and below 50 ms, on a machine that does nothing else.
Usage: beside.py [--seconds N] [--rounds N]
"""

import argparse
import json
import pathlib
import tempfile
import time

import grpc
import numpy as np

import attnd
from attnd import _calls
from tests.e2e.server_process import Server

SMALL = (1, 4, 128, 64)
LARGE = (1, 4, 1 << 17, 64)


def small_calls(client, seconds):
    """Latencies in seconds of calls one after the other."""
    q = np.ones(SMALL, np.float32)
    latencies = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        started = time.monotonic()
        client.forward(q, q, q)
        latencies.append(time.monotonic() - started)
    return latencies


class Long:
    """A request of minutes that runs as long as the block."""

    def __init__(self, server):
        q = np.ones(LARGE, np.float32)
        self._message = _calls.forward_request(
            q, q, q, "softmax", {}, {}, "BHND"
        ).message()
        self._server = server
        options = [("grpc.max_send_message_length", -1)]
        self._channel = grpc.insecure_channel(server.target, options=options)

    def __enter__(self):
        taken = self._server.metric("attnd_dispatch_total")
        call = self._channel.unary_unary(_calls.SERVICE + "Forward")
        self._future = call.future(self._message)
        while self._server.metric("attnd_dispatch_total") == taken:
            time.sleep(0.01)

    def __exit__(self, *exception):
        assert not self._future.done(), "the long request ended too early"
        self._future.cancel()
        while self._server.metric("attnd_inflight_requests"):
            time.sleep(0.01)


def summary(latencies):
    p50, p99 = np.percentile(latencies, [50, 99]) * 1e3
    return {"calls": len(latencies), "p50_ms": round(p50, 2), "p99_ms": round(p99, 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    server = Server(pathlib.Path(tempfile.mkdtemp()), "--max-request-seconds", "0")
    try:
        idle, beside = [], []
        with attnd.Client(server.target, timeout=60) as client:
            small_calls(client, 0.5)
            for _ in range(options.rounds):
                idle += small_calls(client, options.seconds)
                with Long(server):
                    beside += small_calls(client, options.seconds)
        result = {"idle": summary(idle), "beside": summary(beside)}
        result["p99_ratio"] = round(result["beside"]["p99_ms"] / result["idle"]["p99_ms"], 2)
        print(json.dumps(result))
    finally:
        server.kill()


if __name__ == "__main__":
    main()
