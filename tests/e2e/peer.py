"""A small gRPC server in Python: the peer in tests of the clients alone."""

import concurrent.futures

import grpc

from attnd import _proto


class Peer:
    """Answers Forward and Backward with `answer(request bytes, context)`, and Run with what
    `run(iterator of request bytes, context)` yields. Remembers the metadata of the last call.
    """

    def __init__(self, address="127.0.0.1:0", workers=4, credentials=None):
        self.answer = first_tensor
        self.run = run_answers
        self.check = None  # answers of health, like those of `answer`, which stands in for it
        self.metadata = {}
        # Requests may exceed gRPC's default of 4 MiB, as the replies that echo them do.
        self._server = grpc.server(
            concurrent.futures.ThreadPoolExecutor(workers),
            options=[("grpc.max_receive_message_length", -1)],
        )
        unary = grpc.unary_unary_rpc_method_handler(self._answer)
        check = grpc.unary_unary_rpc_method_handler(self._check)
        handlers = {name: unary for name in ("Forward", "Backward", "Estimate", "ServerInfo")}
        handlers["Run"] = grpc.stream_stream_rpc_method_handler(self._run)
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler("attn.v1.AttentionService", handlers),
                grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check}),
            ]
        )
        if credentials is None:
            port = self._server.add_insecure_port(address)
        else:
            port = self._server.add_secure_port(address, credentials)
        self.target = address if address.startswith("unix:") else f"127.0.0.1:{port}"
        self._server.start()

    def _answer(self, request, context):
        self.metadata = dict(context.invocation_metadata())
        return self.answer(request, context)

    def _check(self, request, context):
        self.metadata = dict(context.invocation_metadata())
        return (self.check or self.answer)(request, context)

    def _run(self, requests, context):
        self.metadata = dict(context.invocation_metadata())
        yield from self.run(requests, context)

    def stop(self):
        self._server.stop(None).wait()


def first_tensor(request, context):
    """The first tensor of the request as out."""
    sent = _proto.ForwardRequest.FromString(request)
    reply = _proto.ForwardReply(raw=[sent.raw[0]])
    describe_out(reply, sent)
    return reply.SerializeToString()


def run_answer(request):
    """The same for a RunRequest, forward or backward; there the first tensor comes back as q."""
    reply = _proto.RunReply(id=request.id, raw=[request.raw[0]])
    if request.HasField("forward"):
        describe_out(reply.forward, request.forward)
    else:
        describe_out(reply.backward, request.backward, name="q")
    return reply.SerializeToString()


def run_error(request, code, message="no", permanent=False):
    error = {"code": code.value[0], "message": message, "permanent": permanent}
    return _proto.RunReply(id=request.id, error=error).SerializeToString()


def run_requests(requests):
    """Parsed, without announcements."""
    for message in requests:
        request = _proto.RunRequest.FromString(message)
        if not request.HasField("next_message_bytes"):
            yield request


def run_answers(requests, context):
    for request in run_requests(requests):
        yield run_answer(request)


def describe_out(reply, sent, name="out"):
    out = reply.tensors.add()
    out.CopyFrom(sent.tensors[0])
    out.name, out.raw_index = name, 0
