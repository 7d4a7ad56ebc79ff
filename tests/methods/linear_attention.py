"""Linear attention: oracle in float64 from the low-rank specification (R1, R2, R7,
linear_attention), cases, golden values, refusals. The oracle forms the whole matrix A of kernel
values, in time n^2."""

import math

import numpy as np

from tests.methods.cases import ALL, Case
from tests.methods.golden import lowrank_golden
from tests.methods.method import Growth, Method, Oracle, Visible
from tests.methods.refused import Refused, common_refusals

erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normal_cdf(x):
    return ((1 + erf(x / math.sqrt(2)).astype(x.dtype)) / 2).astype(x.dtype)


def normal_pdf(x):
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


# name -> (phi, its derivative, a bound of what is added up inside phi, the same of the derivative)
MAPS = {
    "elu_plus_one": (lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))),
                     lambda x: np.where(x > 0, 1, np.exp(np.minimum(x, 0))), None, None),
    "relu": (lambda x: np.maximum(x, 0), lambda x: (x > 0) * x.dtype.type(1), None, None),
    "relu_squared": (lambda x: np.maximum(x, 0) ** 2, lambda x: 2 * np.maximum(x, 0), None, None),
    "squared": (lambda x: x * x, lambda x: 2 * x, None, None),
    "abs": (np.abs, np.sign, None, None),
    "identity": (lambda x: x, np.ones_like, None, None),
    "exp": (np.exp, np.exp, None, None),
    "sigmoid": (sigmoid, lambda x: sigmoid(x) * (1 - sigmoid(x)), None, sigmoid),
    "silu": (lambda x: x * sigmoid(x), lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x))), None,
             lambda x: sigmoid(x) * (1 + abs(x))),
    "gelu": (lambda x: x * normal_cdf(x), lambda x: normal_cdf(x) + x * normal_pdf(x), np.abs,
             lambda x: 1 + abs(x) * normal_pdf(x)),
}


def dpfp(x, nu):
    r = np.concatenate([np.maximum(x, 0), np.maximum(-x, 0)], axis=-1)
    return np.concatenate([r * np.roll(r, j, axis=-1) for j in range(1, nu + 1)], axis=-1)


def dpfp_back(x, nu, g, magnitude=False):
    """The gradient of x; with `magnitude` a bound of the sum of its terms' sizes."""
    r = np.concatenate([np.maximum(x, 0), np.maximum(-x, 0)], axis=-1)
    dr = np.zeros_like(r)
    for j, block in enumerate(np.split(g, nu, axis=-1), start=1):
        dr += block * np.roll(r, j, axis=-1) + np.roll(block * r, -j, axis=-1)
    up, down = np.split(dr, 2, axis=-1)
    return (x > 0) * up + (x < 0) * (down if magnitude else -down)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def seen_pairs(t, o):
    """[B,1,Nq,Nk]; with causal j <= i + Nk - Nq for any lengths (R1)."""
    B, _, Nq, _ = t["q"].shape
    Nk = t["k"].shape[2]
    seen = np.ones((B, 1, Nq, Nk), bool)
    if o.get("causal", False):
        seen &= np.tri(Nq, Nk, Nk - Nq, dtype=bool)
    for b in range(B):
        if "q_lengths" in t:
            seen[b, :, t["q_lengths"][b]:] = False
        if "kv_lengths" in t:
            seen[b, :, :, t["kv_lengths"][b]:] = False
    return seen


