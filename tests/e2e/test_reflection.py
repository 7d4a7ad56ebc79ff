"""A client that has only the address finds the service by reflection and calls it."""

import contextlib
import signal
import threading

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from helpers import BOUND, ORACLES, noise, relative_error

SERVICES = [
    "attn.v1.AttentionService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1alpha.ServerReflection",
]


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(server.target) as one:
        yield one


@pytest.fixture
def database(channel):
    return ProtoReflectionDescriptorDatabase(channel)


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
    assert sorted(database.get_services()) == SERVICES


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
        (database.FindAllExtensionNumbers, "attn.v1.Nothing"),
    ]:
        with pytest.raises(KeyError):
            find(name)
    assert list(database.FindAllExtensionNumbers("attn.v1.Tensor")) == []


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
