"""Load that reaches every metric: all methods, both directions, bursts, refused calls."""

import contextlib
import functools
import itertools
import math
import random
import threading
import time

import numpy as np

import attnd

OPTIONS = {"softmax": {}, "local": {"window_left": 64}, "linear_attention": {}}
# Calls that the server must refuse, and the code of the refusal.
REFUSED = [
    ({"method": "local", "options": {"window_left": -4}}, "INVALID_ARGUMENT"),
    ({"method": "no_such_method"}, "INVALID_ARGUMENT"),
    ({"method": "softmax", "timeout": 1e-3}, "DEADLINE_EXCEEDED"),
]
BURST_CALLS = 12
PAUSE_SECONDS = 0.02
WAVE_SECONDS = 75


class Load:
    """Runs from enter to exit. exit raises errors that the load did not provoke.

    Two callers of each method send forward and backward requests in turn, at a rate that varies in
    waves; one thread sends bursts beyond the queue, and one sends calls that are refused.
    """

    def __init__(self, target):
        self._target = target
        self._stopping = threading.Event()
        self._errors = []
        self._threads = [
            threading.Thread(target=self._guard, args=(work, *arguments), daemon=True)
            for work, *arguments in (
                *((self._call, method, seed) for seed, method in enumerate(OPTIONS)),
                *((self._call, method, seed) for seed, method in enumerate(OPTIONS, 10)),
                (self._bursts,),
                (self._refused,),
            )
        ]

    def __enter__(self):
        self._client = attnd.Client(self._target, timeout=30)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception):
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)
        self._client.close()
        if self._errors and exception[0] is None:
            raise self._errors[0]

    def _guard(self, work, *arguments):
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001
            self._errors.append(error)

    def _sleep(self, seconds):
        return self._stopping.wait(seconds)

    def _call(self, method, seed):
        rng = random.Random(seed)
        for backward in itertools.cycle((False, False, True)):
            wave = 1.5 + math.sin(2 * math.pi * (time.time() / WAVE_SECONDS + seed / 5))
            if self._sleep(PAUSE_SECONDS * rng.expovariate(1) * wave**3):
                return
            q, k, v, dout = tensors(rng.choice([48, 64, 128, 200, 256]), seed)
            # The queue is small on purpose.
            with ignoring("RESOURCE_EXHAUSTED"):
                send = {"method": method, "options": OPTIONS[method]}
                if backward:
                    self._client.backward(q, k, v, dout, **send)
                else:
                    self._client.forward(q, k, v, **send)

    def _bursts(self):
        q, k, v, _ = tensors(200, 7)

        def one():
            with ignoring("RESOURCE_EXHAUSTED"):
                self._client.forward(q, k, v, method="softmax")

        while not self._sleep(1.5):
            calls = [
                threading.Thread(target=self._guard, args=(one,)) for _ in range(BURST_CALLS)
            ]
            for call in calls:
                call.start()
            for call in calls:
                call.join()

    def _refused(self):
        q, k, v, _ = tensors(256, 8)
        # 41 MB that travel once; with the output more than the whole budget.
        large = np.zeros((1, 8, 20_000, 64), np.float32)
        for (send, code), turn in zip(itertools.cycle(REFUSED), itertools.count()):
            if self._sleep(0.4):
                return
            with ignoring(code, "RESOURCE_EXHAUSTED"):
                self._client.forward(q, k, v, **send)
            if turn % 20 == 0:
                with ignoring("RESOURCE_EXHAUSTED"):
                    self._client.forward(large, large, large, method="linear_attention")


@functools.cache
def tensors(n, seed):
    """q, k, v and the gradient of out, [1,8,n,64]."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((1, 8, n, 64), dtype=np.float32) for _ in range(4)]


@contextlib.contextmanager
def ignoring(*codes):
    try:
        yield
    except attnd.Error as error:
        if error.code.name not in codes:
            raise
