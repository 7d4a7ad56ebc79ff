"""What a server says of requests that are legal and seldom meant, and of those that it would refuse:
in replies of every call, as warnings of the client, in the output of attn."""

import asyncio
import subprocess
import sys
import warnings

import grpc
import numpy as np
import pytest

import attnd
from attn_command import attn, ok  # noqa: F401
from attnd import _calls, _notes, _proto
from helpers import ORACLES, BOUND, noise, relative_error

LENGTHS = np.array([701, 1501], np.int32)
LOCAL = {"method": "local", "options": {"window_left": 127}}
HINT = "send causal_offset = kv_lengths - Nq"


@pytest.fixture
def cache(rng):
    """One query each of two sequences, whose keys are padded to 2048 slots."""
    k, v = (noise(rng, (2, 1, 2048, 8)) for _ in range(2))
    return noise(rng, (2, 1, 1, 8)), k, v


@pytest.fixture
def fresh(monkeypatch):
    """As a process that has not been warned yet."""
    monkeypatch.setattr(_notes, "_warned", set())


@pytest.mark.filterwarnings("ignore::attnd.Note")
def test_a_padded_cache(client, cache):
    """One query with window 127 got rows of zeros without a word."""
    q, k, v = cache
    lengths = {"kv_lengths": LENGTHS}
    noted = client.forward(q, k, v, tensors=lengths, **LOCAL)
    assert len(noted.notes) == 1 and HINT in noted.notes[0], noted.notes
    gradients = client.backward(q, k, v, q, tensors=lengths, **LOCAL)
    assert gradients.notes == noted.notes
    shapes = (q.shape, k.shape, v.shape)
    assert client.estimate(*shapes, tensors=lengths, **LOCAL).notes == noted.notes
    # Without values lengths count as full.
    described = {"kv_lengths": ((2,), np.int32)}
    assert client.estimate(*shapes, tensors=described, **LOCAL).notes == ()

    right = client.forward(
        q, k, v, tensors={**lengths, "causal_offset": LENGTHS - 1}, **LOCAL)  # fmt: skip
    assert right.notes == ()
    for b, n in enumerate(LENGTHS):
        alone = {"q": q[b:b + 1], "k": k[b:b + 1, :, :n], "v": v[b:b + 1, :, :n]}
        exact = ORACLES["local"].forward(alone, LOCAL["options"])["out"]
        assert relative_error(right.out[b:b + 1], exact) < BOUND[np.float32]


def test_a_note_is_warned_of_once_a_process(client, cache, fresh):
    with pytest.warns(attnd.Note, match=HINT) as caught:
        client.forward(*cache, tensors={"kv_lengths": LENGTHS}, **LOCAL)
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = client.forward(*cache, tensors={"kv_lengths": LENGTHS - 1}, **LOCAL)
    assert HINT in again.notes[0]
    with pytest.warns(attnd.Note, match="window_right has no effect"):
        client.forward(*(x[:, :, :1] for x in cache), method="local",
                       options={"window_left": 1, "window_right": 2, "causal": True})


