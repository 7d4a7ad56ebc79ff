"""deploy/compose.yaml as docker-compose reads it: every service, Grafana and the GPU profile too."""

import json
import os
import subprocess

import pytest

from conftest import ROOT, run

FILE = str(ROOT / "deploy/compose.yaml")
# docker-compose prints YAML, which the Python of podman-compose reads.
TO_JSON = "import json, sys, yaml; print(json.dumps(yaml.safe_load(sys.stdin)))"


@pytest.fixture(scope="module")
def services():
    text = run("docker-compose", "-f", FILE, "--profile", "cpu", "--profile", "gpu", "config").stdout
    read = subprocess.run(["python", "-c", TO_JSON], input=text, capture_output=True, text=True)
    assert read.returncode == 0, read.stderr
    return json.loads(read.stdout)["services"]


def test_profiles(services):
    profiles = {name: service["profiles"] for name, service in services.items()}
    assert profiles == {
        "attnd": ["cpu"],
        "attnd-gpu": ["gpu"],
        "prometheus": ["cpu", "gpu"],
        "grafana": ["cpu", "gpu"],
    }
    device = services["attnd-gpu"]["deploy"]["resources"]["reservations"]["devices"][0]
    assert device["driver"] == "nvidia" and device["capabilities"] == ["gpu"]


def test_results_of_self_tests_survive_a_restart(services):
    """In the folder that the image names, and gives to the user of the server."""
    folder = "/var/cache/attnd"
    assert [v["target"] if isinstance(v, dict) else v.split(":")[1]
            for v in services["attnd-gpu"]["volumes"]] == [folder]
    image = (ROOT / "Dockerfile").read_text()
    assert f"ENV ATTND_CACHE_DIR={folder}\n" in image
    assert f"install -d -o 10001 -g 10001 {folder}\n" in image and "USER 10001:10001\n" in image


def test_every_service_is_locked_down(services):
    for name, service in services.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["ports"] and all(p.startswith("127.0.0.1:") for p in service["ports"]), name
        assert {"mem_limit", "cpus", "pids_limit"} <= service.keys(), name
        assert service["logging"]["options"]["max-size"], name
        tag = service["image"].partition(":")[2]
        assert tag and tag != "latest", name


def test_grace_exceeds_the_drain(services):
    for name in ("attnd", "attnd-gpu"):
        delay, timeout = (
            int(services[name]["environment"][f"ATTND_DRAIN_{part}"].removesuffix("s"))
            for part in ("DELAY", "TIMEOUT")
        )
        # After that many further seconds the server exits by itself.
        assert int(services[name]["stop_grace_period"].removesuffix("s")) > delay + timeout + 5


def test_grafana_has_no_default_password(tmp_path):
    empty = tmp_path / "env"  # instead of a deploy/.env that may be there
    empty.touch()
    environment = {k: v for k, v in os.environ.items() if k != "GRAFANA_ADMIN_PASSWORD"}
    command = ["docker-compose", "--env-file", str(empty), "-f", FILE, "config", "-q"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode != 0 and "Grafana" in done.stderr, done.stderr
