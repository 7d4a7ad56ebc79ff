"""Random keys: oracle in float64 from the pattern specification (Common core with its seeded draws,
random), cases, golden sums, refusals. bigbird.py draws with the same functions."""

import dataclasses

import numpy as np

from tests.methods.cases import ALL, Case, ints
from tests.methods.golden import pattern_golden
from tests.methods.method import Growth, Visible
from tests.methods.pattern_core import PatternOracle
from tests.methods.pattern_method import pattern_method
from tests.methods.refused import INT, Refused, zeros


# --- seeded integer draws ---


def words(x):
    """Integers as 64 bits, negative ones in two's complement."""
    return np.asarray(x, np.int64).astype(np.uint64)


def mix(x):
    with np.errstate(over="ignore"):
        z = np.uint64(x) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return z ^ z >> np.uint64(31)


def key(seed, tag, a, b, t):
    x = np.uint64(seed)
    for w in (tag, a, b, t):
        x = mix(x ^ words(w))
    return x


def bounded(u, m):
    """The high 64 bits of u m, for m below 2^32."""
    half = np.uint64(32)
    low = (u & np.uint64(2**32 - 1)) * m
    return ((u >> half) * m + (low >> half)) >> half


def sample(counts, R, seed, tag, a, b):
    """What each row draws of its `counts` candidates: their ordinals, ascending, [..., most drawn];
    -1 where a row has fewer."""
    counts, a, b = np.broadcast_arrays(counts, a, b)
    shape, counts, a, b = counts.shape, counts.ravel(), a.ravel(), b.ravel()
    most = counts.max(initial=0)
    drawn = min(R, most)
    C = np.tile(np.arange(most), (counts.size, 1))
    for t in range(drawn):
        rows = np.flatnonzero(t < counts)
        u = key(seed, tag, a[rows], b[rows], t)
        other = t + bounded(u, words(counts[rows] - t)).astype(int)
        C[rows, t], C[rows, other] = C[rows, other], C[rows, t]
    first = np.where(np.arange(drawn) < counts[:, None], C[:, :drawn], most)
    first.sort(axis=1)
    return np.where(first < most, first, -1).reshape(*shape, drawn)


