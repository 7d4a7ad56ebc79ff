"""A property of real data from replies alone: with v = k the mean of lse - scale q.out over the
rows of a head is the entropy of its attention, known from the model itself."""

import re

import grpc
import numpy as np
import pytest

import stubs as stock
from server_process import DATA


@pytest.fixture(scope="module")
def entropies():
    text = (DATA / "README.md").read_text()
    listed = re.search(r"by head:\s*([\d.\s]+) nats", text)[1]
    return np.array([float(x) for x in listed.split()])


@pytest.fixture(scope="module")
def stubs():
    return stock.load()


def entropies_of(q, out, lse):
    scale = 1 / np.sqrt(q.shape[-1])
    rows = lse - scale * np.sum(q.astype(np.float64) * out.astype(np.float64), axis=3)
    return rows.mean(axis=2)[0]


def test_attnd_client(client, genesis, entropies):
    q, k = genesis["q"], genesis["k"]
    reply = client.forward(q, k, k)
    assert np.abs(entropies_of(q, reply.out, reply.lse) - entropies).max() < 0.01


def test_stock_protobuf_client(server, stubs, genesis, entropies):
    attention, services, methods, tensor = stubs
    q, k = genesis["q"], genesis["k"]
    request = attention.ForwardRequest(
        id="entropy", method=methods.MethodSpec(softmax=methods.Softmax())
    )
    # k and v refer to one payload.
    for name, index in {"q": 0, "k": 1, "v": 1}.items():
        request.tensors.add(name=name, dtype=tensor.DType.float16, shape=q.shape, raw_index=index)
    request.raw.extend([q.tobytes(), k.tobytes()])

    with grpc.insecure_channel(server.target) as channel:
        reply = services.AttentionServiceStub(channel).Forward(request, timeout=30)

    assert reply.id == "entropy"
    found = {t.name: (t, reply.raw[t.raw_index]) for t in reply.tensors}
    out = np.frombuffer(found["out"][1], np.float16).reshape(found["out"][0].shape)
    lse = np.frombuffer(found["lse"][1], np.float32).reshape(found["lse"][0].shape)
    assert found["out"][0].dtype == tensor.DType.float16
    assert np.abs(entropies_of(q, out, lse) - entropies).max() < 0.01


def test_both_clients_get_the_same_bits(server, client, stubs, genesis):
    attention, services, methods, tensor = stubs
    request = attention.BackwardRequest(
        method=methods.MethodSpec(local=methods.Local(window_left=8, causal=True))
    )
    sent = [genesis["q"], genesis["k"], genesis["v"], genesis["v"]]
    for index, name in enumerate(["q", "k", "v", "grad_out"]):
        request.tensors.add(
            name=name, dtype=tensor.DType.float16, shape=sent[index].shape, raw_index=index
        )
        request.raw.append(sent[index].tobytes())

    with grpc.insecure_channel(server.target) as channel:
        reply = services.AttentionServiceStub(channel).Backward(request, timeout=30)
    ours = client.backward(*sent, method="local", options={"window_left": 8, "causal": True})

    assert {t.name for t in reply.tensors} == {"q", "k", "v"}
    for t in reply.tensors:
        assert reply.raw[t.raw_index] == getattr(ours, t.name).tobytes()
