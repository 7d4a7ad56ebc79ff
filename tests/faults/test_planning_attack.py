"""A hundred bytes that are slow to plan blocked every call for seconds, health included."""

import threading
import time

import grpc
import numpy as np
import pytest

import attnd
import stubs
from long_work import open_channel

TRIES = 10


def tensors(shape, **lists):
    _, _, _, tensor = stubs.load()
    kinds = {name: (shape, "float32") for name in ("q", "k", "v")}
    kinds |= {name: ((length,), "int32") for name, length in lists.items()}
    return [
        tensor.Tensor(name=name, shape=each, dtype=tensor.DType.Value.Value(kind))
        for name, (each, kind) in kinds.items()
    ]


def estimates():
    attention, _, methods, _ = stubs.load()
    spec = methods.MethodSpec
    fixed = spec(sparse_fixed=methods.SparseFixed(num_verts=16384, stride=65536, summary=1))
    lengths = {"cu_seqlens_q": 1025, "cu_seqlens_k": 1025}
    dilated = spec(longformer=methods.Longformer(dilation=[1] * 60000))
    linear = spec(linear_attention=methods.LinearAttention())
    return {
        "heads times sequences": (fixed, tensors((1, 16384, 0, 1), **lengths)),
        "a grid": (
            spec(image_local_2d=methods.ImageLocal2d(grid=[2**30, 1])),
            tensors((1, 1, 2**30, 1)),
        ),
        "sequences": (linear, tensors((65536, 1, 4, 4))),
        "long lists": (dilated, tensors((1, 60000, 4, 4))),
        "lengths": (linear, tensors((65536, 1, 4, 4), kv_lengths=65536)),
    }, attention.EstimateRequest


class Attack:
    """Sends the request again and again, several at a time, until the block ends."""

    def __init__(self, channel, name, request):
        self.answers = 0
        self._call = channel.unary_unary("/attn.v1.AttentionService/" + name)
        self._request, self._ends = request, threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(4)]

    def _run(self):
        while not self._ends.is_set():
            try:
                self._call(self._request, timeout=30)
            except grpc.RpcError as error:
                assert error.code() in (
                    grpc.StatusCode.INVALID_ARGUMENT,
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                ), error
            self.answers += 1

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception):
        self._ends.set()
        for thread in self._threads:
            thread.join()


def quickest_health(client):
    def ask():
        started = time.monotonic()
        assert client.health() == "SERVING"
        return time.monotonic() - started

    return min(ask() for _ in range(TRIES))


def most_seconds(client):
    """What a health check may take beside an attack: 50 times what it takes without, a tenth of a
    second at least. Seconds of planning are far above, on any machine."""
    return max(0.1, 50 * quickest_health(client))


@pytest.mark.parametrize(
    "name", ["heads times sequences", "a grid", "sequences", "long lists", "lengths"]
)
def test_health_is_answered_while_estimates_are_planned(server, client, name):
    cases, request = estimates()
    spec, sent = cases[name]
    message = request(method=spec, tensors=sent).SerializeToString()
    most = most_seconds(client)
    with open_channel(server.target) as channel:
        with Attack(channel, "Estimate", message):
            assert quickest_health(client) < most
    q = np.zeros((1, 1, 8, 8), np.float32)
    assert client.forward(q, q, q).out.shape == q.shape


@pytest.mark.parametrize("name", ["Forward", "Backward", "Estimate"])
@pytest.mark.parametrize("head", ["empty tensors", "unknown groups"])
def test_health_is_answered_while_large_heads_are_parsed(server, client, name, head):
    # A quarter of a megabyte each, the most that a head may have.
    message = {"empty tensors": b"\x1a\x00", "unknown groups": b"\xa3\x1f\xa4\x1f"}[head]
    message *= (250 << 10) // len(message)
    most = most_seconds(client)
    with open_channel(server.target) as channel:
        with Attack(channel, name, message) as attack:
            assert quickest_health(client) < most
    assert attack.answers > 0


def test_a_stream_reads_on_after_a_large_head(server, client):
    attention, _, methods, _ = stubs.load()
    spec = methods.MethodSpec(longformer=methods.Longformer(dilation=[1] * 60000))
    large = attention.RunRequest(id="large", forward=attention.ForwardRequest(method=spec))
    small = attention.RunRequest(id="small", forward=attention.ForwardRequest())
    with open_channel(server.target) as channel:
        run = channel.stream_stream("/attn.v1.AttentionService/Run")
        sent = [large, small, large]
        sent[2] = attention.RunRequest(id="again", forward=large.forward)
        replies = run((each.SerializeToString() for each in sent), timeout=30)
        answered = [attention.RunReply.FromString(reply) for reply in replies]
    assert sorted(reply.id for reply in answered) == ["again", "large", "small"]
    for reply in answered:
        assert reply.error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