class Kernel:
    """phi_q, phi_k, v, A, d and den of R7, kv heads repeated for their query heads. For the map exp
    q is shifted by its row's maximum and k by its head's; `shift` [B,H,Nq] is their sum."""

    def __init__(self, t, o, dtype=np.float64):
        self.t, self.dtype = t, dtype
        self.seen = seen_pairs(t, o)
        self.Hkv, self.group = t["k"].shape[1], t["q"].shape[1] // t["k"].shape[1]
        self.name = o.get("feature_map", "elu_plus_one")
        self.normalize = o.get("normalize", True)
        self.scale = 1 if self.normalize else o.get("scale", t["q"].shape[3] ** -0.5)
        row = self.seen.any(axis=3)[..., None]
        key = self.seen.any(axis=2)[..., None]
        q = np.where(row, t["q"].astype(dtype), dtype(0))
        k, v = (np.where(key, t[name].astype(dtype), dtype(0)) for name in "kv")
        self.k_small = k
        k, self.v = (np.repeat(x, self.group, axis=1) for x in (k, v))
        self.q_in, self.k_in = q, k
        self.shift = np.zeros(q.shape[:3], dtype)
        if self.name == "exp":
            mq = q.max(axis=3, keepdims=True)
            mk = np.where(key, k, -np.inf).max(axis=(2, 3), keepdims=True, initial=-np.inf)
            mk = np.where(np.isfinite(mk), mk, 0).astype(dtype)
            q, k = q - mq, k - mk
            self.shift = (mq + mk)[..., 0]
        self.q_map, self.k_map = q, k
        self.nu, self.sum_norm = o.get("nu", 2), o.get("feature_sum_norm", False)
        self.phi_q, self.sum_q = self.features(q)
        self.phi_k, self.sum_k = self.features(k)
        if self.sum_norm:
            self.shift = np.zeros_like(self.shift)
        self.A = np.where(self.seen, self.phi_q @ self.phi_k.swapaxes(2, 3), dtype(0))
        self.d = self.A.sum(axis=3)
        self.eps = 0 if self.name == "exp" else o.get("eps", 1e-6)
        if self.normalize:
            den = self.d + dtype(self.eps)
        else:
            den = np.exp(-self.shift)
        self.den = np.where(den == 0, np.inf, den).astype(dtype)  # then num = 0 too

    def features(self, x):
        """phi(x), and the sum that it was divided by."""
        phi = dpfp(x, self.nu) if self.name == "dpfp" else MAPS[self.name][0](x)
        phi = phi.astype(self.dtype)
        if not self.sum_norm:
            return phi, None
        total = phi.sum(axis=-1, keepdims=True)
        return np.where(total == 0, 0, phi / np.where(total == 0, 1, total)), total

    def back(self, x, phi, total, g, magnitude=False):
        """The gradient of x from that of its features; see dpfp_back."""
        sign = 1 if magnitude else -1
        if total is not None:
            inner = (g * phi).sum(axis=-1, keepdims=True)
            g = np.where(total == 0, 0, (g + sign * inner) / np.where(total == 0, 1, abs(total)))
        if self.name == "dpfp":
            return dpfp_back(x, self.nu, g, magnitude)
        if self.name == "exp":
            return np.exp(x) * g
        slope = MAPS[self.name][1](x).astype(self.dtype)
        if magnitude:
            bound = MAPS[self.name][3]
            slope = abs(slope) if bound is None else bound(x)
        return slope * g

    def out(self):
        return self.scale * (self.A @ self.v) / self.den[..., None]

    def lse(self):
        with np.errstate(divide="ignore", invalid="ignore"):
            lse = np.log(self.d) + self.shift
        # R7; the d of exp can be 0 by underflow only.
        vanished = -np.inf if self.name == "exp" else np.nan
        lse = np.where(self.d > 0, lse, np.where(self.d == 0, vanished, np.nan))
        return np.where(self.seen.any(axis=3), lse, -np.inf).astype(self.dtype)

    def incoming(self):
        B, H, Nq, _ = self.q_in.shape
        dO = np.zeros((B, H, Nq, self.v.shape[3]), self.dtype)
        dL = np.zeros((B, H, Nq), self.dtype)
        row = self.seen.any(axis=3)
        if "grad_out" in self.t:
            dO = np.where(row[..., None], self.t["grad_out"].astype(self.dtype), self.dtype(0))
        if "grad_lse" in self.t:
            alive = row & (self.d > 0)
            dL = np.where(alive, self.t["grad_lse"].astype(self.dtype), self.dtype(0))
        return dO, dL

    def by_kv_head(self, x):
        B, H, N, D = x.shape
        return x.reshape(B, self.Hkv, self.group, N, D).sum(axis=2)


