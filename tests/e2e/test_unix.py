"""The server on a Unix socket, reached by both clients and by the command `attn`."""

import asyncio

import grpc
import pytest

import attnd
from attnd import cli
from helpers import noise, same_bits


@pytest.fixture
def target(start_server, tmp_path):
    start_server("--grpc", f"unix:{tmp_path}/attnd.sock")
    return f"unix:{tmp_path}/attnd.sock"


def forward(target, *arguments, **settings):
    with attnd.Client(target, **settings) as client:
        return client.forward(*arguments)


def forward_with_asyncio(target, *arguments, **settings):
    async def run():
        async with attnd.aio.Client(target, **settings) as client:
            return await client.forward(*arguments)

    return asyncio.run(run())


def forward_in_pipeline(target, *arguments, **settings):
    with attnd.Client(target, **settings) as client, client.pipeline() as p:
        future = p.forward(*arguments)
    return future.result()


CALLS = [forward, forward_with_asyncio, forward_in_pipeline]


def test_clients_and_command(target, client, rng, capsys):
    # Above the size that is announced on a stream.
    q = noise(rng, (1, 4, 2048, 64))
    expected = client.forward(q, q, q).out
    for call in CALLS:
        assert same_bits(call(target, q, q, q).out, expected)
    assert cli.main(["--server", target, "health"]) == 0
    assert capsys.readouterr().out == "SERVING\n"
    assert cli.main(["info", "--server", target]) == 0
    assert f"at {target}" in capsys.readouterr().out


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_missing_socket(call, rng, tmp_path):
    q = noise(rng, (1, 1, 4, 8))
    target = f"unix:{tmp_path}/no.sock"
    with pytest.raises(attnd.Error) as caught:
        call(target, q, q, q)
    assert caught.value.code == grpc.StatusCode.UNAVAILABLE
    text = str(caught.value)
    assert text.startswith(f"cannot reach attnd server at {target}: failed to connect")
    assert text.endswith(
        "No such file or directory. Is it running? "
        "Start it with attnd-server or deploy/quickstart --serve"
    )


@pytest.mark.parametrize(
    "target, reason", [("unix:", ""), ("unix:plain.file", "Connection refused. Is it running?")]
)
def test_unusable_sockets(target, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.file").touch()
    assert cli.main(["health", "--server", target]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"attn: cannot reach attnd server at {target}: ") and reason in error
