"""linear_attention against linear-attention-transformer and performer-pytorch (softmax features),
fla's naive functions and fast-transformers (ready features, states, lengths)."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.torch import public
from tests.torch.compared import TOLERANCE, close, compare, ours, qkv

B, H, D = 2, 3, 16
# A peer that computes in float32 rounds as ours does.
SINGLE = 4 * TOLERANCE


class TestLinearAttentionTransformer:
    @pytest.fixture(autouse=True)
    def _module(self):
        self.module = pytest.importorskip(
            "linear_attention_transformer.linear_attention_transformer")

    @pytest.mark.parametrize("lengths", [None, [61, 20]], ids=["full", "padded"])
    def test_full(self, lengths):
        """Its result is divided by sqrt(D) (issues 7 and 14), and it masks k and v in place."""
        valid = torch.arange(61) < torch.tensor(lengths)[:, None] if lengths else None
        fixed = {"kv_lengths": np.int32(lengths)} if lengths else None
        compare("linear_attention", {"feature_map": "softmax"}, qkv(B=B, H=H, Nq=61, D=D),
                lambda q, k, v: D**0.5 * self.module.linear_attn(q, k.clone(), v.clone(), valid),
                fixed)

    @pytest.mark.parametrize("lengths", [None, [61, 20]], ids=["full", "padded"])
    def test_causal(self, lengths):
        """A bucket of one: a query of a larger one does not see its own bucket. Its divisors are
        clamped at 1e-3 / sqrt(D), which none comes near."""
        valid = torch.arange(61) < torch.tensor(lengths)[:, None] if lengths else None
        fixed = {"kv_lengths": np.int32(lengths)} if lengths else None
        compare("linear_attention",
                {"feature_map": "softmax", "causal": True, "causal_norm": "joint"},
                qkv(B=B, H=H, Nq=61, D=D),
                lambda q, k, v: self.module.causal_linear_attn(q, k, v.clone(), valid,
                                                               bucket_size=1), fixed)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_performer_without_features(causal):
    pytest.importorskip("performer_pytorch")
    module = public.performer(np.zeros((1, D), np.float32), causal, no_projection=True)
    options = {"causal": True, "causal_norm": "joint"} if causal else {}
    compare("linear_attention", {"feature_map": "softmax"} | options, qkv(B=B, H=H, Nq=61, D=D),
            module)


class TestNaive:
    """fla takes features, [B,T,H,F], and divides by d + 1e-10."""

    OPTIONS = {"causal": True, "eps": 1e-10}

    @pytest.fixture(autouse=True)
    def _module(self):
        pytest.importorskip("fla")
        self.module = public.fla("linear_attn")

    def peer(self, q, k, v, name="naive_recurrent_linear_attn", **options):
        out = getattr(self.module, name)(*(x.transpose(1, 2) for x in (q, k, v)), **options)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    def test_elu(self):
        compare("linear_attention", self.OPTIONS, qkv(B=B, H=H, Nq=61, D=D),
                lambda q, k, v: self.peer(F.elu(q) + 1, F.elu(k) + 1, v, normalize=True),
                tolerance=SINGLE)

    def test_features_are_sent(self):
        t = qkv(B=B, H=H, Nq=61, D=24, Dv=D)
        compare("linear_attention", self.OPTIONS | {"feature_map": "identity"},
                {name: abs(x) for name, x in t.items()},
                lambda **t: self.peer(**t, normalize=True), tolerance=SINGLE)

    def test_not_normalised(self):
        compare("linear_attention",
                {"causal": True, "feature_map": "identity", "normalize": False, "scale": 0.3},
                qkv(B=B, H=H, Nq=61, D=D),
                lambda q, k, v: self.peer(q, k, v, scale=0.3), tolerance=SINGLE)

    def test_chunks(self):
        compare("linear_attention", self.OPTIONS | {"chunk_size": 48}, qkv(B=B, H=H, Nq=128, D=D),
                lambda q, k, v: self.peer(F.elu(q) + 1, F.elu(k) + 1, v, "naive_chunk_linear_attn",
                                          normalize=True), tolerance=SINGLE)

    def test_states(self):
        t = qkv(B=B, H=H, Nq=61, D=D, state_s=(B, H, D, D), state_z=(B, H, D))
        t = {name: abs(x) for name, x in t.items()}
        options = self.OPTIONS | {"feature_map": "identity", "return_state": True}

        def states(q, k, v, state_s, state_z):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return self.module.naive_recurrent_linear_attn(
                q, k, v, initial_state=(state_s.float(), state_z[:, None].float()),
                output_final_state=True, normalize=True)

        reply = ours("linear_attention", options, t).outputs
        _, (s, z) = states(**{name: torch.tensor(x) for name, x in t.items()})
        close("state_s", reply["state_s"], s, SINGLE)
        close("state_z", reply["state_z"], z[:, 0], SINGLE)
        del options["return_state"]
        compare("linear_attention", options, t, lambda **t: states(**t)[0].transpose(1, 2),
                tolerance=SINGLE)


class TestFastTransformers:
    """[N,L,H,D] and lengths of keys; the causal form is compiled for float32."""

    @pytest.fixture(autouse=True)
    def _module(self):
        pytest.importorskip("fast_transformers.attention")

    def peer(self, module, mask, lengths):
        from fast_transformers.masking import LengthMask

        def attend(q, k, v):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            n = q.shape[1]
            queries = LengthMask(torch.tensor([n] * B), max_len=n)
            keys = LengthMask(torch.tensor(lengths or [n] * B), max_len=n)
            return module(q, k, v, mask, queries, keys).transpose(1, 2)

        return attend

    @pytest.mark.parametrize("lengths", [None, [61, 20]], ids=["full", "padded"])
    def test_full(self, lengths):
        from fast_transformers.attention import LinearAttention
        from fast_transformers.masking import FullMask

        compare("linear_attention", {}, qkv(B=B, H=H, Nq=61, D=D),
                self.peer(LinearAttention(D), FullMask(61), lengths),
                {"kv_lengths": np.int32(lengths)} if lengths else None)

    def test_causal(self):
        from fast_transformers.attention import CausalLinearAttention
        from fast_transformers.masking import TriangularCausalMask

        attend = self.peer(CausalLinearAttention(D), TriangularCausalMask(61), None)
        compare("linear_attention", {"causal": True}, qkv(B=B, H=H, Nq=61, D=D),
                lambda **t: attend(**{name: x.float() for name, x in t.items()}).double(),
                tolerance=SINGLE)
