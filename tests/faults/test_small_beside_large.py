"""Every small request waited for the one large request that ran before it."""

import attnd
from helpers import eventually, noise, same_bits, together
from long_work import begin, input_of, open_channel

SMALL = 50


def test_small_requests_are_answered_while_a_large_one_runs(start_server, rng):
    server = start_server("--max-request-seconds", "0")
    inputs = [noise(rng, (1, 2, 32 + n, 16)) for n in range(SMALL)]
    client = attnd.Client(server.target, timeout=60)
    with client, open_channel(server.target) as channel:
        alone = [client.forward(q, q, q).out for q in inputs]
        large = begin(channel, input_of(client, seconds=1000))
        while server.metric("attnd_dispatch_total") <= SMALL:
            pass
        for q, out in zip(inputs, alone, strict=True):
            assert same_bits(client.forward(q, q, q).out, out)
        assert not large.done()
        assert server.metric("attnd_inflight_requests") == 1
        large.cancel()


def test_large_ones_that_wait_refuse_no_small_one(start_server, rng):
    """The seconds of large requests counted as ahead of all later requests of their client."""
    server = start_server("--max-request-seconds", "0")
    client = attnd.Client(server.target, timeout=60, retries=0)
    with client, open_channel(server.target) as channel:
        q = input_of(client, seconds=1000)
        large = [begin(channel, q) for _ in range(3)]
        assert eventually(lambda: server.metric("attnd_queue_requests") == 2, 30)
        small = noise(rng, (1, 2, 32, 16))
        for _ in range(5):
            client.forward(small, small, small, timeout=20)
        # Work of some 100 ms does not wait for them either.
        medium = input_of(client, seconds=0.06)
        client.forward(medium, medium, medium, timeout=20)
        assert server.metric("attnd_queue_requests") == 2
        assert not any(one.done() for one in large)
        for one in large:
            one.cancel()
        assert eventually(lambda: server.metric("attnd_inflight_requests") == 0, 30)


def test_mixed_lengths_have_the_bits_that_they_have_alone(start_server, rng):
    server = start_server()
    lengths = [1, 64, 8000, 63, 3000, 65, 5, 500, 6000, 17]
    inputs = [noise(rng, (1, 2, n, 16)) for n in lengths]
    with attnd.Client(server.target, timeout=120) as client:
        asks = [
            lambda q: client.forward(q, q, q).out,
            lambda q: client.backward(q, q, q, q).q,
        ]
        for ask in asks:
            alone = [ask(q) for q in inputs]
            beside = together([lambda q=q: ask(q) for q in inputs])
            assert all(same_bits(a, b) for a, b in zip(alone, beside, strict=True))
