"""How the client connects."""

import os
from pathlib import Path

import grpc

_OPTIONS: list[tuple[str, int]] = [
    # The server states the limit of a message; the client has none.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A dead peer is noticed during a call without a deadline. gRPC servers answer pings that come
    # more often than every 300 s with a closed connection.
    ("grpc.keepalive_time_ms", 360_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # A client made after the server started must not wait for an earlier client's backoff.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
]


def options_for(target: str) -> list[tuple[str, int]]:
    local = target.startswith(("unix:", "localhost:", "127.", "[::1]"))
    return [*_OPTIONS, ("grpc.enable_http_proxy", 0)] if local else _OPTIONS


def credentials_of(tls: bool | str | os.PathLike[str] | None) -> grpc.ChannelCredentials | None:
    """None or False: plain text. True: the system's authorities. A path: those in this PEM file."""
    if tls is None or tls is False:
        return None
    return grpc.ssl_channel_credentials(None if tls is True else Path(tls).read_bytes())


def metadata_of(token: str | None) -> list[tuple[str, str]] | None:
    return [("authorization", f"Bearer {token}")] if token else None
