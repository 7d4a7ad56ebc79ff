"""Linear attention: oracle in float64 from lowrank_kernel.md (R1, R2, R7, linear_attention), cases,
golden values, refusals. The oracle forms the whole matrix A of kernel values, in time n^2."""

import math

import numpy as np

from tests.methods.cases import ALL, Case
from tests.methods.refused import Refused, common_refusals
from tests.methods.golden import lowrank_golden

ID = "linear_attention"
DIFFERENTIABLE = ["q", "k", "v"]
OPTIONS = {
    "feature_map": "enum", "normalize": "bool", "eps": "float", "feature_sum_norm": "bool",
    "causal_norm": "enum", "nu": "int", "chunk_size": "int", "scale": "float", "causal": "bool",
    "return_state": "bool", "seed": "int",
}
UNSERVED_OPTIONS = {"feature_sum_norm", "causal_norm", "nu", "return_state", "seed"}
TENSORS = {"q", "k", "v", "q_lengths", "kv_lengths", "state_s", "state_z"}
UNSERVED_TENSORS = {"state_s", "state_z"}
PEERS = [
    "pytorch-fast-transformers LinearAttention (needs PyTorch and a compiler)",
    "flash-linear-attention naive_recurrent_linear_attn (needs PyTorch)",
]

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


def visible(t, o):
    """[B,1,Nq,Nk]; with causal j <= i + Nk - Nq whatever the lengths (R1)."""
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


def pairs(t, o):
    return int(visible(t, o).sum()) * t["q"].shape[1]


class Kernel:
    """phi_q, phi_k, v, A, d and den of R7, kv heads repeated for their query heads. For the map exp
    q is shifted by its row's maximum and k by its head's; `shift` [B,H,Nq] is their sum."""

    def __init__(self, t, o, dtype=np.float64):
        self.t, self.dtype = t, dtype
        self.seen = visible(t, o)
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
        phi = MAPS[self.name][0]
        self.phi_q, self.phi_k = phi(q).astype(dtype), phi(k).astype(dtype)
        self.A = np.where(self.seen, self.phi_q @ self.phi_k.swapaxes(2, 3), dtype(0))
        self.d = self.A.sum(axis=3)
        self.eps = 0 if self.name == "exp" else o.get("eps", 1e-6)
        if self.normalize:
            den = self.d + dtype(self.eps)
        else:
            den = np.exp(-self.shift)
        self.den = np.where(den == 0, np.inf, den).astype(dtype)  # then num = 0 too

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

    def slope(self):
        """phi' at q and at k. The shifts of exp are constants of out and of lse - shift."""
        derivative = MAPS[self.name][1]
        if self.name == "exp":
            return self.phi_q, self.phi_k
        return derivative(self.q_in).astype(self.dtype), derivative(self.k_in).astype(self.dtype)


def forward(t, o, dtype=np.float64):
    kernel = Kernel(t, o, dtype)
    return {"out": kernel.out(), "lse": kernel.lse()}


def backward(t, o, dtype=np.float64, store=lambda x: x):
    kernel = Kernel(t, o, dtype)
    dO, dL = kernel.incoming()
    dN = kernel.scale * dO / kernel.den[..., None]
    dD = dL / np.where(kernel.d == 0, 1, kernel.d)
    if kernel.normalize:
        dD = dD - (dO * store(kernel.out())).sum(axis=3) / kernel.den
    dA = np.where(kernel.seen, dN @ kernel.v.swapaxes(2, 3) + dD[..., None], dtype(0))
    slope_q, slope_k = kernel.slope()
    return {
        "q": slope_q * (dA @ kernel.phi_k),
        "k": kernel.by_kv_head(slope_k * (dA.swapaxes(2, 3) @ kernel.phi_q)),
        "v": kernel.by_kv_head(kernel.A.swapaxes(2, 3) @ dN),
    }


