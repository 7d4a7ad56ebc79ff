"""A client that has only the address finds the service by reflection and calls it."""

import base64
import contextlib
import json
import re
import signal
import threading

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from helpers import BOUND, ORACLES, noise, relative_error
from reflected import VERSIONS, ReflectedFiles
from server_process import REPOSITORY

SERVICES = [
    "attn.v1.AttentionService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
]


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(server.target) as one:
        yield one


@pytest.fixture(params=VERSIONS)
def database(channel, request):
    """By each version of the service: newer tools ask the newer one first."""
    return ReflectedFiles(channel, request.param)


@pytest.fixture
def pool(database):
    return descriptor_pool.DescriptorPool(database)


def call(channel, method, request):
    """The reply to one request of a unary method, known by its descriptor alone."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    invoke = channel.unary_unary(
        path,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )
    return invoke(request, timeout=30)


def test_services(database):
    assert sorted(database.services()) == SERVICES


def test_every_method_that_is_described_is_served(channel, pool):
    for name in SERVICES:
        service = pool.FindServiceByName(name)
        assert service.methods
        for method in service.methods:
            # A call without a message: any status but UNIMPLEMENTED shows that the method exists.
            stream = channel.stream_stream(f"/{name}/{method.name}")(iter(()), timeout=30)
            with contextlib.suppress(grpc.RpcError):
                list(stream)
            assert stream.code() != grpc.StatusCode.UNIMPLEMENTED, (name, method.name)


def test_forward_from_reflected_descriptors(channel, pool, rng):
    method = pool.FindServiceByName("attn.v1.AttentionService").methods_by_name["Forward"]
    request = message_factory.GetMessageClass(method.input_type)()
    request.method.local.window_left = 3
    request.method.local.causal = True
    arrays = {name: noise(rng, (2, 3, 19, 8)) for name in "qkv"}
    for index, (name, array) in enumerate(arrays.items()):
        # float32 by its number: `dtype` of a dynamic message takes no name.
        request.tensors.add(name=name, dtype=1, shape=array.shape, raw_index=index)
        request.raw.append(array.tobytes())

    reply = call(channel, method, request)

    named = {tensor.name: tensor for tensor in reply.tensors}
    assert "out" in named, named.keys()
    tensor = named["out"]
    out = np.frombuffer(reply.raw[tensor.raw_index], np.float32).reshape(tensor.shape)
    exact = ORACLES["local"].forward(arrays, {"window_left": 3, "causal": True})["out"]
    assert relative_error(out, exact) < BOUND[np.float32]


def grpcurl_example():
    """(JSON of the request, name of the method, JSON of the reply) as deploy/README.md prints them."""
    text = (REPOSITORY / "deploy" / "README.md").read_text(encoding="utf-8")
    form = r"grpcurl -plaintext -d @ \S+ (\S+) <<'EOF'\n(.*?)\n *EOF\n(.*?)\n\n"
    command = re.search(form, text, re.DOTALL)
    assert command is not None, "deploy/README.md has no grpcurl command"
    return command[2], command[1], command[3]


def test_the_grpcurl_example_works_as_printed(channel, pool):
    """grpcurl itself is in no Debian package: its parts are reflection and protobuf's JSON."""
    sent, name, printed = grpcurl_example()
    service, _, method_name = name.partition("/")
    method = pool.FindServiceByName(service).methods_by_name[method_name]
    request = json_format.Parse(sent, message_factory.GetMessageClass(method.input_type)())

    reply = json.loads(json_format.MessageToJson(call(channel, method, request)))

    expected = json.loads(printed)
    assert {name: reply[name] for name in expected} == expected
    out = np.frombuffer(base64.b64decode(reply["raw"][0]), np.float32)
    x = np.array([1, 2], np.float64)  # q, k and v; causal, scale 1
    weights = np.exp(np.outer(x, x)) * np.tri(2)
    assert relative_error(out, weights @ x / weights.sum(1)) < BOUND[np.float32]


def test_options_of_every_method_are_described(channel, pool, client):
    spec = pool.FindMessageTypeByName("attn.v1.MethodSpec")
    described = {field.name: field.message_type for field in spec.fields}
    for method in client.methods():
        names = {field.name for field in described[method.id].fields}
        assert {option.name for option in method.options} == names


@pytest.mark.parametrize(
    "name",
    ["attn.v1.Tensor", "attn.v1.Tensor.name", "attn.v1.DType.Value", "attn.v1.DType.float32"],
)
def test_symbols(database, name):
    assert database.FindFileContainingSymbol(name).name == "attn/v1/tensor.proto"


def test_what_does_not_exist(database):
    for find, name in [
        (database.FindFileContainingSymbol, "attn.v1.Nothing"),
        (database.FindFileByName, "nothing.proto"),
        (database.extension_numbers, "attn.v1.Nothing"),
    ]:
        with pytest.raises(KeyError):
            find(name)
    assert database.extension_numbers("attn.v1.Tensor") == []


def test_an_open_stream_does_not_keep_the_server(start_server):
    server = start_server()
    stop = threading.Event()

    def requests():
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        stop.wait(30)

    with grpc.insecure_channel(server.target) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        stream = stub.ServerReflectionInfo(requests())
        assert len(next(stream).list_services_response.service) == len(SERVICES)

        server.signal(signal.SIGTERM)

        with pytest.raises(grpc.RpcError) as ended:
            next(stream)
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
        assert ended.value.details() == "server is draining"
        stop.set()
        assert server.wait(10) == 0
