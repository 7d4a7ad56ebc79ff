"""Servers and clients as processes; the CPU time that they and the rest of the machine use."""

import dataclasses
import json
import os
import pathlib
import subprocess
import tempfile
import time

TICKS = os.sysconf("SC_CLK_TCK")


def usage_of(pid):
    """(CPU seconds, minor faults) of a process so far."""
    # The name, in parentheses, may hold anything.
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS, int(fields[7])


def busy_seconds():
    """CPU time of all processes so far, and what the hypervisor gave to others (steal)."""
    fields = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    # Interrupts, too: kernels without IRQ_TIME_ACCOUNTING charge them to the process they hit.
    return (user + nice + system + irq + softirq + steal) / TICKS


class Usage:
    """CPU time and faults of processes, and the rest of the machine's load, from here to stop()."""

    def __init__(self, pids):
        self._pids = [*pids, os.getpid()]
        self._before = self._read()

    def _read(self):
        return time.monotonic(), busy_seconds(), {pid: usage_of(pid) for pid in self._pids}

    def stop(self):
        """Foreign load in cores, and {pid: (CPU seconds, minor faults)}."""
        (start, busy, before), (end, busy_after, after) = self._before, self._read()
        taken = {pid: tuple(b - a for a, b in zip(before[pid], after[pid])) for pid in after}
        ours = sum(cpu for cpu, _ in taken.values())
        return (busy_after - busy - ours) / (end - start), taken


class Process:
    """A program of this folder: lines in, lines out, ends when its input does."""

    def __init__(self, command, log):
        self._name = " ".join(map(str, command))
        self._child = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self.pid = self._child.pid

    def read_line(self):
        line = self._child.stdout.readline()
        if not line:
            code = self._child.wait(10)
            raise SystemExit(f"bench/transport: '{self._name}' ended with exit code {code}")
        return line

    def ask(self, *words):
        self._child.stdin.write(" ".join(map(str, words)) + "\n")
        self._child.stdin.flush()
        return json.loads(self.read_line())

    def stop(self):
        self._child.stdin.close()
        try:
            self._child.wait(5)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()


@dataclasses.dataclass(frozen=True)
class Program:
    """A server of this folder; it prints its port."""

    command: tuple

    def start(self, log):
        process = Process(self.command, log)
        process.target = f"127.0.0.1:{int(process.read_line())}"
        return process


@dataclasses.dataclass(frozen=True)
class Attnd:
    """The product's server."""

    binary: pathlib.Path

    def start(self, log):
        return AttndProcess(self.binary, log)


class AttndProcess:
    def __init__(self, binary, log):
        with tempfile.TemporaryDirectory() as folder:
            ports = pathlib.Path(folder, "ports.json")
            command = [binary, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0",
                       "--ports-file", ports]
            self._child = subprocess.Popen([str(part) for part in command], stderr=log)
            self.pid = self._child.pid
            while not ports.exists():
                if self._child.poll() is not None:
                    raise SystemExit(f"bench/transport: {binary} ended, see above")
                time.sleep(0.02)
            found = json.loads(ports.read_text())
        self.target = f"127.0.0.1:{found['grpc']}"
        self.http = f"http://127.0.0.1:{found['http']}"

    def stop(self):
        self._child.terminate()
        self._child.wait(30)