def test_a_note_that_is_made_an_error_is_of_its_request_alone(client, cache, fresh):
    """The thread that reads the stream would have died of it, and with it all others."""
    q = np.ones((1, 1, 4, 8), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error", attnd.Note)
        with client.pipeline() as p:
            noted = p.forward(*cache, tensors={"kv_lengths": LENGTHS}, **LOCAL)
            others = [p.forward(q, q, q) for _ in range(5)]
        assert isinstance(noted.exception(), attnd.Note)
        assert all(other.result().notes == () for other in others)


@pytest.mark.filterwarnings("ignore::attnd.Note")
def test_notes_of_asyncio_and_pipelines(server, client, cache):
    want = client.forward(*cache, tensors={"kv_lengths": LENGTHS}, **LOCAL).notes

    async def both():
        async with attnd.aio.Client(server.target) as c, c.pipeline() as p:
            arguments = {"tensors": {"kv_lengths": LENGTHS}, **LOCAL}
            return [await c.forward(*cache, **arguments), await p.forward(*cache, **arguments)]

    assert [result.notes for result in asyncio.run(both())] == [want, want] and len(want) == 1


def test_notes_of_a_stock_stub(server, cache):
    """They are a field of the reply, which any client reads."""
    q, k, v = cache
    request = _calls.forward_request(
        q, k, v, "local", {"window_left": 127}, {"kv_lengths": LENGTHS}, "BHND")  # fmt: skip
    with grpc.insecure_channel(server.target) as channel:
        reply = channel.unary_unary(_calls.SERVICE + "Forward")(request.message(), timeout=30)
    assert HINT in _proto.ForwardReply.FromString(reply).notes[0]


def test_attn_shows_notes(attn, tmp_path, cache):  # noqa: F811
    q, k, v = cache
    np.savez(tmp_path / "cache.npz", q=q, k=k, v=v, kv_lengths=LENGTHS)
    note = "attn: note: local: kv_lengths end before Nk"
    for command in (["run", "cache.npz"], ["estimate", "cache.npz"]):
        done = attn(*command, "--method", "local{window_left:127}")
        ok(done)
        assert done.stderr.startswith(note) and done.stderr.count("\n") == 1, done.stderr
    x = noise(np.random.default_rng(0), (1, 1, 20, 8))
    np.savez(tmp_path / "square.npz", q=x, k=x, v=x)
    done = attn("compare", "square.npz", "--method", "local{window_left:3 look_backward:2}")
    ok(done)
    assert done.stderr == (
        "attn: note: local: look_backward has no effect unless granularity is block\n")


def test_the_presets_of_compare_are_meant(attn, tmp_path):  # noqa: F811
    x = noise(np.random.default_rng(0), (1, 2, 64, 8))
    np.savez(tmp_path / "square.npz", q=x, k=x, v=x)
    assert "note:" not in attn("compare", "square.npz", "--no-grad").stderr


def test_a_program_sees_the_warning_at_its_own_line(server):
    program = f"""
import numpy as np, attnd
x = np.ones((1, 1, 4, 8), np.float32)
with attnd.Client({server.target!r}) as c:
    for _ in range(3):
        c.forward(x, x, x, method="performer", options={{"kernel_fn": "exp"}})
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stderr
    warned = [line for line in done.stderr.splitlines() if "Note: " in line]
    assert warned == ["<string>:6: Note: performer: kernel_fn has no effect unless kind is "
                      "generalized"], done.stderr  # fmt: skip


# --- estimates of what is refused ---


def refusal(client, arrays, **options):
    with pytest.raises(attnd.Error) as caught:
        client.forward(*arrays, **options)
    return str(caught.value)


def shapes_of(arrays):
    return [array.shape for array in arrays]


def test_estimates_say_what_would_be_refused(start_server, rng):
    """`attn estimate` printed figures of requests that the server refuses, without a word."""
    server = start_server("--budget-bytes", "4MiB", "--max-message-bytes", "3MiB")
    large = [np.zeros((1, 1, 1 << 18, 1), np.float32) + i for i in range(3)]
    wide = [noise(rng, (1, 1, 8192, 24)) for _ in range(3)]
    tall = [np.zeros((1, 1, n, d), np.float32) for n, d in ((1 << 14, 1), (8, 1), (8, 64))]
    small = [noise(rng, (1, 1, 8, 8)) for _ in range(3)]
    with attnd.Client(server.target, timeout=60, retries=0) as client:
        for arrays, limit in ((large, 3 << 20), (wide, 4 << 20), (tall, 3 << 20)):
            refused = refusal(client, arrays)
            foretold = client.estimate(*shapes_of(arrays)).refusals
            assert refused in foretold
            assert str(limit) in refused
        assert client.estimate(*shapes_of(small)).refusals == ()
        assert client.forward(*small).out.shape == small[0].shape


def test_estimates_say_that_seconds_are_too_many(start_server, attn):  # noqa: F811
    server = start_server("--max-request-seconds", "0.5")
    shape = (1, 8, 1 << 18, 16)
    limit = "softmax: predicted seconds must be <= 0.5 (--max-request-seconds), got "
    with attnd.Client(server.target, timeout=60) as client:
        reasons = client.estimate(shape, shape, shape).refusals
    (found,) = (reason for reason in reasons if reason.startswith(limit))
    assert float(found.removeprefix(limit)) > 0.5
    done = attn("estimate", "--shape", ",".join(map(str, shape)), target=server.target)
    assert f"\n  would be refused: {limit}" in ok(done)
