"""The fixtures are in fixtures.py: tests/faults has them, too."""

from fixtures import client, genesis, rng, server, start_server, verses  # noqa: F401
