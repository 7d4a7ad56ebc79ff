"""/healthz answered ok while the polling thread or a lane stood still, and no log line named it."""

import json
import time

import attnd
from helpers import Busy, eventually
from server_process import samples
from stopped_thread import StoppedThread

# 4 s when the machine is free.
STUCK_SECONDS = 30


def test_a_polling_thread_that_stands_still_is_reported(start_server):
    server = start_server("--log-format", "json")
    assert server.get("/healthz") == (200, "ok\n")
    with StoppedThread(server.pid, "transport"):
        started = time.monotonic()
        assert eventually(lambda: server.get("/healthz")[0] == 503, STUCK_SECONDS)
        took = time.monotonic() - started
        assert server.get("/healthz")[1].startswith("transport is stuck for ")
        assert server.metric("attnd_stuck_seconds", part="transport") >= 3
        assert server.metric("attnd_stuck_seconds", part="lane 0") == 0
        stuck = (each for each in samples(server.metrics()) if each[0] == "attnd_stuck_seconds")
        parts = [labels["part"] for _, labels, _ in stuck]
        assert parts == ["transport", "planner", *(f"lane {i}" for i in range(6))]
    # A short wait is not reported.
    assert took > 2
    assert eventually(lambda: server.get("/healthz")[0] == 200, STUCK_SECONDS)
    with attnd.Client(server.target, timeout=20) as client:
        assert client.health() == "SERVING"
    assert server.metric("attnd_poll_delay_seconds_count") > 0
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.log().splitlines()]
    reported = [line["part"] for line in lines if line["message"] in ("stuck", "no longer stuck")]
    assert reported == ["transport", "transport"]


def test_a_lane_that_stands_still_is_reported_with_its_work(start_server):
    server = start_server("--max-running", "1")
    with attnd.Client(server.target, timeout=60) as client, Busy(client, server, seconds=2) as busy:
        with StoppedThread(server.pid, "lane-0"):
            assert eventually(lambda: server.get("/healthz")[0] == 503, STUCK_SECONDS)
            tokens = busy.q.shape[2]
            expected = f" s in softmax, 1 request, {tokens} tokens\n"
            assert server.get("/healthz")[1].endswith(expected)
            assert server.get("/healthz")[1].startswith("lane 0 is stuck for ")
            assert client.health() == "SERVING"
    assert busy.error is None
    assert eventually(lambda: server.get("/healthz")[0] == 200, STUCK_SECONDS)


def test_a_watchdog_that_stands_still_is_reported(start_server):
    server = start_server()
    with StoppedThread(server.pid, "watchdog"):
        stuck = (503, "the watchdog is stuck\n")
        assert eventually(lambda: server.get("/healthz") == stuck, STUCK_SECONDS)
    assert eventually(lambda: server.get("/healthz") == (200, "ok\n"))


def test_long_work_is_not_taken_for_standing_still(start_server):
    server = start_server("--exit-when-stuck", "5s")
    with attnd.Client(server.target, timeout=120, retries=0) as client:
        with Busy(client, server, seconds=30) as busy:
            end = time.monotonic() + 5
            while time.monotonic() < end:
                assert server.get("/healthz") == (200, "ok\n")
                time.sleep(0.2)
            assert busy.is_running()
            server.kill()


def test_ends_the_process_when_asked_to(start_server):
    server = start_server("--exit-when-stuck", "5s")
    with StoppedThread(server.pid, "transport"):
        # A process cannot end while one of its threads is traced.
        assert eventually(lambda: "stuck for too long" in server.log(), STUCK_SECONDS)
    assert server.wait(STUCK_SECONDS) == 3
