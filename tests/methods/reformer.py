"""Reformer: oracle in float64 from the learned-pattern specification, cases, golden values,
refusals."""

import dataclasses
import math

import numpy as np

from tests.methods.cases import ALL, Case
from tests.methods.golden import Golden, wave
from tests.methods.method import Growth, Method, Visible
from tests.methods.refused import B, D, Dv, H, Hkv, INT, Nq, Refused, common_refusals, zeros
from tests.methods.synthesizer import normals
from tests.methods.traced import TracedOracle

OTHERS = ("q_lengths", "kv_lengths", "rotations", "buckets", "bias")
DEFAULTS = {"chunk_len": 128, "n_hashes": 1, "chunks_before": 1, "chunks_after": 0, "dedup": True,
            "attend_across_buckets": True, "lookback": "flat", "key_norm": "rms",
            "self_value": -1e5, "causal": False, "seed": 0}


def factors_of(o, N):
    if o.get("n_buckets"):
        return list(np.atleast_1d(o["n_buckets"]))
    nb = 2 * max(1, N // o["chunk_len"])
    if nb <= 128:
        return [nb]
    first = 2 ** math.ceil(math.log2(math.sqrt(nb)))
    return [first, 2 * (nb // (2 * first))]


def hashed(x, rotations, factors):
    """Buckets [n_hashes,n] of x [n,D] by rotations [D,n_hashes,S]."""
    buckets, unit, first = 0, 1, 0
    for factor in factors:
        with np.errstate(all="ignore"):
            y = np.einsum("nd,drs->rns", x, rotations[:, :, first:first + factor // 2])
        y = np.concatenate([y, -y], -1)
        buckets = buckets + np.where(np.isnan(y), -np.inf, y).argmax(-1).astype(np.int64) * unit
        unit, first = unit * factor, first + factor // 2
    return buckets


def slots_of(buckets, o):
    """(count [n,n]: how many slots of all rounds show key j to query i, self included; how many
    pairs the library counts): step by step as the specification has it."""
    rounds, n = buckets.shape
    m, flat = o["chunk_len"], o["lookback"] == "flat"
    C = -(-n // m)
    order = np.stack([np.lexsort((np.arange(n), b)) for b in buckets])
    chunk_of = [[order[r, c * m:(c + 1) * m] for c in range(C)] for r in range(rounds)]
    all_chunks = rounds * C if flat else C
    width = o["chunks_before"] + 1 + o["chunks_after"]
    whole, rest = divmod(width, all_chunks)
    if o["dedup"] and whole:
        whole, rest = 1, 0
    count, parts = np.zeros((n, n), np.int64), 0
    for r in range(rounds):
        for c in range(C):
            queries = chunk_of[r][c]

            def show(step, times, queries=queries, r=r, c=c):
                g = r * C + c + step if flat else r * C + (c + step) % C
                other, chunk = divmod(g % (rounds * C), C)
                keys = chunk_of[other][chunk]
                seen = np.ones((len(queries), len(keys)), bool)
                if o["causal"]:
                    seen &= keys <= queries[:, None]
                if not o["attend_across_buckets"]:
                    seen &= (other == r) & (buckets[r][queries][:, None] == buckets[r][keys])
                count[np.ix_(queries, keys)] += times * seen
                return int((seen & (keys != queries[:, None])).sum())

            for step in range(-o["chunks_before"], -o["chunks_before"] + rest):
                parts += show(step, 1)
            for step in range(all_chunks if whole else 0):
                show(step, whole)
    if o["dedup"]:
        return np.minimum(count, 1), int((count > 0).sum())
    if whole:  # every key once, or once a round where buckets differ
        seen = np.tri(n, n, -1, dtype=bool) if o["causal"] else ~np.eye(n, dtype=bool)
        if o["attend_across_buckets"]:
            parts += int(seen.sum())
        else:
            parts += sum(int((seen & (b[:, None] == b)).sum()) for b in buckets)
    return count, parts + n


class ReformerOracle(TracedOracle):
    differentiable = ("q", "v", "bias")
    # Rows of q are keys, too.
    axes = {"q": "B,H,Nk,D", "bias": "B,H,Nq,Nk", "buckets": "B,H,R,Nk"}

    def _lengths(self, t, b):
        n = int(t["kv_lengths"][b]) if "kv_lengths" in t else t["v"].shape[2]
        return (min(int(t["q_lengths"][b]), n) if "q_lengths" in t else n), n

    def _sequence(self, tape, t, o, b):
        self.N, self.nq = t["v"].shape[2], self._lengths(t, b)[0]  # of the whole request
        return super()._sequence(tape, t, o, b)

    def buckets(self, x, t, o, N):
        """[H,n_hashes,n] of x [H,n,D], whose request has N rows."""
        if "buckets" in t:
            return np.asarray(t["buckets"])[0]
        factors = factors_of(o, N)
        rotations = t["rotations"] if "rotations" in t else normals(
            o["seed"], "rotations", (len(x), x.shape[2], o["n_hashes"], sum(factors) // 2), 1.0)
        rotations = np.asarray(getattr(rotations, "x", rotations), np.float64)
        rotations = np.broadcast_to(rotations, (len(x), *rotations.shape[1:]))
        return np.stack([hashed(a.astype(np.float64), r, factors) for a, r in zip(x, rotations)])

    def slots(self, x, t, o, N):
        """(count [H,nq,n], pairs) of x [H,n,D]."""
        n = x.shape[1]
        if n <= o["chunk_len"]:
            one = np.tri(n, dtype=np.int64) if o["causal"] else np.ones((n, n), np.int64)
            return np.stack([one] * len(x)), len(x) * int(one.sum())
        found = [slots_of(b, o) for b in self.buckets(x, t, o, N)]
        return np.stack([count for count, _ in found]), sum(pairs for _, pairs in found)

    def sequences(self, t, o):
        """(nq, n, counts, pairs) of each sequence."""
        o = DEFAULTS | o
        for b in range(t["v"].shape[0]):
            nq, n = self._lengths(t, b)
            cut = self._cut(t, b)
            yield nq, n, *self.slots(np.asarray(cut["q"][0], np.float64), cut, o, t["v"].shape[2])

    def visible(self, t, o):
        seen = np.zeros((t["v"].shape[0], t["q"].shape[1], t["q"].shape[2], t["q"].shape[2]), bool)
        for b, (nq, n, counts, _) in enumerate(self.sequences(t, o)):
            seen[b, :, :nq, :n] = counts[:, :nq] > 0
        return seen

    def pairs(self, t, o):
        total = 0
        for nq, n, counts, pairs in self.sequences(t, o):
            if nq < n:
                raise NotImplementedError("pairs of fewer queries than keys")
            total += pairs
        return total

    def constants(self, t, o):
        """Hashing has no gradient."""
        if "buckets" in t:
            return {}
        N, o = t["v"].shape[2], DEFAULTS | o
        found = np.zeros((t["v"].shape[0], t["q"].shape[1], o["n_hashes"], N), INT)
        for b in range(len(found)):
            n = self._lengths(t, b)[1]
            cut = self._cut(t, b)
            found[b, :, :, :n] = self.buckets(np.asarray(cut["q"][0], np.float64), cut, o, N)
        return {"buckets": found}

    def compute(self, f, t, o, offset):
        o = DEFAULTS | o
        x, nq = t["q"], self.nq
        n, D = x.shape[2:]
        counts, _ = self.slots(x.x[0], t, o, self.N)
        counts = counts[:, :nq]
        norm = 1.0
        if o["key_norm"] == "rms":
            norm = f.sqrt(f.mean(x * x, -1, keepdims=True) + 1e-6)
        elif o["key_norm"] == "unit":
            norm = f.norm(x, 1e-12)
        keys = x / norm if o["key_norm"] != "none" else x
        queries = f.take(x, (slice(None), slice(None), slice(0, nq)))
        s = f.matmul(queries, keys.swapaxes(2, 3)) * o.get("scale", D ** -0.5)
        mask = counts[None] > 0
        if "bias" in t:
            shown = np.broadcast_to(t["bias"].x, s.shape) > -np.inf
            itself = np.eye(nq, n, dtype=bool)
            mask = mask & (shown | itself)
            s = s + f.where(t["bias"].x > -np.inf, t["bias"])
        s = f.where(np.eye(nq, n, dtype=bool), o["self_value"], s)
        s = s + np.log(np.maximum(counts, 1))[None]
        group = x.shape[1] // t["v"].shape[1]
        out, lse = f.attention(s, f.repeat_heads(t["v"], group), mask)
        return {"out": out, "lse": lse}


def buckets_made(rounds, low=0, high=5):
    def make(rng, case):
        return rng.integers(low, high, (case.B, case.H, rounds, case.Nq)).astype(INT)
    return make


def rotations_made(rounds, columns, heads="H"):
    def make(rng, case):
        return rng.standard_normal(case.shape_of(f"{heads},D,{rounds},{columns}"))
    return make


def opts(chunk_len=16, n_hashes=1, **more):
    return {"chunk_len": chunk_len, "n_hashes": n_hashes, **more}


# A row that sees itself alone has an lse of self_value; of a small one, differences keep digits.
NEAR = {"self_value": -1001.0}
PLAIN, ROUNDS = opts(), opts(n_hashes=3)
CAUSAL = opts(n_hashes=2, causal=True, **NEAR)
LISTS = opts(n_hashes=2, dedup=False, **NEAR)
LENGTHS = {"kv_lengths": (131, 65, 17, 16, 1, 0), "q_lengths": (131, 65, 17, 16, 1, 0)}
CHECK = {"chunk_len": 4, "n_hashes": 2, "n_buckets": [4]}


def long_enough(case):
    """More rows than a chunk, in enough chunks that every batch has as many parts."""
    chunk_len = case.options.get("chunk_len", 128)
    n = max(case.Nq, 4 * chunk_len + 3)
    ints = {name: (n, *values[1:]) if max(values) <= chunk_len else values
            for name, values in case.ints.items()}
    return dataclasses.replace(case, Nq=n, Nk=n, ints=ints)


def golden(id, options, *figures, **more):
    shape = (1, 2, 16, 4)
    tensors = {"q": wave(np.sin, shape, 0.7, 0.8), "v": wave(np.sin, shape, 1.3, 1.6),
               "rotations": wave(np.sin, (2, 4, 2, 2), 0.9, 1.3),
               "grad_out": np.ones(shape)} | more

    def picks(results):
        out, lse = results["out"], results["lse"]
        finite = lse[np.isfinite(lse)]
        return {"sum": out.sum(), "first": out[0, 0, 0, 0], "last": out[0, 1, -1, -1],
                "lse": finite.sum()}

    names = ("sum", "first", "last", "lse")
    return Golden(id, tensors, CHECK | options, dict(zip(names, figures)), picks)


def refused(id, reasons, options=None, backward=False, **change):
    reasons = [reasons] if isinstance(reasons, str) else reasons
    return Refused(id, options or {}, reasons, change=change, backward=backward)


METHOD = Method(
    id="reformer",
    oracle=ReformerOracle(),
    options={"chunk_len": "int", "n_hashes": "int", "n_buckets": "ints", "chunks_before": "int",
             "chunks_after": "int", "dedup": "bool", "attend_across_buckets": "bool",
             "lookback": "enum", "key_norm": "enum", "self_value": "float", "scale": "float",
             "causal": "bool", "seed": "int"},
    tensors={"q", "v", *OTHERS},
    required=frozenset("qv"),
    differentiable=["q", "v", "bias"],
    square=True,
    shares_qk=lambda options: True,
    decides=("q",),
    plans_pairs=lambda t, o: t["q"].shape[2] <= o.get("chunk_len", 128),
    peers=["reformer_pytorch LSHAttention (needs PyTorch)",
           "transformers LSHSelfAttention (needs PyTorch)"],
    fit_sizes=long_enough,
    cases=[
        Case("short", dtypes=ALL, B=2, Nq=65),
        Case("short-causal", Nq=65, options=NEAR | {"causal": True}),
        Case("causal-far", Nq=65, options={"causal": True}, grad_lse=False),
        Case("plain", dtypes=ALL, B=2, Nq=131, options=PLAIN),
        Case("rounds", dtypes=ALL, Nq=131, options=ROUNDS),
        Case("rounds-of-64", Nq=260, options=opts(64, 4)),
        Case("causal", dtypes=ALL, Nq=131, options=CAUSAL),
        Case("lists", dtypes=ALL, Nq=131, options=LISTS),
        Case("lists-causal", Nq=100, options=LISTS | {"causal": True}),
        Case("round", Nq=131, options=opts(16, 3, lookback="round")),
        Case("round-lists", Nq=131, options=opts(16, 2, lookback="round", dedup=False)),
        Case("within-buckets", Nq=131, options=opts(16, 3, attend_across_buckets=False)),
        Case("within-buckets-lists", Nq=131,
             options=opts(16, 2, attend_across_buckets=False, dedup=False, causal=True, **NEAR)),
        Case("look-around", Nq=200, options=opts(16, 2, chunks_before=2, chunks_after=1)),
        Case("look-around-lists", Nq=90,
             options=opts(16, 2, chunks_before=2, chunks_after=3, dedup=False)),
        Case("look-nowhere", Nq=90, options=opts(16, 2, chunks_before=0)),
        # Windows that reach every chunk, once and more often.
        Case("look-everywhere", Nq=70, options=opts(16, 2, chunks_before=1000)),
        Case("look-everywhere-lists", Nq=40,
             options=opts(16, 2, chunks_before=9, chunks_after=5, dedup=False)),
        Case("look-everywhere-round", Nq=40, options=opts(16, 2, lookback="round", chunks_after=3,
                                                          dedup=False, causal=True, **NEAR)),
        Case("look-everywhere-within", Nq=70, options=opts(
            16, 2, chunks_before=9, attend_across_buckets=False)),
        Case("look-everywhere-within-lists", Nq=40, options=opts(
            16, 2, chunks_before=9, attend_across_buckets=False, dedup=False)),
        # C = 9: windows that hold a round or not, of their own round alone, around to it again, and of
        # other rounds alone.
        Case("nearly-a-round", Nq=70, options=opts(8, 3, chunks_before=9, chunks_after=6)),
        Case("a-round", Nq=70, options=opts(8, 3, chunks_before=16)),
        Case("a-round-causal", Nq=70, options=opts(8, 3, chunks_before=20, causal=True, **NEAR)),
        *[Case(f"within-own-round-{before}-{after}{'-lists' * lists}", Nq=70, options=opts(
            8, 3, chunks_before=before, chunks_after=after, attend_across_buckets=False,
            **({"dedup": False} if lists else {})))
          for before, after in ((12, 0), (8, 8), (20, 0), (0, 19), (18, 9)) for lists in (False, True)],
        Case("many-rounds", Nq=40, options=opts(8, 40)),
        Case("many-rounds-lists", Nq=40, options=opts(8, 20, dedup=False)),
        Case("small-chunks", Nq=67, options=opts(1, 2)),
        Case("two-factors", Nq=300, D=5, options=opts(2, 2)),
        Case("factors", Nq=131, options=opts(16, 2, n_buckets=[4, 6])),
        *[Case(f"{norm}-{spread:g}", Nq=65, spread=spread, ratio=False,
               options=opts(16, 2, key_norm=norm, scale=scale))
          for norm, spread, scale in (("unit", 1e-13, 1e13), ("unit", 1e20, 1e-20),
                                      ("rms", 1e20, 1e-20))],
        Case("unit", dtypes=ALL, Nq=131, options=opts(16, 2, key_norm="unit")),
        Case("no-norm", Nq=131, options=opts(16, 2, key_norm="none", scale=0.3)),
        Case("self-value", Nq=67, spread=20.0, options=opts(1, 1, **NEAR),
             grad_lse=False),
        Case("gqa", dtypes=ALL, B=2, H=4, Hkv=2, Nq=100, Dv=8, options=ROUNDS),
        Case("n0", Nq=0, options=PLAIN),
        Case("n1", Nq=1, options=CAUSAL),
        Case("n-chunk", Nq=16, options=ROUNDS),
        Case("n-chunk-and-one", Nq=17, options=ROUNDS),
        Case("lengths", dtypes=ALL, B=6, Nq=131, options=ROUNDS, ints=LENGTHS),
        Case("lengths-gqa-bnhd", B=6, H=4, Hkv=1, Nq=131, options=CAUSAL, ints=LENGTHS,
             layout="BNHD"),
        Case("lengths-lists", B=6, Nq=131, options=LISTS, ints=LENGTHS),
        Case("lengths-round", B=6, Nq=131, options=opts(16, 2, lookback="round", dedup=False, **NEAR),
             ints=LENGTHS),
        Case("lengths-of-keys", B=3, Nq=70, options=PLAIN, ints={"kv_lengths": (70, 20, 0)}),
        Case("longer-queries", B=3, Nq=70, options=PLAIN,
             ints={"kv_lengths": (70, 20, 0), "q_lengths": (70, 33, 70)}),
        Case("bias", dtypes=ALL, B=2, Nq=70, options=ROUNDS, floats={"bias": "B,H,Nq,Nk"}),
        Case("bias-of-all", B=2, Nq=70, options=LISTS, floats={"bias": "1,1,Nq,Nk"}),
        Case("hidden-bias", Nq=70, options=CAUSAL, floats={"bias": "H,Nq,Nk"}, hidden_bias=True),
        Case("rotations", dtypes=ALL, Nq=70, options=ROUNDS | {"n_buckets": [6]},
             made={"rotations": rotations_made(3, 3)}),
        Case("rotations-of-all", Nq=70, options=ROUNDS | {"n_buckets": [6]},
             made={"rotations": rotations_made(3, 3, "1")}),
        Case("buckets", B=2, Nq=70, options=ROUNDS, made={"buckets": buckets_made(3)}),
        Case("wild-buckets", Nq=70, options=ROUNDS | {"attend_across_buckets": False},
             made={"buckets": lambda rng, case: rng.choice(
                 np.array([-2**31, -1, 0, 7, 2**31 - 1]), (1, case.H, 3, case.Nq)).astype(INT)}),
        Case("seed", Nq=70, options=ROUNDS | {"seed": 7}),
        Case("strided", B=2, Nq=70, strided=True, options=ROUNDS),
        Case("bnhd", dtypes=ALL, B=2, Nq=70, layout="BNHD", options=CAUSAL),
    ],
    batches=[PLAIN, ROUNDS, CAUSAL, LISTS, opts(16, 2, lookback="round"),
             opts(16, 2, attend_across_buckets=False), opts(16, 1, key_norm="unit")],
    tensor_batches=[
        Case("biased", options=ROUNDS, floats={"bias": "B,H,Nq,Nk"}),
        Case("listed", options=ROUNDS, made={"buckets": buckets_made(3)}),
        Case("rotated", options=ROUNDS | {"n_buckets": [6]},
             made={"rotations": rotations_made(3, 3)}),
    ],
    perf=[opts(64, 4), opts(128, 4)],
    growth=[Growth(opts(64, 4), 1, 1)],
    visible=[
        Visible("short", 5, 5, {}, 25),
        Visible("short-causal", 5, 5, {"causal": True}, 15),
        # Order 1 3 0 2 4 in chunks of 2: 3 has also 0 and 2 behind it, 4 stands alone.
        Visible("chunks", 5, 5, {"chunk_len": 2, "lookback": "round", "chunks_before": 1},
                # 13|02|4: {1,3} see 4 and their own, {0,2} see 1 3, 4 sees 0 2
                2 * 3 + 2 * 4 + 3,
                {"buckets": lambda rng, case: np.array([[[[1, 0, 1, 0, 2]]]], INT)}),
    ],
    golden=[
        golden("default", {}, 1.169549959, -.296939809, -.091748659, 88.626165284),
        golden("lists", {"dedup": False}, 1.210565190, -.154122715, -.017337584, 103.023671995),
        golden("causal", {"causal": True}, -1.762782149),
        golden("round", {"lookback": "round"}, .984774719, .099805056, -.091748659, 84.813172637),
        golden("within", {"attend_across_buckets": False}, 1.769193829, .262268166, -.067396716,
               70.305782548),
        golden("unit-lists", {"key_norm": "unit", "dedup": False}, 1.134701417),
        golden("lengths", {}, -.493013500, kv_lengths=np.array([13], INT)),
    ],
    refused=common_refusals({}, (), OTHERS, lacks=("cross", "k")) + [
        refused("k", f'tensors must be among q, v, {", ".join(OTHERS)}, got "k"',
                k=zeros(B, Hkv, Nq, D)),
        refused("cross", "Nk must be Nq = 6, got 7", v=zeros(B, Hkv, 7, Dv)),
        refused("chunk-len", "chunk_len must be >= 1, got 0", {"chunk_len": 0}),
        refused("no-rounds", "n_hashes must be in 1..64, got 0", {"n_hashes": 0}),
        refused("rounds", "n_hashes must be in 1..64, got 65", {"n_hashes": 65}),
        refused("odd-buckets", "n_buckets must be even, got 3", {"n_buckets": [4, 3]}),
        refused("few-buckets", "n_buckets[0] must be >= 2, got 0", {"n_buckets": [0]}),
        refused("factors", "n_buckets must have at most 2 values, got 3", {"n_buckets": [2, 2, 2]}),
        refused("before", "chunks_before must be >= 0, got -1", {"chunks_before": -1}),
        refused("after", "chunks_after must be >= 0, got -2", {"chunks_after": -2}),
        refused("lookback", 'lookback must be one of flat, round, got "back"',
                {"lookback": "back"}),
        refused("key-norm", 'key_norm must be one of rms, unit, none, got "l2"',
                {"key_norm": "l2"}),
        refused("self-value", "self_value must be >= -1e+30 and < -1000, got -1000",
                {"self_value": -1000.0}),
        refused("rotations-rounds", "rotations shape must be [H,D,n_hashes,S] or [1,D,n_hashes,S] "
                "with n_hashes = 2, got [4,3,1,1]", {"n_hashes": 2}, rotations=zeros(4, 3, 1, 1)),
        refused("rotations-columns", "rotations shape must be [H,D,n_hashes,S] or [1,D,n_hashes,S] "
                "with S = the sum of n_buckets / 2 = 5, got [4,3,1,2]", {"n_buckets": [4, 6]},
                rotations=zeros(4, 3, 1, 2)),
        refused("rotations-heads", "rotations shape must be [H,D,n_hashes,S] or [1,D,n_hashes,S] "
                "with H = 4, got [3,3,1,1]", rotations=zeros(3, 3, 1, 1)),
        refused("buckets-shape", "buckets shape must be [B,H,n_hashes,Nq] with n_hashes = 1, got "
                "[2,4,2,6]", buckets=zeros(B, H, 2, Nq, dtype=INT)),
        refused("buckets-dtype", "buckets dtype must be int32, got float32",
                buckets=zeros(B, H, 1, Nq)),
        refused("both", "rotations must not be sent with buckets, got [4,3,1,1]",
                rotations=zeros(4, 3, 1, 1), buckets=zeros(B, H, 1, Nq, dtype=INT)),
        refused("bias-shape", "bias shape must be broadcastable to [B,H,Nq,Nk] with Nk = 6, got "
                "[6,7]", bias=zeros(6, 7)),
        refused("drawn", "rotations must be sent where it has more than 16777216 elements, got "
                "25165824", {"chunk_len": 1, "n_buckets": [2**22]}),
    ],
)
