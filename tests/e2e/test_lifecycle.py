"""Start, health, draining and stop of the real process."""

import collections
import pathlib
import signal
import subprocess
import threading
import urllib.error

import grpc
import numpy as np
import pytest

import attnd
from attnd import _proto
from helpers import Busy, eventually, noise
from server_process import SERVER, clean_environment


def run_server(*flags):
    return subprocess.run(
        [str(SERVER), *flags],
        capture_output=True,
        text=True,
        timeout=30,
        env=clean_environment(),
    )


class Watch:
    """The statuses that grpc.health.v1 Watch streams."""

    def __init__(self, target):
        self.seen = []
        self._channel = grpc.insecure_channel(target)
        self._call = self._channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=_proto.HealthCheckRequest.SerializeToString,
            response_deserializer=_proto.HealthCheckResponse.FromString,
        )(_proto.HealthCheckRequest())
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        try:
            for reply in self._call:
                self.seen.append(_proto.HealthCheckResponse.ServingStatus.Name(reply.status))
        except grpc.RpcError:
            pass

    def close(self):
        self._call.cancel()
        self._thread.join()
        self._channel.close()


def test_serving(server, client):
    assert client.health() == "SERVING"
    assert client.health("attn.v1.AttentionService") == "SERVING"
    with pytest.raises(attnd.Error) as caught:
        client.health("no.such.Service")
    assert caught.value.code == grpc.StatusCode.NOT_FOUND
    assert server.get("/healthz")[0] == 200
    assert server.get("/readyz")[0] == 200
    assert server.get("/nothing")[0] == 404


def test_info_and_methods(client):
    info = client.info()
    assert info.version and info.uptime_seconds > 0
    assert info.max_message_bytes == 2**30 and info.budget_bytes > 2**20
    assert [device.name for device in info.devices] == ["cpu"]
    assert info.devices[0].peak_flops > 1e9

    methods = {method.id: method for method in client.methods()}
    assert set(methods) == {path.stem for path in (pathlib.Path(__file__).resolve().parents[2] / "kernels/methods").glob("*.cc")}
    options = {option.name: option for option in methods["local"].options}
    assert options["window_left"].default_value.startswith("required")
    assert options["granularity"].enum_values == ("token", "block")
    assert options["alibi"].served
    assert all(option.served for method in methods.values() for option in method.options)
    assert {"q", "k", "v", "kv_lengths"} <= {tensor.name for tensor in methods["local"].tensors}
    assert methods["softmax"].support.gqa and methods["softmax"].support.backward
    assert methods["softmax"].support.dtypes == ("float32", "float16", "bfloat16")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_server_stops(start_server, number):
    # A stream that blocked the stop would block it for all of this time.
    server = start_server("--drain-timeout", "300s")
    watch = Watch(server.target)
    assert eventually(lambda: watch.seen == ["SERVING"])
    server.signal(number)
    assert server.wait(60) == 0
    watch.close()
    assert watch.seen == ["SERVING", "NOT_SERVING"]


def test_work_in_flight_finishes_and_new_work_is_refused(start_server, rng):
    flags = ["--drain-delay", "3s", "--drain-timeout", "60s", "--max-running", "1"]
    server = start_server(*flags)
    q = noise(rng, (1, 2, 64, 32))
    # The test must see the refusal: a retry could wait until the work in flight has ended.
    with attnd.Client(server.target, timeout=60, retries=0) as client:
        queued = []

        def ask():
            queued.append(client.forward(q, q, q))

        with Busy(client, server, seconds=2) as busy:
            waiting = threading.Thread(target=ask)
            waiting.start()
            assert eventually(lambda: server.metric("attnd_queue_requests") == 1)

            server.signal(signal.SIGTERM)

            assert eventually(lambda: client.health() == "NOT_SERVING")
            with pytest.raises(attnd.Error) as caught:
                client.forward(q, q, q)
            assert caught.value.code == grpc.StatusCode.UNAVAILABLE
            assert server.get("/readyz")[0] == 503
            assert server.get("/healthz")[0] == 200
            assert server.metric("attnd_refused_total", reason="draining") >= 1
            assert busy.is_running(), "the work in flight ended too early for this test"
            waiting.join()
        assert busy.error is None
        assert busy.result.out.shape == busy.q.shape
        assert len(queued) == 1
        assert server.wait(60) == 0


def test_clients_that_keep_calling_are_sent_elsewhere(start_server, rng):
    server = start_server()
    q = noise(rng, (1, 4, 256, 64))
    outcomes = collections.Counter()
    stop = threading.Event()

    def loop(call):
        with attnd.Client(server.target, timeout=20) as client:
            while not stop.is_set():
                try:
                    call(client)
                    outcomes["OK"] += 1
                except attnd.Error as error:
                    outcomes[error.code.name] += 1
                    stop.wait(0.01)

    calls = [lambda c: c.forward(q, q, q), lambda c: c.forward(q, q, q, method="linear_attention")]
    calls += [lambda c: c.health(), lambda c: c.info()]
    threads = [threading.Thread(target=loop, args=(call,)) for call in 3 * calls]
    for thread in threads:
        thread.start()
    try:
        assert eventually(lambda: outcomes["OK"] >= 200)
        server.signal(signal.SIGTERM)
        assert server.wait(10) == 0
        # Their next calls find no server.
        assert eventually(lambda: outcomes["UNAVAILABLE"] > 2 * len(threads))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert outcomes.keys() == {"OK", "UNAVAILABLE"}


def test_port_in_use(start_server):
    server = start_server()
    taken = server.http.removeprefix("http://")
    for flags in (
        ["--grpc", server.target, "--http", "127.0.0.1:0"],
        ["--grpc", "127.0.0.1:0", "--http", taken],
    ):
        second = run_server(*flags)
        assert second.returncode == 1
        lines = second.stderr.strip().splitlines()
        address = next(flag for flag in flags if flag.startswith("127") and flag != "127.0.0.1:0")
        assert len(lines) == 1 and address in lines[0], second.stderr
    with attnd.Client(server.target) as client:
        assert client.health() == "SERVING"


@pytest.mark.parametrize(
    "flags, fragment",
    [
        (["--bogus"], "--bogus"),
        (["--threads", "many"], "many"),
        (["--grpc", "nowhere"], "nowhere"),
        (["--isa", "avx1024"], "avx1024"),
        (["extra"], "extra"),
    ],
)
def test_bad_command_line(flags, fragment):
    done = run_server(*flags)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1 and fragment in done.stderr, done.stderr
    assert not done.stdout


def test_help_and_version():
    text = run_server("--help")
    assert text.returncode == 0 and not text.stderr
    for flag in ("--grpc", "--http", "--threads", "--budget-bytes", "--drain-timeout"):
        assert flag in text.stdout
    assert run_server("--version").returncode == 0


def test_http_ends_with_the_server(start_server):
    server = start_server()
    assert server.stop() == 0
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        server.get("/healthz")
    with attnd.Client(server.target) as client, pytest.raises(attnd.Error) as caught:
        client.forward(np.zeros((1, 1, 1, 8), np.float32))
    assert caught.value.code == grpc.StatusCode.UNAVAILABLE
    assert "Is it running?" in str(caught.value)
