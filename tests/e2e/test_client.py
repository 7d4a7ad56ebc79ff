"""The client's own side: metadata, targets, errors. The peer is a small gRPC server in Python."""

import concurrent.futures
import pickle

import grpc
import numpy as np
import pytest

import attnd
from attnd import _proto

Q = np.ones((1, 1, 2, 8), np.float32)


class Peer:
    """Answers every Forward with `answer(request bytes, context)`."""

    def __init__(self, address):
        self.answer = None
        self.metadata = {}
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
        forward = grpc.unary_unary_rpc_method_handler(self._forward)
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("attn.v1.AttentionService", {"Forward": forward})]
        )
        self.port = self._server.add_insecure_port(address)
        self._server.start()

    def _forward(self, request, context):
        self.metadata = dict(context.invocation_metadata())
        return self.answer(request, context)

    def stop(self):
        self._server.stop(None).wait()


@pytest.fixture
def peer():
    one = Peer("127.0.0.1:0")
    one.target = f"127.0.0.1:{one.port}"
    yield one
    one.stop()


def first_tensor(request, context):
    """The first tensor of the request as out."""
    sent = _proto.ForwardRequest.FromString(request)
    reply = _proto.ForwardReply(raw=[sent.raw[0]])
    out = reply.tensors.add()
    out.CopyFrom(sent.tensors[0])
    out.name = "out"
    return reply.SerializeToString()


def test_token_travels_as_bearer(peer):
    peer.answer = first_tensor
    with attnd.Client(peer.target, token="secret") as client:
        reply = client.forward(Q, Q, Q)
    assert peer.metadata["authorization"] == "Bearer secret"
    assert np.array_equal(reply.out, Q)
    assert reply.lse is None

    with attnd.Client(peer.target) as client:
        client.forward(Q, Q, Q)
    assert "authorization" not in peer.metadata


def test_unix_socket(tmp_path):
    peer = Peer(f"unix:{tmp_path}/attnd.sock")
    peer.answer = first_tensor
    with attnd.Client(f"unix:{tmp_path}/attnd.sock") as client:
        assert np.array_equal(client.forward(Q, Q, Q).out, Q)
    peer.stop()


def test_request_says_what_was_asked(peer):
    seen = []

    def answer(request, context):
        seen.append(_proto.ForwardRequest.FromString(request))
        return first_tensor(request, context)

    peer.answer = answer
    with attnd.Client(peer.target) as client:
        client.forward(
            Q,
            method="local",
            options={"window_left": 3, "granularity": "token", "scale": None},
            tensors={"kv_lengths": [2]},
            device="cpu",
            priority=-7,
            layout="BNHD",
        )
    (request,) = seen
    assert request.device == "cpu" and request.priority == -7
    assert request.method.WhichOneof("method") == "local"
    assert request.method.local.window_left == 3
    assert request.method.local.HasField("granularity")
    assert not request.method.local.HasField("scale")
    q, lengths = request.tensors
    assert (q.name, list(q.shape), q.layout) == ("q", [1, 1, 2, 8], _proto.Layout.BNHD)
    assert (lengths.name, lengths.dtype, lengths.layout) == ("kv_lengths", _proto.DType.int32, 0)
    assert list(request.raw) == [Q.tobytes(), np.array([2], np.int32).tobytes()]


def test_method_without_options_is_still_named(peer):
    seen = []

    def answer(request, context):
        seen.append(_proto.ForwardRequest.FromString(request).method.WhichOneof("method"))
        return first_tensor(request, context)

    peer.answer = answer
    with attnd.Client(peer.target) as client:
        client.forward(Q, Q, Q, method="linear_attention")
    assert seen == ["linear_attention"]


def test_errors_carry_code_and_every_reason(peer):
    def refuse(request, context):
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue: full\nbytes: too many")

    peer.answer = refuse
    with attnd.Client(peer.target) as client, pytest.raises(attnd.Error) as caught:
        client.forward(Q, Q, Q)
    error = caught.value
    assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.reasons == ["queue: full", "bytes: too many"]
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("reply", [b"\xff", b"", b"\x7a\x05ab"], ids=repr)
def test_malformed_replies_are_errors(peer, reply):
    peer.answer = lambda request, context: reply
    with attnd.Client(peer.target) as client, pytest.raises(attnd.Error) as caught:
        client.forward(Q, Q, Q)
    assert caught.value.code == grpc.StatusCode.INTERNAL
    assert str(caught.value).startswith("reply: ")


def test_timeout_of_client_and_of_call(peer):
    def never(request, context):
        while context.is_active():
            pass

    peer.answer = never
    with attnd.Client(peer.target, timeout=0.05) as client, pytest.raises(attnd.Error) as caught:
        client.forward(Q, Q, Q)
    assert caught.value.code == grpc.StatusCode.DEADLINE_EXCEEDED
    with attnd.Client(peer.target) as client, pytest.raises(attnd.Error) as caught:
        client.forward(Q, Q, Q, timeout=0.05)
    assert caught.value.code == grpc.StatusCode.DEADLINE_EXCEEDED


def test_nobody_listens():
    with attnd.Client("127.0.0.1:1") as client, pytest.raises(attnd.Error) as caught:
        client.forward(Q, Q, Q)
    assert caught.value.code == grpc.StatusCode.UNAVAILABLE
    assert str(caught.value) == (
        "cannot reach attnd server at 127.0.0.1:1: Connection refused. Is it running? "
        "Start it with attnd-server or deploy/quickstart --serve"
    )


def test_closed_client(peer):
    client = attnd.Client(peer.target)
    client.close()
    with pytest.raises(attnd.Error) as caught:
        client.forward(Q, Q, Q)
    assert caught.value.code == grpc.StatusCode.CANCELLED


@pytest.mark.parametrize(
    "arguments, fragment",
    [
        ({"priority": 2**40}, "request: priority"),
        ({"priority": "high"}, "request: priority"),
        ({"device": 3}, "request: device"),
        ({"layout": "NBHD"}, "softmax: layout must be BHND or BNHD, got 'NBHD'"),
        ({"method": "exact"}, "request: method must be one of softmax"),
        ({"tensors": {"x": object()}}, "softmax: x must be float32"),
    ],
)
def test_wrong_arguments(arguments, fragment):
    with attnd.Client("127.0.0.1:1") as client, pytest.raises(attnd.Error) as caught:
        client.forward(Q, Q, Q, **arguments)
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT
    assert fragment in str(caught.value)


def test_messages_are_in_a_pool_of_their_own():
    """A program may load stubs of the same files, or of another version of them."""
    from google.protobuf import descriptor_pool

    assert _proto.Tensor.DESCRIPTOR.file.pool is not descriptor_pool.Default()
