"""How much of the library's rate a server keeps: requests a second of a server on this machine over
those of the library in the caller's own process, from and to host memory, in turns.

Goal: 0.9 of requests that take a millisecond or more in process. The server gets its requests from
`load` over the loopback, a process that needs cores of its own. In process a call is asked for when
the one before has ended; on a GPU by as many threads as is best of 1 to 3, each with a device of its
own, so that copies overlap products there, too. One JSON object a case.

    python -m tests.bench.served                            the server and library of build/
    ... --device cuda:0 --server .. --load .. --lib ..  as tests/gpu/run does
"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import ml_dtypes
import numpy as np

from tests.e2e import server_process
from tests.methods import library

BUILD = pathlib.Path(__file__).resolve().parents[2] / "build"
TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
CASES = {  # method, N, heads, D, dtype
    "cpu": [("softmax", 512, 8, 64, "float32"), ("softmax", 2048, 8, 64, "float32"),
            ("linear_attention", 8192, 8, 64, "float32")],
    "cuda": [("softmax", 2048, 16, 128, "bfloat16"), ("softmax", 16384, 16, 128, "bfloat16"),
             ("softmax", 131072, 2, 128, "bfloat16"), ("linear_attention", 65536, 8, 64, "bfloat16")],
}


class InProcess:
    """Callers of the library, each a thread with an engine of its own."""

    def __init__(self, device):
        on_cpu = device == "cpu"
        threads = os.cpu_count() if on_cpu else 1
        self.engines = [library.Engine("" if on_cpu else device, threads, poison=False)
                        for _ in range(1 if on_cpu else 3)]

    def best_rate(self, request, seconds):
        """Calls a second, of the best number of callers."""
        numbers = range(1, len(self.engines) + 1)
        return max(self.rate(request, number, seconds / len(numbers)) for number in numbers)

    def rate(self, request, callers, seconds):
        counts = []
        started = time.monotonic()

        def call(engine):
            count = 0
            with library.Calls(engine.lib, [request]) as calls:
                handles = (ctypes.c_void_p * 1)(*calls.handles)
                while time.monotonic() < started + seconds or count == 0:
                    engine.check(engine.lib.attnd_execute(engine.handle, handles, 1))
                    count += 1
            counts.append(count)

        threads = [threading.Thread(target=call, args=(engine,))
                   for engine in self.engines[:callers]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(counts) == callers, "a call failed"
        return sum(counts) / (time.monotonic() - started)


def request_of(case):
    method, N, heads, D, dtype = case
    x = np.random.default_rng(1).uniform(-1, 1, (1, heads, N, D)).astype(TYPES[dtype])
    return library.Request(method, {name: x for name in "qkv"})


def served_rate(load, target, case, seconds):
    """Requests a second that `load` sees answered."""
    method, N, heads, D, dtype = case
    done = subprocess.run(
        [load, "--json", "--target", target, "--method", method, "--lengths", str(N), "--heads",
         str(heads), "--dim", str(D), "--dtype", dtype, "--concurrency", "8", "--connections", "4",
         "--duration", str(seconds)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(done.stdout)
    assert report["ok"] == report["requests"], report["refused"]
    return report["requests_per_second"]


def measure(case, options, library_calls, target):
    request = request_of(case)
    library_calls.best_rate(request, 0.1)
    served_rate(options.load, target, case, 0.2)
    inside, served = [], []
    for _ in range(options.rounds):
        inside.append(library_calls.best_rate(request, options.seconds))
        served.append(served_rate(options.load, target, case, options.seconds))
    method, N, heads, D, dtype = case
    rate = statistics.median(inside)
    ratio = statistics.median(b / a for a, b in zip(inside, served))
    return {"served": f"{method} {dtype} D{D} N{N} BH{heads}", "device": options.device,
            "in_process_seconds": round(1 / rate, 6), "seconds": round(1 / statistics.median(served), 6),
            "ratio": round(ratio, 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--server", type=pathlib.Path, default=BUILD / "server/attnd-server")
    parser.add_argument("--load", type=pathlib.Path, default=BUILD / "tests/load")
    parser.add_argument("--lib", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=2, help="of a turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", action="append", metavar="METHOD,N,HEADS,D,DTYPE",
                        help="in place of those of the device; may be repeated")
    options = parser.parse_args()
    if options.lib:
        os.environ["ATTND_C_LIB"] = str(options.lib.resolve())
    cases = CASES["cpu" if options.device == "cpu" else "cuda"]
    if options.case:
        split = [text.rsplit(",", 4) for text in options.case]
        cases = [(m, int(N), int(heads), int(D), dtype) for m, N, heads, D, dtype in split]
    server_process.SERVER = options.server
    library_calls = InProcess(options.device)
    # In process there are own kernels alone: the self-test lets libraries serve, too.
    flags = ["--device", options.device]
    if options.device != "cpu":
        flags += ["--self-test", "false", "--budget-bytes", "16GiB"]
    with tempfile.TemporaryDirectory() as folder:
        server = server_process.Server(pathlib.Path(folder), *flags)
        try:
            for case in cases:
                print(json.dumps(measure(case, options, library_calls, server.target)), flush=True)
        except Exception:
            print(server.log()[-4000:], file=sys.stderr)
            raise
        finally:
            server.kill()


if __name__ == "__main__":
    main()
