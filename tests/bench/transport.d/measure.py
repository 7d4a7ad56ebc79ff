"""Interleaved slices: each round gives every variant of a group its turn."""

import contextlib
import dataclasses
import sys

from processes import Process, Usage

FOREIGN_LIMIT = 0.15  # cores
MOST_REPEATS = 5  # of one slice
WARM_UP_SLICES = 6


@dataclasses.dataclass(frozen=True)
class Variant:
    """A kind of server with its client. `beside(server)` makes a context that slices run in."""

    name: str
    server: object  # Program or Attnd; equal ones are one process
    load: tuple  # command of the client, without its target
    load_options: tuple = ()
    beside: object = contextlib.nullcontext


@dataclasses.dataclass(frozen=True)
class Group:
    """Variants that are compared, at one size of tensors and one number of callers."""

    suite: str
    tensor_bytes: int
    callers: int
    seconds: float  # of a slice
    variants: tuple

    @property
    def name(self):
        callers = f"{self.callers} callers" if self.callers > 1 else "1 caller"
        return f"{self.suite} {size_text(self.tensor_bytes)}, {callers}"


@dataclasses.dataclass
class Reading:
    """One slice of one variant. CPU and faults are the client's and the server's."""

    calls: int
    seconds: float
    p50_us: float
    p99_us: float
    tensor_bytes: int
    cpu_seconds: tuple
    minor_faults: tuple
    foreign: float  # cores
    discarded: int = 0  # slices of its round that were noisier

    @property
    def rate(self):
        """Calls per second."""
        return self.calls / self.seconds

    @property
    def goodput(self):
        """GB/s, both directions added."""
        return self.rate * 4 * self.tensor_bytes / 1e9

    @property
    def cpu_per_gb(self):
        return sum(self.cpu_seconds) / (self.calls * 4 * self.tensor_bytes / 1e9)

    @property
    def faults_per_call(self):
        """Page faults for each call, on the end that has more of them."""
        return max(self.minor_faults) / self.calls


def size_text(size):
    for unit, factor in (("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= factor:
            return f"{size // factor} {unit}"
    return f"{size} B"


class Bench:
    """Runs groups. A process lives from the first group that needs it until stop().

    Slices during which something else loaded the machine are repeated, for `patience` seconds in
    all; after that, disturbed slices count as measured.
    """

    def __init__(self, rounds, scale, patience, log):
        self._rounds, self._scale, self._patience, self._log = rounds, scale, patience, log
        self._running = {}

    def _get(self, key, start):
        if key not in self._running:
            self._running[key] = start()
        return self._running[key]

    def _pair(self, variant):
        server = self._get(variant.server, lambda: variant.server.start(self._log))
        command = (*variant.load, server.target, *variant.load_options)
        return server, self._get(command, lambda: Process(command, self._log))

    def run(self, group):
        """{variant's name: its readings, one a round}. Every echo is verified first."""
        pairs = {variant: self._pair(variant) for variant in group.variants}
        for variant, (_, load) in pairs.items():
            if not load.ask("verify", group.tensor_bytes, group.callers)["right"]:
                raise SystemExit(f"bench/transport: {variant.name} got wrong bytes ({group.name})")
            # Until malloc retains as much memory as the largest calls need.
            load.ask("run", group.tensor_bytes, group.callers,
                     group.seconds * self._scale * WARM_UP_SLICES)
        readings = {variant.name: [] for variant in group.variants}
        order = list(group.variants)
        for _ in range(self._rounds):
            for variant in order:
                readings[variant.name].append(self._calm_slice(group, variant, *pairs[variant]))
            # So that no variant always follows the slice of the same other one.
            order = order[1:] + order[:1]
        return readings

    def _calm_slice(self, group, variant, server, load):
        """The first calm slice, or the calmest."""
        readings = []
        with variant.beside(server):
            while True:
                readings.append(self._slice(group, server, load))
                chosen = min(readings, key=lambda reading: reading.foreign)
                chosen.discarded = len(readings) - 1
                if (chosen.foreign <= FOREIGN_LIMIT or self._patience <= 0
                        or chosen.discarded == MOST_REPEATS):
                    return chosen
                self._patience -= chosen.seconds

    def _slice(self, group, server, load):
        usage = Usage(process.pid for process in self._running.values())
        answer = load.ask("run", group.tensor_bytes, group.callers, group.seconds * self._scale)
        foreign, taken = usage.stop()
        cpu, faults = zip(taken[load.pid], taken[server.pid])
        return Reading(**answer, tensor_bytes=group.tensor_bytes, cpu_seconds=cpu,
                       minor_faults=faults, foreign=foreign)

    def stop(self):
        # Clients come after their servers in the order of starting.
        for process in reversed(self._running.values()):
            process.stop()
        self._running.clear()


def progress(text):
    print(text, file=sys.stderr, flush=True)
