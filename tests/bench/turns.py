"""How long one client's request takes beside another client's flood, against alone: a row for each
flood and each length of the request, in turns. `waits` is the difference.

Goal: 5 s at most, for every priority of the flood. (Requests that take longer than some seconds
cannot meet it: they wait for 2 s and then share the machine.) Usage: turns.py [--rounds N]
"""

import argparse
import contextlib
import math
import pathlib
import tempfile
import threading
import time

import grpc
import numpy as np

import attnd
from attnd import _calls
from tests.e2e.server_process import Server

CALLERS = 6
# Priority, and seconds of each request of a flood.
FLOODS = [(100, 0.02), (100, 0.2), (0, 0.02), (0, 0.2)]
REQUESTS = [0.1, 0.5, 2.0]
ROW = "{:>8} {:>8} {:>8}  {:>8} {:>8} {:>8} {:>6}"


def message_of(client, seconds, priority=0):
    """The message of a request that is predicted to take `seconds`."""
    n = 4096
    shape = (1, 1, n, 4)
    predicted = client.estimate(shape, shape, shape).seconds
    n = round(n * math.sqrt(seconds / predicted))
    q = np.zeros((1, 1, n, 4), np.float32)
    request = _calls.forward_request(q, q, q, "softmax", {}, {}, "BHND", priority=priority)
    return request.message()


@contextlib.contextmanager
def calls(target):
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(target, options=[*options, ("grpc.use_local_subchannel_pool", 1)]) as c:
        yield c.unary_unary(_calls.SERVICE + "Forward")


class Flood:
    """Callers that send one request after the other for as long as the block lasts."""

    def __init__(self, call, message):
        self._call, self._message = call, message
        self._threads = [threading.Thread(target=self._send) for _ in range(CALLERS)]
        self._is_over = False

    def _send(self):
        while not self._is_over:
            self._call(self._message, timeout=100)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        time.sleep(1)

    def __exit__(self, *exception):
        assert all(thread.is_alive() for thread in self._threads), "the flood ended too early"
        self._is_over = True
        for thread in self._threads:
            thread.join()


def taken(call, message):
    began = time.monotonic()
    call(message, timeout=100)
    return time.monotonic() - began


def measure(client, flood, flooder, call, rounds):
    priority, each = flood
    stream = message_of(client, each, priority)
    for _ in range(5):
        flooder(stream)  # the server learns their real time
    for seconds in REQUESTS:
        message = message_of(client, seconds)
        alone, beside = [], []
        for _ in range(rounds):
            alone.append(taken(call, message))
            with Flood(flooder, stream):
                beside.append(taken(call, message))
        a, b = np.median(alone), np.median(beside)
        figures = [f"{x:.2f}" for x in (a, b, b - a, b / a)]
        print(ROW.format(priority, each, seconds, *figures), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp())
    local = f"unix:{folder}/socket"
    server = Server(folder, "--grpc", f"127.0.0.1:0,{local}")
    print(ROW.format("priority", "each s", "asked s", "alone s", "beside s", "waits s", "ratio"))
    try:
        with attnd.Client(local) as client, calls(local) as flooder, calls(server.target) as call:
            for flood in FLOODS:
                measure(client, flood, flooder, call, options.rounds)
    finally:
        server.kill()


if __name__ == "__main__":
    main()
