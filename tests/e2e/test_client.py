"""The client alone: metadata, targets, errors. The peer is a small gRPC server in Python."""

import copy
import pickle
import re

import grpc
import numpy as np
import pytest

import attnd
from attnd import _proto
from peer import Peer, first_tensor
from server_process import REPOSITORY

Q = np.ones((1, 1, 2, 8), np.float32)
README = REPOSITORY / "client/python/README.md"


@pytest.fixture
def peer():
    one = Peer()
    yield one
    one.stop()


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


def test_requests_declare_their_size(peer):
    sizes = []

    def answer(request, context):
        sizes.append(len(request))
        return first_tensor(request, context)

    peer.answer = answer
    with attnd.Client(peer.target, token="secret") as client:
        for call in (client.forward, client.backward):
            call(Q, Q, Q)
            assert peer.metadata["attnd-message-bytes"] == str(sizes[-1])
            assert peer.metadata["authorization"] == "Bearer secret"
        peer.answer = lambda request, context: b""
        client.info()
    assert "attnd-message-bytes" not in peer.metadata


def test_only_a_backward_that_need_not_be_deterministic_says_so(peer):
    seen = []

    def answer(request, context):
        seen.append(_proto.BackwardRequest.FromString(request))
        return first_tensor(request, context)

    peer.answer = answer
    with attnd.Client(peer.target) as client:
        client.backward(Q, Q, Q, Q)
        client.backward(Q, Q, Q, Q, deterministic=False)
    assert [request.HasField("deterministic") for request in seen] == [False, True]
    assert not seen[1].deterministic


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


@pytest.mark.parametrize(
    "settings, arguments, seconds",
    [
        ({}, {}, 600),
        ({"timeout": 50}, {}, 50),
        ({"timeout": 50}, {"timeout": 90}, 90),
        ({"timeout": float("inf")}, {}, None),
        ({}, {"timeout": float("inf")}, None),
    ],
)
def test_calls_have_a_deadline_unless_set_otherwise(peer, settings, arguments, seconds):
    """A call without a timeout waited without limit."""
    left = []

    def answer(request, context):
        left.append(context.time_remaining())
        return first_tensor(request, context)

    peer.answer = answer
    with attnd.Client(peer.target, **settings) as client:
        client.forward(Q, Q, Q, **arguments)
    if seconds is None:
        # gRPC reports no deadline as the largest time.
        assert left[0] is None or left[0] > 1e9
    else:
        assert seconds - 30 < left[0] < seconds + 1


def test_a_timeout_that_is_no_number(peer):
    with pytest.raises(attnd.Error, match="client: timeout must be a number of seconds, got nan"):
        attnd.Client(peer.target, timeout=float("nan"))
    with attnd.Client(peer.target) as client, pytest.raises(attnd.Error, match="got nan"):
        client.forward(Q, Q, Q, timeout=float("nan"))


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


def sent_by(peer, call):
    """The request of a call, by the names of its tensors."""
    requests = []

    def answer(request, context):
        requests.append(_proto.ForwardRequest.FromString(request))
        return first_tensor(request, context)

    peer.answer = answer
    call()
    (request,) = requests
    return {tensor.name: (tensor, request.raw[tensor.raw_index]) for tensor in request.tensors}


@pytest.mark.parametrize("dtype", ["?", "u1", "i1", "<i4", ">i4", "i8", "u8"])
@pytest.mark.parametrize("method, name", [("longformer", "global_mask"), ("block_sparse", "layout")])
def test_masks_of_integers_travel_as_bytes(peer, method, name, dtype):
    """A mask of int64, which NumPy makes of a list, was refused by the server as int32."""
    mask = np.array([0, 1, 1, 0]).astype(dtype)
    with attnd.Client(peer.target) as client:
        sent = sent_by(
            peer, lambda: client.forward(Q, Q, Q, method=method, tensors={name: mask})
        )
    tensor, raw = sent[name]
    assert tensor.dtype == _proto.DType.uint8
    assert raw == b"\0\1\1\0"


@pytest.mark.parametrize("worst, dtype", [(2, "i8"), (-1, "i4"), (256, "u8")])
def test_masks_of_other_integers_are_refused(worst, dtype):
    mask = np.array([0, 1, worst], dtype)
    with attnd.Client("127.0.0.1:1") as client, pytest.raises(attnd.Error) as caught:
        client.forward(Q, Q, Q, method="longformer", tensors={"global_mask": mask})
    assert str(caught.value) == f"longformer: global_mask must be 0 or 1, got {worst}"


