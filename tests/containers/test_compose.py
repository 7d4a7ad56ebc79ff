"""The services of deploy/compose.yaml: their answers, and their restrictions."""

import json
import urllib.parse

import numpy as np
import pytest

import attnd
from conftest import GRPC, PROMETHEUS, get, run
from helpers import BOUND, OPTIONS, ORACLES, eventually, noise, relative_error

GIB = 2**30


def query(expression):
    url = f"{PROMETHEUS}/api/v1/query?query={urllib.parse.quote(expression)}"
    return [float(series["value"][1]) for series in json.loads(get(url))["data"]["result"]]


@pytest.mark.parametrize("method", ORACLES)
def test_answers_like_the_oracle(stack, method):
    rng = np.random.default_rng(7)
    q, k, v = (noise(rng, (2, 4, n, 64)) for n in (130, 257, 257))
    with attnd.Client(GRPC, timeout=60) as client:
        reply = client.forward(q, k, v, method=method, options=OPTIONS[method])
    want = ORACLES[method].forward({"q": q, "k": k, "v": v}, OPTIONS[method])["out"]
    assert relative_error(reply.out, want) < BOUND[np.float32]


@pytest.mark.parametrize("service", ["attnd", "prometheus"])
def test_service_is_locked_down(stack, service):
    container = stack.inspect(service)
    status = run("podman", "exec", container["Id"], "cat", "/proc/1/status").stdout
    field = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert "0" not in field["Uid"].split(), "no process of root"
    assert int(field["CapBnd"], 16) == 0 and int(field["CapEff"], 16) == 0
    assert field["NoNewPrivs"] == "1"
    host = container["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["Memory"] > 0 and host["PidsLimit"] > 0 and host["NanoCpus"] > 0
    bound = [binding for ports in host["PortBindings"].values() for binding in ports]
    assert bound and all(binding["HostIp"] == "127.0.0.1" for binding in bound)


def test_budget_follows_the_memory_limit(stack):
    limit = stack.inspect("attnd")["HostConfig"]["Memory"]
    assert limit == 4 * GIB
    with attnd.Client(GRPC, timeout=10) as client:
        assert client.info().budget_bytes == limit // 2


def test_probe_fails_without_a_server(stack):
    server = stack.container("attnd")
    probe = ["podman", "exec", server, "attnd-server", "--probe"]
    assert run(*probe).returncode == 0
    without = run(*probe, "--grpc", "127.0.0.1:9", check=False)
    assert without.returncode == 1
    assert len((without.stdout + without.stderr).strip().splitlines()) == 1


def test_prometheus_scrapes_the_server(stack):
    q = np.zeros((1, 1, 8, 8), np.float32)
    with attnd.Client(GRPC, timeout=10) as client:
        client.forward(q, q, q, method="softmax")

    assert eventually(lambda: query('up{job="attnd"}') == [1.0], seconds=60)
    assert eventually(lambda: sum(query('attnd_requests_total{code="OK"}')) >= 1, seconds=60)


def test_prometheus_evaluates_the_rules(stack):
    def rules():
        groups = json.loads(get(f"{PROMETHEUS}/api/v1/rules"))["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    assert {rule["type"] for rule in rules()} == {"alerting", "recording"}
    assert eventually(lambda: all(rule["health"] == "ok" for rule in rules()), seconds=60), rules()


def test_prometheus_serves_the_console_page(stack):
    page = get(f"{PROMETHEUS}/consoles/attnd.html")
    assert "attnd" in page and "error executing template" not in page
