"""local against local-attention, which has no groups of heads and needs n to be whole windows."""

import pytest
import torch

from tests.torch.compared import compare, qkv

LocalAttention = pytest.importorskip("local_attention").LocalAttention


def check(W, causal, back, ahead, exact, n, lengths=None, **options):
    module = LocalAttention(W, causal=causal, look_backward=back, look_forward=ahead,
                            exact_windowsize=exact, use_rotary_pos_emb=False, autopad=True)
    # Without a mask, and not causal, the zeros that autopad adds are attended.
    valid = torch.arange(n) < torch.tensor(lengths or [n, n])[:, None]

    def peer(q, k, v):
        out = module(q, k, v, mask=valid)
        # The peer leaves values in padded rows; here q_lengths zeroes them.
        return torch.where(valid[:, None, :, None], out, 0.0)

    t = qkv(B=2, H=3, Nq=n)
    sent = torch.tensor(lengths or [n, n], dtype=torch.int32).numpy()
    compare("local", options | {"causal": causal}, t, peer,
            {"q_lengths": sent, "kv_lengths": sent})


@pytest.mark.parametrize("n", [64, 61])
@pytest.mark.parametrize("W, causal, back, ahead",
                         [(16, True, 1, 0), (8, True, 3, 0), (16, False, 1, 1), (8, False, 2, 1)])
class TestWindows:
    def test_exact(self, W, causal, back, ahead, n):
        """A token window of W * look_backward and W * look_forward."""
        check(W, causal, back, ahead, True, n, window_left=W * back, window_right=W * ahead)

    def test_blocks(self, W, causal, back, ahead, n):
        check(W, causal, back, ahead, False, n, granularity="block", block=W, look_backward=back,
              look_forward=ahead)


def test_padding():
    check(8, False, 1, 1, False, 64, [64, 29], granularity="block", block=8)


def test_bias():
    """attn_bias is [heads, window, looked at]: one for every window, so the window is all of n."""
    module = LocalAttention(40, causal=True, look_backward=0, use_rotary_pos_emb=False)

    def peer(q, k, v, bias):
        return module(q, k, v, attn_bias=bias[0])

    compare("local", {"granularity": "block", "block": 40, "look_backward": 0, "causal": True},
            qkv(B=2, H=3, Nq=40, bias=(1, 3, 40, 40)), peer)
