"""Peak memory of one request against a fresh server: (peak RSS - idle RSS) / (inputs + outputs).

Prints one JSON line a case. Usage: server_memory.py path/to/attnd-server
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time

import ml_dtypes
import numpy as np

import attnd


def status_kib(pid, key):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1])
    raise KeyError(key)


def start(binary):
    ports = pathlib.Path(tempfile.mkdtemp()) / "ports.json"
    process = subprocess.Popen(
        [binary, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ports-file", str(ports)],
        stderr=subprocess.DEVNULL)
    for _ in range(200):
        if ports.exists() and ports.read_text().strip():
            return process, f"127.0.0.1:{json.loads(ports.read_text())['grpc']}"
        time.sleep(0.05)
    process.kill()
    sys.exit("server_memory: the server did not start")


def measure(binary, method, options, shape, dtype, backward):
    process, target = start(binary)
    try:
        rng = np.random.default_rng(0)
        q, k, v = (rng.standard_normal(shape, dtype=np.float32).astype(dtype) for _ in range(3))
        with attnd.Client(target) as client:
            client.methods()
            idle = status_kib(process.pid, "VmRSS")
            if backward:
                client.backward(q, k, v, v, method=method, options=options)
                payload = 4 * q.nbytes + 3 * q.nbytes
            else:
                reply = client.forward(q, k, v, method=method, options=options)
                payload = 3 * q.nbytes + reply.out.nbytes + (
                    0 if reply.lse is None else reply.lse.nbytes)
        return (status_kib(process.pid, "VmHWM") - idle) * 1024 / payload
    finally:
        process.terminate()
        process.wait()


def main():
    cases = [
        ("softmax", {}, (1, 16, 4096, 64), np.float32, False),
        ("local", {"window_left": 256, "causal": True}, (1, 8, 16384, 64), np.float32, False),
        ("local", {"window_left": 256, "causal": True}, (1, 8, 16384, 64), ml_dtypes.bfloat16,
         False),
        ("linear_attention", {"causal": True}, (1, 8, 16384, 64), np.float32, False),
        ("local", {"window_left": 256, "causal": True}, (1, 8, 16384, 64), np.float32, True),
    ]
    for method, options, shape, dtype, backward in cases:
        ratio = measure(sys.argv[1], method, options, shape, dtype, backward)
        name = (f"server memory, {method} {'backward' if backward else 'forward'} "
                f"{np.dtype(dtype).name} {list(shape)}")
        print(json.dumps({"case": name, "value": round(ratio, 3),
                          "unit": "(peak - idle) / (inputs + outputs)", "goal": "<= 2.5"}),
              flush=True)


if __name__ == "__main__":
    main()
