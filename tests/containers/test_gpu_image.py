"""The image with CUDA=1, on a machine without a GPU; NVIDIA's images are not there (see run)."""

import pytest
from conftest import run

IMAGE = "localhost/attnd:gpu"


@pytest.fixture(scope="module", autouse=True)
def image():
    if run("podman", "image", "exists", IMAGE, check=False).returncode != 0:
        pytest.skip("not built: tests/containers/run cuda")


def test_asks_for_the_driver():
    """One line, and nothing else."""
    started = run("podman", "run", "--rm", "--network=none", IMAGE, "--device", "cuda", check=False)
    assert started.returncode == 1
    assert started.stderr.count("\n") == 1 and "driver" in started.stderr, started.stderr


def test_serves_on_the_processor_where_there_is_no_gpu():
    container = run("podman", "run", "-d", "--network=none", IMAGE).stdout.strip()
    try:
        run("podman", "exec", container, "sh", "-c",
            "for _ in $(seq 100); do attnd-server --probe && exit; sleep 0.2; done; exit 1")
    finally:
        run("podman", "rm", "-f", container)


def test_carries_no_toolkit_and_no_sources():
    found = run("podman", "run", "--rm", "--network=none", "--entrypoint=/bin/sh", IMAGE, "-c",
                "command -v nvcc gcc g++ cmake protoc; ls -d /src; true")
    assert not found.stdout, found.stdout