class ByChannel:
    """feature_map softmax: W[i,j,c] = e^(k_jc) over its sum over the keys that i sees (all of them,
    or with causal_norm prefix those so far); A_ij = sum_c softmax(q_i)_c W_ijc."""

    def __init__(self, t, o, dtype=np.float64):
        self.kernel = Kernel(t, {"causal": o.get("causal", False), "feature_map": "exp"}, dtype)
        seen, k = self.kernel.seen, self.kernel.k_in
        self.causal = o.get("causal", False)
        self.phi_q = softmax(self.kernel.q_in)
        x = np.where(seen[..., None], k[:, :, None], -np.inf)  # [B,H,Nq,Nk,D]
        most = x.max(axis=3, keepdims=True, initial=-np.inf)
        e = np.exp(x - np.where(np.isfinite(most), most, 0))
        total = e.sum(axis=3, keepdims=True)
        self.W = (e / np.where(total == 0, 1, total)).astype(dtype)
        self.A = np.einsum("bhic,bhijc->bhij", self.phi_q, self.W)

    def back(self, dO, magnitude=False):
        sign = 1 if magnitude else -1
        v = abs(self.kernel.v) if magnitude else self.kernel.v
        dA = dO @ v.swapaxes(2, 3)
        dphi = np.einsum("bhij,bhijc->bhic", dA, self.W)
        dW = dA[..., None] * self.phi_q[:, :, :, None]
        dx = self.W * (dW + sign * (self.W * dW).sum(axis=3, keepdims=True))
        if magnitude and self.causal:
            # The gradient of a running sum is q dq - k dk summed over the rows that follow (gated
            # linear attention, Yang et al. 2023): each of the two is at most this.
            following = np.flip((dphi * self.phi_q)[:, :, ::-1].cumsum(axis=2), axis=2)
            dx = dx + self.W * 2 * following[:, :, :, None]
        inner = (dphi * self.phi_q).sum(axis=-1, keepdims=True)
        return {"q": self.phi_q * (dphi + sign * inner),
                "k": self.kernel.by_kv_head(dx.sum(axis=2)),
                "v": self.kernel.by_kv_head(self.A.swapaxes(2, 3) @ dO)}


def split_softmax(o):
    """(whether the channels are normalised one by one, the options of a Kernel otherwise)."""
    if o.get("feature_map") != "softmax":
        return False, o
    if o.get("causal", False) and o.get("causal_norm") == "joint":
        return False, {**o, "feature_map": "exp"}
    return True, o


def largest(*arrays):
    """The largest finite |x|."""
    return max(abs(x).max(initial=0, where=np.isfinite(x)) for x in arrays)


