"""Encrypted connections of the Python client, and its texts where one cannot be made. The peers are
small gRPC servers in Python with certificates made here.
"""

import asyncio
import pickle
import subprocess

import grpc
import numpy as np
import pytest

import attnd
from attnd import cli
from peer import Peer

Q = np.ones((1, 1, 2, 8), np.float32)
FAILED = "failed to connect to all addresses; last error: "


class Identity:
    """A key and a certificate, signed by itself, for `names`."""

    def __init__(self, folder, name, names):
        self.key, self.certificate = folder / f"{name}.key", folder / f"{name}.pem"
        made = ["-keyout", self.key, "-out", self.certificate, "-subj", f"/CN={name}"]
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        command = ["openssl", "req", "-x509", *kind, *made, "-addext", f"subjectAltName={names}"]
        subprocess.run(command, check=True, capture_output=True)

    def credentials(self):
        pair = (self.key.read_bytes(), self.certificate.read_bytes())
        return grpc.ssl_server_credentials([pair])


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    return Identity(tmp_path_factory.mktemp("tls"), "here", "IP:127.0.0.1,DNS:localhost")


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    return Identity(tmp_path_factory.mktemp("tls"), "elsewhere", "DNS:elsewhere.example")


@pytest.fixture(scope="module")
def peers(here, elsewhere):
    """By name: who speaks TLS as `here` and as `elsewhere`, and who speaks plain text."""
    started = {
        "here": Peer(credentials=here.credentials()),
        "elsewhere": Peer(credentials=elsewhere.credentials()),
        "plain": Peer(),
    }
    yield started
    for peer in started.values():
        peer.stop()


def forward(target, tls):
    with attnd.Client(target, tls=tls, retries=0, timeout=20) as client:
        return client.forward(Q, Q, Q)


def forward_async(target, tls):
    async def run():
        async with attnd.aio.Client(target, tls=tls, retries=0, timeout=20) as client:
            return await client.forward(Q, Q, Q)

    return asyncio.run(run())


def through_pipeline(target, tls):
    with attnd.Client(target, tls=tls, retries=0, timeout=20) as client:
        with client.pipeline() as pipeline:
            return pipeline.forward(Q, Q, Q).result()


CALLS = [forward, forward_async, through_pipeline]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_certificate_that_is_trusted(call, host, peers, here):
    target = peers["here"].target.replace("127.0.0.1", host)
    assert np.array_equal(call(target, here.certificate).out, Q)


# The peer, whose certificate the client trusts, and what the error must say.
FAILURES = {
    "unknown authority": (
        "here", "elsewhere", ["CERTIFICATE_VERIFY_FAILED", "tls=PATH", "--ca PATH", "in date"],
    ),
    "authority of the system": ("here", True, ["CERTIFICATE_VERIFY_FAILED", "tls=PATH"]),
    "wrong name": (
        "elsewhere", "elsewhere", ["Hostname Verification", "certificate for another name?"],
    ),
    "plain port": ("plain", "here", ["WRONG_VERSION_NUMBER", "plain text?", "without tls"]),
    "plain client": ("here", None, ["Socket closed", "want TLS?", "--tls"]),
    "no certificate": ("here", "key", ["security handshaker", "in PEM?"]),
}  # fmt: skip


@pytest.fixture
def failure(request, peers, here, elsewhere):
    peer, trusted, fragments = FAILURES[request.param]
    files = {"here": here.certificate, "elsewhere": elsewhere.certificate, "key": here.key}
    return peers[peer].target, files.get(trusted, trusted), fragments


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
@pytest.mark.parametrize("failure", FAILURES, indirect=True)
def test_errors_of_tls_keep_their_reason_and_say_what_to_check(call, failure):
    """They read "cannot reach attnd server at localhost:18443: OK. Is it running?"."""
    target, tls, fragments = failure
    with pytest.raises(attnd.Error) as caught:
        call(target, tls)
    assert caught.value.code == grpc.StatusCode.UNAVAILABLE
    text = str(caught.value)
    assert text.startswith(f"cannot reach attnd server at {target}: {FAILED}")
    assert all(fragment in text for fragment in fragments), text
    assert "Is it running?" not in text
    assert len(caught.value.reasons) == 1


def test_a_pickled_client_carries_its_authorities(peers, here, tmp_path):
    """Not the path of their file, which may not be where the copy is made."""
    file = tmp_path / "authorities.pem"
    file.write_bytes(here.certificate.read_bytes())
    with attnd.Client(peers["here"].target, tls=file, retries=0) as client:
        pickled = pickle.dumps(client)
    file.unlink()
    with pickle.loads(pickled) as twin:
        assert np.array_equal(twin.forward(Q, Q, Q).out, Q)

    twin = pickle.loads(pickle.dumps(attnd.aio.Client(peers["here"].target, tls=here.certificate)))

    async def run():
        async with twin:
            return await twin.forward(Q, Q, Q)

    assert np.array_equal(asyncio.run(run()).out, Q)


def test_the_command_says_what_to_check(peers, elsewhere, capsys):
    target = peers["here"].target
    flags = ["--server", target, "--ca", str(elsewhere.certificate)]
    assert cli.main(["health", *flags]) == 1
    error = capsys.readouterr().err
    assert "CERTIFICATE_VERIFY_FAILED" in error and "attn --ca PATH" in error
