"""Attention of the service inside PyTorch: the built server, the Python client, autograd."""

import pathlib
import sys

import numpy as np
import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]


def server(folder):
    """A running server of build/, or a skip that names what is missing."""
    sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "tests/e2e")]
    pytest.importorskip("grpc")
    pytest.importorskip("attnd", reason="the client is not built (deploy/install-deps)")
    from server_process import SERVER, Server

    if not SERVER.is_file():
        pytest.skip(f"{SERVER} is not built")
    return Server(folder)


class Attention(torch.autograd.Function):
    """call(client, method, options, tensors): out and the other outputs by name. Float tensors
    travel as float32; memories and lengths come without a gradient."""

    @staticmethod
    def forward(ctx, client, method, options, names, *tensors):
        ctx.request = client, method, options, names
        ctx.save_for_backward(*tensors)
        q, k, v, others = Attention._split(names, tensors)
        reply = client.forward(q, k, v, method=method, options=options, tensors=others)
        made = {"out": reply.out, **reply.tensors}
        ctx.made = list(made)
        outputs = [torch.tensor(np.array(x, np.int32 if x.dtype == np.int32 else np.float64))
                   for x in made.values()]
        ctx.mark_non_differentiable(*(x for name, x in zip(made, outputs)
                                      if name not in ("out", "aux")))
        return (list(made), *outputs)

    @staticmethod
    def backward(ctx, _, *grads):
        client, method, options, names = ctx.request
        q, k, v, others = Attention._split(names, ctx.saved_tensors)
        incoming = {name: Attention._array(g) for name, g in zip(ctx.made, grads)
                    if name in ("out", "aux") and g is not None}
        reply = client.backward(q, k, v, incoming.pop("out", None), method=method,
                                options=options, tensors=others, grad_tensors=incoming)
        found = {"q": reply.q, "k": reply.k, "v": reply.v, **reply.tensors}
        return None, None, None, None, *(
            torch.tensor(np.array(found[name], np.float64)) if name in found else None
            for name in names)

    @staticmethod
    def _array(x):
        x = x.detach().numpy()
        return x if x.dtype == np.int32 else np.ascontiguousarray(x, np.float32)

    @staticmethod
    def _split(names, tensors):
        arrays = {name: Attention._array(x) for name, x in zip(names, tensors)}
        return *(arrays.pop(name) for name in "qkv"), arrays


def call(client, method, options, tensors):
    names, *outputs = Attention.apply(client, method, options, list(tensors), *tensors.values())
    return dict(zip(names, outputs))