def times(listed, N):
    """How often each of N indices occurs in lists [..., n]; others are ignored."""
    count = np.zeros((*listed.shape[:-1], N + 1), int)
    at = np.where((listed < 0) | (listed >= N), N, listed)
    np.add.at(count.reshape(-1, N + 1),
              (np.arange(count.size // (N + 1)).repeat(listed.shape[-1]), at.ravel()), 1)
    return count[..., :N]


def counted(count, o):
    """The keys that query rows see; as a multiset also the logarithm of how often it sees each."""
    if o.get("duplicates", "set") == "set":
        return count > 0
    return count > 0, np.log(np.maximum(count, 1))


# --- the predicate ---


def sees(seq):
    o, causal = seq.o, seq.o.get("causal", False)
    if "rand_keys" in seq.t:
        listed = seq.t["rand_keys"]
        listed = listed[seq.b] if listed.ndim == 4 else listed
    else:
        last = ints(seq.t, "kv_lengths", seq.b, seq.Nk)
        candidates = np.clip(np.minimum(last, seq.p[:, 0] + 1) if causal else last, 0, None)
        heads = np.arange(seq.H if o.get("per_head", True) else 1)
        listed = sample(candidates, o["num_random"], o.get("seed", 0), 1, heads[:, None],
                        seq.p[:, 0])
    count = times(listed, seq.Nk)
    if o.get("include_self", False):
        count = np.where(seq.j == seq.p, np.maximum(count, 1), count)
    return counted(count, o)


def fit_options(case):
    """At most as many keys are drawn as there are."""
    if "num_random" not in case.options or "rand_keys" in case.made:
        return case
    R = max(1, min(case.options["num_random"], case.keys))
    return dataclasses.replace(case, options=case.options | {"num_random": R})


def fit_sizes(case):
    """At least as many keys as are drawn, or none."""
    least = case.options.get("num_random", 0) if case.keys else 0
    return dataclasses.replace(case, Nk=max(case.keys, least))


def drawn(R, **more):
    return {"num_random": R} | more


def listed(letters, R, below=None):
    """Lists of R keys, some of them twice and some that do not exist, in the shape of `letters`."""
    def make(rng, case):
        end = case.keys + 2 if below is None else below
        return rng.integers(-2, end, (*case.shape_of(letters), R)).astype(INT)
    return {"rand_keys": make}


def far_keys(rng, case):
    """One key that exists beside the largest and the smallest numbers."""
    keys = rng.integers(0, case.keys, (case.H, case.Nq, 3))
    keys[..., 1:] = 2**31 - 1, -(2**31)
    return keys.astype(INT)


def no_keys(rng, case):
    return np.full((1, case.Nq, 3), -1, INT)


MULTISET = {"duplicates": "multiset"}
SHAPES = "rand_keys shape must be [H,Nq,R] or [1,Nq,R] or [B,H,Nq,R] or [B,1,Nq,R]"


METHOD = pattern_method(
    id="random",
    oracle=PatternOracle(sees),
    options={"num_random": "int", "include_self": "bool", "per_head": "bool", "seed": "int"},
    own=("rand_keys",),
    good_options=drawn(3),
    plans_pairs=lambda t, o: "rand_keys" not in t and not o.get("include_self", False),
    peers=[
        "xformers components.attention.RandomAttention, its mask sent as rand_keys (needs PyTorch)",
    ],
    fit_options=fit_options,
    fit_sizes=fit_sizes,
    cases=[
        Case("r8", dtypes=ALL, B=2, Nq=65, options=drawn(8)),
        Case("r8-causal", dtypes=ALL, B=2, Nq=65, options=drawn(8, causal=True, seed=42)),
        Case("r1", Nq=64, options=drawn(1)),
        Case("r33-self", Nq=63, options=drawn(33, include_self=True, seed=3)),
        Case("r2-self-causal", dtypes=ALL, Nq=131,
             options=drawn(2, include_self=True, causal=True)),
        Case("every-key", Nq=65, options=drawn(65)),
        Case("every-key-causal", Nq=65, options=drawn(65, causal=True)),
        Case("all-but-one", Nq=64, options=drawn(63, seed=9)),
        Case("one-draw", dtypes=ALL, H=4, Hkv=2, Nq=65, options=drawn(9, per_head=False)),
        Case("one-draw-causal", H=3, Nq=65, options=drawn(9, per_head=False, causal=True, seed=5)),
        Case("seed-largest", Nq=33, options=drawn(5, seed=2**64 - 1)),
        Case("seed-63-bits", Nq=33, options=drawn(5, seed=2**63 - 1)),
        Case("n1", Nq=1, options=drawn(1)),
        Case("n0", Nq=0, Nk=3, options=drawn(3), grad_lse=False),
        Case("nk0", Nq=3, Nk=0, options=drawn(3)),
        Case("n0-nk0-multiset", Nq=0, Nk=0, options=drawn(3, **MULTISET),
             floats={"sink_logits": "H", "alibi_slopes": "H"}, grad_lse=False),
        Case("more-keys", Nq=65, Nk=131, options=drawn(7, include_self=True)),
        Case("more-keys-causal", dtypes=ALL, Nq=65, Nk=131, options=drawn(7, causal=True)),
        # The draws of negative positions are those of their 64 bits.
        Case("more-queries", Nq=131, Nk=65, options=drawn(7, include_self=True)),
        Case("more-queries-causal", Nq=131, Nk=63, options=drawn(7, causal=True)),
        Case("offset", B=3, Nq=65, Nk=70, options=drawn(6, include_self=True),
             ints={"causal_offset": (-66, 2, 69)}),
        Case("offset-causal", B=3, Nq=65, Nk=70, options=drawn(6, causal=True),
             ints={"causal_offset": (-30, 5, 40)}),
        Case("offset-extreme", B=2, Nq=33, options=drawn(6, include_self=True),
             ints={"causal_offset": (2**31 - 1, -(2**31))}),
        Case("offset-extreme-causal", B=2, Nq=33, options=drawn(6, causal=True),
             ints={"causal_offset": (2**31 - 1, -(2**31))}),
        Case("lengths", dtypes=ALL, B=6, H=1, Nq=131, options=drawn(40),
             ints={"q_lengths": (131, 65, 64, 63, 1, 0), "kv_lengths": (0, 1, 63, 64, 65, 131)}),
        Case("lengths-causal", B=3, Nq=65, options=drawn(9, causal=True, include_self=True),
             ints={"kv_lengths": (65, 20, 3)}),
        Case("gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=65, options=drawn(10, causal=True)),
        Case("scale-dv", Nq=65, D=5, Dv=33, options=drawn(10, scale=0.7)),
        Case("listed", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, made=listed("H,Nq", 6)),
        Case("listed-for-all-heads", H=3, Nq=65, Nk=40, made=listed("1,Nq", 6),
             options={"include_self": True, "causal": True}),
        Case("listed-by-row", B=3, H=2, Nq=33, Nk=65, made=listed("B,H,Nq", 4),
             options={"num_random": 4}, ints={"kv_lengths": (65, 20, 0)}),
        Case("listed-by-row-for-all-heads", B=3, H=4, Hkv=1, Nq=33, made=listed("B,1,Nq", 4)),
        Case("listed-more-than-keys", Nq=20, Nk=5, made=listed("H,Nq", 33)),
        Case("listed-nothing", Nq=65, made={"rand_keys": no_keys}, floats={"sink_logits": "H"}),
        Case("listed-far", Nq=65, made={"rand_keys": far_keys}),
        Case("listed-offset", B=2, Nq=65, Nk=33, made=listed("H,Nq", 5),
             options={"include_self": True}, ints={"causal_offset": (-70, 3)}),
        Case("listed-often", dtypes=ALL, Nq=65, Nk=9, made=listed("H,Nq", 20)),
        Case("multiset", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, Nk=9, options=MULTISET,
             made=listed("H,Nq", 20)),
        Case("multiset-self-causal", B=2, Nq=33, made=listed("B,1,Nq", 30),
             options=MULTISET | {"include_self": True, "causal": True, "logit_softcap": 0.8}),
        Case("multiset-drawn", Nq=33, options=drawn(7, **MULTISET)),
        Case("bnhd", B=2, Nq=65, layout="BNHD", options=drawn(6, causal=True)),
        Case("strided", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, strided=True, options=drawn(6)),
        Case("all-terms", dtypes=ALL, B=2, H=4, Hkv=2, Nq=131, Nk=150, D=33, Dv=17,
             options=drawn(20, logit_softcap=3.0, include_self=True, seed=8),
             floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "H", "sink_logits": "H"},
             ints={"q_lengths": (131, 40), "kv_lengths": (50, 150)}),
        Case("all-terms-multiset", B=2, H=4, Hkv=2, Nq=65, Nk=40, strided=True, layout="BNHD",
             options=MULTISET | {"logit_softcap": 3.0, "causal": True}, made=listed("B,H,Nq", 30),
             floats={"bias": "B,1,1,Nk", "alibi_slopes": "B,H", "sink_logits": "H"},
             ints={"kv_lengths": (33, 40)}),
        Case("alibi-offset", B=2, Nq=65, options=drawn(9, alibi=True),
             ints={"causal_offset": (-5, 70)}),
        Case("bias-hides", Nq=65, options=drawn(9), floats={"bias": "1,1,Nq,Nk"}, hidden_bias=True),
        Case("sinks-of-empty-rows", B=2, Nq=65, Nk=33, options=drawn(3, causal=True),
             floats={"sink_logits": "H"}, ints={"kv_lengths": (33, 0)}),
        Case("segments", dtypes=ALL, B=2, Nq=131, segments="runs", options=drawn(20)),
        Case("segments-ends", B=2, Nq=131, Nk=65, segments="ends", options=drawn(9)),
        Case("segments-mixed", B=2, Nq=131, Nk=65, segments="mixed", options=drawn(9, causal=True)),
        Case("packed", dtypes=ALL, H=4, Hkv=2, Nq=261, packed=5, options=drawn(12, causal=True)),
        Case("packed-all-terms", Nq=131, Nk=99, packed=4,
             options=drawn(9, logit_softcap=3.0, include_self=True),
             floats={"bias": "H,Nq,Nk", "alibi_slopes": "H", "sink_logits": "H"}),
        Case("packed-listed", H=4, Hkv=2, Nq=131, packed=4, made=listed("H,Nq", 20, below=40),
             options=MULTISET),
        Case("packed-listed-by-row", Nq=65, Nk=70, packed=3, made=listed("B,1,Nq", 9, below=30)),
    ],
    batches=[drawn(8, causal=True), drawn(20, include_self=True, seed=7)],
    tensor_batches=[
        Case("terms", options=drawn(20, logit_softcap=2.0),
             floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "B,H", "sink_logits": "H"}),
        Case("listed", options=MULTISET, made=listed("H,Nq", 12)),
        Case("segments", options=drawn(16), segments="mixed"),
        Case("packed", options=drawn(9, causal=True), packed=4),
    ],
    preset={"num_random": "max(1, min(64, Nk))"},
    perf=[drawn(64), drawn(64, causal=True)],
    growth=[Growth(drawn(32), 1, 1)],
    visible=[
        Visible("nk8-r3", 8, 8, drawn(3, seed=42), 24),
        Visible("r3-causal", 9, 9, drawn(3, causal=True), 24),
        Visible("more-queries-causal", 9, 5, drawn(2, causal=True), 9),
    ],
    golden=[
        pattern_golden("r3", drawn(3, seed=42), 96, 1.4404698130, -2.1979388280, 2.6886721470,
                       -1.7834035220, 1.0443860258),
    ],
    refused=[
        Refused("no-number", {}, ["num_random is required without rand_keys, got none"]),
        Refused("number-0", drawn(0), ["num_random must be >= 1, got 0"]),
        Refused("number-8", drawn(8), ["num_random must be in 1..Nk = 1..7, got 8"]),
        Refused("number-type", {"num_random": 2.5}, ["num_random must be an integer, got 2.5"]),
        Refused("number-of-lists", drawn(5), ["num_random must be that of rand_keys, 3, got 5"],
                change={"rand_keys": zeros(4, 6, 3, dtype=INT)}),
        Refused("lists-rank", {}, [f"{SHAPES}, got [6,3]"],
                change={"rand_keys": zeros(6, 3, dtype=INT)}),
        Refused("lists-shape", {}, [f"{SHAPES} with H = 4 and Nq = 6, got [3,5,2]"],
                change={"rand_keys": zeros(3, 5, 2, dtype=INT)}),
        Refused("lists-batch", {}, [f"{SHAPES} with B = 2, got [1,4,6,2]"],
                change={"rand_keys": zeros(1, 4, 6, 2, dtype=INT)}),
        Refused("lists-queries", {}, [f"{SHAPES} with Nq = 6, got [2,1,7,2]"],
                change={"rand_keys": zeros(2, 1, 7, 2, dtype=INT)}),
        Refused("lists-dtype", {}, ["rand_keys dtype must be int32, got float32"],
                change={"rand_keys": zeros(4, 6, 3)}),
        Refused("seed-type", drawn(3, seed=0.5), ["seed must be an integer, got 0.5"]),
        Refused("self-type", drawn(3, include_self=1), ["include_self must be a bool, got 1"]),
        Refused("heads-type", drawn(3, per_head="no"), ['per_head must be a bool, got "no"']),
        Refused("everything-at-once", drawn(0, include_self=2, scale=float("nan")),
                ["num_random must be >= 1, got 0", "include_self must be a bool, got 2",
                 "scale must be finite, got nan"]),
        Refused("more-than-may-be-drawn", drawn(2000000),
                ["num_random must be in 1..Nk = 1..7, got 2000000",
                 "num_random must be at most 16777216 / (Nq heads) = 699050 where it is drawn, "
                 "got 2000000"]),
        Refused("more-than-rows-of-their-own-may-draw", drawn(2000000),
                ["num_random must be in 1..Nk = 1..7, got 2000000",
                 "num_random must be at most 16777216 / (B Nq heads) = 349525 where it is drawn, "
                 "got 2000000"],
                change={"kv_lengths": np.array([3, 4], INT)}),
    ],
)
