"""A stock protobuf client and a plain protobuf server in Python: generated messages, grpcio.

Usage: python_protobuf.py server | python_protobuf.py load TARGET
"""

import concurrent.futures
import sys

import grpc
from attnd._proto import ForwardReply, ForwardRequest
from load import serve

METHOD = "/attn.v1.AttentionService/Forward"
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
FLOAT32 = 1


def echo(request, _context):
    reply = ForwardReply(tensors=[request.tensors[0]], raw=[request.raw[0]])
    reply.tensors[0].name = "out"
    return reply


def run_server():
    handler = grpc.unary_unary_rpc_method_handler(
        echo, request_deserializer=ForwardRequest.FromString,
        response_serializer=ForwardReply.SerializeToString)
    service, method = METHOD.strip("/").split("/")
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2), options=OPTIONS)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {method: handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()
    server.stop(None)


def run_load(target):
    channel = grpc.insecure_channel(target, options=OPTIONS)
    forward = channel.unary_unary(METHOD, request_serializer=ForwardRequest.SerializeToString,
                                  response_deserializer=ForwardReply.FromString)

    def prepare(q, k, v):
        head = ForwardRequest()
        head.method.softmax.SetInParent()
        for index, name in enumerate(("q", "k", "v")):
            head.tensors.add(name=name, dtype=FLOAT32, shape=[1, 1, 1, len(q) // 4],
                             raw_index=index)

        def call():
            request = ForwardRequest()
            request.CopyFrom(head)
            request.raw.extend((q, k, v))
            reply = forward(request)
            return lambda: reply.raw[0]

        return call

    serve(prepare)


if __name__ == "__main__":
    run_server() if sys.argv[1] == "server" else run_load(sys.argv[2])
