"""Method specs: from Python options, from text, and back."""

import difflib
import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from google.protobuf import text_format

from attnd import _proto


def method_ids() -> list[str]:
    return [field.name for field in _proto.MethodSpec.DESCRIPTOR.oneofs_by_name["method"].fields]


def option_names(method: str) -> list[str]:
    fields = _proto.MethodSpec.DESCRIPTOR.fields_by_name
    return [field.name for field in fields[method].message_type.fields]


def build(method: str, options: Mapping[str, Any] | None, reasons: list[str]) -> Any:
    """The MethodSpec. Names and types are checked here, ranges by the server."""
    spec = _proto.MethodSpec()
    if method not in method_ids():
        reasons.append(_unknown_method(method))
        return spec
    message = getattr(spec, method)
    message.SetInParent()
    for name, value in (options or {}).items():
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            reasons.append(_unknown_option(method, name, value))
        elif value is not None:
            reason = _assign(message, field, value)
            if reason:
                reasons.append(f"{method}: {name} {reason}, got {value!r}")
    return spec


def parse(text: str, settings: Iterable[str] = ()) -> tuple[str, dict[str, Any]]:
    """'local{window_left:64}' and NAME=VALUE settings as method and options; ValueError.

    The text is protobuf's text format. Settings win over it.
    """
    match = re.fullmatch(r"\s*([^\s{:=]+)\s*:?\s*(?:\{(.*)\})?\s*", text, re.DOTALL)
    if match is None:
        raise ValueError(f"method must look like 'local{{window_left:64}}', got {text!r}")
    method, body = match[1], match[2] or ""
    if method not in method_ids():
        raise ValueError(_unknown_method(method))
    options = _parse_body(method, body)
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"--set must be NAME=VALUE, got {setting!r}")
        options.update(_parse_body(method, f"{name.strip()}: {_quote(value.strip())}"))
    return method, options


def text_of(method: str, options: Mapping[str, Any]) -> str:
    """The opposite of parse: 'local{window_left:64 causal:true}'."""
    body = []
    for name, value in options.items():
        if isinstance(value, bool):
            value = str(value).lower()
        elif isinstance(value, (list, tuple)):
            value = "[" + ",".join(str(item) for item in value) + "]"
        body.append(f"{name}:{value}")
    return f"{method}{{{' '.join(body)}}}" if body else method


def _assign(message: Any, field: Any, value: Any) -> str | None:
    """Sets the field, or returns what its value must be."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if _is_repeated(field):
        return _extend(getattr(message, field.name), field, value)
    if field.enum_type is not None:
        number = field.enum_type.values_by_name.get(value) if isinstance(value, str) else None
        if number is None:
            return "must be one of " + ", ".join(v.name for v in field.enum_type.values)
        value = number.number
    elif field.cpp_type == field.CPPTYPE_BOOL and not isinstance(value, bool):
        return "must be a bool"
    elif field.cpp_type != field.CPPTYPE_BOOL and isinstance(value, bool):
        return _number_text(field)
    try:
        setattr(message, field.name, value)
    except TypeError:
        return _number_text(field)
    except ValueError:
        return "must fit 64 bits"
    return None


def _extend(values: Any, field: Any, value: Any) -> str | None:
    """A list option takes a list of ints or names, or a single one."""
    items = value if np.iterable(value) and not isinstance(value, str) else [value]
    if field.enum_type is not None:
        known = field.enum_type.values_by_name
        if any(not isinstance(item, str) or item not in known for item in items):
            return "must be a list of " + ", ".join(known)
        values.extend(known[item].number for item in items)
        return None
    try:
        if isinstance(value, bool):
            raise TypeError
        values.extend(operator.index(item) for item in items)
    except TypeError:
        return "must be an int or a list of ints"
    except ValueError:
        return "must fit 64 bits"
    return None


def _number_text(field: Any) -> str:
    return "must be a number" if field.cpp_type == field.CPPTYPE_DOUBLE else "must be an int"


def _parse_body(method: str, body: str) -> dict[str, Any]:
    spec = _proto.MethodSpec()
    message = getattr(spec, method)
    try:
        text_format.Parse(body, message)
    except text_format.ParseError as error:
        raise ValueError(_parse_reason(method, body, str(error))) from None
    return {field.name: _value_of(field, value) for field, value in message.ListFields()}


def _value_of(field: Any, value: Any) -> Any:
    if _is_repeated(field):
        return [_name_of(field, item) for item in value]
    return _name_of(field, value)


def _name_of(field: Any, value: Any) -> Any:
    return value if field.enum_type is None else field.enum_type.values_by_number[value].name


def _is_repeated(field: Any) -> bool:
    # `label` left protobuf 7; `is_repeated` came with 6.
    repeated = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if repeated is None else repeated)


def _quote(value: str) -> str:
    """Lists may be written 1,2,3 on the command line."""
    return f"[{value}]" if "," in value and not value.startswith("[") else value


def _parse_reason(method: str, body: str, error: str) -> str:
    """protobuf's message as a reason in the style of the server's."""
    if found := re.search(r'has no field named "([^"]*)"', error):
        given = re.search(rf"\b{re.escape(found[1])}\s*:\s*([^\s,;}}]+)", body)
        return _unknown_option(method, found[1], given[1] if given else "")
    if found := re.search(r"'(\w+)\s*:.*Enum type \"attn\.v1\.([\w.]+)\" has no value", error):
        field = _proto.MethodSpec.DESCRIPTOR.fields_by_name[method].message_type.fields_by_name
        names = ", ".join(v.name for v in field[found[1]].enum_type.values)
        given = re.search(r"no value named (.*?)\.?$", error)
        return f"{method}: {found[1]} must be one of {names}, got {given[1] if given else ''}"
    return f"{method}: options {{{body}}} cannot be read: {error}"


def _unknown_method(method: str) -> str:
    return f"request: method must be one of {', '.join(method_ids())}, got {method}"


def _unknown_option(method: str, name: str, value: Any) -> str:
    names = option_names(method)
    close = difflib.get_close_matches(name, names, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    return (
        f"{method}: {name} is not an option of this method, got {value}; "
        f"{meant}Options: {', '.join(names)}"
    )
