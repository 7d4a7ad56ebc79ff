"""The settings of a client, and the channel made from them."""

import ipaddress
import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import grpc

from attnd import _retry
from attnd._error import invalid

Option = tuple[str, int | str]

# The timeout of a call that sets none, on a client that sets none. Without one, a server that hangs
# or a network that drops packets would block the caller without limit.
DEFAULT_SECONDS = 600.0
_LONGEST_SECONDS = 1e9  # a longer timeout is no limit
# Messages from this size up send their head as metadata, too; servers ignore longer heads.
_LARGE_BYTES, _MOST_HEAD_BYTES = 256 << 10, 2 << 10

_OPTIONS: list[Option] = [
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


@dataclass(frozen=True)
class Settings:
    """Settings of a client; see Client for their meaning."""

    target: str
    timeout: float
    authorities: bytes | bool  # PEM; True: the system's; False: plain text
    metadata: list[tuple[str, str]]
    retries: int
    bucket: _retry.Bucket = field(default_factory=_retry.Bucket)

    def __reduce__(self) -> tuple[Any, ...]:
        # The bucket counts refusals of this client, and its lock cannot be pickled.
        shared = (self.target, self.timeout, self.authorities, self.metadata, self.retries)
        return Settings, shared

    def open(self, api: Any) -> Any:
        """A channel of `api`, which is grpc or grpc.aio."""
        options = [*_OPTIONS, *_retry_options(self.retries)]
        if _is_local(self.target):
            options.append(("grpc.enable_http_proxy", 0))
        if self.authorities is False:
            return api.insecure_channel(self.target, options)
        trusted = None if self.authorities is True else self.authorities
        return api.secure_channel(self.target, grpc.ssl_channel_credentials(trusted), options)

    def seconds(self, timeout: float | None) -> float | None:
        """The limit of a call with `timeout`; None is no limit. Error where it is not a number."""
        seconds = self.timeout if timeout is None else timeout
        return None if _checked(seconds) > _LONGEST_SECONDS else seconds

    def metadata_for(self, message: bytes, head: Any) -> list[tuple[str, str | bytes]]:
        """The metadata of a tensor request: its size, so that the server reads it when it has room,
        and, of a large one, its head, so that the server can refuse it before reading it.
        """
        metadata = [*self.metadata, ("attnd-message-bytes", str(len(message)))]
        if len(message) >= _LARGE_BYTES and head.ByteSize() <= _MOST_HEAD_BYTES:
            metadata.append(("attnd-head-bin", head.SerializeToString()))
        return metadata


def settings(
    target: str,
    timeout: float | None,
    tls: bool | str | os.PathLike[str] | None,
    token: str | None,
    retries: int,
) -> Settings:
    """Error where `retries` is out of range or `timeout` is no number, OSError where the file of
    `tls` cannot be read.
    """
    if retries not in range(_retry.MAX_RETRIES + 1):
        raise invalid([f"client: retries must be 0..{_retry.MAX_RETRIES}, got {retries!r}"])
    metadata = [("authorization", f"Bearer {token}")] if token else []
    seconds = _checked(DEFAULT_SECONDS if timeout is None else timeout)
    # The bytes, not the path: a client may be unpickled where the file is not.
    authorities = bool(tls) if isinstance(tls, bool | None) else Path(tls).read_bytes()
    return Settings(target, seconds, authorities, metadata, retries)


def _checked(timeout: float) -> float:
    if math.isnan(timeout):
        raise invalid([f"client: timeout must be a number of seconds, got {timeout}"])
    return timeout


def _is_local(target: str) -> bool:
    """Whether `target`, in any of gRPC's spellings, is on this machine by a socket file or addresses
    of the loopback: no proxy of the environment leads there.
    """
    scheme, _, rest = target.partition(":")
    if scheme in ("unix", "unix-abstract", "vsock"):
        return True
    if scheme in ("dns", "ipv4", "ipv6"):
        # "dns:host:port", "dns:///host:port", "dns://server/host:port", "ipv4:a:port,b:port"
        target = re.sub("^//[^/]*", "", rest).lstrip("/")
    return all(_is_loopback(address) for address in unquote(target).split(","))


def _is_loopback(address: str) -> bool:
    # "host", "host:port", "[ipv6]", "[ipv6]:port", and an IPv6 address without a port.
    bracketed = re.match(r"\[([^\]]*)\]", address)
    bare = address if address.count(":") > 1 else address.partition(":")[0]
    host = (bracketed[1] if bracketed else bare).lower().rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return ip.is_loopback or ip.is_unspecified


def _retry_options(retries: int) -> list[Option]:
    if retries == 0:
        return [("grpc.enable_retries", 0)]
    return [
        ("grpc.service_config", _retry.service_config(retries)),
        # A larger request would be sent once only. gRPC keeps references, not copies.
        ("grpc.per_rpc_retry_buffer_size", 2**31 - 1),
    ]
