"""Memory of the server: bounded by what a request carries, and given back."""

import pytest

import attnd
from helpers import noise

SHAPE = (1, 16, 4096, 64)  # 16 MiB as float32


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(
    "method, options",
    [("softmax", {}), ("local", {"window_left": 256}), ("linear_attention", {"causal": True})],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_peak_of_a_large_request(start_server, rng, method, options, direction):
    shape = SHAPE
    if method == "softmax":
        shape = (1, 64, 1024, 64)  # as many bytes, fewer pairs
    q, k, v, grad = (noise(rng, shape) for _ in range(4))
    server = start_server()
    with attnd.Client(server.target, timeout=120) as client:
        client.methods()
        idle = server.rss()
        if direction == "forward":
            reply = client.forward(q, k, v, method=method, options=options)
            payload = 3 * q.nbytes + reply.out.nbytes + reply.lse.nbytes
        else:
            client.backward(q, k, v, grad, method=method, options=options)
            payload = 7 * q.nbytes
    assert (server.peak_rss() - idle) / payload <= 2.5
