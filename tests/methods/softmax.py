"""Exact softmax attention: oracle in float64 from patterns.md (Common core, softmax), cases,
golden sums, refusals."""

import numpy as np

from tests.methods import pattern_core
from tests.methods.cases import ALL, Case
from tests.methods.refused import pattern_refusals
from tests.methods.golden import lowrank_golden, pattern_golden

ID = "softmax"
OPTIONS = pattern_core.OPTIONS
UNSERVED_OPTIONS = set()
TENSORS = pattern_core.TENSORS
DIFFERENTIABLE = pattern_core.DIFFERENTIABLE
UNSERVED_TENSORS = set()
PEERS = [
    "torch.nn.functional.scaled_dot_product_attention (needs PyTorch)",
    "transformers gpt-oss eager_attention_forward (needs PyTorch; sinks)",
]

oracle = pattern_core.PatternOracle(lambda row: np.True_)
visible, pairs, magnitude = oracle.visible, oracle.pairs, oracle.magnitude
forward, backward = oracle.forward, oracle.backward

CASES = [
    Case("plain", dtypes=ALL, Nq=63),
    Case("n0", Nq=0, Nk=5, grad_lse=False),
    Case("nk0", Nq=5, Nk=0),
    Case("n1", dtypes=ALL, Nq=1, D=1, Dv=1),
    Case("n64", Nq=64, D=64, H=1),
    Case("n65-d64", dtypes=ALL, Nq=65, D=64, Dv=32),
    Case("n131-d128", Nq=131, D=128, H=1, options={"causal": True}),
    Case("odd-d", dtypes=ALL, Nq=131, Nk=63, D=5, Dv=7),
    Case("wide-d", Nq=17, Nk=33, D=257, Dv=130, H=1),
    Case("long", H=1, Nq=70, Nk=1031, D=8),
    Case("causal", dtypes=ALL, B=2, Nq=65, options={"causal": True}),
    Case("causal-more-keys", Nq=65, Nk=131, options={"causal": True}),
    Case("causal-more-queries", dtypes=ALL, Nq=131, Nk=65, options={"causal": True}),
    Case("causal-offset", B=3, Nq=65, Nk=70, options={"causal": True},
         ints={"causal_offset": (-3, 0, 80)}),
    Case("causal-offset-nothing", B=2, Nq=9, Nk=9, options={"causal": True},
         ints={"causal_offset": (-9, 8)}),
    Case("gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=33, Nk=65),
    Case("mqa-causal", H=4, Hkv=1, Nq=64, options={"causal": True}),
    Case("lengths", dtypes=ALL, B=6, Nq=131, ints={"q_lengths": (0, 1, 63, 64, 65, 131),
                                        "kv_lengths": (131, 65, 64, 63, 1, 0)}),
    Case("lengths-causal", B=6, H=1, Nq=131, options={"causal": True},
         ints={"q_lengths": (0, 1, 63, 64, 65, 131), "kv_lengths": (0, 1, 63, 64, 65, 131)}),
    Case("prefill", dtypes=ALL, B=2, Nq=4, Nk=100, options={"causal": True},
         ints={"kv_lengths": (50, 7), "causal_offset": (46, 3)}),
    Case("scale", Nq=40, options={"scale": 0.3}),
    Case("scale-negative", Nq=40, options={"scale": -0.5}),
    Case("scale-zero", Nq=40, options={"scale": 0.0}),
    Case("multiset", Nq=20, options={"duplicates": "multiset"}),
    Case("peaked", Nq=131, D=64, spread=2.5),
    Case("one-hot", Nq=65, D=64, spread=8.0),
    # Every score far below any finite "minus infinity" sentinel: rows must stay ordinary rows.
    Case("far-below-zero", Nq=40, D=4, shift=60.0, options={"scale": -8.0}, ratio=False),
    Case("bnhd", B=2, Nq=65, Nk=33, layout="BNHD", options={"causal": True}),
    Case("strided", B=2, Nq=65, Nk=33, strided=True),
    Case("strided-bnhd-gqa", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, strided=True, layout="BNHD",
         options={"causal": True}),
    Case("no-grad-lse", Nq=33, grad_lse=False),
    # float16 below 2^-14: flush-to-zero of float32 arithmetic must not reach them.
    Case("subnormal", dtypes=("f16",), Nq=33, v_scale=1e-6),
    Case("offset-extreme", B=2, Nq=33, options={"causal": True},
         ints={"causal_offset": (2**31 - 1, -(2**31))}),
    Case("softcap", dtypes=ALL, Nq=65, spread=2.0, options={"logit_softcap": 1.5}),
    Case("softcap-causal", Nq=65, options={"logit_softcap": 30.0, "causal": True}),
    Case("alibi-h6", dtypes=ALL, H=6, Nq=65, Nk=70, options={"alibi": True}),
    Case("alibi-offset", B=2, Nq=33, options={"alibi": True, "causal": True},
         ints={"causal_offset": (-5, 9)}),
    # Distances of 2^31.
    Case("alibi-offset-extreme", B=2, Nq=33, options={"alibi": True}, ratio=False,
         ints={"causal_offset": (2**31 - 1, -(2**31))}),
    Case("slopes", dtypes=ALL, H=4, Hkv=2, Nq=65, floats={"alibi_slopes": "H"}),
    Case("slopes-of-rows", B=3, Nq=33, Nk=65, options={"alibi": True},
         floats={"alibi_slopes": "B,H"}, ints={"kv_lengths": (65, 20, 0)}),
    Case("bias", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, Nk=70, floats={"bias": "B,H,Nq,Nk"}),
    Case("bias-pairs", dtypes=ALL, B=2, Nq=65, floats={"bias": "Nq,Nk"}, options={"causal": True}),
    Case("bias-keys", B=2, Nq=131, Nk=65, floats={"bias": "B,1,1,Nk"}),
    Case("bias-queries", B=2, Nq=65, floats={"bias": "H,Nq,1"}),
    Case("bias-heads", B=2, H=4, Nq=65, floats={"bias": "H,1,1"}),
    Case("bias-one", Nq=33, floats={"bias": "1"}),
    Case("bias-hides", dtypes=ALL, B=2, Nq=65, floats={"bias": "1,1,Nq,Nk"}, hidden_bias=True,
         ints={"kv_lengths": (65, 40)}),
    Case("bias-hides-keys", B=2, Nq=33, Nk=2, floats={"bias": "B,H,1,Nk"}, hidden_bias=True),
    # Finite numbers that overflow when they are multiplied with log2(e) hide nothing.
    Case("bias-far", dtypes=("f32", "bf16"), B=2, Nq=65, Nk=70, floats={"bias": "B,1,Nq,Nk"},
         far_floats=True),
    Case("sinks-far", dtypes=("f32", "bf16"), B=2, Nq=65, floats={"sink_logits": "H"},
         far_floats=True, ints={"kv_lengths": (65, 0)}),
    Case("wide-floats", dtypes=("f16", "bf16"), B=2, Nq=65, wide_floats=True,
         floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "H", "sink_logits": "H"}),
    Case("sinks", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, floats={"sink_logits": "H"}),
    Case("sinks-of-empty-rows", B=3, Nq=65, Nk=33, floats={"sink_logits": "H"},
         options={"causal": True}, ints={"q_lengths": (65, 64, 1), "kv_lengths": (33, 1, 0)}),
    Case("sinks-no-keys", Nq=5, Nk=0, floats={"sink_logits": "H"}),
    Case("sinks-only-lse", Nq=33, floats={"sink_logits": "H"}),
    Case("all-terms", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, Nk=70, D=33, Dv=17, layout="BNHD",
         strided=True, options={"causal": True, "logit_softcap": 3.0},
         floats={"bias": "B,1,Nq,Nk", "alibi_slopes": "B,H", "sink_logits": "H"},
         ints={"q_lengths": (65, 40), "kv_lengths": (50, 70)}),
    Case("segments", dtypes=ALL, B=2, Nq=131, segments="runs"),
    Case("segments-mixed", B=2, H=4, Hkv=2, Nq=65, Nk=70, segments="mixed"),
    Case("segments-ends", B=2, Nq=65, Nk=70, segments="ends"),
    Case("segments-causal", B=2, Nq=131, segments="mixed", options={"causal": True, "alibi": True},
         floats={"sink_logits": "H"}, ints={"kv_lengths": (131, 64)}),
    Case("segments-none", Nq=0, Nk=4, segments="mixed", grad_lse=False),
    Case("packed", dtypes=ALL, H=4, Hkv=2, Nq=261, packed=5),
    Case("packed-causal-more-keys", Nq=131, Nk=201, packed=3,
         options={"causal": True, "alibi": True}),
    Case("packed-one", Nq=65, packed=1, layout="BNHD"),
    Case("packed-all-terms", dtypes=ALL, H=4, Hkv=2, Nq=131, Nk=99, D=9, packed=4, strided=True,
         layout="BNHD", options={"causal": True, "logit_softcap": 3.0},
         floats={"bias": "H,Nq,Nk", "alibi_slopes": "B,H", "sink_logits": "H"}),
    Case("packed-bias-keys", Nq=65, packed=4, floats={"bias": "H,1,Nk"}),
    Case("packed-bias-queries", Nq=65, packed=4, floats={"bias": "Nq,1"}),
    Case("packed-bias-one", Nq=65, Nk=1, packed=3, floats={"bias": "H,1,1"}),
]

