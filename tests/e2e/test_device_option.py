"""--device: which devices a server has, and what it says where there is none.

The server on the emulated CUDA runtime (tests/cuda) has as many CUDA devices as
EMULATED_CUDA_DEVICES says.
"""

import subprocess

import pytest

import attnd
import server_process
from helpers import eventually
from server_process import BUILD, EMULATED, built, clean_environment

NO_CUDA = BUILD / "server/attnd-server"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A folder for results of self-tests that is this test's alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "attnd"


def refused(program, *flags, **variables):
    """What a server prints that does not start."""
    ended = subprocess.run([program, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", *flags],
                           capture_output=True, text=True, timeout=server_process.START_SECONDS,
                           env={**clean_environment(), **variables})
    assert ended.returncode == 1 and ended.stdout == ""
    return ended.stderr


@pytest.fixture
def start_emulated(start_server, monkeypatch):
    """Starts a server on emulated devices: start_emulated(*flags, **environment)."""

    def start(*flags, **variables):
        monkeypatch.setattr(server_process, "SERVER", built(EMULATED))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return start_server("--self-test", "false", *flags)

    return start


def devices(server):
    with attnd.Client(server.target) as client:
        return [device.name for device in client.info().devices]


@pytest.mark.parametrize("flags, names", [
    ((), ["cpu", "cuda:0", "cuda:1"]),
    (("--device", "auto"), ["cpu", "cuda:0", "cuda:1"]),
    (("--device", "cpu"), ["cpu"]),
    (("--device", "cuda"), ["cuda:0", "cuda:1"]),
    (("--device", "cuda:1"), ["cuda:1"]),
    (("--device", "cuda:1,0"), ["cuda:1", "cuda:0"]),
])
def test_devices_that_a_server_has(start_emulated, flags, names):
    server = start_emulated(*flags, EMULATED_CUDA_DEVICES="2")
    assert devices(server) == names
    assert "a device is missing" not in server.log()


ABSENT = {"EMULATED_CUDA_DEVICES": "0"}
OLD = {"EMULATED_CUDA_DRIVER": "old"}
SMALL = {"EMULATED_CUDA_SHARED": str(99 << 10)}


@pytest.mark.parametrize("flag", ["cuda", "cuda:0"])
@pytest.mark.parametrize("variables, reason", [
    (ABSENT, "cuda: there is no driver on this machine"),
    (OLD, "cuda: the driver must support CUDA 13.0, got one for CUDA 11.0"),
    (SMALL, "cuda:0: a block must have 128 KiB of shared memory (as on A100, H100 and later), "
            "got 99 KiB"),
])
def test_a_missing_device_that_is_asked_for_is_one_line(flag, variables, reason):
    assert refused(built(EMULATED), "--device", flag, **variables) == f"attnd-server: {reason}\n"


def test_one_of_several_is_missing():
    """Before the others are proven, which here would fail."""
    got = refused(built(EMULATED), "--device", "cuda:0,2", EMULATED_CUDA_DEVICES="2",
                  EMULATED_CUDA_FAULT="launch:40")
    assert got == "attnd-server: cuda: device must be one of cuda:0 to cuda:1, got cuda:2\n"


def test_a_device_proves_itself_at_start(start_server, monkeypatch):
    monkeypatch.setattr(server_process, "SERVER", built(EMULATED))
    server = start_server("--device", "cuda")
    assert devices(server) == ["cuda:0"]


def test_a_device_that_fails_its_self_test_is_not_used():
    got = refused(built(EMULATED), "--device", "cuda", EMULATED_CUDA_FAULT="launch:40")
    assert got.startswith("attnd-server: cuda:0: ") and " fails: " in got
    assert "cudaErrorIllegalAddress" in got and got.count("\n") == 1


@pytest.mark.skipif(not NO_CUDA.exists(), reason="the server was not built")
def test_a_build_without_cuda_says_so_where_it_is_asked_for(start_server, monkeypatch):
    got = refused(NO_CUDA, "--device", "cuda")
    if "this build has no CUDA" not in got:
        pytest.skip("this build has CUDA")
    assert got == ("attnd-server: cuda: this build has no CUDA "
                   "(-DATTND_CUDA=ON, which needs nvcc)\n")
    monkeypatch.setattr(server_process, "SERVER", NO_CUDA)
    server = start_server()
    assert eventually(lambda: "serving" in server.log())
    assert "is missing" not in server.log()


@pytest.mark.parametrize("variables, reason, unusable", [
    (ABSENT, "no driver", None),
    (OLD, "for CUDA 11.0", "cuda"),
    (SMALL, "got 99 KiB", "cuda:0"),
    ({"EMULATED_CUDA_FAULT": "launch:40"}, " fails: ", "cuda:0"),
])
def test_auto_goes_on_with_the_processor(start_server, monkeypatch, variables, reason, unusable):
    """Absence is a note, a device that its driver has and that serves nothing a warning."""
    monkeypatch.setattr(server_process, "SERVER", built(EMULATED))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    server = start_server()
    assert eventually(lambda: "serving" in server.log())
    lines = [line for line in server.log().splitlines() if "a device is missing" in line]
    assert len(lines) == 1 and reason in lines[0]
    assert (" warning " in lines[0]) == (unusable is not None), lines[0]
    assert devices(server) == ["cpu"]
    assert server.metric("attnd_device_unusable") == (1 if unusable else 0)
    with attnd.Client(server.target) as client:
        assert client.info().unusable_devices == ((unusable,) if unusable else ())
