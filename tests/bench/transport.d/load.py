"""A Python client with the interface of transport_load (C++): commands in, JSON lines out."""

import json
import random
import struct
import sys
import time


def random_floats(size, seed):
    """`size` bytes of float32 in [0.5, 1)."""
    source = random.Random(seed)
    block = struct.pack("<1024f", *(0.5 + source.random() / 2 for _ in range(1024)))
    return (block * (size // len(block) + 1))[:size]


def serve(prepare):
    """Answers commands until the input ends.

    prepare(q, k, v) returns a function without arguments that makes one call and returns a
    function that returns the bytes of out; what the latter does is not timed.
    """
    size, call, q = None, None, None
    for line in sys.stdin:
        words = line.split()
        command, wanted, callers = words[0], int(words[1]), int(words[2])
        assert callers == 1, "Python clients have one caller"
        if wanted != size:
            size = wanted
            q, k = random_floats(size, 1), random_floats(size, 2)
            # Separate memory for each, as for every tensor of a caller.
            call = prepare(q, k, bytes(bytearray(q)))
        if command == "verify":
            answer = {"right": call()() == q}
        else:
            answer = measure(call, float(words[3]))
        print(json.dumps(answer), flush=True)


def measure(call, seconds):
    latencies = []
    start = begun = time.perf_counter()
    end = start + seconds
    while begun < end:
        call()
        done = time.perf_counter()
        latencies.append(done - begun)
        begun = done
    latencies.sort()
    n = len(latencies)
    return {"calls": n, "seconds": begun - start, "p50_us": latencies[n // 2] * 1e6,
            "p99_us": latencies[n * 99 // 100] * 1e6}