# Requests of one bucket: other lengths, batch sizes and layouts may share a launch.
BATCHES = [{}, {"causal": True}]

# With other tensors: each of them is in every request.
TENSOR_BATCHES = [
    Case("terms", options={"causal": True, "logit_softcap": 2.0},
         floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "B,H", "sink_logits": "H"}),
    Case("segments", segments="mixed"),
    Case("packed", packed=4, options={"alibi": True},
         floats={"bias": "H,1,Nk", "sink_logits": "H"}),
]

PERF = [{}, {"causal": True}]
# (options, exponent of time, exponent of workspace) over N: tests/bench/growth.py.
GROWTH = [({}, 2, 1), ({"causal": True}, 2, 1)]

VISIBLE = [
    ("nq5-nk9-causal", 5, 9, {"causal": True}, 35),
    ("nq9-nk5-causal", 9, 5, {"causal": True}, 15),
]

GOLDEN = [
    pattern_golden("softmax", {}, 512, -0.1189919003, -4.8247869001, -0.3841097957, 0.5687755287,
                   0.0642983619),
    pattern_golden("softmax-causal", {"causal": True}, 272, 4.2890626739, -15.0562522999,
                   0.9384382340, -1.5094260046, 1.8043583044),
    pattern_golden("softmax-causal-cap-alibi-sinks",
                   {"causal": True, "logit_softcap": 1.5, "alibi": True}, 272, 2.5498422946,
                   -12.0321668318, 0.7044003224, -0.8681086654, 0.4655727407,
                   {"sink_logits": np.array([0.5, -0.5])}),
    lowrank_golden("reference", {}, 0.531133528, -0.093486256, -0.512909521, 27.559082619),
    lowrank_golden("reference-causal", {"causal": True}, 0.909297427, -0.093486256, -0.426268365,
                   27.399186530),
]

REFUSED = pattern_refusals({})
