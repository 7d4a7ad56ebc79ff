"""Calls that are cancelled as soon as they were sent, by the thousand: nothing is left behind."""


import attnd
from bad_input_cases import T, forward
from helpers import eventually, noise
from raw_http2 import RawConnection, framed

CALLS = 3000
GAUGES = ("attnd_inflight_requests", "attnd_queue_requests", "attnd_parked_requests")


def is_quiet(server):
    charged = server.metric("attnd_budget_charged_bytes")
    return charged == 0 and not any(server.metric(name) for name in GAUGES)


def test_after_the_storm(start_server, rng):
    server = start_server("--budget-bytes", "256MiB")
    q = noise(rng, (1, 2, 64, 32))
    tensors = {name: T((1, 2, 64, 32), payload=bytes(2 * 64 * 32 * 4)) for name in "qkv"}
    message = framed(forward("softmax {}", tensors))
    with attnd.Client(server.target, timeout=60) as client:
        client.forward(q, q, q)
        raw = RawConnection(server.target)
        resident = []
        for _ in range(3):
            for index in range(CALLS // 3):
                stream = raw.open("Forward", attnd_message_bytes=str(len(message) - 5))
                # A third before the message, a third in the middle of it, a third behind it.
                raw.send(stream, message[: (0, len(message) // 2, len(message))[index % 3]])
                raw.reset(stream)
            assert eventually(lambda: is_quiet(server), 30)
            assert client.forward(q, q, q).out.shape == q.shape
            resident.append(server.rss())
        raw.close()
    assert resident[-1] - resident[0] < 16 << 20, resident
    assert server.stop() == 0
