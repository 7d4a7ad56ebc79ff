"""Message classes of proto/, from descriptors compiled when the package was built.

They are in a separate pool: a program may also load stubs of the same files.
"""

from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_pool = descriptor_pool.DescriptorPool()


def _load() -> None:
    file = resources.files(__name__).joinpath("attnd.desc")
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise ImportError(
            "attnd is not built: install it with `pip install ./client/python`"
        ) from None
    for proto in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        _pool.AddSerializedFile(proto.SerializeToString())


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(name))


_load()

BackwardReply = _message("attn.v1.BackwardReply")
BackwardRequest = _message("attn.v1.BackwardRequest")
DType = _message("attn.v1.DType")
EstimateReply = _message("attn.v1.EstimateReply")
EstimateRequest = _message("attn.v1.EstimateRequest")
ForwardReply = _message("attn.v1.ForwardReply")
ForwardRequest = _message("attn.v1.ForwardRequest")
HealthCheckRequest = _message("grpc.health.v1.HealthCheckRequest")
HealthCheckResponse = _message("grpc.health.v1.HealthCheckResponse")
Layout = _message("attn.v1.Layout")
ListMethodsReply = _message("attn.v1.ListMethodsReply")
ListMethodsRequest = _message("attn.v1.ListMethodsRequest")
MethodSpec = _message("attn.v1.MethodSpec")
RunReply = _message("attn.v1.RunReply")
RunRequest = _message("attn.v1.RunRequest")
ServerInfoReply = _message("attn.v1.ServerInfoReply")
ServerInfoRequest = _message("attn.v1.ServerInfoRequest")
Tensor = _message("attn.v1.Tensor")
