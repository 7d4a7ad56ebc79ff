"""The rules of Run: a message that breaks one ends the stream with the exact text, after the
requests before it were answered."""

import grpc
import pytest

from bad_input_cases import field, forward
from helpers import Busy
from one_lane import client, server  # noqa: F401
from run_stream import UNANNOUNCED, RunStream, announce, attention, carry

OK = grpc.StatusCode.OK
INVALID = grpc.StatusCode.INVALID_ARGUMENT
GOOD = carry("good", forward())


@pytest.fixture
def run(server):
    with grpc.insecure_channel(server.target) as channel:
        one = RunStream(channel)
        yield one
        one.close()


MANY = "é" * 128  # 256 bytes
LARGE = carry("x", forward()) + field(15, bytes(UNANNOUNCED))

RULES = {
    "no id": ([carry("", forward())], "run: id is required, got none"),
    "long id": ([carry(MANY + "x", forward())], "run: id must have at most 256 bytes, got 257"),
    "inner id": (
        [attention.RunRequest(
            id="x", forward=attention.ForwardRequest(id="y")).SerializeToString()],
        'run: forward.id must be empty, got "y"',
    ),
    "inner payloads": (
        [attention.RunRequest(
            id="x", backward=attention.BackwardRequest(raw=[b"", b""])).SerializeToString()],
        "run: backward.raw must be empty, payloads are those of RunRequest, got 2",
    ),
    "no content": (
        [attention.RunRequest(id="x").SerializeToString()],
        "run: forward, backward or next_message_bytes is required, got none",
    ),
    "nothing at all": (
        [b""],
        "run: id is required, got none\n"
        "run: forward, backward or next_message_bytes is required, got none",
    ),
    "unknown field": (
        [GOOD + field(99, b"x")],
        "run: fields must be those of attn.v1.RunRequest, got field 99",
    ),
    "unannounced": (
        [LARGE],
        f"run: a message above {UNANNOUNCED} bytes must be announced by next_message_bytes, got "
        f"{len(LARGE)}",
    ),
    "announced too small": (
        [announce("good", len(GOOD) - 1), GOOD],
        f"run: next_message_bytes must be >= the size of the next message ({len(GOOD)} bytes), "
        f"got {len(GOOD) - 1}",
    ),
    "announced 0": ([announce("x", 0)], "run: next_message_bytes must be > 0, got 0"),
    "announced -1": ([announce("x", -1)], "run: next_message_bytes must be > 0, got -1"),
    "announced with payloads": (
        [announce("x", 10, raw=[b"y"])], "run: raw must be empty in an announcement",
    ),
    "announced for another": (
        [announce("x", 10**6), GOOD], 'run: id must be the announced "x", got "good"',
    ),
    "announced twice": (
        [announce("x", 10**6), announce("x", 10**6)],
        'run: the announced message of id "x" is required, got another announcement',
    ),
    "a head of 300 KB": (
        [GOOD + field(99, bytes(300_000))],
        "message: everything but raw must fit in 262144 bytes, got more",
    ),
    "noise": (
        [b"\xff\xfe\xfd"],
        "message: bytes must be a valid attn.v1.RunRequest, got a tag that is cut off or too long "
        "in the field at byte 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_a_broken_rule_ends_the_stream_after_what_came_before(run, name):
    messages, text = RULES[name]
    run.send(carry("before", forward()), *messages, carry("after", forward()))
    replies, code, found = run.rest()
    assert (code, found) == (INVALID, text)
    assert [reply.id for reply in replies] == ["before"]
    assert replies[0].HasField("forward")


def test_an_announcement_above_the_limit(run):
    run.send(carry("before", forward()), announce("x", 2**40))
    replies, code, text = run.rest()
    assert [reply.id for reply in replies] == ["before"]
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert text == f"run: next_message_bytes must be <= {2**30}, got {2**40}"
    assert ("grpc-retry-pushback-ms", "-1") in run.call.trailing_metadata()


def test_an_announcement_without_its_message(run):
    run.send(announce("x", 10))
    run.half_close()
    assert run.rest() == ([], INVALID, 'run: the announced message of id "x" is required, got none')


def test_longest_id_and_ids_that_come_back(run):
    for _ in range(3):
        run.send(carry(MANY, forward()))
        assert run.take()[0].id == MANY
    run.half_close()
    assert run.rest() == ([], OK, "")


def test_an_id_twice_in_flight(server, client, run):
    with Busy(client, server):
        run.send(carry("one", forward()), carry("two", forward()), carry("one", forward()))
        replies, code, text = run.rest()
    assert (code, text) == (INVALID, 'run: id must not be that of an unanswered request, got "one"')
    assert sorted(reply.id for reply in replies) == ["one", "two"]
