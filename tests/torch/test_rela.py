"""relu_attention against rela-transformer, which does not divide by a length. Its norms and
projections are replaced by the identity: what is left is the attention of q, k and v, which it gets
side by side."""

import pytest
import torch
import torch.nn.functional as F

from tests.torch.compared import compare, qkv

ReLA = pytest.importorskip("rela_transformer.rela_transformer").ReLA
H, D = 3, 16


def rela(causal, squared, memory=0):
    module = ReLA(dim=3 * H * D, heads=H, dim_head=D, causal=causal, relu_squared=squared,
                  num_memory_kv=memory)
    for name in ("norm", "to_qkv", "norm_values", "to_out"):
        setattr(module, name, torch.nn.Identity())
    return module.double()


def flat(x):
    return x.transpose(1, 2).flatten(2)


def heads(x):
    return x.unflatten(2, (H, D)).transpose(1, 2)


@pytest.mark.parametrize("squared", [False, True], ids=["relu", "relu-squared"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_attention(causal, squared):
    module = rela(causal, squared)
    compare("relu_attention",
            {"length_norm": "none", "causal": causal,
             "activation": "relu_squared" if squared else "relu"},
            qkv(B=2, H=H, Nq=61, D=D),
            lambda q, k, v: heads(module(torch.cat([flat(x) for x in (q, k, v)], dim=2))))


@pytest.mark.parametrize("length_norm", ["nk", "visible", "avg"])
def test_padding_and_lengths(length_norm):
    """The peer's sum, divided here by the length as the specification defines it."""
    module, lengths = rela(True, False), torch.tensor([61, 20])
    valid = torch.arange(61) < lengths[:, None]
    p = torch.arange(61)[None, :] + 1
    L = {"nk": lengths[:, None].expand(2, 61), "visible": torch.minimum(p, lengths[:, None]),
         "avg": ((lengths[:, None] + 1) / 2).expand(2, 61)}[length_norm]

    def peer(q, k, v):
        out = heads(module(torch.cat([flat(x) for x in (q, k, v)], dim=2), mask=valid))
        return out * (L.double() ** -0.5)[:, None, :, None]

    compare("relu_attention", {"length_norm": length_norm, "alpha": 0.5, "causal": True},
            qkv(B=2, H=H, Nq=61, D=D), peer, {"kv_lengths": lengths.int().numpy()})


def test_memory():
    """Memory keys stand before all others and every query sees them: more keys than queries, with
    the causal triangle at the bottom right."""
    module = rela(True, False, memory=9)

    def peer(q, k, v):
        # Learned, and one for the whole batch.
        for name, x in (("mem_k", k), ("mem_v", v)):
            delattr(module, name)
            setattr(module, name, flat(x[:, :, :9])[0])
        rest = [flat(x) for x in (q, k[:, :, 9:], v[:, :, 9:])]
        return heads(module(torch.cat(rest, dim=2)))

    compare("relu_attention", {"length_norm": "none", "causal": True},
            qkv(B=1, H=H, Nq=40, Nk=49, D=D), peer)


ACTIVATIONS = {
    "relu": F.relu, "relu_squared": lambda x: F.relu(x).square(), "gelu": F.gelu,
    "softplus": F.softplus, "identity": lambda x: x, "relu6": F.relu6, "sigmoid": torch.sigmoid,
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation):
    """Those of torch.nn.functional, under all terms of the common core that are no softmax's. No
    score here is at a corner of relu or relu6."""
    mask = torch.ones(40, 61, dtype=torch.bool).tril(21)

    def peer(q, k, v, bias, alibi_slopes):
        k, v = (x.repeat_interleave(3, 1) for x in (k, v))
        scores = 8.0 * torch.tanh(q @ k.transpose(2, 3) * 0.7 / 8.0) + bias
        distance = abs(torch.arange(40)[:, None] + 21 - torch.arange(61))
        scores = scores - alibi_slopes[:, None, None] * distance
        weights = torch.where(mask, ACTIVATIONS[activation](scores), 0.0)
        return (weights / mask.sum(1, keepdim=True)) @ v

    compare("relu_attention",
            {"activation": activation, "length_norm": "visible", "causal": True, "scale": 0.7,
             "logit_softcap": 8.0},
            qkv(B=2, H=6, Hkv=2, Nq=40, Nk=61, bias=(1, 6, 40, 61), alibi_slopes=(6,)), peer,
            pairs=12 * int(mask.sum()))