class LinearOracle(Oracle):
    def visible(self, t, o):
        return seen_pairs(t, o)

    def pairs(self, t, o):
        return int(seen_pairs(t, o).sum()) * t["q"].shape[1]

    def gives_lse(self, o):
        return o.get("feature_map") != "softmax"

    def forward(self, t, o, dtype=np.float64):
        by_channel, o_kernel = split_softmax(o)
        if by_channel:
            channels = ByChannel(t, o, dtype)
            return {"out": channels.A @ channels.kernel.v}
        kernel = Kernel(t, o_kernel, dtype)
        if o.get("feature_map") == "softmax":
            return {"out": kernel.out()}
        return {"out": kernel.out(), "lse": kernel.lse()}

    def backward(self, t, o, dtype=np.float64, store=lambda x: x):
        by_channel, o = split_softmax(o)
        if by_channel:
            channels = ByChannel(t, o, dtype)
            return channels.back(channels.kernel.incoming()[0])
        kernel = Kernel(t, o, dtype)
        dO, dL = kernel.incoming()
        dN = kernel.scale * dO / kernel.den[..., None]
        dD = dL / np.where(kernel.d == 0, 1, kernel.d)
        if kernel.normalize:
            dD = dD - (dO * store(kernel.out())).sum(axis=3) / kernel.den
        dA = np.where(kernel.seen, dN @ kernel.v.swapaxes(2, 3) + dD[..., None], dtype(0))
        dphi_q, dphi_k = dA @ kernel.phi_k, dA.swapaxes(2, 3) @ kernel.phi_q
        return {
            "q": kernel.back(kernel.q_map, kernel.phi_q, kernel.sum_q, dphi_q),
            "k": kernel.by_kv_head(kernel.back(kernel.k_map, kernel.phi_k, kernel.sum_k, dphi_k)),
            "v": kernel.by_kv_head(kernel.A.swapaxes(2, 3) @ dN),
        }

    def magnitude(self, t, o):
        """A sum of d that cancels (identity) makes 1 / den as uncertain as
        sum |A| / |den|; the exponential of x amplifies a rounding of x by x."""
        by_channel, o = split_softmax(o)
        if by_channel:
            channels = ByChannel(t, o)
            kernel = channels.kernel
            dO = abs(kernel.incoming()[0])
            amplification = largest(kernel.q_in, kernel.k_in)
            sums = {name: (x, 0) for name, x in channels.back(dO, magnitude=True).items()}
            return {"out": (channels.A @ abs(kernel.v), 0)} | sums, amplification
        kernel = Kernel(t, o)
        seen, den, v = kernel.seen, abs(kernel.den), abs(kernel.v)
        inside = None if kernel.name == "dpfp" or kernel.sum_norm else MAPS[kernel.name][2]
        phi_q, phi_k = abs(kernel.phi_q), abs(kernel.phi_k)
        if inside is not None:
            phi_q, phi_k = inside(kernel.q_in), inside(kernel.k_in)
        amplification = largest(kernel.q_in, kernel.k_in)
        A = np.where(seen, phi_q @ phi_k.swapaxes(2, 3), 0)
        d = A.sum(axis=3)
        ratio = d / den if kernel.normalize else np.zeros_like(d)
        out = abs(kernel.scale) * (A @ v) / den[..., None] + abs(kernel.out()) * ratio[..., None]
        d_safe = np.where(kernel.d == 0, 1, abs(kernel.d))
        lse = np.where(np.isfinite(kernel.lse()), abs(kernel.lse()), 0) + d / d_safe
        dO, dL = (abs(x) for x in kernel.incoming())
        dN = abs(kernel.scale) * dO / den[..., None] * (1 + ratio[..., None])
        stored = (dO * out).sum(axis=3) / den * kernel.normalize
        dD = stored * (1 + ratio) + dL / d_safe * (1 + d / d_safe)
        dA = np.where(seen, dN @ v.swapaxes(2, 3) + dD[..., None], 0)
        dA_stored = np.where(seen, stored[..., None], 0)

        def back_q(x):
            return abs(kernel.back(kernel.q_map, kernel.phi_q, kernel.sum_q, x @ phi_k, True))

        def back_k(x):
            x = x.swapaxes(2, 3) @ phi_q
            through = kernel.back(kernel.k_map, kernel.phi_k, kernel.sum_k, x, True)
            return kernel.by_kv_head(abs(through))

        sums = {"out": (out, 0), "lse": (lse, 0)}
        sums["q"] = tuple(back_q(x) for x in (dA, dA_stored))
        sums["k"] = tuple(back_k(x) for x in (dA, dA_stored))
        sums["v"] = kernel.by_kv_head(A.swapaxes(2, 3) @ dN), 0
        return sums, amplification


POSITIVE = {"shift": 2.0, "spread": 0.5}  # keeps d away from 0 where the map changes sign
NAMES = ", ".join([*MAPS, "dpfp", "softmax"])


