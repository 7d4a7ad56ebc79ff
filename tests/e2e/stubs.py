"""The modules that protoc generates from proto/, as users of gRPC make them."""

import functools
import sys
import tempfile

from grpc_tools import protoc

from server_process import REPOSITORY


@functools.cache
def load():
    """The modules attention_pb2, attention_pb2_grpc, methods_pb2, tensor_pb2 of attn.v1."""
    proto = REPOSITORY / "proto"
    files = sorted(str(path.relative_to(proto)) for path in (proto / "attn/v1").glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["protoc", f"-I{proto}", f"--python_out={folder}"]
        arguments += [f"--grpc_python_out={folder}", *files]
        if protoc.main(arguments) != 0:
            raise RuntimeError("protoc failed")
        sys.path.insert(0, folder)
        from attn.v1 import attention_pb2, attention_pb2_grpc, methods_pb2, tensor_pb2

        sys.path.remove(folder)
    return attention_pb2, attention_pb2_grpc, methods_pb2, tensor_pb2
