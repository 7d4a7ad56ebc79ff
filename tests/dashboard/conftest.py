"""One server, one Prometheus and one load for all tests that look at real data."""

import time

import pytest

from load import OPTIONS, Load
from stack import Stack

WARM_UP_SECONDS = 40
# Within the window of the panels every method gets requests in both directions.
WARM = "sum by (method, direction) (rate(attnd_compute_seconds_count[10s])) > 0"


@pytest.fixture(scope="session")
def stack(tmp_path_factory):
    """A Stack under load, its rules evaluated more than once."""
    with Stack(tmp_path_factory.mktemp("stack")) as one, Load(one.server.target):
        end = time.monotonic() + WARM_UP_SECONDS
        while len(one.prometheus.query(WARM)) < 2 * len(OPTIONS):
            assert time.monotonic() < end, f"no load arrived:\n{one.server.log()[-4000:]}"
            time.sleep(0.5)
        time.sleep(5)
        yield one


@pytest.fixture(scope="session")
def prometheus(stack):
    return stack.prometheus
