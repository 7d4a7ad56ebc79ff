"""Notes of replies: what is legal in a request and seldom meant."""

import sys
import threading
import warnings
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

# A process that makes up texts without end (options of a sweep, say) must not grow for it.
_MOST_TEXTS = 1000

_PACKAGE = str(Path(__file__).parent)
_lock = threading.Lock()
_warned: set[str] = set()  # guarded by _lock


class Note(UserWarning):
    """Legal and seldom meant: an option without effect, positions in a padded cache.

    Warned of once for each text and process; results carry the texts as `notes`.
    """


def heed(texts: Iterable[str]) -> tuple[str, ...]:
    """The texts as a tuple; warns of those that the process has not been warned of."""
    notes = tuple(texts)
    for text in notes:
        with _lock:
            is_new = text not in _warned and len(_warned) < _MOST_TEXTS
            if is_new:
                _warned.add(text)
        if is_new:
            warnings.warn(text, Note, stacklevel=_caller())
    return notes


def _caller() -> int:
    """The stack level of the code that called the package, for warnings.warn in heed."""
    level = 1
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level
