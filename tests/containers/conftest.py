"""Runs deploy/compose.yaml with podman for the tests of this folder; `run` prepares the machine."""

import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/e2e")]

PROJECT = "attnd-test"
GRPC, PROMETHEUS = "127.0.0.1:8001", "http://127.0.0.1:9090"
# Tools that wait for a container take less; a hanging one is a failure of the test.
TOOL_SECONDS = 120


def run(*command, check=True):
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TOOL_SECONDS,
        env=os.environ | {"GRAFANA_ADMIN_PASSWORD": "unused"},
    )
    assert not check or done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done


def get(url):
    with urllib.request.urlopen(url, timeout=10) as reply:
        return reply.read().decode()


class Stack:
    """The services of one compose profile; a container is named by its service."""

    def compose(self, *arguments, profile="cpu", check=True):
        files = ["-f", ROOT / "deploy/compose.yaml", "-f", ROOT / "tests/containers/override.yaml"]
        command = ["podman-compose", "-p", PROJECT, *files, "--profile", profile, *arguments]
        return run(*map(str, command), check=check)

    def container(self, service):
        labels = [f"label=com.docker.compose.{k}={v}"
                  for k, v in (("project", PROJECT), ("service", service))]
        return run("podman", "ps", "-aq", "--filter", labels[0], "--filter", labels[1]).stdout.strip()

    def inspect(self, service):
        return json.loads(run("podman", "inspect", self.container(service)).stdout)[0]

    def healthy(self, service):
        return run("podman", "healthcheck", "run", self.container(service), check=False).returncode == 0

    def logs(self, service):
        done = run("podman", "logs", self.container(service))
        return done.stdout + done.stderr

    def wait_healthy(self, service, seconds=60):
        end = time.monotonic() + seconds
        while not self.healthy(service):
            assert time.monotonic() < end, f"{service} is not healthy:\n{self.logs(service)[-4000:]}"
            time.sleep(0.5)


@pytest.fixture(scope="session")
def stack():
    """The server and Prometheus of the profile cpu, healthy; gone after the tests."""
    one = Stack()
    one.compose("down", "-v", check=False)  # what an interrupted run left
    try:
        one.compose("up", "-d", "attnd", "prometheus")
        for service in ("attnd", "prometheus"):
            one.wait_healthy(service)
        yield one
    finally:
        one.compose("down", "-v", check=False)
