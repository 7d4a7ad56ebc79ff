"""The comparisons and their goals."""

import contextlib
import dataclasses
import statistics
import threading
import urllib.request

import grpc
from attnd._proto import HealthCheckRequest, HealthCheckResponse
from measure import FOREIGN_LIMIT, Group, Reading, Variant, size_text
from processes import Attnd, Program

KB, MB = 1 << 10, 1 << 20
CALL_1KB = 340  # bytes of a tensor: 85 float32; three of them are a request of 1 KB
SPIN_US = 200
BEYOND_LIMIT = 1.1  # of a socket's goodput; the rest is noise

RAW, IN_PLACE, GATHER, SPINNING = "raw socket", "attnd in place", "attnd", "attnd, spinning"
PIPELINE, PIPELINE_SPINNING = "attnd pipeline", "attnd pipeline, spinning"
LARGE_READS = "attnd, large reads"
SYNC, CALLBACK, FLIGHT = "protobuf sync", "protobuf callback", "Arrow Flight"
STOCK_TO_US, STOCK_TO_STOCK = "stock Python client, attnd", "stock Python client and server"
OUR_PYTHON = "attnd Python client"
PRODUCT, PRODUCT_PIPELINE = "attnd-server", "attnd-server, pipeline"
OFF, ON = "attnd-server, unobserved", "attnd-server, watched and scraped"


@contextlib.contextmanager
def observed(server):
    """A health Watch is open and /metrics is read every second, the first time at once."""
    done = threading.Event()

    def scrape():
        while True:
            with urllib.request.urlopen(f"{server.http}/metrics", timeout=10) as page:
                page.read()
            if done.wait(1):
                return

    with grpc.insecure_channel(server.target) as channel:
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch",
                                     request_serializer=HealthCheckRequest.SerializeToString,
                                     response_deserializer=HealthCheckResponse.FromString)
        answers = watch(HealthCheckRequest())
        next(answers)
        scraper = threading.Thread(target=scrape)
        scraper.start()
        try:
            yield
        finally:
            done.set()
            scraper.join()
            answers.cancel()


def variants(build, here, python, flight_python):
    """Every variant by its name; without Flight where `flight_python` is None."""

    def native(name, kind, *options):
        return Variant(name, Program((build / "transport_server", kind, *options)),
                       (build / "transport_load", kind), options)

    protobuf = (python, here / "python_protobuf.py")
    gather = native(GATHER, "gather")
    spinning = native(SPINNING, "gather", SPIN_US)

    def pipeline(name, same_server, *options):
        return Variant(name, same_server.server, (build / "transport_load", "pipeline"), options)

    product = Attnd(build.parent / "server/attnd-server")
    all_of_them = [
        native(RAW, "raw"),
        native(IN_PLACE, "in_place"),
        gather,
        spinning,
        pipeline(PIPELINE, gather),
        pipeline(PIPELINE_SPINNING, spinning, SPIN_US),
        native(LARGE_READS, "gather", 0, "large"),
        native(SYNC, "sync"),
        native(CALLBACK, "callback"),
        Variant(STOCK_TO_US, gather.server, (*protobuf, "load")),
        Variant(STOCK_TO_STOCK, Program((*protobuf, "server")), (*protobuf, "load")),
        Variant(OUR_PYTHON, gather.server, (python, here / "python_attnd.py")),
        Variant(PRODUCT, product, gather.load),
        Variant(PRODUCT_PIPELINE, product, (build / "transport_load", "pipeline")),
        Variant(OFF, product, gather.load),
        Variant(ON, product, gather.load, beside=observed),
    ]
    if flight_python is not None:
        flight = (flight_python, here / "python_flight.py")
        all_of_them.append(Variant(FLIGHT, Program((*flight, "server")), (*flight, "load")))
    return {variant.name: variant for variant in all_of_them}


def groups(known):
    """In the order in which they run. `known`: what variants() answers."""

    def group(suite, size, callers, seconds, *names):
        return Group(suite, size, callers, seconds, tuple(known[n] for n in names if n in known))

    yield group("small", CALL_1KB, 1, 0.4, RAW, GATHER, SPINNING, PIPELINE, PIPELINE_SPINNING, SYNC,
                CALLBACK, FLIGHT)
    for callers in (8, 32):
        yield group("small", CALL_1KB, callers, 0.5, RAW, GATHER, PIPELINE, PIPELINE_SPINNING, SYNC,
                    CALLBACK, PRODUCT, PRODUCT_PIPELINE)
    for size, seconds in ((16 * KB, 0.4), (256 * KB, 0.4), (MB, 0.5), (8 * MB, 0.8),
                          (32 * MB, 1.2)):
        yield group("bulk", size, 1, seconds, RAW, IN_PLACE, GATHER, LARGE_READS, SYNC, FLIGHT)
    for size, seconds in ((256 * KB, 0.5), (MB, 0.6), (8 * MB, 1.0)):
        yield group("python", size, 1, seconds, STOCK_TO_US, STOCK_TO_STOCK, OUR_PYTHON, FLIGHT)
    yield group("health", CALL_1KB, 8, 2.2, OFF, ON)


