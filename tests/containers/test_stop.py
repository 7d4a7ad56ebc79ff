"""Stopping the container under load loses nothing that was accepted."""

import re
import threading
import time
from dataclasses import dataclass, field

import grpc
import numpy as np
import pytest

import attnd
from conftest import GRPC
from helpers import BOUND, ORACLES, eventually, noise, relative_error, same_bits

CALLERS = 12


@dataclass
class Caller:
    """Sends one request again and again until a reply reports that the server drains."""

    q: np.ndarray
    want: np.ndarray = None
    answered: list = field(default_factory=list)  # wall-clock time of each correct reply
    refused: str = ""
    lost: str = ""

    def run(self):
        with attnd.Client(GRPC, timeout=60, retries=0) as client:
            while not self.refused and not self.lost:
                try:
                    out = client.forward(self.q, self.q, self.q, method="softmax").out
                except attnd.Error as error:
                    refusal = error.code == grpc.StatusCode.UNAVAILABLE and "draining" in str(error)
                    if refusal:
                        self.refused = str(error)
                    else:
                        self.lost = f"{error.code.name}: {error}"
                else:
                    if same_bits(out, self.want):
                        self.answered.append(time.time())
                    else:
                        self.lost = "a wrong answer"


@pytest.fixture
def callers(stack):
    """Callers with different inputs, and the server's answers, checked by the oracle."""
    rng = np.random.default_rng(11)
    made = [Caller(noise(rng, (1, 8, 1024, 64))) for _ in range(CALLERS)]
    with attnd.Client(GRPC, timeout=60) as client:
        for caller in made:
            caller.want = client.forward(caller.q, caller.q, caller.q, method="softmax").out
    exact = ORACLES["softmax"].forward(dict.fromkeys("qkv", made[0].q), {})["out"]
    assert relative_error(made[0].want, exact) < BOUND[np.float32]
    return made


def drain_lines(log):
    """(wall-clock time, calls in flight) of the line `draining`, whether `drained` followed."""
    line = re.search(r"^(\S+)Z info draining in_flight=(\d+)", log, re.M)
    assert line, log
    stamp, in_flight = line.groups()
    began = np.datetime64(stamp, "ms").astype(np.int64) / 1000
    return began, int(in_flight), re.search(r"info drained", log) is not None


def test_nothing_in_flight_is_lost(stack, callers):
    threads = [threading.Thread(target=caller.run) for caller in callers]
    for thread in threads:
        thread.start()
    assert eventually(lambda: all(len(c.answered) >= 2 or c.lost for c in callers), seconds=60)

    stack.compose("stop", "attnd")  # with the file's stop_grace_period

    for thread in threads:
        thread.join()
    state = stack.inspect("attnd")["State"]
    began, in_flight, is_drained = drain_lines(stack.logs("attnd"))
    answered = sum(len(c.answered) for c in callers)
    after = sum(when >= began for c in callers for when in c.answered)
    refused = sum(bool(c.refused) for c in callers)
    lost = [c.lost for c in callers if c.lost]
    print(f"{answered} answers ({after} of them after SIGTERM, {in_flight} calls were in flight), "
          f"{refused} refused while draining, {len(lost)} lost")
    assert not lost
    assert refused == CALLERS, "every caller got its refusal from the server itself"
    assert in_flight >= 1 and after >= 1, "the stop found nothing in flight: the test shows nothing"
    assert is_drained and state["ExitCode"] == 0 and state["Status"] == "exited"


def test_started_again_it_serves(stack):
    stack.compose("start", "attnd")
    stack.wait_healthy("attnd")
    q = noise(np.random.default_rng(3), (1, 2, 64, 32))
    with attnd.Client(GRPC, timeout=30) as client:
        exact = ORACLES["softmax"].forward(dict.fromkeys("qkv", q), {})["out"]
        assert relative_error(client.forward(q, q, q).out, exact) < BOUND[np.float32]
