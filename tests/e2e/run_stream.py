"""Streams of Run with messages as bytes, so that tests can break their rules."""

import contextlib
import itertools
import queue

import grpc

import stubs

attention, *_ = stubs.load()

SERVICE = "/attn.v1.AttentionService/"
UNANNOUNCED = 2**20  # the largest message that needs no announcement


def carry(id, message, direction="forward"):
    """The RunRequest of the same request as the message of a unary call."""
    request = attention.RunRequest(id=id)
    inner = getattr(request, direction)
    inner.MergeFromString(message)
    inner.SetInParent()
    request.raw.extend(inner.raw)
    inner.ClearField("raw")
    return request.SerializeToString()


def announce(id, size, **fields):
    return attention.RunRequest(id=id, next_message_bytes=size, **fields).SerializeToString()


class RunStream:
    """One stream. Replies are read only when a test calls take or rest."""

    def __init__(self, channel, timeout=30):
        self._outbox = queue.SimpleQueue()
        start = channel.stream_stream(
            SERVICE + "Run", response_deserializer=attention.RunReply.FromString
        )
        self.call = start(iter(self._outbox.get, None), timeout=timeout)

    def send(self, *messages):
        for message in messages:
            self._outbox.put(message)

    def send_whole(self, id, message, direction="forward"):
        """Announced where it must be."""
        whole = carry(id, message, direction)
        if len(whole) > UNANNOUNCED:
            self.send(announce(id, len(whole)))
        self.send(whole)

    def half_close(self):
        self._outbox.put(None)

    def take(self, count=1):
        """That many replies, as they come; an error if the stream ends before."""
        replies = list(itertools.islice(self.call, count))
        assert len(replies) == count, f"the stream ended after {replies}"
        return replies

    def rest(self):
        """The replies until the end of the stream, and how it ends: replies, code, text."""
        replies = []
        with contextlib.suppress(grpc.RpcError):
            replies.extend(iter(self.call))
        return replies, self.call.code(), self.call.details()

    def close(self):
        self.half_close()
        self.call.cancel()
