"""The C++ client's example and the load generator, against the real server."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from server_process import BUILD, clean_environment

EXAMPLE = pathlib.Path(os.environ.get("ATTND_CPP_EXAMPLE", BUILD / "client/cpp/forward"))
LOAD = pathlib.Path(os.environ.get("ATTND_LOAD", BUILD / "tests/load"))


def run(program, *arguments, code=0):
    if program == LOAD and "ATTND_LOAD" not in os.environ and not LOAD.exists():
        pytest.skip(f"the load tool was not built: no {LOAD}, see ATTND_BENCH of CMakeLists.txt")
    assert program.exists(), f"no {program}: build it or set ATTND_CPP_EXAMPLE and ATTND_LOAD"
    done = subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=clean_environment(),
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def load(target, *arguments, code=0):
    return json.loads(run(LOAD, "--target", target, "--json", *arguments, code=code).stdout)


def test_without_the_load_tool_its_tests_are_skipped(monkeypatch, tmp_path):
    """Symptom: a build without the benchmarks fails tests that need the load tool."""
    monkeypatch.setattr(sys.modules[__name__], "LOAD", tmp_path / "load")
    monkeypatch.delenv("ATTND_LOAD", raising=False)
    with pytest.raises(pytest.skip.Exception, match=f"the load tool was not built: no {tmp_path}"):
        load("127.0.0.1:1")
    monkeypatch.setenv("ATTND_LOAD", str(tmp_path / "load"))
    with pytest.raises(AssertionError, match="set .*ATTND_LOAD"):
        load("127.0.0.1:1")


def test_example_prints_what_the_readme_says(server):
    lines = run(EXAMPLE, server.target).stdout.splitlines()
    assert lines[:2] == ["out 1 8 512 64", "lse 1 8 512"]
    # Every value is 0.5, so every weighted average is, too.
    assert lines[3] == "out[0] = 0.5"
    assert lines[4:7] == ["q 1 8 512 64", "k 1 8 512 64", "v 1 8 512 64"]
    assert all(re.fullmatch(r"cpu, compute \S+ s", line) for line in (lines[2], lines[7]))


def test_example_reports_that_no_server_listens():
    done = run(EXAMPLE, "127.0.0.1:1", code=1)
    assert done.stderr.startswith("UNAVAILABLE: ") and not done.stdout


@pytest.mark.parametrize("direction, tensors", [("forward", 3), ("backward", 4)])
def test_load_counts_what_the_server_counts(server, direction, tensors):
    labels = {"method": "local", "direction": direction, "code": "OK"}
    before = server.metric("attnd_requests_total", **labels)
    report = load(
        server.target,
        *("--method", "local{window_left:16}", "--direction", direction, "--lengths", "7:1,64:2"),
        *("--heads", "2", "--dim", "8", "--concurrency", "4", "--duration", "1", "--check"),
    )
    assert report["ok"] == report["requests"] > 0
    assert report["refused"] == {} and report["mismatches"] == 0
    # --check sends each of the two lengths alone first.
    assert server.metric("attnd_requests_total", **labels) - before == report["ok"] + 2
    assert report["sent_bytes"] >= report["ok"] * tensors * 2 * 7 * 8 * 4
    latency = report["latency_seconds"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["p99.9"]
    assert latency["p99.9"] <= latency["max"] <= report["seconds"]


def test_open_loop_sends_at_its_rate(server):
    report = load(
        server.target,
        *("--rate", "100", "--arrivals", "constant", "--lengths", "16", "--duration", "1"),
    )
    assert 99 <= report["requests"] <= 101
    assert report["ok"] == report["requests"]


def test_load_counts_refusals_by_code(server):
    report = load(
        server.target,
        *("--method", "linear_attention{chunk_size:0}", "--lengths", "16", "--duration", "0.2"),
        code=1,
    )
    assert report["ok"] == 0
    refused = report["refused"]["INVALID_ARGUMENT"]
    assert refused["count"] == report["requests"] > 0
    assert refused["reason"].startswith("linear_attention: chunk_size must be")


def test_load_through_one_stream(server):
    before = server.metric("attnd_requests_total", method="softmax", code="OK")
    report = load(
        server.target,
        *("--pipeline", "--concurrency", "8", "--lengths", "16:8,2048:1", "--duration", "1"),
        "--check",
    )
    assert report["ok"] == report["requests"] > 0
    assert report["mismatches"] == 0
    counted = server.metric("attnd_requests_total", method="softmax", code="OK") - before
    assert counted == report["ok"] + 2


def test_load_says_what_is_wrong():
    done = run(LOAD, "--lengths", "16x", code=2)
    assert done.stderr == (
        "load: --lengths must be N or N:WEIGHT, separated by commas, both > 0, got 16x "
        "(--help lists the options)\n"
    )
    assert "Open loop: --rate R" in run(LOAD, "--help").stdout