@dataclasses.dataclass(frozen=True)
class Goal:
    """`figure` of `ours`, divided by that of `peer` (none: as it is), must keep `bound`."""

    number: str  # names the goal in the report
    suite: str
    tensor_bytes: int
    callers: int
    ours: str
    peer: str | None
    figure: str  # a property of Reading
    bound: str  # ">= 2.3"

    def fits(self, group):
        return (self.suite, self.tensor_bytes, self.callers) == (
            group.suite, group.tensor_bytes, group.callers)

    @property
    def case(self):
        callers = "" if self.callers == 1 else f", {self.callers} callers"
        against = f" / {self.peer}" if self.peer else ""
        return f"{self.number} {self.ours}{against}, {size_text(self.tensor_bytes)}{callers}"


UNITS = {"goodput": "GB/s", "rate": "calls/s", "p50_us": "us, p50",
         "faults_per_call": "minor faults a call, the worse end"}
LARGE = (256 * KB, MB, 8 * MB, 32 * MB)
GOALS = [
    *(Goal("4", "bulk", size, 1, GATHER, SYNC, "goodput", bound)
      for size, bound in zip(LARGE, (">= 2.3", ">= 3", ">= 3.4", ">= 2.7"))),
    Goal("7", "bulk", MB, 1, GATHER, RAW, "goodput", ">= 0.50"),
    Goal("7", "bulk", 8 * MB, 1, GATHER, RAW, "goodput", ">= 0.40"),
    Goal("7", "bulk", MB, 1, LARGE_READS, RAW, "goodput", ">= 0.50"),
    *(Goal(number, "small", CALL_1KB, callers, ours, peer, "rate", bound)
      for number, peer, bound in (("11", SYNC, ">= 3"), ("12", CALLBACK, ">= 1.5"))
      for callers in (8, 32)
      for ours in (GATHER, PIPELINE, PIPELINE_SPINNING)),
    *(Goal("13", "small", CALL_1KB, 1, ours, RAW, "p50_us", bound)
      for ours, bound in ((GATHER, "<= 1.8"), (PIPELINE, "<= 1.8"), (SPINNING, "<= 0.5"),
                          (PIPELINE_SPINNING, "<= 0.5"))),
    *(Goal("15", "bulk", size, 1, GATHER, None, "faults_per_call", "<= 5") for size in LARGE),
    Goal("16", "health", CALL_1KB, 8, ON, OFF, "rate", ">= 0.95"),
    Goal("17", "python", MB, 1, STOCK_TO_US, STOCK_TO_STOCK, "goodput", ">= 1.5"),
    Goal("17", "python", 8 * MB, 1, STOCK_TO_US, STOCK_TO_STOCK, "goodput", ">= 1.5"),
    *(Goal("18", "bulk", size, 1, GATHER, FLIGHT, "goodput", ">= 2") for size in LARGE),
    *(Goal("18", "bulk", size, 1, LARGE_READS, FLIGHT, "goodput", ">= 2") for size in LARGE),
    Goal("18", "small", CALL_1KB, 1, GATHER, FLIGHT, "p50_us", "<= 1"),
]


def median_of(readings, figure):
    return statistics.median(getattr(reading, figure) for reading in readings)


def result_of(goal, readings: dict[str, list[Reading]]):
    """In the format of tests/bench/table.py, or None when a variant was not measured."""
    ours, peer = readings.get(goal.ours), readings.get(goal.peer)
    if ours is None or (goal.peer and peer is None):
        return None
    noisy = max(median_of(r, "foreign") for r in (ours, peer or ours)) > FOREIGN_LIMIT
    line = {"case": goal.case, "value": median_of(ours, goal.figure), "unit": UNITS[goal.figure],
            "goal": goal.bound,
            "noisy": noisy, "beyond_limit": False}
    if goal.peer:
        line["peak"] = median_of(peer, goal.figure)
        line["ratio"] = statistics.median(
            getattr(a, goal.figure) / getattr(b, goal.figure) for a, b in zip(ours, peer))
        # Gathering cannot be faster than the sockets below it: one of the two was disturbed.
        line["beyond_limit"] = (
            goal.peer == RAW and goal.figure == "goodput" and line["ratio"] > BEYOND_LIMIT)
    return line
