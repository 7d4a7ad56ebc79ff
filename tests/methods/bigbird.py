"""Window, global and random blocks: oracle in float64 from the pattern specification (Common core
with its seeded draws, bigbird), cases, golden sums, refusals."""

import dataclasses

import numpy as np

from tests.methods.cases import ALL, Case
from tests.methods.golden import pattern_golden
from tests.methods.method import Growth, Visible
from tests.methods.pattern_core import PatternOracle
from tests.methods.pattern_method import pattern_method
from tests.methods.random import counted, sample, times
from tests.methods.refused import INT, Refused, zeros


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Sizes in blocks, none larger than the number of blocks."""

    size: int
    tokens: int  # global ones of the variant etc
    count: int
    left: int
    right: int
    window: int  # to each side
    rows: int  # that have random slots


def blocks(o, N):
    size = o.get("block_size", 64)
    tokens = o.get("num_global_tokens", 0)
    edge = 0 if o.get("variant", "itc") == "etc" else 1
    count = -(-(N - tokens) // size)
    left, right = (min(o.get(name, edge), count) for name in ("global_left", "global_right"))
    window = min((o.get("window_blocks", 3) - 1) // 2, count)
    return Blocks(size, tokens, count, left, right, window, max(0, count - left - right))


def slots(seq, n, candidates):
    """[H or 1,nb,nb] how many random slots of a row of blocks name a block."""
    inner = slice(n.left, n.left + n.rows)
    if "rand_blocks" in seq.t:
        listed = seq.t["rand_blocks"]
    else:
        of_row = candidates[inner]
        ordinals = sample(of_row.sum(axis=1), seq.o.get("num_random_blocks", 3),
                          seq.o.get("seed", 0), 2, np.arange(seq.H)[:, None],
                          np.arange(n.count)[inner])
        # Candidates first, in their order.
        order = np.argsort(~of_row, axis=1, kind="stable")
        listed = np.where(ordinals < 0, -1, np.take_along_axis(
            np.broadcast_to(order, (seq.H, *order.shape)), np.maximum(ordinals, 0), axis=2))
    named = np.zeros((len(listed), n.count, n.count), int)
    named[:, inner] = times(listed, n.count)
    return named


def sees(seq):
    n = blocks(seq.o, seq.Nk)
    t, c = np.arange(n.count)[:, None], np.arange(n.count)[None, :]
    everything = (t < n.left) | (t >= n.count - n.right)
    shared = (c < n.left) | (c >= n.count - n.right) | (abs(t - c) <= n.window)
    ends = seq.o.get("prefix_tokens", 1024) if seq.o.get("rand_plan") == "prefix" else seq.Nk
    candidates = ~shared & (c < -(-ends // n.size))
    often = np.where(everything, 1, shared + slots(seq, n, candidates))
    own = (seq.i[n.tokens:, 0] - n.tokens) // n.size
    count = np.ones((len(often), seq.Nq, seq.Nk), int)
    count[:, n.tokens:, n.tokens:] = often[:, own[:, None], own]
    return counted(count, seq.o)


def fit_options(case):
    """At most as many global tokens as there are tokens."""
    if "num_global_tokens" not in case.options:
        return case
    tokens = min(case.options["num_global_tokens"], case.Nq)
    return dataclasses.replace(case, options=case.options | {"num_global_tokens": tokens})


def fit_sizes(case):
    """At least as many tokens as are global."""
    N = max(case.Nq, case.options.get("num_global_tokens", 0))
    return dataclasses.replace(case, Nq=N, Nk=N)


def itc(b, r, **more):
    return {"block_size": b, "num_random_blocks": r} | more


def etc(b, r, tokens, **more):
    return itc(b, r, variant="etc", num_global_tokens=tokens, **more)


def listed(r, heads="H", only=None):
    """Slots that name any block or none; with `only`, all slots hold that value."""
    def make(rng, case):
        n = blocks(case.options, case.Nq)
        low, high = (-1, n.count) if only is None else (only, only + 1)
        return rng.integers(low, high, (*case.shape_of(heads), n.rows, r)).astype(INT)
    return {"rand_blocks": make}


def ends(rng, case):
    """Two sequences of unequal length, none of them shorter than the global tokens."""
    return np.array([0, case.Nq // 3, case.Nq], INT)


MULTISET = {"duplicates": "multiset"}


def fifth_after(rng, case):
    """The blocks (t + 5) mod 12 for t = 1..10."""
    return ((np.arange(1, 11) + 5) % 12).reshape(1, 10, 1).astype(INT)


SHAPES = "rand_blocks shape must be [H,T,r] or [1,T,r]"
# With N = 6 and blocks of 2 there are three, and one row that has slots.
TWO = {"block_size": 2}


METHOD = pattern_method(
    id="bigbird",
    oracle=PatternOracle(sees),
    options={"variant": "enum", "block_size": "int", "window_blocks": "int",
             "num_random_blocks": "int", "global_left": "int", "global_right": "int",
             "num_global_tokens": "int", "rand_plan": "enum", "prefix_tokens": "int",
             "seed": "int"},
    own=("rand_blocks",),
    lacks=("cross",),
    good_options=itc(2, 1),
    plans_pairs=lambda t, o: o.get("num_random_blocks", 3) == 0 and "rand_blocks" not in t,
    peers=[
        "google-research/bigbird bigbird_block_sparse_attention, multiset (needs TensorFlow)",
        "transformers BigBirdBlockSparseAttention, in eval mode rand_blocks = 0 (needs PyTorch)",
    ],
    fit_options=fit_options,
    fit_sizes=fit_sizes,
    cases=[
        Case("b8-r2", dtypes=ALL, B=2, Nq=131, options=itc(8, 2)),
        Case("b8-r2-causal", dtypes=ALL, Nq=131, options=itc(8, 2, causal=True, seed=42)),
        Case("b2-r1", Nq=63, options=itc(2, 1, seed=9)),
        Case("b1-r4", Nq=64, options=itc(1, 4, window_blocks=5)),
        Case("b16-r0", Nq=131, options=itc(16, 0)),
        Case("b64-r1-d32", H=1, Nq=520, D=32, options=itc(64, 1)),
        Case("b63-r1", H=1, Nq=400, D=8, options=itc(63, 1)),
        Case("b65-r1-causal", H=1, Nq=390, D=8, options=itc(65, 1, causal=True)),
        Case("defaults", H=1, Nq=389, D=8),
        Case("window-1", Nq=65, options=itc(4, 2, window_blocks=1)),
        Case("window-7", Nq=131, options=itc(6, 2, window_blocks=7)),
        Case("window-of-all", Nq=65, options=itc(4, 2, window_blocks=2**63 - 1)),
        Case("left-only", dtypes=ALL, Nq=131, options=itc(8, 2, global_left=2, global_right=0)),
        Case("right-only", Nq=131, options=itc(8, 2, global_left=0, global_right=3)),
        Case("no-globals", Nq=131, options=itc(8, 3, global_left=0, global_right=0)),
        Case("globals-cover", Nq=65, options=itc(8, 2, global_left=5, global_right=6)),
        Case("huge-globals", Nq=65, options=itc(8, 2, global_left=2**63 - 1, global_right=2**62)),
        Case("huge-block", Nq=65, options=itc(2**63 - 1, 2)),
        Case("huge-block-no-globals", Nq=65,
             options=itc(2**40, 2**40, global_left=0, global_right=0)),
        # Fewer candidates than slots: all of them.
        Case("every-block", Nq=65, options=itc(8, 2**63 - 1)),
        Case("seed-largest", Nq=131, options=itc(8, 2, seed=2**64 - 1)),
        Case("prefix", dtypes=ALL, Nq=131,
             options=itc(8, 3, rand_plan="prefix", prefix_tokens=49)),
        Case("prefix-at-border", Nq=131, options=itc(8, 3, rand_plan="prefix", prefix_tokens=48)),
        Case("prefix-0", Nq=131, options=itc(8, 3, rand_plan="prefix", prefix_tokens=0)),
        Case("prefix-huge", Nq=131, options=itc(8, 3, rand_plan="prefix", prefix_tokens=2**63 - 1)),
        # Of 28 blocks the last two start at 1040 and 1080.
        Case("prefix-default", H=1, Nq=1100, D=4, options=itc(40, 9, rand_plan="prefix"),
             backward=False),
        Case("etc", dtypes=ALL, B=2, H=4, Hkv=2, Nq=131, options=etc(8, 2, 5)),
        Case("etc-causal", Nq=65, options=etc(8, 2, 11, causal=True)),
        Case("etc-no-tokens", Nq=65, options=etc(8, 2, 0)),
        Case("etc-all-tokens", Nq=65, options=etc(8, 2, 65)),
        Case("etc-prefix", Nq=131, options=etc(8, 3, 4, rand_plan="prefix", prefix_tokens=40)),
        Case("etc-lengths", B=3, Nq=65, options=etc(8, 2, 5),
             ints={"q_lengths": (65, 3, 0), "kv_lengths": (2, 40, 65)}),
        Case("etc-multiset", dtypes=ALL, Nq=67, options=etc(8, 5, 3, **MULTISET), made=listed(5)),
        Case("n1", Nq=1, options=itc(4, 1)),
        Case("n0", Nq=0, options=itc(4, 1), grad_lse=False),
        Case("lengths", dtypes=ALL, B=6, H=1, Nq=131, options=itc(8, 2),
             ints={"q_lengths": (131, 65, 64, 63, 1, 0), "kv_lengths": (0, 1, 63, 64, 65, 131)}),
        Case("scale-dv", Nq=65, D=5, Dv=33, options=itc(8, 2, scale=0.7)),
        Case("gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=131, options=itc(8, 2)),
        Case("listed", dtypes=ALL, B=2, H=4, Hkv=2, Nq=131, options=itc(8, 4), made=listed(4)),
        Case("listed-for-all-heads", H=4, Nq=131, options={"block_size": 8}, made=listed(3, "1")),
        Case("listed-nothing", Nq=65, options=itc(4, 2), made=listed(2, only=-1)),
        Case("listed-for-no-row", Nq=16, options=itc(8, 2), made=listed(2)),
        Case("multiset", dtypes=ALL, B=2, H=4, Hkv=2, Nq=131, options=itc(8, 6, **MULTISET),
             made=listed(6)),
        # transformers in eval mode: every slot names block 0.
        Case("multiset-block-0", Nq=65, options=itc(8, 3, **MULTISET), made=listed(3, only=0)),
        Case("multiset-causal-cap", Nq=65, made=listed(9, "1"),
             options=itc(4, 9, causal=True, logit_softcap=0.8, **MULTISET)),
        Case("bnhd", B=2, Nq=131, layout="BNHD", options=itc(8, 2, causal=True)),
        Case("strided", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, strided=True, options=itc(6, 1)),
        Case("all-terms", dtypes=ALL, B=2, H=4, Hkv=2, Nq=131, D=33, Dv=17,
             options=itc(8, 2, logit_softcap=3.0),
             floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "H", "sink_logits": "H"},
             ints={"q_lengths": (131, 40), "kv_lengths": (50, 131)}),
        Case("all-terms-multiset", B=2, H=4, Hkv=2, Nq=67, strided=True, layout="BNHD",
             options=etc(8, 6, 3, causal=True, logit_softcap=3.0, **MULTISET), made=listed(6),
             floats={"bias": "B,1,1,Nk", "alibi_slopes": "B,H", "sink_logits": "H"}),
        Case("alibi", dtypes=ALL, Nq=65, options=itc(5, 2, alibi=True)),
        Case("bias-hides", Nq=65, options=itc(5, 2), floats={"bias": "1,1,Nq,Nk"},
             hidden_bias=True),
        Case("segments", dtypes=ALL, B=2, Nq=131, segments="runs", options=itc(8, 2)),
        Case("segments-mixed", B=2, H=4, Nq=65, segments="mixed", options=itc(4, 2, causal=True)),
        Case("packed", dtypes=ALL, H=4, Hkv=2, Nq=261, packed=5, options=itc(8, 2)),
        Case("packed-all-terms", Nq=131, packed=4,
             options=itc(4, 2, logit_softcap=3.0, causal=True),
             floats={"bias": "H,Nq,Nk", "alibi_slopes": "H", "sink_logits": "H"}),
        Case("packed-etc", Nq=131, packed=2, options=etc(8, 1, 5),
             made={"cu_seqlens_q": ends, "cu_seqlens_k": ends}),
    ],
    batches=[itc(8, 2, causal=True), itc(5, 1, global_left=2), etc(8, 2, 3)],
    tensor_batches=[
        Case("terms", options=itc(8, 2, logit_softcap=2.0),
             floats={"bias": "1,H,Nq,Nk", "alibi_slopes": "B,H", "sink_logits": "H"}),
        Case("listed", options=itc(6, 4, **MULTISET), made=listed(4)),
        Case("segments", options=itc(8, 2), segments="mixed"),
        Case("packed", options=itc(6, 2), packed=4),
    ],
    perf=[itc(64, 3), etc(64, 3, 16)],
    growth=[Growth(itc(64, 3), 1, 1)],
    visible=[
        Visible("b2-r1", 24, 24, itc(2, 1), 320, made={"rand_blocks": fifth_after}),
        # Two blocks of rows see all 16; of the six between, two see 4 + 2 blocks, four 5 + 2.
        Visible("b2-r2", 16, 16, itc(2, 2), 2 * 2 * 16 + 2 * 2 * (2 * 6 + 4 * 7)),
        # 4 global rows and columns of 16; t of 6 sees 2 or 3 of 6 blocks.
        Visible("etc-r0", 16, 16, etc(2, 0, 4), 4 * 16 + 12 * 4 + 2 * 2 * (2 * 2 + 4 * 3)),
    ],
    golden=[
        pattern_golden("b2-r1", itc(2, 1, seed=42), 400, 1.5173432557, -2.7976628115, -0.5114687364,
                       0.9688912386, 4.0173762641),
        pattern_golden("b2-r1-block-0-multiset", itc(2, 1, **MULTISET), 352, 1.1770604571,
                       -2.6252792547, -0.2718127465, 0.8033890208, 0.7563946961,
                       {"rand_blocks": np.zeros((2, 6, 1), INT)}),
    ],
    refused=[
        Refused("variant", {"variant": "local"}, ['variant must be one of itc, etc, got "local"']),
        Refused("plan", {"rand_plan": "all"},
                ['rand_plan must be one of uniform, prefix, got "all"']),
        Refused("block", {"block_size": 0}, ["block_size must be >= 1, got 0"]),
        Refused("window-even", {"window_blocks": 2}, ["window_blocks must be odd, got 2"]),
        Refused("window-negative", {"window_blocks": -1}, ["window_blocks must be >= 1, got -1"]),
        Refused("random", {"num_random_blocks": -1}, ["num_random_blocks must be >= 0, got -1"]),
        Refused("globals", {"global_left": -1, "global_right": -2},
                ["global_left must be >= 0, got -1", "global_right must be >= 0, got -2"]),
        Refused("globals-etc", {"variant": "etc", "global_left": 1, "global_right": 2},
                ["global_left must be 0 when variant is etc, got 1",
                 "global_right must be 0 when variant is etc, got 2"]),
        Refused("tokens-itc", {"num_global_tokens": 3},
                ["num_global_tokens must be 0 unless variant is etc, got 3"]),
        Refused("tokens-many", {"variant": "etc", "num_global_tokens": 7},
                ["num_global_tokens must be in 0..N = 0..6, got 7"]),
        Refused("prefix", {"prefix_tokens": -1}, ["prefix_tokens must be >= 0, got -1"]),
        Refused("seed-type", {"seed": 1.5}, ["seed must be an integer, got 1.5"]),
        Refused("listed-packed", TWO,
                ["rand_blocks must not be sent with cu_seqlens_q, got [1,1,2]"],
                change={"q": zeros(1, 4, 6, 3), "k": zeros(1, 2, 6, 3), "v": zeros(1, 2, 6, 5),
                        "cu_seqlens_q": np.array([0, 6], INT),
                        "cu_seqlens_k": np.array([0, 6], INT),
                        "rand_blocks": zeros(1, 1, 2, dtype=INT)}),
        Refused("listed-number", itc(2, 3),
                ["num_random_blocks must be that of rand_blocks, 2, got 3"],
                change={"rand_blocks": zeros(4, 1, 2, dtype=INT)}),
        Refused("listed-rank", TWO, [f"{SHAPES}, got [4,1]"],
                change={"rand_blocks": zeros(4, 1, dtype=INT)}),
        Refused("listed-heads", TWO, [f"{SHAPES} with H = 4, got [2,1,3]"],
                change={"rand_blocks": zeros(2, 1, 3, dtype=INT)}),
        Refused("listed-rows", TWO,
                ["rand_blocks shape must be [H,T,r] with T = nb - global_left - "
                 "global_right = 1, got [1,3,2]"],
                change={"rand_blocks": zeros(1, 3, 2, dtype=INT)}),
        Refused("listed-no-rows", TWO | {"global_left": 9},
                ["rand_blocks shape must be [H,T,r] with T = nb - global_left - global_right = 0, "
                 "got [1,1,2]"], change={"rand_blocks": zeros(1, 1, 2, dtype=INT)}),
        Refused("listed-dtype", TWO, ["rand_blocks dtype must be int32, got float32"],
                change={"rand_blocks": zeros(1, 1, 2)}),
        Refused("listed-high", TWO, ["rand_blocks[0,0,1] must be in -1..nb-1 = -1..2, got 3"],
                change={"rand_blocks": np.array([[[2, 3]]], INT)}, values=True),
        Refused("listed-low", TWO | {"global_right": 0},
                ["rand_blocks[3,1,0] must be in -1..nb-1 = -1..2, got -2"],
                change={"rand_blocks": np.array([[[0], [1]]] * 3 + [[[2], [-2]]], INT)},
                values=True),
        Refused("everything-at-once",
                {"block_size": 0, "window_blocks": 4, "num_global_tokens": 2,
                 "scale": float("nan")},
                ["block_size must be >= 1, got 0", "window_blocks must be odd, got 4",
                 "num_global_tokens must be 0 unless variant is etc, got 2",
                 "scale must be finite, got nan"]),
    ],
)
