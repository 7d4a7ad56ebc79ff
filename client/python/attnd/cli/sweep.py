"""--sweep: the values of one option that `compare` runs a method with."""

import difflib
import math
from argparse import Namespace
from dataclasses import dataclass

from attnd import MethodInfo
from attnd.cli.commands import parse_method
from attnd.cli.terminal import UsageError

MAX_VALUES = 64

# What each type of option must look like, and the ratio of neighbours in FROM..TO.
_FORMS = {
    "int": "ints, as 16..1024 or 16,64,256",
    "float": "finite numbers, as 1e-6..1 or 0.1,0.5,1",
}
_RATIOS = {"int": 2.0, "float": math.sqrt(10)}


@dataclass(frozen=True)
class Sweep:
    option: str
    values: list[int | float]


def sweep(arguments: Namespace, known: dict[str, MethodInfo]) -> Sweep | None:
    """That of the command line, whose --method and --set were checked; None where it has none."""
    if not arguments.sweep:
        return None
    text = arguments.sweep[-1]
    name, equals, listed = (part.strip() for part in text.partition("="))
    if len(arguments.sweep) > 1:
        raise UsageError(f"--sweep must be given once, got {len(arguments.sweep)}")
    if not (name and equals):
        raise UsageError(f"--sweep must be NAME=FROM..TO[:COUNT] or NAME=A,B,C, got {text}")
    if len(arguments.method) != 1:
        having = [id for id, method in known.items() if name in _numeric_options(method)]
        hint = f"; {name} is an option of {', '.join(having)}" if having else ""
        got = len(arguments.method) or "none"
        raise UsageError(f"--sweep needs exactly one --method, got {got}{hint}")
    id, options = parse_method(arguments.method[0], arguments.set)
    types = _numeric_options(known[id])
    if name not in types:
        raise UsageError(_not_numeric(known[id], name))
    if name in options:
        raise UsageError(
            f"{id}: {name} must be given once, got {options[name]} beside --sweep {text}"
        )
    try:
        values = _values(listed, types[name])
    except ValueError as error:
        raise UsageError(f"{id}: --sweep {name} {error}, got {listed}") from None
    return Sweep(name, list(dict.fromkeys(values)))


def _values(text: str, type: str) -> list[int | float]:
    """ValueError with the rule that the text breaks."""
    first, dots, rest = text.partition("..")
    if not dots:
        items = text.split(",")
        _check_count(len(items))
        return [_number(item, type) for item in items]
    last, colon, count = rest.partition(":")
    low, high = _number(first, type), _number(last, type)
    if low <= 0:
        raise ValueError("must start above 0 where it is a range; a list may hold any value")
    if high < low:
        raise ValueError("must rise, as FROM..TO")
    if colon and not (count.isdecimal() and int(count) >= 2):
        raise ValueError("must have a COUNT >= 2 in FROM..TO:COUNT")
    decades = math.log(high) - math.log(low)
    steps = int(count) - 1 if colon else math.ceil(decades / math.log(_RATIOS[type]) - 1e-9)
    _check_count(steps + 1)
    step = decades / steps if colon else math.log(_RATIOS[type])
    inner = [math.exp(math.log(low) + i * step) for i in range(1, steps)]
    rounded = [round(x) if type == "int" else float(f"{x:.4g}") for x in inner]
    return [low, *rounded, high]


def _number(text: str, type: str) -> int | float:
    try:
        value = int(text) if type == "int" else float(text)
    except ValueError:
        value = math.nan
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"must be {_FORMS[type]}")
    return value


def _check_count(count: int) -> None:
    if count > MAX_VALUES:
        raise ValueError(f"must have at most {MAX_VALUES} values, has {count}")


def _numeric_options(method: MethodInfo) -> dict[str, str]:
    return {o.name: o.type for o in method.options if o.served and o.type in _FORMS}


def _not_numeric(method: MethodInfo, name: str) -> str:
    names = list(_numeric_options(method))
    rest = next((f" of type {o.type}" for o in method.options if o.name == name), "")
    if not rest and (close := difflib.get_close_matches(name, names, n=1)):
        rest = f"; did you mean {close[0]}?"
    return (
        f"{method.id}: --sweep must name an int or float option of this method "
        f"({', '.join(names)}), got {name}{rest}"
    )
