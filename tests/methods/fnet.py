"""FNet: oracle from the low-rank specification (R1, fnet), cases, golden values, refusals."""

import numpy as np

from tests.methods.cases import ALL, Case
from tests.methods.method import Growth, Method, Visible
from tests.methods.mixing_core import MixingOracle, apart, golden, merged, mixing_refusals, without_q
from tests.methods.refused import Refused, zeros


class FnetOracle(MixingOracle):
    def compute(self, f, t, o, offset):
        x, heads = t["v"], t["v"].shape[1]
        if o.get("hidden_scope", "merged") == "merged":
            y = apart(f, self.transform(f, merged(f, x), o), heads)
        else:
            y = f.concat([self.transform(f, x[0, h], o).reshape(1, 1, *x.shape[2:])
                          for h in range(heads)], 1)
        return {"out": y}

    @staticmethod
    def transform(f, x, o):
        """cos(a + b) = cos a cos b - sin a sin b, over rows and columns."""
        def turns(n):
            return 2 * np.pi * (np.outer(np.arange(n), np.arange(n)) % max(n, 1)) / max(n, 1)

        rows, columns = turns(x.shape[0]), turns(x.shape[1])
        y = (np.cos(rows) * f.num(1.0)) @ x @ np.cos(columns)
        y = y - (np.sin(rows) * f.num(1.0)) @ x @ np.sin(columns)
        if o.get("norm", "none") == "ortho":
            y = y * (1 / np.sqrt(max(x.x.size, 1)))
        return y


HEADS = {"hidden_scope": "per_head"}
PRODUCTS = {"use_fft": False}

METHOD = Method(
    id="fnet",
    oracle=FnetOracle(),
    options={"hidden_scope": "enum", "norm": "enum", "use_fft": "bool"},
    tensors={"q", "k", "v", "q_lengths", "kv_lengths"},
    required=frozenset("v"),
    differentiable=["v"],
    square=True,
    gqa=False,
    peers=["transformers FNetBasicFourierTransform (needs PyTorch)",
           "numpy.fft.fft2 (test_fnet_is_the_real_part_of_fft2)"],
    cases=[
        Case("plain", dtypes=ALL, B=2, Nq=64),
        without_q(Case("odd", B=2, H=3, Nq=65, D=5)),
        Case("prime", H=1, Nq=131, D=7),
        Case("large-prime", H=1, Nq=1031, D=3, ratio=False),
        Case("n0", Nq=0),
        Case("n1", dtypes=ALL, Nq=1, D=3),
        Case("one-channel", H=1, Nq=63, D=1),
        Case("lengths", dtypes=ALL, B=6, Nq=131, D=6,
             ints={"kv_lengths": (131, 65, 64, 63, 1, 0), "q_lengths": (131, 65, 64, 63, 1, 0)}),
        Case("lengths-of-keys", B=3, Nq=20, ints={"kv_lengths": (20, 20, 7)}),
        Case("per-head", dtypes=ALL, B=2, H=3, Nq=65, D=12, options=HEADS),
        Case("per-head-lengths", B=3, H=2, Nq=40, D=8, options=HEADS | {"norm": "ortho"},
             ints={"kv_lengths": (40, 1, 0)}),
        Case("ortho", dtypes=ALL, B=2, Nq=48, options={"norm": "ortho"}),
        Case("ortho-lengths", B=3, Nq=40, D=8, options={"norm": "ortho"},
             ints={"kv_lengths": (31, 0, 40)}),
        Case("products", dtypes=ALL, B=2, H=3, Nq=65, D=5, options=PRODUCTS),
        Case("products-lengths", B=4, Nq=40, D=8, options=PRODUCTS | {"norm": "ortho"},
             ints={"kv_lengths": (40, 0, 1, 33)}),
        Case("products-per-head", B=2, H=2, Nq=31, D=8, options=PRODUCTS | HEADS),
        Case("products-n0", Nq=0, options=PRODUCTS),
        Case("bnhd", dtypes=ALL, B=2, Nq=65, layout="BNHD"),
        Case("strided", B=2, Nq=65, strided=True),
        Case("strided-per-head", B=2, Nq=33, strided=True, layout="BNHD", options=HEADS),
    ],
    batches=[{}, HEADS, {"norm": "ortho"}, PRODUCTS],
    perf=[{}],
    growth=[Growth({}, 1, 1)],
    visible=[Visible("all", 6, 6, {}, 36)],
    golden=[
        golden("merged", {}, -1.522615943, 0.260934966, -1.135745159, 235.373270938),
        golden("per-head", HEADS, 1.006923362, 0.264801028, -2.067203773, 199.120749291),
    ],
    refused=mixing_refusals(has_causal=False) + [
        Refused("hidden-scope", {"hidden_scope": "head"},
                ['hidden_scope must be one of merged, per_head, got "head"']),
        Refused("norm", {"norm": "forward"}, ['norm must be one of none, ortho, got "forward"']),
        Refused("long-products", PRODUCTS,
                ["use_fft must be true with more than 2048 Nk, got false with 2049"],
                change={"q": None, "k": None, "v": zeros(1, 1, 2049, 1)}),
        Refused("wide-products", PRODUCTS,
                ["use_fft must be true with more than 2048 channels, got false with 2052"],
                change={"q": None, "k": None, "v": zeros(1, 4, 1, 513)}),
    ],
)
