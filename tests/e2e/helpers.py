"""What several end-to-end tests share: oracles, errors, waiting, work that takes long."""

import pathlib
import sys
import threading
import time

import ml_dtypes
import numpy as np

from stopped_thread import StoppedThread

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.methods import linear_attention, local, softmax  # noqa: E402

ORACLES = {module.METHOD.id: module.METHOD.oracle for module in (softmax, local, linear_attention)}
# One option set a method, as a user would send it.
OPTIONS = {"softmax": {}, "local": {"window_left": 16}, "linear_attention": {}}
# Bounds of the relative Frobenius error: a few roundings to the dtype.
BOUND = {np.float32: 5e-6, np.float16: 1e-3, ml_dtypes.bfloat16: 8e-3}


def relative_error(ours, exact):
    exact = np.asarray(exact, np.float64)
    size = np.linalg.norm(exact)
    return np.linalg.norm(np.asarray(ours, np.float64) - exact) / (size or 1)


def noise(rng, shape, dtype=np.float32):
    return rng.standard_normal(shape, dtype=np.float32).astype(dtype)


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def eventually(true, seconds=60):
    """Waits until `true()` holds, for a change that another process makes; its last value."""
    end = time.monotonic() + seconds
    while not (value := true()) and time.monotonic() < end:
        time.sleep(0.02)
    return value


class ProcessorTime:
    """Processor seconds that the server takes in the block, `most` at most, whatever else runs."""

    def __init__(self, server, most):
        self._server, self._most = server, most

    def __enter__(self):
        self._before = self._server.cpu_seconds()

    def __exit__(self, kind, *exception):
        if kind is None:
            spent = self._server.cpu_seconds() - self._before
            assert spent < self._most, f"{spent:.2f} s"


REFUSALS = ("queue_full", "bytes", "deadline", "cancelled", "draining", "invalid", "seconds",
            "device")


def refusals(server):
    """How often the server refused, by reason; reasons without refusals are left out."""
    counts = {name: server.metric("attnd_refused_total", reason=name) for name in REFUSALS}
    return {name: count for name, count in counts.items() if count}


def long_input(client, seconds):
    """A q (= k = v) whose softmax attention takes at least about `seconds` on this machine."""
    heads, D = 12, 64
    device = client.info().devices[0]
    # The peak of a CUDA device is that of 16-bit products, of the emulated one 16 times float32's.
    share = 1 / 16 if device.name.startswith("cuda") else 1
    flops = seconds * device.peak_flops * share
    return np.zeros((1, heads, int((flops / (4 * D * heads)) ** 0.5), D), np.float32)


class Busy:
    """Keeps a server with `--max-running 1` at work with one long request: others must wait. `held`:
    its lane stands still until the end, however fast the machine is."""

    def __init__(self, client, server, seconds=0.4, device=None, held=False):
        self.device = device
        self._held = StoppedThread(server.pid, "lane-0") if held else None
        self.q = long_input(client, seconds)
        self.result = self.error = None
        self._client, self._server = client, server
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            self.result = self._client.forward(self.q, self.q, self.q, timeout=120,
                                                device=self.device)
        except Exception as error:
            self.error = error

    def __enter__(self):
        taken = self._server.metric("attnd_dispatch_total")
        self._thread.start()
        assert eventually(lambda: self._server.metric("attnd_dispatch_total") > taken)
        if self._held is not None:
            self._held.__enter__()
        return self

    def is_running(self):
        return self._thread.is_alive()

    def __exit__(self, *exception):
        if self._held is not None:
            self._held.__exit__(*exception)
        self._thread.join()


def together(calls):
    """Runs all calls at the same time, each on a thread; results in order, errors raised."""
    results = [None] * len(calls)
    barrier = threading.Barrier(len(calls))

    def run(index):
        barrier.wait()
        try:
            results[index] = calls[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results
