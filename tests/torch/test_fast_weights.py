"""fast_weights against fla's delta rule and its plain sums, which take ready features, divided by
their norm, and compute in float32. fla's DPFP takes -relu(x) for relu(-x) and is no peer."""

import pytest
import torch
import torch.nn.functional as F

from tests.torch import public
from tests.torch.compared import TOLERANCE, close, compare, ours, qkv

pytest.importorskip("fla")
B, H, D = 2, 3, 16
SINGLE = 4 * TOLERANCE


def dpfp(x, nu):
    r = torch.cat([x.relu(), (-x).relu()], dim=3)
    return torch.cat([r * r.roll(j, 3) for j in range(1, nu + 1)], dim=3)


def l2(x):
    return x / (x.square().sum(3, keepdim=True) + 1e-6).sqrt()


FEATURES = {
    "dpfp": ({"nu": 2}, lambda x: dpfp(x, 2)),
    "elu_plus_one": ({"feature_map": "elu_plus_one"}, lambda x: F.elu(x) + 1),
    "relu": ({"feature_map": "relu"}, F.relu),
    "silu": ({"feature_map": "silu", "feature_norm": "l2"}, F.silu),
}


def normed(x, options):
    return l2(x) if options.get("feature_norm") == "l2" else x / x.sum(3, keepdim=True)


@pytest.mark.parametrize("name", ["delta_rule_recurrence", "delta_rule_chunkwise"])
@pytest.mark.parametrize("features", FEATURES)
def test_delta_rule(features, name):
    """fla divides q by the root of the number of features, we multiply it by 0.7."""
    options, phi = FEATURES[features]
    rule = getattr(public.fla("delta_rule"), name)

    def peer(q, k, v, beta_logits):
        q, k = (normed(phi(x), options) for x in (q, k))
        t = (q * 0.7 * q.shape[3] ** 0.5, k, v, beta_logits.sigmoid())
        return rule(*(x.float() for x in t))[0].double()

    compare("fast_weights", options | {"scale": 0.7},
            qkv(B=B, H=H, Nq=64, D=D, Dv=12, beta_logits=(B, H, 64)), peer, tolerance=SINGLE)


def test_states():
    rule = public.fla("delta_rule").delta_rule_recurrence
    t = qkv(B=B, H=H, Nq=37, D=D, beta_logits=(B, H, 37), state_s=(B, H, D, D))
    t["k"] /= (t["k"] ** 2).sum(3, keepdims=True) ** 0.5
    options = {"feature_map": "identity", "feature_norm": "none", "scale": D**-0.5}

    def peer(q, k, v, beta_logits, state_s):
        return rule(q, k, v, beta_logits.sigmoid(), initial_state=state_s)

    reply = ours("fast_weights", options | {"return_state": True}, t).outputs
    close("state_s", reply["state_s"], peer(**{n: torch.tensor(x) for n, x in t.items()})[1],
          SINGLE)
    compare("fast_weights", options, t, lambda **t: peer(**t)[0], tolerance=SINGLE)


def test_sums():
    naive = public.fla("linear_attn").naive_recurrent_linear_attn

    def peer(q, k, v):
        q, k = ((F.elu(x) + 1) for x in (q, k))
        t = (x.transpose(1, 2) for x in (normed(q, {}), normed(k, {}), v))
        return naive(*t, scale=0.7)[0].transpose(1, 2)

    compare("fast_weights", {"update_rule": "sum", "feature_map": "elu_plus_one", "scale": 0.7},
            qkv(B=B, H=H, Nq=61, D=D), peer, tolerance=SINGLE)
