"""One fault a file, against the real server; servers, clients and helpers are those of tests/e2e."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from fixtures import client, rng, server, start_server  # noqa: E402, F401
