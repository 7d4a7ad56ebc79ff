"""The image that the Dockerfile builds."""

import json

from conftest import run

IMAGE = "localhost/attnd:cpu"
LIMIT_BYTES = 150_000_000


def image():
    return json.loads(run("podman", "image", "inspect", IMAGE).stdout)[0]


def test_is_small():
    size = image()["Size"]
    print(f"{IMAGE}: {size / 1e6:.1f} MB")
    assert size < LIMIT_BYTES


def test_says_how_to_run_it():
    config = image()["Config"]
    user, _, group = config["User"].partition(":")
    assert int(user) > 0 and int(group) > 0, "Kubernetes verifies runAsNonRoot by the number"
    assert config["StopSignal"] == "SIGTERM"
    assert config["ExposedPorts"].keys() == {"8001/tcp", "8002/tcp"}
    assert image()["Healthcheck"]["Test"] == ["CMD", "attnd-server", "--probe"]
    assert config["Labels"]["org.opencontainers.image.title"] == "attnd"


def test_carries_no_compiler_and_no_sources():
    found = run("podman", "run", "--rm", "--network=none", "--entrypoint=/bin/sh", IMAGE, "-c",
                "command -v gcc g++ cmake protoc; ls -d /src; true")
    assert not found.stdout, found.stdout


def test_the_cpu_image_has_no_cuda():
    """No code, and nothing of NVIDIA's images, which it does not even pull."""
    started = run("podman", "run", "--rm", "--network=none", IMAGE, "--device", "cuda", check=False)
    assert started.returncode == 1
    assert started.stderr == ("attnd-server: cuda: this build has no CUDA "
                              "(-DATTND_CUDA=ON, which needs nvcc)\n")
    images = run("podman", "images", "--format", "{{.Repository}}").stdout
    assert "nvidia/cuda" not in images
