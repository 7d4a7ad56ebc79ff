"""Requests of a batch that are cancelled at random moments change nothing for the others."""

import random

import attnd
from attnd import _calls
from helpers import Busy, eventually, noise, same_bits
from long_work import begin, open_channel

REQUESTS = 60


def test_the_others_have_their_own_answers(start_server, rng):
    server = start_server("--max-running", "1")
    dice = random.Random(5)
    inputs = [noise(rng, (1, 1, dice.choice([3, 64, 100, 257]), 16)) for _ in range(REQUESTS)]
    client = attnd.Client(server.target, timeout=60)
    with client, open_channel(server.target) as channel:
        alone = [client.forward(q, q, q).out for q in inputs]
        for _ in range(3):
            with Busy(client, server, seconds=0.2):
                calls = [begin(channel, q) for q in inputs]
                order = list(range(REQUESTS))
                dice.shuffle(order)
                left, stays = order[: REQUESTS // 2], order[REQUESTS // 2 :]
                # Some while they wait, some while they run, some too late.
                for number, index in enumerate(left):
                    calls[index].cancel()
                    if number % 10 == 9:
                        client.health()
            for index in stays:
                reply = calls[index].result(timeout=60)
                q = inputs[index]
                request = _calls.forward_request(q, q, q, "softmax", {}, {}, "BHND")
                assert same_bits(request.result(reply).out, alone[index])
        assert eventually(lambda: server.metric("attnd_inflight_requests") == 0, 30)
        assert eventually(lambda: server.metric("attnd_budget_charged_bytes") == 0, 30)
    assert server.stop() == 0
