"""The real server as a process on free ports of the loopback."""

import json
import os
import pathlib
import signal
import subprocess
import time
import urllib.error
import urllib.request

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
DATA = REPOSITORY / "tests" / "data"
SERVER = pathlib.Path(
    os.environ.get("ATTND_SERVER", REPOSITORY / "build/server/attnd-server")
).resolve()  # tests change directory
# Programs of the same build: on the strict device, and on the emulated CUDA runtime (tests/cuda).
BUILD = SERVER.parent.parent
STRICT = BUILD / "tests/attnd-server-strict"
EMULATED = BUILD / "tests/attnd-server-cuda"
# Before those of a test, as "--device cuda".
FLAGS = os.environ.get("ATTND_SERVER_FLAGS", "").split()
# The first device of such a server.
DEVICE = "cuda:0" if "cuda" in FLAGS else "cpu"
START_SECONDS = 90  # an emulated device takes up to 20 of them to prove itself
STOP_SECONDS = 40


def built(program):
    """`program`, or the test is skipped."""
    if not program.exists():
        pytest.skip(f"not built: {program}")
    return program


def clean_environment():
    """Ours without ATTND_*, which would configure the server or the command under test."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ATTND_")}


def limited(command, files):
    """The command with a limit of open files. By prlimit, which becomes the command: code between
    fork and exec would run in a copy of this process, whose threads of gRPC are gone."""
    soft, hard = files if isinstance(files, tuple) else (files, files)
    return ["prlimit", f"--nofile={soft}:{hard}", *command]


class Server:
    """One attnd-server process on free ports of the loopback. `output`: a file or descriptor for
    what it prints, instead of a log file."""

    def __init__(self, folder, *flags, output=None, files=None):
        """`files`: its limit of open files, or soft and hard limit."""
        assert SERVER.exists(), f"no server at {SERVER}: build it or set ATTND_SERVER"
        ports_file = folder / "ports.json"
        self.log_path = folder / "server.log"
        environment = {**clean_environment(), "ATTND_CACHE_DIR": str(folder / "cache")}
        with open(self.log_path, "wb") as log:
            printed = log if output is None else output
            command = [str(SERVER), "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
            command += ["--ports-file", str(ports_file), *FLAGS, *flags]
            self.process = subprocess.Popen(
                command if files is None else limited(command, files),
                stdout=printed, stderr=printed, env=environment)
        self.pid = self.process.pid
        ports = self._wait_for_ports(ports_file)
        self.target = f"127.0.0.1:{ports['grpc']}"
        self.http = f"http://127.0.0.1:{ports['http']}"

    def _wait_for_ports(self, path):
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            try:
                return json.loads(path.read_text())
            except (FileNotFoundError, ValueError):
                time.sleep(0.02)
        self.kill()
        raise AssertionError(f"server did not start:\n{self.log()}")

    def get(self, path):
        """HTTP status and body."""
        try:
            with urllib.request.urlopen(self.http + path, timeout=10) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self):
        """The text of /metrics."""
        status, text = self.get("/metrics")
        assert status == 200, text
        return text

    def metric(self, name, **labels):
        """Sum of the samples called `name` whose labels include `labels`."""
        return sum(
            value
            for found, having, value in samples(self.metrics())
            if found == name and labels.items() <= having.items()
        )

    def rss(self):
        """Resident bytes."""
        return self._status_bytes("VmRSS")

    def peak_rss(self):
        """Highest resident bytes of the process so far."""
        return self._status_bytes("VmHWM")

    def cpu_seconds(self):
        """Processor time that the process has taken so far."""
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _status_bytes(self, name):
        for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"no {name}")

    def log(self):
        return self.log_path.read_text(errors="replace")

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, timeout=STOP_SECONDS):
        """The exit code."""
        return self.process.wait(timeout)

    def stop(self):
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.signal()
        return self.wait()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def samples(text):
    """(name, labels, value) of each sample of a Prometheus page."""
    for line in text.splitlines():
        if line and not line.startswith("#"):
            series, value = line.rsplit(" ", 1)
            name, _, rest = series.partition("{")
            pairs = (pair.split("=", 1) for pair in rest.rstrip("}").split(",") if "=" in pair)
            yield name, {label: text.strip('"') for label, text in pairs}, float(value)
