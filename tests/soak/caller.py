"""One kind of load on a server, as a process: works from `go` to `rest` on standard input, then
prints its counts as one line of JSON, outcome by outcome.

    caller.py KIND TARGET HTTP SEED
"""

import asyncio
import collections
import contextlib
import json
import pathlib
import random
import socket
import sys
import threading
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

import grpc  # noqa: E402
import numpy as np  # noqa: E402

import attnd  # noqa: E402
from bad_input_cases import CASES, forward  # noqa: E402
from helpers import same_bits  # noqa: E402
from raw_http2 import SERVICE, RawConnection, framed  # noqa: E402

METHODS = {
    "softmax": {"causal": True},
    "local": {"window_left": 16},
    "linear_attention": {},
    "longformer": {"window": 16},
    "sparse_strided": {"stride": 8},
    "bigbird": {"block_size": 16},
}
TIMEOUT = 30


class Caller:
    """`turn` is one round of one kind; it counts the outcomes."""

    def __init__(self, kind, target, http, seed):
        self.counts = collections.Counter()
        self._target, self._http = target, http
        self._random = random.Random(seed)
        self._noise = np.random.default_rng(seed)
        self._first = {}
        self._loop = None
        self._client = attnd.Client(target, timeout=TIMEOUT)
        self.turn = getattr(self, kind)

    def _count(self, result):
        code = result.code.name if isinstance(result, attnd.Error) else "OK"
        # No caller here sends more than it declared.
        self.counts["CUT OFF" if code != "OK" and "more is arriving" in str(result) else code] += 1

    def _request(self, N):
        """Always the same for one method and length, so that answers can be compared."""
        method = self._random.choice(list(METHODS)) if N < 1000 else "linear_attention"
        q = np.random.default_rng(N).standard_normal((1, 2, N, 16), dtype=np.float32)
        return {"q": q, "k": q, "v": q, "method": method, "options": METHODS[method]}

    def _compare(self, request, array):
        key = request["method"], request["q"].shape
        self.counts["WRONG"] += not same_bits(self._first.setdefault(key, array), array)

    def small(self):
        request = self._request(self._random.choice([1, 7, 64, 65, 200]))
        try:
            result = self._client.forward(**request)
            self._compare(request, result.out)
        except attnd.Error as error:
            result = error
        self._count(result)

    def backward(self):
        request = self._request(self._random.choice([5, 64, 130]))
        try:
            result = self._client.backward(**request, grad_out=request["q"])
            self._compare(request, result.q)
        except attnd.Error as error:
            result = error
        self._count(result)

    def large(self):
        N = self._random.choice([1 << 14, 1 << 15, 1 << 16])
        q = np.zeros((1, 2, N, 32), np.float32)  # 4 to 16 MiB
        try:
            self._count(self._client.forward(q, q.copy(), q.copy(), method="linear_attention"))
        except attnd.Error as error:
            self._count(error)

    def streams(self):
        """One that ends well, and one that is left with requests unanswered."""
        requests = [self._request(self._random.choice([3, 64, 4000])) for _ in range(40)]
        with self._client.pipeline() as pipeline:
            for future in [pipeline.forward(**request) for request in requests]:
                self._count(future.exception() or future.result())
        with contextlib.suppress(KeyError), self._client.pipeline() as pipeline:
            left = [pipeline.forward(**request) for request in requests]
            raise KeyError
        for future in left:
            self._count(future.exception() or future.result())

    def cancelled(self):
        """Calls that end at any moment, by their task or by their deadline."""

        async def one(client, pipeline):
            q = np.zeros((1, 4, self._random.choice([64, 512, 2048]), 32), np.float32)
            way = self._random.choice([client, pipeline])
            timeout = self._random.choice([0.002, 0.02, TIMEOUT])
            task = asyncio.create_task(way.forward(q, q, q, timeout=timeout))
            await asyncio.sleep(self._random.uniform(0, 0.05))
            task.cancel()
            try:
                self._count(await task)
            except attnd.Error as error:
                self._count(error)
            except asyncio.CancelledError:
                self.counts["CANCELLED"] += 1

        async def run():
            async with attnd.aio.Client(self._target) as client:
                with contextlib.suppress(KeyError):
                    async with client.pipeline() as pipeline:
                        await asyncio.gather(*(one(client, pipeline) for _ in range(30)))
                        raise KeyError

        # One loop for all turns: gRPC logs what it finds undone on a loop that is closed.
        self._loop = self._loop or asyncio.new_event_loop()
        self._loop.run_until_complete(run())

    def malformed(self):
        with grpc.insecure_channel(self._target) as channel:
            for case in self._random.sample(CASES, 20):
                call = channel.unary_unary(SERVICE + case.rpc)
                self._refused(call, case.message, case.code.name)
            call = channel.unary_unary(SERVICE + "Forward")
            self._refused(call, self._random.randbytes(500), "INVALID_ARGUMENT")

    def _refused(self, call, message, expected):
        try:
            call(message, timeout=TIMEOUT)
            code = "OK"
        except grpc.RpcError as error:
            code = error.code().name
        self.counts["REFUSED" if code == expected else f"{code} FOR {expected}"] += 1

    def broken(self):
        """Half messages, resets, unread replies, connections that send nothing."""
        good = forward()
        with contextlib.closing(RawConnection(self._target)) as raw:
            for index in range(20):
                stream = raw.open(["Forward", "Run"][index % 2])
                raw.send(stream, framed(good)[: self._random.randrange(len(good))])
                if index % 3:
                    raw.reset(stream)
        host, port = self._target.split(":")
        silent = [socket.create_connection((host, int(port)), timeout=5) for _ in range(20)]
        silent[0].sendall(self._random.randbytes(200))
        for connection in silent:
            connection.close()
        self.counts["BROKEN"] += 1

    def watched(self):
        """Health is watched and asked for, pages are read, the server describes itself."""
        with grpc.insecure_channel(self._target) as channel:
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=TIMEOUT)
            next(watch)
            watch.cancel()
        self.counts[self._client.health()] += 1
        self._client.methods()
        self._client.estimate((1, 2, 512, 16), (1, 2, 512, 16), (1, 2, 512, 16))
        for page in ("/metrics", "/healthz", "/readyz"):
            with urllib.request.urlopen(self._http + page, timeout=TIMEOUT) as reply:
                reply.read()


KINDS = ("small", "backward", "large", "streams", "cancelled", "malformed", "broken", "watched")


def work(caller, resting):
    while not resting.is_set():
        try:
            caller.turn()
        except Exception as error:
            # The process that started this one sends it.
            caller.counts[f"{type(error).__name__}: {error}"[:200]] += 1


def main():
    kind, target, http, seed = sys.argv[1:]
    caller = Caller(kind, target, http, int(seed))
    resting = threading.Event()
    thread = None
    for line in sys.stdin:
        if line == "go\n":
            resting.clear()
            caller.counts.clear()
            thread = threading.Thread(target=work, args=(caller, resting))
            thread.start()
        elif line == "rest\n":
            resting.set()
            thread.join()
            print(json.dumps(caller.counts), flush=True)


if __name__ == "__main__":
    main()
