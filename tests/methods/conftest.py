"""Makes `tests.methods` importable from anywhere, and lets a run take each n-th test only."""

import os
import pathlib
import sys

import pytest

# The sums of plain code, with whose errors ours are compared, are the same on every machine. Before
# NumPy is imported.
os.environ.update(OPENBLAS_CORETYPE="Prescott", OPENBLAS_L2_SIZE="512")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.methods import library  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--one-of", type=int, default=1, help="run each n-th test only")


@pytest.hookimpl(trylast=True)  # of the tests that other options have left
def pytest_collection_modifyitems(config, items):
    step = config.getoption("--one-of", 1)  # unknown where pytest starts in another folder
    config.hook.pytest_deselected(items=[t for i, t in enumerate(items) if i % step != 0])
    items[:] = items[::step]


def pytest_configure():
    """pytest captures nothing here."""
    library.last_words = os.dup(2)
