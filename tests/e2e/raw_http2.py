"""A gRPC client over bare HTTP/2 that does what libraries do not: send half a message, leave
replies unread, hold thousands of calls that send nothing."""

import socket
import struct
import threading
import time

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import hpack

SERVICE = "/attn.v1.AttentionService/"
CHUNK = 16384  # the largest frame that every peer takes
DATA, HEADERS, RESET, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_STREAM, ACKNOWLEDGES, END_HEADERS = 1, 1, 4


def framed(message):
    """As gRPC puts a message on the wire: not compressed, its size, its bytes."""
    return struct.pack(">BI", 0, len(message)) + message


def frame(kind, flags, stream, payload=b""):
    """One frame of HTTP/2, also one that breaks the rules."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


# HTTP/2's preface and an empty SETTINGS frame: all that a library sends without a call.
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0)


def request_headers(path):
    """The block of a call's headers, to be sent on any stream of any connection."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"),
              ("te", "trailers"), ("content-type", "application/grpc")]  # fmt: skip
    plain = [hpack.NeverIndexedHeaderTuple(name, value) for name, value in fields]
    return hpack.Encoder().encode(plain)


class Flood:
    """A connection that sends frames as fast as they are taken, on a thread, until it is closed.
    What the server answers is thrown away."""

    def __init__(self, target, frames):
        host, _, port = target.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.settimeout(20)
        self._threads = [threading.Thread(target=self._send, args=(frames,), daemon=True),
                         threading.Thread(target=self._drop, daemon=True)]  # fmt: skip
        self.was_cut_off = False
        for thread in self._threads:
            thread.start()

    def _send(self, frames):
        try:
            self._socket.sendall(HELLO)
            for some in frames:
                self._socket.sendall(some)
        except OSError:
            self.was_cut_off = True

    def _drop(self):
        try:
            while self._socket.recv(1 << 16):
                continue
        except OSError:
            pass
        self.was_cut_off = True

    def is_sending(self):
        return self._threads[0].is_alive()

    def close(self):
        self._socket.close()


class RawConnection:
    """One connection. The server may send no more than the 64 KiB that HTTP/2 starts with."""

    def __init__(self, target):
        host, _, port = target.rpartition(":")
        self._target = target
        self._socket = socket.create_connection((host, int(port)))
        # Data leaves at once, not 40 ms later.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._http2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._http2.initiate_connection()
        self.ended = {}  # stream -> its trailers or None if it was reset
        self._flush()
        self.listen(0.05)

    def open(self, rpc, **metadata):
        """Sends the headers of a call of the service; its stream."""
        return self.open_path(SERVICE + rpc, **metadata)

    def open_path(self, path, **metadata):
        """Sends the headers of any call; its stream."""
        stream = self._http2.get_next_available_stream_id()
        headers = [(":method", "POST"), (":scheme", "http"), (":path", path),
                   (":authority", self._target), ("te", "trailers"),
                   ("content-type", "application/grpc")]  # fmt: skip
        headers += [(key.replace("_", "-"), value) for key, value in metadata.items()]
        self._http2.send_headers(stream, headers)
        self._flush()
        return stream

    def send(self, stream, data, seconds=10):
        """As many bytes of `data` as the server lets through within the time."""
        end = time.monotonic() + seconds
        sent = 0
        while sent < len(data) and time.monotonic() < end and stream not in self.ended:
            size = min(CHUNK, len(data) - sent, self._http2.local_flow_control_window(stream))
            if size > 0:
                self._http2.send_data(stream, data[sent : sent + size])
                self._flush()
                sent += size
            else:
                self.listen(0.01)
        return sent

    def window(self):
        """How many bytes of a new stream the server takes, as it has announced."""
        return self._http2.remote_settings.initial_window_size

    def widen(self, window, seconds=30):
        """Sends zeros, as a message that is never complete, and answers each ping of the server after
        a window of them, until it announces such windows; whether it did. Each window comes in the
        same time: gRPC takes the line for a long one that is faster than it thought."""
        end = time.monotonic() + seconds
        size = 2**29
        stream = self.open("Forward", attnd_message_bytes=str(size))
        self.send(stream, struct.pack(">BI", 0, size))
        while self.window() < window and time.monotonic() < end:
            self.send(stream, bytes(CHUNK), seconds=0.1)  # the server pings while data arrives
            if answer := self._answer_to_ping(0.1):
                while self._http2.local_flow_control_window(stream) >= CHUNK:
                    self._http2.send_data(stream, bytes(CHUNK))
                self._flush()
                time.sleep(0.3)
                self._socket.sendall(answer)
        self.reset(stream)
        return self.window() >= window

    def _answer_to_ping(self, seconds):
        """Takes what arrives within the time, and acknowledges it; but not a ping: that answer is
        returned."""
        self._take(seconds)
        sent = self._http2.data_to_send()
        at = sent.rfind(frame(PING, ACKNOWLEDGES, 0, bytes(8))[:9])
        answer = sent[at : at + 17] if at >= 0 else b""
        self._socket.settimeout(10)
        self._socket.sendall(sent.replace(answer, b"") if answer else sent)
        return answer

    def reset(self, stream):
        self._http2.reset_stream(stream, 8)  # CANCEL
        self._flush()

    def status(self, stream, seconds=10):
        """The grpc-status that the call ended with; None if it did not end so."""
        end = time.monotonic() + seconds
        while stream not in self.ended and time.monotonic() < end:
            self.listen(0.02)
        trailers = self.ended.get(stream) or {}
        return int(trailers["grpc-status"]) if "grpc-status" in trailers else None

    def listen(self, seconds):
        """Takes what arrives within the time, acknowledging nothing but pings and settings."""
        if self._take(seconds):
            self._flush()

    def _take(self, seconds):
        self._socket.settimeout(seconds)
        try:
            data = self._socket.recv(1 << 20)
        except TimeoutError:
            return False
        for event in self._http2.receive_data(data):
            if isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
                headers = dict(event.headers)
                if "grpc-status" in headers:
                    self.ended[event.stream_id] = headers
            elif isinstance(event, h2.events.StreamReset):
                self.ended.setdefault(event.stream_id, None)
        return True

    def _flush(self):
        self._socket.settimeout(10)
        self._socket.sendall(self._http2.data_to_send())

    def close(self):
        self._socket.close()