def magnitude(t, o):
    """See softmax.magnitude. A sum of d that cancels (identity) makes 1 / den as uncertain as
    sum |A| / |den|; the exponential of x amplifies a rounding of x by x."""
    kernel = Kernel(t, o)
    seen, den, v = kernel.seen, abs(kernel.den), abs(kernel.v)
    inside, slope = MAPS[kernel.name][2:]
    phi_q, phi_k = abs(kernel.phi_q), abs(kernel.phi_k)
    slope_q, slope_k = (abs(x) for x in kernel.slope())
    if inside is not None:
        phi_q, phi_k = inside(kernel.q_in), inside(kernel.k_in)
    if slope is not None:
        slope_q, slope_k = slope(kernel.q_in), slope(kernel.k_in)
    amplification = max((abs(x).max(initial=0) for x in (kernel.q_in, kernel.k_in)), default=0)
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
    sums = {"out": (out, 0), "lse": (lse, 0)}
    sums["q"] = tuple(slope_q * (x @ phi_k) for x in (dA, dA_stored))
    sums["k"] = tuple(kernel.by_kv_head(slope_k * (x.swapaxes(2, 3) @ phi_q))
                      for x in (dA, dA_stored))
    sums["v"] = kernel.by_kv_head(A.swapaxes(2, 3) @ dN), 0
    return sums, amplification


POSITIVE = {"shift": 2.0, "spread": 0.5}  # keeps d away from 0 where the map changes sign
CASES = [
    Case("plain", dtypes=ALL, B=2, Nq=63),
    Case("causal", dtypes=ALL, B=2, Nq=65, options={"causal": True}),
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
    # e^x where x + 1 computed from expm1 or from 1 + (e^x - 1) would have no digits left.
    Case("elu-far-negative", Nq=33, shift=-8.0),
    Case("bnhd", B=2, Nq=65, layout="BNHD", options={"causal": True}),
    Case("strided", B=2, H=4, Hkv=2, Nq=65, strided=True),
    Case("strided-bnhd", dtypes=ALL, B=2, Nq=65, strided=True, layout="BNHD",
         options={"causal": True}),
    Case("subnormal", dtypes=("f16",), Nq=33, v_scale=1e-6),
]

BATCHES = [{}, {"causal": True}, {"causal": True, "feature_map": "exp"}]

PERF = [{}, {"causal": True}]
# (options, exponent of time, exponent of workspace) over N: tests/bench/growth.py.
GROWTH = [({}, 1, 1), ({"causal": True}, 1, 1)]

VISIBLE = [
    ("causal", 16, 16, {"causal": True}, 136),
    ("nq5-nk9-causal", 5, 9, {"causal": True}, 35),
]

GOLDEN = [
    lowrank_golden("default", {}, 0.393036363, 0.111551917, 0.206902248, 18.662885733,
                   3.242207020),
    lowrank_golden("causal", {"causal": True}, 0.909297339, 0.111551917, 0.008041269, 23.749812382,
                   2.500842817),
]

NAMES = ", ".join([*MAPS, "dpfp", "softmax"])
REFUSED = common_refusals({}, UNSERVED_TENSORS) + [
    Refused("feature-map", {"feature_map": "tanh"},
            [f'feature_map must be one of {NAMES}, got "tanh"']),
    Refused("feature-map-dpfp", {"feature_map": "dpfp"},
            ['feature_map is not served by this version, got "dpfp"'], code=12),
    Refused("feature-map-softmax", {"feature_map": "softmax"},
            ['feature_map is not served by this version, got "softmax"'], code=12),
    Refused("eps", {"eps": -1e-3}, ["eps must be >= 0, got -0.001"]),
    Refused("chunk-0", {"chunk_size": 0}, ["chunk_size must be in 1..1024, got 0"]),
    Refused("chunk-1025", {"chunk_size": 1025}, ["chunk_size must be in 1..1024, got 1025"]),
    Refused("scale-0", {"normalize": False, "scale": 0.0}, ["scale must be > 0, got 0"]),
    Refused("sum-norm", {"feature_sum_norm": True},
            ["feature_sum_norm is not served by this version, got true"], code=12),
    Refused("causal-norm", {"causal_norm": "joint"},
            ['causal_norm is not served by this version, got "joint"'], code=12),
    Refused("nu", {"nu": 3}, ["nu is not served by this version, got 3"], code=12),
    Refused("return-state", {"causal": True, "return_state": True},
            ["return_state is not served by this version, got true"], code=12),
    Refused("seed", {"seed": 7}, ["seed is not served by this version, got 7"], code=12),
]