METHOD = Method(
    id="linear_attention",
    oracle=LinearOracle(),
    options={"feature_map": "enum", "normalize": "bool", "eps": "float", "feature_sum_norm": "bool",
             "causal_norm": "enum", "nu": "int", "chunk_size": "int", "scale": "float",
             "causal": "bool", "return_state": "bool", "seed": "int"},
    tensors={"q", "k", "v", "q_lengths", "kv_lengths", "state_s", "state_z"},
    differentiable=["q", "k", "v", "state_s", "state_z"],
    outputs=["state_s", "state_z"],
    peers=[
        "pytorch-fast-transformers LinearAttention (needs PyTorch and a compiler)",
        "flash-linear-attention naive_recurrent_linear_attn (needs PyTorch)",
    ],
    cases=[
        Case("plain", dtypes=ALL, B=2, Nq=63),
        Case("causal", dtypes=ALL, B=2, Nq=65, options={"causal": True}),
        Case("seed-has-no-effect", Nq=33, options={"seed": 2**64 - 1}),
        Case("causal-n131-d64", H=1, Nq=131, D=64, options={"causal": True}),
        Case("n64-d128", H=1, Nq=64, D=128, Dv=32),
        Case("odd-d", dtypes=ALL, Nq=65, Nk=131, D=5, Dv=7),
        Case("n0", Nq=0, Nk=3, grad_lse=False),
        Case("nk0", Nq=3, Nk=0),
        Case("n1", dtypes=ALL, Nq=1, D=1, Dv=1, options={"causal": True}),
        Case("long-causal", H=1, Nq=1031, D=8, options={"causal": True}),
        Case("causal-more-keys", Nq=65, Nk=131, options={"causal": True}),
        Case("causal-more-queries", Nq=131, Nk=65, options={"causal": True}),
        Case("lengths", B=6, Nq=131, ints={"q_lengths": (0, 1, 63, 64, 65, 131),
                                            "kv_lengths": (131, 65, 64, 63, 1, 0)}),
        Case("lengths-causal", dtypes=ALL, B=6, H=1, Nq=131, options={"causal": True},
             ints={"q_lengths": (0, 1, 63, 64, 65, 131), "kv_lengths": (0, 1, 63, 64, 65, 131)}),
        Case("lengths-causal-cross", B=2, Nq=65, Nk=80, options={"causal": True},
             ints={"q_lengths": (50, 65), "kv_lengths": (70, 10)}),
        Case("gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=65),
        Case("mqa-causal", H=4, Hkv=1, Nq=65, options={"causal": True}),
        Case("chunk-1", Nq=33, options={"causal": True, "chunk_size": 1}),
        Case("chunk-7", Nq=65, options={"causal": True, "chunk_size": 7}),
        Case("chunk-1024", Nq=131, options={"causal": True, "chunk_size": 1024}),
        Case("eps", Nq=33, options={"eps": 0.5}),
        Case("eps-0", Nq=33, options={"eps": 0.0, "causal": True}),
        Case("unnormalised", dtypes=ALL, Nq=65, options={"normalize": False}),
        Case("unnormalised-causal-scale", Nq=65, options={
            "normalize": False, "causal": True, "scale": 0.01, "feature_map": "identity"},
             grad_lse=False, **POSITIVE),
        Case("relu", dtypes=ALL, Nq=65, D=32, options={"feature_map": "relu"}),
        Case("relu-causal", Nq=65, options={"feature_map": "relu", "causal": True}, **POSITIVE),
        # All features of q are 0: d = 0 with keys in sight.
        Case("relu-nothing", Nq=20, options={"feature_map": "relu"}, shift=-40.0),
        Case("relu-squared", Nq=65, D=32, options={"feature_map": "relu_squared"}),
        Case("squared-causal", Nq=65, options={"feature_map": "squared", "causal": True}),
        Case("abs", Nq=65, options={"feature_map": "abs"}),
        Case("identity", dtypes=ALL, Nq=65, options={"feature_map": "identity"}, **POSITIVE),
        # d of both signs: lse is NaN where d < 0.
        Case("identity-signs", Nq=33, options={"feature_map": "identity"}, grad_lse=False,
             backward=False),
        Case("exp", dtypes=ALL, Nq=65, options={"feature_map": "exp"}),
        Case("exp-causal", dtypes=ALL, B=2, Nq=131, options={"feature_map": "exp", "causal": True}),
        Case("exp-lengths", B=2, H=1, Nq=65, options={"feature_map": "exp"},
             ints={"kv_lengths": (0, 33)}),
        Case("exp-large", Nq=65, D=8, options={"feature_map": "exp"}, shift=200.0),
        Case("exp-unnormalised", Nq=33, options={"feature_map": "exp", "normalize": False}),
        Case("sigmoid-causal", Nq=65, options={"feature_map": "sigmoid", "causal": True}),
        Case("silu", Nq=65, options={"feature_map": "silu"}, **POSITIVE),
        Case("silu-causal", dtypes=ALL, Nq=65, options={"feature_map": "silu", "causal": True},
             **POSITIVE),
        Case("gelu", Nq=65, options={"feature_map": "gelu"}, **POSITIVE),
        Case("dpfp", dtypes=ALL, B=2, Nq=65, options={"feature_map": "dpfp"}),
        Case("dpfp-causal-nu3", Nq=65, D=5,
             options={"feature_map": "dpfp", "nu": 3, "causal": True}),
        Case("dpfp-unnormalised", H=4, Hkv=2, Nq=65, D=6,
             options={"feature_map": "dpfp", "normalize": False, "causal": True}),
        Case("dpfp-lengths", B=3, Nq=65, options={"feature_map": "dpfp", "causal": True},
             ints={"q_lengths": (0, 20, 65), "kv_lengths": (30, 1, 64)}),
        Case("sum-norm", dtypes=ALL, B=2, Nq=65, options={"feature_sum_norm": True}),
        # With D = 1 features of relu may sum to 0.
        Case("sum-norm-relu-zero", Nq=65, D=1,
             options={"feature_map": "relu", "feature_sum_norm": True, "causal": True}),
        Case("sum-norm-exp", B=2, Nq=65, options={"feature_map": "exp", "feature_sum_norm": True},
             ints={"kv_lengths": (65, 20)}),
        Case("sum-norm-dpfp", Nq=33, options={"feature_map": "dpfp", "feature_sum_norm": True}),
        Case("softmax", dtypes=ALL, B=2, Nq=65, options={"feature_map": "softmax"}, grad_lse=False),
        Case("softmax-lengths", B=4, H=2, Hkv=1, Nq=65, options={"feature_map": "softmax"},
             ints={"q_lengths": (65, 0, 10, 65), "kv_lengths": (64, 20, 0, 1)}, grad_lse=False),
        Case("softmax-causal", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65,
             options={"feature_map": "softmax", "causal": True}, grad_lse=False),
        Case("softmax-causal-cross", B=2, Nq=40, Nk=65, D=5, Dv=7,
             options={"feature_map": "softmax", "causal": True},
             ints={"kv_lengths": (65, 30)}, grad_lse=False),
        Case("softmax-causal-large", Nq=65, D=8, spread=30.0,
             options={"feature_map": "softmax", "causal": True}, grad_lse=False, ratio=False),
        # Channels whose first keys are -inf weigh nothing until one is not.
        Case("softmax-hidden-channels", Nq=65, D=5, Dv=7, hidden_channels=True,
             options={"feature_map": "softmax"}, grad_lse=False),
        Case("softmax-causal-hidden-channels", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, Nk=70, D=5, Dv=7,
             hidden_channels=True, options={"feature_map": "softmax", "causal": True},
             grad_lse=False),
        Case("softmax-joint-hidden-channels", Nq=65, D=5, Dv=7, hidden_channels=True,
             grad_lse=False,
             options={"feature_map": "softmax", "causal": True, "causal_norm": "joint"}),
        Case("softmax-joint", dtypes=ALL, Nq=65, grad_lse=False,
             options={"feature_map": "softmax", "causal": True, "causal_norm": "joint"}),
        # e^x where x + 1 computed from expm1 or from 1 + (e^x - 1) would have no digits left.
        Case("elu-far-negative", Nq=33, shift=-8.0),
        Case("bnhd", B=2, Nq=65, layout="BNHD", options={"causal": True}),
        Case("strided", B=2, H=4, Hkv=2, Nq=65, strided=True),
        Case("strided-bnhd", dtypes=ALL, B=2, Nq=65, strided=True, layout="BNHD",
             options={"causal": True}),
        Case("subnormal", dtypes=("f16",), Nq=33, v_scale=1e-6),
    ],
    batches=[
        {},
        {"causal": True},
        {"causal": True, "feature_map": "exp"},
        {"causal": True, "feature_map": "dpfp"},
    ],
    perf=[{}, {"causal": True}],
    growth=[Growth({}, 1, 1), Growth({"causal": True}, 1, 1)],
    visible=[
        Visible("causal", 16, 16, {"causal": True}, 136),
        Visible("nq5-nk9-causal", 5, 9, {"causal": True}, 35),
    ],
    golden=[
        lowrank_golden("default", {}, 0.393036363, 0.111551917, 0.206902248, 18.662885733,
                       3.242207020),
        lowrank_golden("causal", {"causal": True}, 0.909297339, 0.111551917, 0.008041269,
                       23.749812382, 2.500842817),
        lowrank_golden("softmax", {"feature_map": "softmax"}, 0.438301820, 0.119204846, 0.254032428,
                       21.781551463),
        lowrank_golden("softmax-causal", {"feature_map": "softmax", "causal": True}, 0.909297427,
                       0.119204846, 0.044400378, 25.905327154),
    ],
    refused=common_refusals({}, (), ("q_lengths", "kv_lengths", "state_s", "state_z"),
                            ("out", "lse", "state_s", "state_z")) + [
        Refused("feature-map", {"feature_map": "tanh"},
                [f'feature_map must be one of {NAMES}, got "tanh"']),
        Refused("eps", {"eps": -1e-3}, ["eps must be >= 0 and <= 1e+30, got -0.001"]),
        Refused("chunk-0", {"chunk_size": 0}, ["chunk_size must be in 1..1024, got 0"]),
        Refused("chunk-1025", {"chunk_size": 1025}, ["chunk_size must be in 1..1024, got 1025"]),
        Refused("scale-0", {"normalize": False, "scale": 0.0},
                ["scale must be > 0 and <= 1e+30, got 0"]),
        # Beyond float32.
        Refused("scale-1e39", {"normalize": False, "scale": 1e39},
                ["scale must be > 0 and <= 1e+30, got 1e+39"]),
        Refused("nu-0", {"feature_map": "dpfp", "nu": 0}, ["nu must be in 1..64, got 0"]),
        Refused("nu-above-d", {"feature_map": "dpfp", "nu": 4},
                ["nu must be in 1..D = 1..3, got 4"]),
        Refused("causal-norm", {"causal_norm": "row"},
                ['causal_norm must be one of prefix, joint, got "row"']),
        Refused("return-state", {"return_state": True},
                ["return_state needs causal, got causal = false"]),
        Refused("softmax-normalize", {"feature_map": "softmax", "normalize": False},
                ["normalize must be true with feature_map softmax, got false"]),
        Refused("softmax-sum-norm", {"feature_map": "softmax", "feature_sum_norm": True},
                ["feature_sum_norm must be false with feature_map softmax, got true"]),
        Refused("softmax-return-state",
                {"feature_map": "softmax", "causal": True, "return_state": True},
                ["return_state must be false with feature_map softmax, got true"]),
        Refused("softmax-state", {"feature_map": "softmax"},
                ["state_s must be absent with feature_map softmax, got [2,2,3,5]"],
                change={"state_s": np.zeros((2, 2, 3, 5), np.float32)}),
        Refused("state-shape", {}, ["state_s shape must have F = 3, got [2,2,4,5]"],
                change={"state_s": np.zeros((2, 2, 4, 5), np.float32)}),
        Refused("state-dtype", {}, ["state_z dtype must be float32, got float16"],
                change={"state_z": np.zeros((2, 2, 3), np.float16)}),
        Refused("grad-state-without-state", {"causal": True},
                ["grad_state_s needs return_state, got return_state = false"],
                change={"grad_state_s": np.zeros((2, 2, 3, 5), np.float32)}, backward=True),
        Refused("grad-state-of-another-batch", {"causal": True, "return_state": True},
                ["grad_state_s shape must be [B,Hkv,F,Dv] with B = 2 and Dv = 5, got [0,2,3,7]"],
                change={"grad_state_s": np.zeros((0, 2, 3, 7), np.float32)}, backward=True),
        Refused("grad-state-rank", {"causal": True, "return_state": True},
                ["grad_state_z shape must be [B,Hkv,F], got [1]"],
                change={"grad_state_z": np.zeros(1, np.float32)}, backward=True),
        Refused("grad-state-dtype", {"causal": True, "return_state": True},
                ["grad_state_z dtype must be float32, got float16"],
                change={"grad_state_z": np.zeros((2, 2, 3), np.float16)}, backward=True),
        Refused("grad-state-features", {"causal": True, "return_state": True},
                ["grad_state_z shape must have F = 3, got [2,2,4]"],
                change={"grad_state_z": np.zeros((2, 2, 4), np.float32)}, backward=True),
        Refused("seed-type", {"seed": 1.5}, ["seed must be an integer, got 1.5"]),
    ],
)
