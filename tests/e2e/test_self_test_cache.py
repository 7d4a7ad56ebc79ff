"""Results of self-tests outlive the server: a later start reads them, and tests again where it cannot
trust them.

On the emulated CUDA runtime, where a self-test takes seconds.
"""

import json
import shutil
import subprocess
import time

import pytest

import attnd
import server_process
from helpers import eventually
from server_process import EMULATED, Server, built, clean_environment

EARLIER = "self-test of an earlier start"


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    """What the first start of a server leaves and shows: its folder, its table, its seconds."""
    folder = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_process, "SERVER", built(EMULATED))
        began = time.monotonic()
        server = Server(folder, "--device", "cuda", "--cache-dir", str(folder / "results"))
        seconds = time.monotonic() - began
        try:
            assert len(lines(server, " self-test device=cuda:0 ")) == 1
            assert not lines(server, EARLIER) and not lines(server, "was not read or kept")
            return folder / "results", table(server), seconds
        finally:
            server.kill()


@pytest.fixture
def cache(tested, tmp_path):
    """A copy of what the first start left, for one test."""
    shutil.copytree(tested[0], tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def start(start_server, monkeypatch, cache):
    """Starts a server with that folder."""
    monkeypatch.setattr(server_process, "SERVER", EMULATED)

    def start_it(*flags):
        return start_server("--device", "cuda", "--cache-dir", str(cache), *flags)

    return start_it


def table(server):
    """All that a client, and Prometheus, see of self-tests."""
    with attnd.Client(server.target) as client:
        info = client.info()
    seen = [(device.name, device.self_test_seconds, device.self_tests) for device in info.devices]
    passed = [line for line in server.metrics().splitlines()
              if line.startswith("attnd_device_self_test_passed{")]
    assert all(tests for _, _, tests in seen) and passed
    return info.note, seen, passed


def lines(server, text):
    """Of the log of a server that has started."""
    assert eventually(lambda: "serving" in server.log())
    return [line for line in server.log().splitlines() if text in line]


def test_a_second_start_reads_what_the_first_one_found(start, tested):
    _, first, slow = tested
    began = time.monotonic()
    server = start()
    fast = time.monotonic() - began
    (said,) = lines(server, EARLIER)
    assert "device=cuda:0" in said and " at=20" in said
    assert table(server) == first
    # A twentieth on an idle machine.
    assert fast < slow / 2


def test_a_damaged_file_is_replaced(start, cache):
    (file,) = cache.iterdir()
    good = file.read_bytes()
    file.write_bytes(good[:-100])
    server = start()
    (said,) = lines(server, "was not read or kept")
    assert str(file) in said and "it is damaged" in said
    assert not lines(server, EARLIER)
    assert json.loads(file.read_text()).keys() == json.loads(good).keys()


def test_a_failure_is_found_again_with_its_reason(start, cache):
    (file,) = cache.iterdir()
    result = json.loads(file.read_text())
    row = next(row for row in result["rows"] if row["primitive"] == "softmax")
    row["failure"] = "differs from the processor by 0.5"
    file.write_text(json.dumps(result))

    server = start()
    note, ((_, _, tests),), passed = table(server)
    assert f"cuda:0: softmax of {row['dtype']} is switched off: {row['failure']}" in note
    assert "--self-test=fresh tests again" in note and "found at 20" in note
    assert [test.failure for test in tests if test.failure] == [row["failure"]]
    assert sum(line.endswith(" 0") for line in passed) == 1

    # Without what nothing replaces, the device is not used.
    for row in result["rows"]:
        row["failure"] = "differs" if row["primitive"] == "attend" else ""
    file.write_text(json.dumps(result))
    ended = subprocess.run(
        [EMULATED, "--device", "cuda", "--cache-dir", cache, "--grpc", "127.0.0.1:0", "--http",
         "127.0.0.1:0"],
        capture_output=True, text=True, timeout=30, env=clean_environment())
    assert ended.returncode == 1 and "--self-test=fresh tests again" in ended.stderr
    assert ended.stderr.startswith("attnd-server: cuda:0: attend of ")
    assert ended.stderr.count("\n") == 1

    server = start("--self-test", "fresh")
    assert not lines(server, EARLIER)
    assert table(server)[0] == ""
    assert not any(row["failure"] for row in json.loads(file.read_text())["rows"])


def test_without_a_folder_it_tests_at_every_start(start, cache):
    shutil.rmtree(cache)
    cache.write_text("no folder")
    server = start()
    (said,) = lines(server, "was not read or kept")
    assert " info " in said and str(cache) in said
    assert len(lines(server, " self-test device=cuda:0 ")) == 1
