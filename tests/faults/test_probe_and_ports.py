"""The probe reports why it failed; a ports file that cannot be written does not appear."""

import os
import socket
import subprocess

from server_process import SERVER, clean_environment


def run_server(*flags, timeout=30):
    return subprocess.run(
        [str(SERVER), *flags],
        capture_output=True, text=True, timeout=timeout, env=clean_environment(),
    )  # fmt: skip


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_the_probe_reports_the_reason():
    """For a dead server the probe printed the address without the reason."""
    target = f"127.0.0.1:{free_port()}"
    probe = run_server("--probe", "--grpc", target)
    assert probe.returncode == 1
    assert probe.stdout.startswith(f"{target}: ")
    assert "Connection refused" in probe.stdout


def test_the_probe_of_what_never_answers():
    """Without a deadline it waits as long as gRPC tries to connect: 20 seconds."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        probe = run_server("--probe", "--grpc", target, timeout=15)
    assert probe.returncode == 1
    assert probe.stdout == f"{target}: Deadline Exceeded\n"


def test_the_probe_of_a_server(server):
    probe = run_server("--probe", "--grpc", server.target)
    assert (probe.returncode, probe.stdout) == (0, f"{server.target}: SERVING\n")


def test_a_ports_file_without_room(tmp_path):
    """The file got its final name before its content was known to be written."""
    ports = tmp_path / "ports.json"
    os.symlink("/dev/full", f"{ports}.new")
    server = run_server("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ports-file", str(ports))
    assert server.returncode == 1
    assert f"cannot write {ports}" in server.stderr
    assert not os.path.lexists(ports)


def test_a_port_in_use(server):
    late = run_server("--grpc", server.target, "--http", "127.0.0.1:0")
    assert late.returncode == 1
    assert f"cannot listen on {server.target}: Address already in use" in late.stderr
