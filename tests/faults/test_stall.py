"""Large and small uploads beside each other, more than there is room for: no call made progress for
ten seconds on an idle machine (a deadlock of flow control). At most three seconds may pass without
an answer and without computation.
"""

import pathlib
import threading
import time

import numpy as np

import attnd

SILENT_SECONDS = 3
ROUNDS = 2
MIB = 1 << 20
# MiB of q, k and v together; all at a time exceed the budget.
SIZES = [12, 24, 48, 3, 48, 24, 12, 48, 6, 1, 30, 18]


class Watch:
    """How long `count()` stood still while the processes computed nothing and waited for no
    processor."""

    def __init__(self, count, *pids):
        self.longest = 0
        self._count, self._pids = count, pids
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._ended.set()
        self._thread.join()

    def _busy_seconds(self):
        """Running, or ready to run."""
        nanoseconds = 0
        for pid in self._pids:
            for file in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
                try:
                    running, ready, _ = map(int, file.read_text().split())
                except (FileNotFoundError, ProcessLookupError):
                    continue
                nanoseconds += running + ready
        return nanoseconds / 1e9

    def _run(self):
        silent = 0
        then, busy, count = time.monotonic(), self._busy_seconds(), self._count()
        while not self._ended.wait(0.1):
            last = then, busy, count
            then, busy, count = time.monotonic(), self._busy_seconds(), self._count()
            seconds = then - last[0]
            is_idle = busy - last[1] < 0.2 * seconds
            silent = silent + seconds if is_idle and count == last[2] else 0
            self.longest = max(self.longest, silent)


def test_no_call_is_silent(start_server):
    server = start_server("--budget-bytes", "192MiB", "--max-parked", "64")
    answered = []

    def upload(client, mib):
        x = np.zeros((1, 1, mib * MIB // (3 * 4 * 64), 64), np.float32)
        for _ in range(ROUNDS):
            reply = client.forward(x, x.copy(), x.copy(), method="linear_attention")
            answered.append(reply.out.shape == x.shape)

    # Several calls on each of two connections, so that streams share windows.
    with attnd.Client(server.target, timeout=120) as one, attnd.Client(server.target) as two:
        threads = [
            threading.Thread(target=upload, args=((one, two)[i % 2], mib))
            for i, mib in enumerate(SIZES)
        ]
        with Watch(lambda: len(answered), "self", server.pid) as watch:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(timeout=200)
    assert answered == [True] * (ROUNDS * len(SIZES))
    assert watch.longest < SILENT_SECONDS
    assert server.stop() == 0
