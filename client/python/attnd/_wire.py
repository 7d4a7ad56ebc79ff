"""Tensor messages without protobuf's copies of their payloads.

Every tensor message keeps its payloads in one top-level field `repeated bytes raw = 15`; all other
fields are the head, which protobuf handles.
"""

from collections.abc import Sequence
from typing import Any

RAW_FIELD = 15
_RAW_TAG = RAW_FIELD << 3 | 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def join(head: Any, payloads: Sequence[memoryview]) -> bytes:
    """The serialised message. The one copy of a payload: gRPC takes bytes only."""
    parts: list[bytes | memoryview] = [head.SerializeToString()]
    for payload in payloads:
        parts.append(_varint(_RAW_TAG) + _varint(payload.nbytes))
        parts.append(payload)
    return b"".join(parts)


def split(message: bytes, head_type: Any) -> tuple[Any, list[memoryview]]:
    """The head, parsed, and the payloads as views of `message`. ValueError when malformed."""
    view = memoryview(message)
    head: list[memoryview] = []
    raw: list[memoryview] = []
    at = 0
    while at < len(view):
        start = at
        tag, at = _read_varint(view, at)
        kind = tag & 7
        if kind == _VARINT:
            _, at = _read_varint(view, at)
        elif kind == _BYTES:
            size, at = _read_varint(view, at)
            at += size
        elif kind == _FIXED64 or kind == _FIXED32:
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"field of wire type {kind}")
        if at > len(view):
            raise ValueError("message ends inside a field")
        if tag == _RAW_TAG:
            raw.append(view[at - size : at])
        else:
            head.append(view[start:at])
    parsed = head_type()
    try:
        parsed.ParseFromString(b"".join(head))
    except Exception as error:
        raise ValueError(str(error)) from error
    return parsed, raw


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(view):
            raise ValueError("message ends inside a number")
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("number of more than ten bytes")
