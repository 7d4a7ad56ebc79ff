"""performer against performer-pytorch, xformers' FAVOR and fast-transformers, with our features."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.torch import public
from tests.torch.compared import compare, qkv

B, H, D, M = 2, 3, 16, 40


def omega(rows=M, seed=5):
    return np.random.default_rng(seed).standard_normal((rows, D)).astype(np.float32)


def tensors(**sizes):
    """Scores of a unit: larger ones would make the estimates depend on few features."""
    t = qkv(**{"B": B, "H": H, "Nq": 61, "D": D} | sizes)
    return t | {name: 0.7 * t[name] for name in "qk"}


def check(options, peer, random=None, **sizes):
    fixed = {} if random is None else {"omega": random}
    compare("performer", {"den_eps": 0.0} | options, tensors(**sizes), peer, fixed)


class TestPerformerPytorch:
    """It adds 1e-4 to the features and takes one maximum of all keys, also where causal. Its own
    draw of features has a bias (google-research#436), so ours are sent to both."""

    OPTIONS = {"kind": "positive", "feature_eps": 1e-4, "stabilizer": "global"}

    @pytest.fixture(autouse=True)
    def _package(self):
        pytest.importorskip("performer_pytorch")

    @pytest.mark.parametrize("sizes", [{}, {"Nk": 45}, {"Nq": 1}, {"Nq": 300}], ids=str)
    def test_full(self, sizes):
        check(self.OPTIONS, public.performer(omega()), omega(), **sizes)

    @pytest.mark.parametrize("n", [32, 300])
    def test_causal(self, n):
        check(self.OPTIONS | {"causal": True}, public.performer(omega(), True), omega(), Nq=n)

    @pytest.mark.parametrize("kernel, function", [
        ("relu", torch.nn.ReLU()), ("relu_squared", lambda x: F.relu(x) ** 2), ("exp", torch.exp),
        ("elu_plus_one", lambda x: F.elu(x) + 1), ("gelu", lambda x: F.gelu(x)),
        ("sigmoid", torch.sigmoid), ("abs", torch.abs)], ids=lambda x: x if type(x) is str else "")
    def test_generalized(self, kernel, function):
        module = public.performer(omega(), generalized_attention=True, kernel_fn=function)
        check({"kind": "generalized", "kernel_fn": kernel}, module, omega())

    def test_generalized_causal(self):
        module = public.performer(omega(), True, generalized_attention=True)
        check({"kind": "generalized", "causal": True}, module, omega())

    def test_generalized_without_projection(self):
        """The module has no such option; the function that it calls has."""
        from performer_pytorch import performer_pytorch

        def peer(q, k, v):
            q, k = (performer_pytorch.generalized_kernel(x, projection_matrix=None)
                    for x in (q, k))
            return performer_pytorch.linear_attention(q, k, v)

        check({"kind": "generalized", "project": False}, peer)


@pytest.mark.parametrize("kind", ["positive", "hyperbolic"])
def test_xformers(kind):
    """Without stabilisers and without anything added. Its causal form sums over channels instead of
    positions and is no peer."""
    pytest.importorskip("xformers.components.attention.favor")
    check({"kind": kind, "feature_eps": 0.0}, public.favor_xformers(omega(), kind), omega())


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_fast_transformers(causal):
    """Its Favor is our hyperbolic kind with half as many rows of omega. The 1e-6 that its linear
    attention adds is small beside these divisors. Its own draw is no peer: it takes the lengths of
    the rows from the block that it orthogonalises."""
    pytest.importorskip("fast_transformers.feature_maps")
    from fast_transformers.attention import CausalLinearAttention, LinearAttention
    from fast_transformers.feature_maps import Favor
    from fast_transformers.masking import FullMask, LengthMask, TriangularCausalMask

    features = Favor.factory(n_dims=2 * M)
    module = (CausalLinearAttention if causal else LinearAttention)(D, feature_map=features)
    module.feature_map.omega = torch.tensor(omega().T)
    module.feature_map.new_feature_map = lambda device: None
    lengths = LengthMask(torch.tensor([61] * B))
    mask = TriangularCausalMask(61) if causal else FullMask(61)

    def attend(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return module(q, k, v, mask, lengths, lengths).transpose(1, 2)

    def peer(**t):
        """In float32, for which the causal form is compiled."""
        return attend(**{name: x.float() for name, x in t.items()}).double()

    compare("performer", {"kind": "hyperbolic", "feature_eps": 0.0, "den_eps": 0.0,
                          "causal": causal}, tensors(), peer, {"omega": omega()}, tolerance=2e-5)