def test_one_array_as_mask_and_as_integers(peer):
    """It travels once for each of its two dtypes."""
    array = np.array([0, 1, 1])
    tensors = {"global_mask": array, "kv_lengths": array, "q_lengths": array}
    with attnd.Client(peer.target) as client:
        sent = sent_by(peer, lambda: client.forward(Q, Q, Q, method="longformer", tensors=tensors))
    assert sent["global_mask"][1] == array.astype("u1").tobytes()
    assert sent["kv_lengths"][1] == array.astype("<i4").tobytes()
    assert sent["kv_lengths"][0].raw_index == sent["q_lengths"][0].raw_index


@pytest.mark.parametrize("copy", [lambda x: pickle.loads(pickle.dumps(x)), copy.copy,
                                  copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
def test_a_client_can_be_pickled(peer, copy):
    """With its settings; the copy connects for itself."""
    with attnd.Client(peer.target, token="secret", timeout=7, retries=0) as client:
        client.forward(Q, Q, Q)
        twin = copy(client)
    with twin:
        seconds = []
        peer.answer = lambda request, context: (
            seconds.append(context.time_remaining()) or first_tensor(request, context)
        )
        assert np.array_equal(twin.forward(Q, Q, Q).out, Q)
        assert twin.target == peer.target
        assert peer.metadata["authorization"] == "Bearer secret"
        assert 0 < seconds[0] < 8

        peer.answer = lambda request, context: context.abort(grpc.StatusCode.UNAVAILABLE, "busy")
        with pytest.raises(attnd.Error, match="busy"):
            twin.forward(Q, Q, Q)
        with twin.pipeline() as pipeline:
            peer.answer = first_tensor
            assert np.array_equal(pipeline.forward(Q, Q, Q).result().out, Q)


# Each in a spelling of gRPC's; PORT is the peer's.
LOOPBACK = [
    "127.0.0.1:PORT", "localhost:PORT", "LocalHost:PORT", "0.0.0.0:PORT",
    "ipv4:127.0.0.1:PORT", "ipv4:127.0.0.2:PORT,127.0.0.1:PORT", "dns:localhost:PORT",
    "dns:///localhost:PORT", "dns:///127.0.0.1:PORT", "[::1]:PORT", "[::]:PORT",
    "[::ffff:127.0.0.1]:PORT", "ipv6:[::1]:PORT", "ipv6:%5B::1%5D:PORT", "dns:///[::1]:PORT",
]  # fmt: skip


@pytest.fixture
def idle_proxy(monkeypatch):
    """The environment names a proxy where nothing listens."""
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.7:7")


@pytest.mark.parametrize("target", LOOPBACK)
def test_no_proxy_stands_before_the_loopback(target, idle_proxy):
    """http_proxy caught `ipv4:127.0.0.1`, `dns:///localhost`, `0.0.0.0`."""
    address = "[::]:0" if "::" in target else "0.0.0.0:0"
    try:
        peer = Peer(address)
    except RuntimeError:
        pytest.skip("no IPv6 here")
    port = peer.target.rpartition(":")[2]
    try:
        with attnd.Client(target.replace("PORT", port), retries=0, timeout=20) as client:
            assert np.array_equal(client.forward(Q, Q, Q).out, Q)
    finally:
        peer.stop()


@pytest.mark.parametrize("target", ["localhost.example:9", "dns:///192.0.2.1:9", "ipv4:192.0.2.1:9",
                                    "128.0.0.1:9", "ipv4:127.0.0.1:9,192.0.2.1:9", "[2001:db8::1]:9"])
def test_a_proxy_stands_before_other_targets(target, idle_proxy):
    with attnd.Client(target, retries=0, timeout=20) as client, pytest.raises(attnd.Error) as caught:
        client.forward(Q, Q, Q)
    assert "127.0.0.7:7: Failed to connect" in str(caught.value)


def test_the_setting_for_stubs_that_the_readme_names(peer):
    """A stock stub drops a reply above 4 MB after the work."""
    (setting,) = re.findall(r"^\| Python \| `(.*)` \|$", README.read_text(), re.M)
    request = {"method": {"softmax": {}}, "raw": [bytes(5 << 20)]}
    request["tensors"] = [{"name": "q", "dtype": "float32", "shape": [1, 1, 5 << 18, 1], "raw_index": 0}]
    message = _proto.ForwardRequest(**request).SerializeToString()

    def reply_bytes(channel):
        with channel:
            return len(channel.unary_unary("/attn.v1.AttentionService/Forward")(message))

    with pytest.raises(grpc.RpcError) as caught:
        reply_bytes(grpc.insecure_channel(peer.target))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert reply_bytes(eval(setting, {"grpc": grpc, "target": peer.target})) > 5 << 20


def test_messages_are_in_a_pool_of_their_own():
    """A program may load stubs of the same files, or of another version of them."""
    from google.protobuf import descriptor_pool

    assert _proto.Tensor.DESCRIPTOR.file.pool is not descriptor_pool.Default()
