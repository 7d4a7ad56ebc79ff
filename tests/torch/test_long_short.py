"""long_short against long-short-transformer: one tensor for keys and values, one projection and two
norms for all heads. Here each is sent under both names, and its gradient is the sum of ours. Its
causal form takes one vector of each segment (more raise), its mask one sequence if not causal."""

import numpy as np
import pytest
import torch

from tests.torch import public
from tests.torch.compared import TOLERANCE, compare, normal

pytest.importorskip("long_short_transformer")
H, D = 3, 16


def check(n, window, segment, rank, causal, lengths=None, B=2):
    if lengths:
        B = len(lengths)
    kv = (B, H, n, D)
    t = normal(1, q=kv, kv=kv, dyn_weight=(D, rank), local_weight=(D,), local_bias=(D,),
               global_weight=(D,), global_bias=(D,))
    tied = {"kv": {"k": kv, "v": kv}}
    for place in ("local", "global"):
        for part in ("weight", "bias"):
            tied[f"{place}_{part}"] = {f"ln_{place}_{of}_{part}": (H, D) for of in "kv"}
    public_form = public.long_short(H, D, window, segment, rank, causal)
    valid = torch.arange(n) < torch.tensor(lengths or [n] * B)[:, None]
    fixed = {name: np.int32(lengths) for name in ("q_lengths", "kv_lengths")} if lengths else None

    def peer(**leaves):
        out = public_form(**leaves, mask=valid if lengths else None)
        # It leaves values in padded rows.
        return torch.where(valid[:, None, :, None], out, 0.0)

    options = {"rank": rank, "window": window, "window_mode": "blocks", "ln_scope": "head"}
    if causal:
        options |= {"causal": True, "segment_len": segment, "segment_visibility": "completed"}
    compare("long_short", options, t, peer, fixed, tied=tied, tolerance=2 * TOLERANCE)


@pytest.mark.parametrize("window, segment", [(8, 4), (4, 8), (6, 4), (48, 16)])
def test_causal(window, segment):
    check(48, window, segment, 1, True)


@pytest.mark.parametrize("window, rank", [(8, 1), (8, 5), (16, 2)])
def test_not_causal(window, rank):
    check(48, window, 4, rank, False)


def test_causal_padding():
    check(48, 8, 4, 1, True, lengths=[48, 21])


def test_padding():
    check(48, 8, 4, 3, False, lengths=[29])


def test_lengths_that_are_no_multiples():
    """The peer pads them itself, and its mask to multiples of the window."""
    check(43, 8, 4, 1, True)
