"""Output to the terminal, and the errors of the command line, for all commands."""

import json
import math
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


class UsageError(Exception):
    """The command line is wrong: exit code 2."""


def say(message: str) -> None:
    """One line on stderr."""
    print("attn: " + " ".join(message.split()), file=sys.stderr)


def say_notes(notes: Iterable[str]) -> None:
    """Notes of replies, each text once."""
    for note in dict.fromkeys(notes):
        say(f"note: {note}")


def print_table(table: Table, piped_width: int = 160, least_width: int = 0) -> None:
    """As wide as the terminal at most, without blanks at the ends of lines.

    A terminal narrower than `least_width` wraps the lines: cells that are cut to fit would lose
    digits.
    """
    out = console(piped_width)
    out.width = max(out.width, least_width)
    with out.capture() as captured:
        out.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


def console(piped_width: int = 160) -> Console:
    # Piped output is not cut at the 80 columns that rich would assume.
    return Console(width=None if sys.stdout.isatty() else piped_width, highlight=False)


def progress() -> Progress:
    """On stderr, and only where a person looks at it."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def print_json(value: Any) -> None:
    print(json.dumps(_plain(value), indent=2))


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: null."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def seconds_text(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def bytes_text(count: float) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def flops_text(flops: float) -> str:
    for unit, size in (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)):
        if flops >= size:
            return f"{flops / size:.3g} {unit}"
    return f"{flops:.0f} FLOP"
