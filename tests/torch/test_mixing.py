"""fnet against transformers and xformers; gmlp_sgu against g-mlp-pytorch and timm; mlp_mixer
against timm and mlp-mixer-pytorch. linear_mixing and random_mixing have no public package."""

import numpy as np
import pytest
import torch

from tests.torch import public
from tests.torch.compared import compare, normal, qkv

B, H, N, D = 2, 3, 45, 16
C = H * D


# --- fnet ---


@pytest.mark.parametrize("package, make", [
    ("transformers.models.fnet", public.fnet_transformers),
    ("xformers.components.attention.fourier_mix", public.fnet_xformers)],
    ids=["transformers", "xformers"])
@pytest.mark.parametrize("use_fft", [True, False], ids=["fft", "products"])
@pytest.mark.parametrize("n", [1, 45, 61, 128])
def test_fnet(n, use_fft, package, make):
    """All heads together are the channels. Padding is content to the peers: no lengths."""
    pytest.importorskip(package)
    compare("fnet", {"use_fft": use_fft}, normal(v=(B, H, n, D)), make())


def test_fnet_of_each_head():
    pytest.importorskip("transformers.models.fnet")
    transform = public.fnet_transformers()
    compare("fnet", {"hidden_scope": "per_head"}, normal(v=(B, H, N, D)),
            lambda v: torch.cat([transform(v[:, h:h + 1]) for h in range(H)], dim=1))


# --- gmlp_sgu ---


def gate(length, n=N, heads=True, **shapes):
    size = (H,) if heads else ()
    return normal(q=(B, H, n, D), v=(B, H, n, D), weight=(*size, length, length),
                  bias=(*size, length), norm_weight=(H, D), norm_bias=(H, D), **shapes)


@pytest.mark.parametrize("act", ["identity", "tanh", "sigmoid"])
@pytest.mark.parametrize("causal, length", [(False, N), (True, N), (True, 61)],
                         ids=["full", "causal", "causal-longer-weights"])
def test_gmlp(causal, length, act):
    """Its variable length is for the causal form alone. It gets both halves side by side."""
    pytest.importorskip("g_mlp_pytorch")
    function = {"identity": None, "tanh": torch.nn.Tanh(), "sigmoid": torch.nn.Sigmoid()}[act]
    compare("gmlp_sgu", {"causal": causal, "act": act},
            gate(length, gate_residual=(B, H, N, D)), public.gmlp(H, C, length, causal, function))


def test_gmlp_halves_in_v():
    """Without q the first half of v's channels is gated by the second, head by head."""
    pytest.importorskip("g_mlp_pytorch")
    peer, t = public.gmlp(H, C, N, False), gate(N)
    t["v"] = np.concatenate([t.pop("q"), t["v"]], axis=3)
    compare("gmlp_sgu", {}, t, lambda v, **rest: peer(*v.chunk(2, dim=3), **rest))


def test_gmlp_circulant():
    """Its weight is a Toeplitz matrix below the diagonal, which is sent as it is."""
    unit = pytest.importorskip("g_mlp_pytorch.g_mlp_pytorch").SpatialGatingUnit(
        2 * C, N, heads=H, circulant_matrix=True).double()
    i, j = torch.arange(N)[:, None], torch.arange(N)
    toeplitz = torch.where(j <= i, unit.weight[:, (N - 1 + j - i).clamp(max=N - 1)], 0.0)
    fixed = {"weight": toeplitz.detach().float().numpy()}
    unit.weight.data = unit.weight.data.float().double()
    compare("gmlp_sgu", {}, normal(q=(B, H, N, D), v=(B, H, N, D)),
            lambda q, v: public.heads(
                unit(torch.cat([public.flat(x) for x in (q, v)], dim=2)), H), fixed)


def test_gmlp_of_timm():
    """One weight for all heads."""
    pytest.importorskip("timm")
    compare("gmlp_sgu", {}, gate(N, heads=False), public.gmlp_timm(C, N))


# --- mlp_mixer ---


def mixer_tensors(tokens):
    t = normal(v=(B, H, N, D), w1=(N, tokens), b1=(tokens,), w2=(tokens, N), b2=(N,),
               norm_weight=(C,), norm_bias=(C,))
    return t | {name: t[name] / 6 for name in ("w1", "w2")}


def test_mixer_of_timm():
    pytest.importorskip("timm")
    compare("mlp_mixer", {"act": "gelu_erf", "residual": True}, mixer_tensors(24),
            public.mixer_timm(C, N, 24))


def test_mixer():
    """Its norm adds 1e-5."""
    pytest.importorskip("mlp_mixer_pytorch")
    compare("mlp_mixer", {"act": "gelu_erf", "residual": True, "norm_eps": 1e-5},
            mixer_tensors(2 * C), public.mixer(C, N, 2))


@pytest.mark.parametrize("act, function", [
    ("gelu_tanh", lambda: torch.nn.GELU("tanh")), ("relu", torch.nn.ReLU)],
    ids=["gelu_tanh", "relu"])
def test_mixer_of_timm_with_other_functions(act, function):
    """gelu_tanh is the original's, in flax."""
    pytest.importorskip("timm")
    compare("mlp_mixer", {"act": act, "residual": True}, mixer_tensors(24),
            public.mixer_timm(C, N, 24, function))
