"""rfa against sums of public packages over its features: fla's naive gated and plain recurrences,
and fast-transformers' random Fourier features. The authors' code has no gate and is no package."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.torch import public
from tests.torch.compared import TOLERANCE, compare, qkv

B, H, D, M = 2, 3, 16, 24
SINGLE = 4 * TOLERANCE


def omega(per_head=True):
    return np.random.default_rng(5).standard_normal(
        (H, M, D) if per_head else (M, D)).astype(np.float32)


def features(x, weights, feature, scale):
    """phi of unit vectors, [B,H,N,F]."""
    u = F.normalize(x, dim=3) @ weights.transpose(1, 2)
    return scale * (torch.cat([u.sin(), u.cos()], dim=3) if feature == "trig" else u.relu())


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("feature", ["trig", "arccos"])
def test_recurrences_of_fla(feature, gated):
    """The gate of fla forgets, so keys are multiplied by 1 - gamma before, and a column of ones
    beside v gives the divisors. tau = 2 keeps those of the trigonometric features positive."""
    pytest.importorskip("fla")
    recurrence = public.fla("simple_gla").naive_recurrent_simple_gla
    t = qkv(B=B, H=H, Nq=61, D=D, sigma=(H, D), **({"gate_logits": (B, H, 61)} if gated else {}))
    t["sigma"] = 1 + t["sigma"] / 4
    w = torch.tensor(omega(), dtype=torch.float64)

    def peer(q, k, v, sigma, gate_logits=None):
        W = w * sigma[:, None] / 2.0
        q, k = (features(x, W, feature, 0.5) for x in (q, k))
        gate = torch.zeros(B, H, 61, dtype=torch.float64)
        if gate_logits is not None:
            k = k * torch.sigmoid(-gate_logits)[..., None]
            gate = F.logsigmoid(gate_logits)
        v = torch.cat([v, torch.ones_like(v[..., :1])], dim=3)
        sums, _ = recurrence(*(x.transpose(1, 2) for x in (q, k, v, gate)), scale=1.0)
        return (sums[..., :-1] / sums[..., -1:]).transpose(1, 2)

    compare("rfa", {"feature": feature, "causal": True, "gated": gated, "tau": 2.0,
                    "feature_scale": 0.5, "den_mode": "none"}, t, peer, {"omega": omega()},
            tolerance=SINGLE)


def test_random_fourier_features():
    """fast-transformers multiplies by sqrt(temperature), where we divide by tau, and does not
    normalise q and k. Its order is cosines, then sines, of which the products are the same."""
    pytest.importorskip("fast_transformers.feature_maps")
    from fast_transformers.attention import LinearAttention
    from fast_transformers.feature_maps import RandomFourierFeatures
    from fast_transformers.masking import FullMask, LengthMask

    maps = RandomFourierFeatures.factory(n_dims=2 * M, softmax_temp=1 / 16)
    module = LinearAttention(D, feature_map=maps)
    module.feature_map.omega = torch.tensor(omega(False).T, dtype=torch.float64)
    module.feature_map.new_feature_map = lambda device: None
    lengths = LengthMask(torch.tensor([61] * B))

    def peer(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return module(q, k, v, FullMask(61), lengths, lengths).transpose(1, 2)

    compare("rfa", {"qk_norm": False, "tau": 4.0, "den_mode": "none"}, qkv(B=B, H=H, Nq=61, D=D),
            peer, {"omega": omega(False)})
