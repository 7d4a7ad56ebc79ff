"""`attn doctor`: what it finds of a server that is well, and of one that is not."""

import numpy as np
import pytest

from attn_command import attn, ok  # noqa: F401
from attnd import _proto, cli
from peer import Peer


def test_a_server_that_is_well(attn):
    text = ok(attn("doctor")).splitlines()
    assert text[0].startswith("attnd ") and text[0].endswith(": SERVING")
    assert text[1].startswith("cpu: ")
    assert "softmax of 65 tokens: " in text[2] and "from float64, compute " in text[2]
    assert text[3:] == ["all is well"]


class Server(Peer):
    """One with a device cuda:0, which answers every request with zeros or as `right` says."""

    def __init__(self, self_tests=(), note="", unusable=(), right=True, status="SERVING"):
        self.self_tests, self.note, self.unusable = self_tests, note, unusable
        self.right, self.status = right, status
        super().__init__()
        self.answer, self.check = self._reply, self._health

    def _health(self, request, context):
        kind = _proto.HealthCheckResponse
        return kind(status=kind.ServingStatus.Value(self.status)).SerializeToString()

    def _reply(self, request, context):
        if not request:
            return self._info()
        sent = _proto.ForwardRequest.FromString(request)
        q, k, v = (np.frombuffer(raw, np.float32).reshape(1, 2, 65, 16) for raw in sent.raw[:3])
        scores = np.exp(q @ k.swapaxes(-1, -2) / 4)
        out = scores / scores.sum(-1, keepdims=True) @ v if self.right else np.zeros_like(v)
        reply = _proto.ForwardReply(raw=[out.astype(np.float32).tobytes()])
        out = reply.tensors.add()
        out.CopyFrom(sent.tensors[0])
        out.name, out.raw_index = "out", 0
        return reply.SerializeToString()

    def _info(self):
        reply = _proto.ServerInfoReply(version="9", note=self.note,
                                       unusable_devices=self.unusable)
        device = reply.devices.add(name="cuda:0", description="a GPU", self_test_seconds=2)
        for fields in self.self_tests:
            device.self_tests.add(**fields)
        return reply.SerializeToString()


AGREES = {"primitive": "attend", "dtype": "float32", "launches": 7, "worst_error": 2e-7}
DECLINED = {"primitive": "pool", "dtype": "float16", "declined": True}
FAILED = {"primitive": "scan", "dtype": "float16", "launches": 1, "worst_error": 0.5,
          "failure": "differs from the processor by 0.5 of the largest number"}


@pytest.mark.parametrize("given, code, expected", [
    ({"self_tests": [AGREES, DECLINED]}, 0,
     ["self-test at start-up, 2 s: 1 of 1 agree with the processor", "2.0e-07", "all is well",
      "declined: composed of others"]),
    ({"self_tests": [AGREES, FAILED]}, 1,
     ["1 of 2 agree", "SWITCHED OFF: differs from the processor by 0.5", "not all is well"]),
    ({}, 0, ["not proven: the server runs with --self-test=false", "all is well"]),
    ({"right": False}, 1, ["1.0e+00 from float64, WRONG: at most 1e-05", "not all is well"]),
    ({"note": "cuda:1 is lost", "unusable": ["cuda:1"]}, 1,
     ["broken: cuda:1 is lost", "not all is well"]),
    ({"note": "cuDNN is not installed"}, 0, ["note: cuDNN is not installed", "all is well"]),
    ({"status": "NOT_SERVING"}, 1, ["NOT_SERVING", "not all is well"]),
])
def test_what_it_finds(given, code, expected, capsys):
    peer = Server(**given)
    try:
        assert cli.main(["doctor", "--server", peer.target]) == code
    finally:
        peer.stop()
    text = " ".join(capsys.readouterr().out.split())
    for words in expected:
        assert words in text
