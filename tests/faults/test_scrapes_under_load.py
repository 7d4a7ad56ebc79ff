"""Pages read while calls end: no counter falls, no phase takes longer than its call, every count
agrees with what clients saw."""

import threading

import pytest

import attnd
from helpers import noise
from server_process import samples

THREADS, CALLS, PAGES = 4, 40, 15


@pytest.fixture
def server(start_server):
    return start_server()


def counters(page):
    """The samples that may only rise."""
    endings = ("_total", "_count", "_sum", "_bucket")
    return {
        (name, *sorted(labels.items())): value
        for name, labels, value in samples(page)
        if name.endswith(endings)
    }


def test_pages_agree_with_each_other(server, rng):
    q = noise(rng, (1, 2, 64, 16))

    def ask():
        with attnd.Client(server.target, timeout=60) as client:
            for turn in range(CALLS):
                if turn % 4 == 3:
                    with pytest.raises(attnd.Error):
                        client.forward(q, q, q, method="local", options={"window_left": -5})
                else:
                    client.forward(q, q, q)

    threads = [threading.Thread(target=ask) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    pages = [counters(server.metrics()) for _ in range(PAGES)]
    for thread in threads:
        thread.join()
    pages.append(counters(server.metrics()))

    for before, after in zip(pages, pages[1:]):
        fallen = {key: (value, after.get(key)) for key, value in before.items() if value > after.get(key, 0)}
        assert not fallen

    def total(name, **labels):
        return server.metric(name, **labels)

    assert total("attnd_requests_total", code="OK") == THREADS * CALLS * 3 / 4
    assert total("attnd_requests_total", code="INVALID_ARGUMENT") == THREADS * CALLS / 4
    assert total("attnd_request_seconds_count") == THREADS * CALLS
    assert total("attnd_refused_total", reason="invalid") == THREADS * CALLS / 4
    phases = ("queue", "gather", "compute", "answer")
    whole = total("attnd_request_seconds_sum", code="OK")
    assert sum(total(f"attnd_{phase}_seconds_sum") for phase in phases) <= whole
