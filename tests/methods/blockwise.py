"""One key block for each query block, permuted by head: oracle in float64 from the pattern
specification (Common core, blockwise), cases, golden sums, refusals."""

import dataclasses

import numpy as np

from tests.methods.cases import ALL, Case
from tests.methods.golden import pattern_golden
from tests.methods.method import Growth, Visible
from tests.methods.pattern_core import PatternOracle
from tests.methods.pattern_method import pattern_method
from tests.methods.refused import INT, Refused, zeros


def standard_perm(H, nb, identity=None):
    """[H,nb]: identities first, then shifts that are spread over the other heads."""
    if identity is None:
        identity = max(1, H - (nb - 1) * max(1, (H + 3) // 6))
    others = H - identity
    shifts = [0] * identity + [1 + x * (nb - 1) // others for x in range(others)]
    return (np.arange(nb) + np.array(shifts)[:, None]) % nb


def sees(seq):
    nb, N = seq.o.get("num_blocks", 2), seq.Nk
    if N == 0:
        return np.False_
    perm = seq.t.get("perm")
    if perm is None:
        perm = standard_perm(seq.H, nb, seq.o.get("identity_heads"))
    # Where p is no key, the block does not matter.
    of_query = np.where((seq.p >= 0) & (seq.p < N), seq.p, 0) * nb // N
    return (seq.p >= 0) & (seq.p < N) & (perm[:, of_query[:, 0], None] == seq.j * nb // N)


def fit_options(case):
    """At most as many blocks as keys, and identities as heads."""
    o = dict(case.options)
    o["num_blocks"] = max(1, min(o.get("num_blocks", 2), case.keys))
    if "identity_heads" in o:
        o["identity_heads"] = min(o["identity_heads"], case.H)
    return dataclasses.replace(case, options=o)


def fit_sizes(case):
    """At least as many keys as blocks, or none."""
    least = case.options.get("num_blocks", 2) if case.keys else 0
    return dataclasses.replace(case, Nk=max(case.keys, least))


def blocks(nb, identity=None, **more):
    return {"num_blocks": nb} | ({} if identity is None else {"identity_heads": identity}) | more


def permuted(heads="H"):
    def make(rng, case):
        nb = case.options.get("num_blocks", 2)
        rows = [rng.permutation(nb) for _ in range(case.shape_of(heads)[0])]
        return np.array(rows, INT)
    return {"perm": make}


def ends(of_keys):
    """Four sequences, the first empty; those with keys have num_blocks of them at least."""
    def make(rng, case):
        N = case.keys if of_keys else case.Nq
        least = case.options.get("num_blocks", 2)
        first = N // 4 if case.keys // 4 >= least else 0
        return np.array([0, 0, first, N - first, N], INT)
    return make


PACKED = {"cu_seqlens_q": ends(False), "cu_seqlens_k": ends(True)}
ONE = {"q": zeros(1, 4, 6, 3), "k": zeros(1, 2, 7, 3), "v": zeros(1, 2, 7, 5)}


METHOD = pattern_method(
    id="blockwise",
    oracle=PatternOracle(sees),
    options={"num_blocks": "int", "identity_heads": "int"},
    own=("perm",),
    good_options=blocks(2),
    plans_pairs=lambda t, o: "perm" not in t,
    peers=[
        "block_sparse with layout[h,t,perm[h,t]] = 1, where num_blocks divides N",
        "flex_attention, mask perm[h, i // bs] == j // bs (needs PyTorch)",
    ],
    fit_options=fit_options,
    fit_sizes=fit_sizes,
    cases=[
        Case("defaults", dtypes=ALL, H=4, B=2, Nq=65),
        Case("nb3", dtypes=ALL, H=4, Hkv=2, Nq=131, options=blocks(3)),
        Case("nb3-h12", H=12, Nq=65, D=8, options=blocks(3)),
        Case("nb2-h12", H=12, Hkv=4, Nq=64, D=8, options=blocks(2)),
        Case("nb7-h16", H=16, Hkv=2, Nq=63, D=8, options=blocks(7)),
        Case("nb5-one-head", H=1, Nq=65, options=blocks(5)),
        Case("nb4-no-identity", H=4, Nq=131, options=blocks(4, 0)),
        Case("nb4-identity", H=3, Nq=131, options=blocks(4, 3)),
        Case("nb9-identity-2", dtypes=ALL, H=5, Nq=131, options=blocks(9, 2)),
        Case("nb1", Nq=65, options=blocks(1)),
        Case("nb1-no-identity", Nq=65, options=blocks(1, 0)),
        Case("nb-is-n", H=3, Nq=33, options=blocks(33)),
        Case("nb-is-n-less-1", H=3, Nq=34, options=blocks(33)),
        Case("nb64", H=4, Nq=131, options=blocks(64)),
        Case("nb2-d32", H=2, Nq=261, D=32, options=blocks(2)),
        Case("nb4-of-64", H=2, Nq=256, D=8, options=blocks(4, 1)),
        Case("permuted", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, options=blocks(5), made=permuted()),
        # Not an involution: a permutation that is read backwards gives other numbers.
        Case("permuted-for-all-heads", H=4, Nq=131, options=blocks(7), made=permuted("1")),
        Case("permuted-and-identity-heads", H=4, Nq=65, options=blocks(3, 4), made=permuted()),
        Case("causal", dtypes=ALL, H=4, Nq=131, options=blocks(3, causal=True)),
        Case("causal-permuted", H=4, Hkv=2, Nq=65, options=blocks(6, causal=True), made=permuted(),
             floats={"sink_logits": "H"}),
        # Small blocks: queries stand in the order of their key blocks.
        Case("permuted-positions", dtypes=ALL, B=2, H=2, Nq=200, options=blocks(200),
             made=permuted()),
        Case("permuted-pairs-causal", B=3, H=4, Hkv=2, Nq=190, Nk=200,
             options=blocks(100, causal=True), made=permuted(),
             ints={"causal_offset": (-40, 5, 60), "q_lengths": (190, 100, 150),
                   "kv_lengths": (64, 200, 131)}),
        Case("permuted-positions-segments", B=2, H=2, Nq=200, segments="mixed", options=blocks(90),
             made=permuted(), floats={"bias": "H,Nq,Nk", "sink_logits": "H"}),
        Case("n1", Nq=1, options=blocks(1)),
        Case("n0", Nq=0, Nk=3, options=blocks(3), grad_lse=False),
        Case("nk0", Nq=3, Nk=0, options=blocks(3)),
        Case("more-keys", H=3, Nq=65, Nk=131, options=blocks(4)),
        Case("more-keys-causal", H=3, Nq=64, Nk=131, options=blocks(4, 1, causal=True)),
        # Rows before the first key see nothing.
        Case("more-queries", dtypes=ALL, H=3, Nq=131, Nk=65, options=blocks(4)),
        Case("more-queries-causal", H=3, Nq=131, Nk=63, options=blocks(4, causal=True)),
        Case("offset", B=3, H=3, Nq=65, Nk=70, options=blocks(4),
             ints={"causal_offset": (-66, 2, 69)}),
        Case("offset-causal", B=3, H=3, Nq=65, Nk=70, options=blocks(4, causal=True),
             ints={"causal_offset": (-30, 5, 40)}),
        Case("offset-extreme", B=2, Nq=33, options=blocks(4), floats={"sink_logits": "H"},
             ints={"causal_offset": (2**31 - 1, -(2**31))}),
        Case("lengths", dtypes=ALL, B=6, H=2, Nq=131, options=blocks(3),
             ints={"q_lengths": (131, 65, 64, 63, 1, 0), "kv_lengths": (0, 1, 63, 64, 65, 131)}),
        Case("scale-dv", H=3, Nq=65, D=5, Dv=33, options=blocks(4, scale=0.7)),
        Case("gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=65, options=blocks(4)),
        Case("bnhd", B=2, H=3, Nq=65, layout="BNHD", options=blocks(4, causal=True)),
        Case("strided", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, strided=True, options=blocks(4)),
        Case("multiset", H=3, Nq=33, options=blocks(4, duplicates="multiset")),
        Case("all-terms", dtypes=ALL, B=2, H=4, Hkv=2, Nq=131, Nk=150, D=33, Dv=17,
             options=blocks(3, logit_softcap=3.0),
             floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "H", "sink_logits": "H"},
             ints={"q_lengths": (131, 40), "kv_lengths": (50, 150)}),
        Case("all-terms-permuted", B=2, H=4, Hkv=2, Nq=65, strided=True, layout="BNHD",
             options=blocks(5, causal=True, logit_softcap=3.0), made=permuted(),
             floats={"bias": "B,1,1,Nk", "alibi_slopes": "B,H", "sink_logits": "H"}),
        Case("alibi-offset", B=2, H=3, Nq=65, options=blocks(4, alibi=True),
             ints={"causal_offset": (-5, 30)}),
        Case("bias-hides", H=3, Nq=65, options=blocks(4), floats={"bias": "1,1,Nq,Nk"},
             hidden_bias=True),
        Case("segments", dtypes=ALL, B=2, H=3, Nq=131, segments="runs", options=blocks(3)),
        Case("segments-mixed", B=2, H=4, Nq=131, Nk=65, segments="mixed",
             options=blocks(2, causal=True)),
        Case("packed", dtypes=ALL, H=4, Hkv=2, Nq=261, packed=4, options=blocks(3), made=PACKED),
        Case("packed-all-terms", H=3, Nq=131, Nk=99, packed=4,
             options=blocks(2, logit_softcap=3.0, causal=True), made=PACKED,
             floats={"bias": "H,Nq,Nk", "alibi_slopes": "H", "sink_logits": "H"}),
        Case("packed-permuted", H=3, Nq=131, packed=4, options=blocks(7), made=PACKED | permuted()),
        Case("packed-one-block", Nq=65, packed=5, options=blocks(1)),
    ],
    # Three heads of four have no empty rows.
    batches=[blocks(3, 3, causal=True), blocks(2), blocks(5, 0)],
    tensor_batches=[
        Case("terms", options=blocks(3, logit_softcap=2.0),
             floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "B,H", "sink_logits": "H"}),
        Case("permuted", options=blocks(4), made=permuted()),
        Case("segments", options=blocks(3), segments="mixed"),
        Case("packed", options=blocks(2, causal=True), packed=4, made=PACKED),
    ],
    perf=[blocks(2), blocks(8)],
    growth=[Growth(blocks(4), 2, 1)],
    visible=[
        Visible("nb3-identity", 16, 16, blocks(3, 1), 86),
        Visible("nb3-shift-1", 16, 16, blocks(3, 0), 85),
    ],
    golden=[
        pattern_golden("nb3-identity-and-shift", blocks(3), 171, 0.0218225188, -2.7352011580,
                       -1.3361070344, -1.6367283634, -0.5249161714,
                       {"perm": np.array([[0, 1, 2], [1, 2, 0]], INT)}),
        pattern_golden("nb3-standard-perm", blocks(3, 1), 171, 0.0218225188, -2.7352011580,
                       -1.3361070344, -1.6367283634, -0.5249161714),
    ],
    refused=[
        Refused("blocks-0", blocks(0), ["num_blocks must be >= 1, got 0"]),
        Refused("blocks-8", blocks(8), ["num_blocks must be in 1..Nk = 1..7, got 8"]),
        Refused("blocks-type", {"num_blocks": 1.5}, ["num_blocks must be an integer, got 1.5"]),
        Refused("blocks-packed", blocks(4),
                ["num_blocks must be in 1..Nk = 1..3 of sequence 1, got 4"],
                change=ONE | {"cu_seqlens_q": np.array([0, 2, 2, 6], INT),
                              "cu_seqlens_k": np.array([0, 4, 7, 7], INT)}),
        Refused("identity-many", blocks(2, 5), ["identity_heads must be in 0..H = 0..4, got 5"]),
        Refused("identity-negative", blocks(2, -1), ["identity_heads must be >= 0, got -1"]),
        Refused("perm-rank", blocks(2), ["perm shape must be [H,nb] or [1,nb], got [3]"],
                change={"perm": zeros(3, dtype=INT)}),
        Refused("perm-heads", blocks(2),
                ["perm shape must be [H,nb] or [1,nb] with H = 4, got [3,2]"],
                change={"perm": zeros(3, 2, dtype=INT)}),
        Refused("perm-blocks", blocks(2),
                ["perm shape must be [H,nb] or [1,nb] with nb = num_blocks = 2, got [4,3]"],
                change={"perm": zeros(4, 3, dtype=INT)}),
        Refused("perm-dtype", blocks(2), ["perm dtype must be int32, got float32"],
                change={"perm": zeros(4, 2)}),
        Refused("perm-high", blocks(3), ["perm[3,2] must be in 0..nb-1 = 0..2, got 3"],
                change={"perm": np.array([[0, 1, 2]] * 3 + [[0, 1, 3]], INT)}, values=True),
        Refused("perm-twice", blocks(3), ["perm[0,2] must occur once in its row, got 0"],
                change={"perm": np.array([[0, 1, 0]], INT)}, values=True),
        Refused("everything-at-once", blocks(0, 5, scale=float("nan")),
                ["num_blocks must be >= 1, got 0", "identity_heads must be in 0..H = 0..4, got 5",
                 "scale must be finite, got nan"]),
        Refused("more-blocks-than-heads-may-have", blocks(2000000),
                ["num_blocks must be in 1..Nk = 1..7, got 2000000",
                 "num_blocks must be at most 4194304 / H = 1048576, got 2000000"]),
    ],
)
