"""Log lines quote what a client sends; it must not be able to forge a line."""

import json

import pytest

import attnd
from helpers import eventually, noise

FORGED = "x\n2030-01-01T00:00:00.000Z error forged code=OK \x1b[31m\r\"} {\"level\":\"error\"}"


@pytest.mark.parametrize("kind", ["text", "json"])
def test_a_name_with_a_line_feed_forges_no_line(start_server, rng, kind):
    server = start_server("--log-level", "debug", "--log-format", kind)
    q = noise(rng, (1, 1, 4, 8))
    with attnd.Client(server.target, timeout=20) as client:
        with pytest.raises(attnd.Error, match="forged"):
            client.forward(q, q, q, tensors={FORGED: q})
    assert eventually(lambda: "forged" in server.log())
    assert server.stop() == 0

    text = server.log()
    assert "\x1b" not in text and "\r" not in text
    lines = text.splitlines()
    assert not [line for line in lines if line.startswith("2030-")]
    if kind == "json":
        levels = [json.loads(line)["level"] for line in lines]
        assert "error" not in levels
