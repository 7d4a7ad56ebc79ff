"""longformer against transformers' LongformerSelfAttention, with its six projections.

They pick parts of the hidden state: of a head of 6 D numbers the first D are q, the next k, and so
on. So q, k, v, q_global, k_global and v_global are independent and each has its own gradient.
Zeros fill the rest of a head, which leaves products as they are and makes the scale (6 D)^-1/2.

The peer runs in float32: its softmax does so for any inputs, and there the mask value of
float64 overflows, which makes gradients NaN. So both sides round: twice the tolerance.
"""

import numpy as np
import pytest
import torch

from tests.torch.compared import TOLERANCE, close, compare, normal, ours, qkv

longformer = pytest.importorskip("transformers.models.longformer.modeling_longformer")
B, H, D = 2, 3, 8
PARTS = {"query": "q", "key": "k", "value": "v", "query_global": "q_global",
         "key_global": "k_global", "value_global": "v_global"}


def attention(w):
    """`attention_window` counts both sides: 2 w."""
    config = longformer.LongformerConfig(
        hidden_size=H * 6 * D, num_attention_heads=H, attention_window=[2 * w],
        attention_probs_dropout_prob=0.0)
    module = longformer.LongformerSelfAttention(config, 0)
    for part, projection in enumerate(PARTS):
        weight = torch.zeros(H, 6 * D, H, 6 * D)
        for h in range(H):
            weight[h, :D, h, part * D:(part + 1) * D] = torch.eye(D)
        linear = getattr(module, projection)
        linear.weight.data = weight.reshape(H * 6 * D, -1)
        linear.bias.data.zero_()
    return module


def peer_of(w, n, marks):
    """`marks` [B,n]: -1 padding, 0 local, 1 global."""
    module, marks = attention(w), torch.tensor(marks)

    def peer(**t):
        parts = [t[name].float() if name in t else torch.zeros(B, H, n, D)
                 for name in PARTS.values()]
        hidden = torch.cat(parts, dim=3).transpose(1, 2).reshape(B, n, -1)
        out, *_ = module(hidden, attention_mask=10000.0 * marks, is_index_masked=marks < 0,
                         is_index_global_attn=marks > 0, is_global_attn=bool((marks > 0).any()))
        return out.double().reshape(B, n, H, 6 * D)[..., :D].transpose(1, 2)

    return peer


def check(w, n, marks, **own):
    lengths = (marks >= 0).sum(axis=1).astype(np.int32)
    # Rows of padding are zero there.
    compare("longformer", {"window": w, "scale": (6 * D) ** -0.5},
            qkv(B=B, H=H, Nq=n, D=D, **own), peer_of(w, n, marks),
            {"global_mask": (marks > 0).astype(np.uint8), "q_lengths": lengths,
             "kv_lengths": lengths}, tolerance=2 * TOLERANCE)


def marked(n, *rows, lengths=None):
    marks = np.array([np.isin(np.arange(n), row) for row in rows], np.int64)
    for row, length in zip(marks, lengths or []):
        row[length:] = -1
    return marks


OWN = dict.fromkeys(("q_global", "k_global", "v_global"), (B, H, 64, D))


@pytest.mark.parametrize("w", [4, 16])
class TestModule:
    """n is a multiple of 2 w, as the module requires."""

    def test_no_globals(self, w):
        check(w, 64, marked(64, [], []))

    def test_first_token(self, w):
        check(w, 64, marked(64, [0], [0]), **OWN)

    def test_ragged_globals(self, w):
        """Inside of each other's window, at both ends, and none in the second row."""
        check(w, 64, marked(64, [0, 1, 3, 30, 63], []), **OWN)

    def test_all_but_one_global(self, w):
        check(w, 64, marked(64, range(63), [5]), **OWN)

    def test_padding(self, w):
        check(w, 64, marked(64, [0, 20], [7], lengths=[50, 61]), **OWN)

    def test_padding_without_globals(self, w):
        check(w, 64, marked(64, [], [], lengths=[61, 64]))


def test_learned_projections():
    """The module as it is trained: gradients of the hidden state and of all weights, ours by the
    chain rule from the six gradients of the library."""
    n, w = 48, 4
    config = longformer.LongformerConfig(
        hidden_size=H * D, num_attention_heads=H, attention_window=[2 * w],
        attention_probs_dropout_prob=0.0)
    torch.manual_seed(3)
    module = longformer.LongformerSelfAttention(config, 0)
    for parameter in module.parameters():
        parameter.data = torch.randn_like(parameter) * (H * D) ** -0.5
    marks = torch.tensor(marked(n, [0, 9], [30]))
    numbers = normal(hidden=(B, n, H * D), grad_out=(B, H, n, D))
    hidden = torch.tensor(numbers["hidden"], requires_grad=True)
    inputs = {"hidden": hidden} | dict(module.named_parameters())

    out, *_ = module(hidden, attention_mask=10000.0 * marks, is_index_masked=marks < 0,
                     is_index_global_attn=marks > 0, is_global_attn=True)
    grad_out = torch.tensor(numbers["grad_out"])
    want = torch.autograd.grad(out, inputs.values(), grad_out.transpose(1, 2).flatten(2))

    tensors = {ours_: getattr(module, theirs)(hidden).unflatten(2, (H, D)).transpose(1, 2)
               for theirs, ours_ in PARTS.items()}
    sent = {name: x.detach().numpy() for name, x in tensors.items()}
    sent["global_mask"] = (marks > 0).numpy().astype(np.uint8)
    got = ours("longformer", {"window": w}, sent)
    close("out", got.outputs["out"], out.unflatten(2, (H, D)).transpose(1, 2), 2 * TOLERANCE)
    grads = ours("longformer", {"window": w}, sent | {"grad_out": numbers["grad_out"]}, True)
    got = torch.autograd.grad(list(tensors.values()), inputs.values(),
                              [torch.tensor(grads.outputs[name]) for name in tensors])
    for name, x, y in zip(inputs, got, want):
        # Sums over B n rows of what has been summed before.
        close(f"gradient of {name}", x.numpy(), y, 4 * TOLERANCE)
