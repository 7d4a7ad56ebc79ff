"""A server under mixed load: small, large, backward, streams, cancelled, malformed, broken and
killed callers. Every few seconds all of them rest; then nothing may be in flight, and what the
process holds may not grow from the first half of those rests to the second.
"""

import itertools
import json
import pathlib
import statistics
import subprocess
import sys
import time

from caller import KINDS
from helpers import eventually
from server_process import Server, samples

WORK_SECONDS = 10
WARM_UP, WARM_UP_RESTS = 1 / 3, 4  # of the rests; at least so many
GAUGES = ("attnd_inflight_requests", "attnd_queue_requests", "attnd_queue_bytes",
          "attnd_budget_charged_bytes")  # fmt: skip
# Allowed outcomes: an answer, the refusal of a bad request, or a refusal for lack of room.
EXPECTED = {"OK", "SERVING", "REFUSED", "BROKEN", "CANCELLED", "DEADLINE_EXCEEDED",
            "RESOURCE_EXHAUSTED"}  # fmt: skip
SLACK_BYTES, SLACK_SHARE = 16 << 20, 0.05
SLACK_DESCRIPTORS, SLACK_THREADS = 8, 2


class Caller:
    """A process of caller.py."""

    def __init__(self, kind, server, seed):
        self.kind = kind
        script = pathlib.Path(__file__).with_name("caller.py")
        command = [sys.executable, str(script), kind, server.target, server.http, str(seed)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def go(self):
        print("go", file=self._process.stdin, flush=True)

    def stop_working(self):
        print("rest", file=self._process.stdin, flush=True)

    def counts(self):
        """Counts since `go`; call it after stop_working."""
        return json.loads(self._process.stdout.readline())

    def kill(self):
        self._process.kill()
        self._process.wait()


def check(folder, minutes):
    server = Server(folder, "--budget-bytes", "1GiB", "--log-level", "warning")
    callers = [Caller(kind, server, seed) for seed, kind in enumerate(KINDS)]
    rests = []
    print(f"{'s':>6} {'calls':>7} {'refused':>7} {'RSS MiB':>8} {'files':>6} {'threads':>7}")
    start = time.monotonic()
    try:
        for seed in itertools.count(100):
            rests.append(one_round(server, callers, seed))
            print(line_of(rests[-1], time.monotonic() - start), flush=True)
            if time.monotonic() - start > minutes * 60 - WORK_SECONDS:
                break
        # Their open connections are not growth, but keep the server from resting.
        for caller in callers:
            caller.kill()
        alive = server.process.poll() is None
        code = server.stop() if alive else server.process.returncode
    finally:
        for caller in callers:
            caller.kill()
        server.kill()
    yield alive and code == 0, f"the server lives and drains: exit code {code}"
    yield from judge(rests)


def one_round(server, callers, seed):
    """All callers work, two are killed meanwhile, the others rest; the measurements at rest."""
    doomed = [Caller(kind, server, seed) for kind in ("small", "streams")]
    for caller in callers + doomed:
        caller.go()
    time.sleep(WORK_SECONDS)
    for caller in doomed:
        caller.kill()
    for caller in callers:
        caller.stop_working()
    counts = {caller.kind: caller.counts() for caller in callers}
    is_quiet = eventually(lambda: gauges_are_zero(server), 30)
    process = pathlib.Path(f"/proc/{server.pid}")
    return {
        "counts": counts,
        "is_quiet": is_quiet,
        "bytes": server.rss(),
        "descriptors": len(list((process / "fd").iterdir())),
        "threads": len(list((process / "task").iterdir())),
    }


def gauges_are_zero(server):
    values = {name: value for name, _, value in samples(server.metrics()) if name in GAUGES}
    return values == dict.fromkeys(GAUGES, 0)


def line_of(rest, seconds):
    outcomes = [item for counts in rest["counts"].values() for item in counts.items()]
    calls = sum(count for _, count in outcomes)
    refused = sum(count for code, count in outcomes if code == "RESOURCE_EXHAUSTED")
    return (
        f"{seconds:6.0f} {calls:7} {refused:7} {rest['bytes'] / 2**20:8.1f} "
        f"{rest['descriptors']:6} {rest['threads']:7}"
    )


def judge(rests):
    noisy = [index for index, rest in enumerate(rests) if not rest["is_quiet"]]
    yield verdict(f"gauges are there, and zero, at each of {len(rests)} rests", noisy)

    outcomes = [rest["counts"] for rest in rests]
    strange = {
        f"{kind}: {code}": count
        for counts in outcomes
        for kind, codes in counts.items()
        for code, count in codes.items()
        if code not in EXPECTED and count
    }
    yield verdict("calls are answered, the same each time, or refused as they should be", strange)
    idle = [(i, kind) for i, counts in enumerate(outcomes) for kind in KINDS if not counts[kind]]
    yield verdict("every kind of load gets on in every round", idle)

    warm = rests[max(WARM_UP_RESTS, int(len(rests) * WARM_UP)) :]
    half = len(warm) // 2
    for name, slack in (
        ("bytes", SLACK_BYTES + SLACK_SHARE * warm[0]["bytes"]),
        ("descriptors", SLACK_DESCRIPTORS),
        ("threads", SLACK_THREADS),
    ):
        before = statistics.median(rest[name] for rest in warm[: half or 1])
        after = statistics.median(rest[name] for rest in warm[half:])
        yield after - before <= slack, (
            f"{name} do not grow: median {before:.0f}, then {after:.0f}, {slack:.0f} more allowed"
        )


def verdict(rule, exceptions):
    return not exceptions, f"{rule}{f', but not {exceptions}' if exceptions else ''}"
