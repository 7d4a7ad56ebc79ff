"""Sparse Sinkhorn Attention: oracle from the specification of learned patterns (sinkhorn), cases,
golden values, refusals."""

import dataclasses

import numpy as np

from tests.methods import drawn
from tests.methods.cases import ALL, Case
from tests.methods.golden import Golden, wave
from tests.methods.method import Growth, Method, Visible
from tests.methods.mixing_core import normals
from tests.methods.refused import Refused, common_refusals, qkv, zeros
from tests.methods.traced import DrawnOracle

SORTED = ["sort_w", "null_k", "null_v"]


def is_topk(o):
    return o.get("sort", "topk" if o.get("causal") else "sinkhorn") == "topk"


def sizes(o):
    """Queries and keys of a block."""
    b = o.get("block_size", 64)
    return b, o.get("kv_block_size", b)


def ceil_div(a, b):
    return -(-a // b)


def gumbels(seed, name, shape):
    u = drawn.philox(seed, name, ceil_div(int(np.prod(shape)), 4)).astype(np.float64)
    u = ((u + 0.5) / 2**32).ravel()[:int(np.prod(shape))].reshape(shape)
    return (-np.log(-np.log(u + 1e-6) + 1e-6)).astype(np.float32).astype(np.float64)


def blocks(x, size, count):
    """[1,H,n,D] -> [1,H,count,size,D]; zeros behind the end."""
    f, (_, H, n, D) = x.tape, x.shape
    return f.concat([x, np.zeros((1, H, count * size - n, D))], 2).reshape(1, H, count, size, D)


def log_sum_exp(f, x, axis):
    most = x.x.max(axis=axis, keepdims=True)
    most = np.where(np.isfinite(most), most, 0)
    return f.log(f.exp(x - most).sum(axis, keepdims=True)) + most


class SinkhornOracle(DrawnOracle):
    differentiable = ("q", "k", "v", *SORTED)
    axes = {"gumbel_noise": "B,H,nq,nk"}

    def _lengths(self, t, b):
        nq, nk = super()._lengths(t, b)
        square = t["q"].shape[2] == t["k"].shape[2]
        return (min(nq, nk) if square and "q_lengths" not in t else nq), nk

    def drawn(self, t, o):
        """What is drawn for the whole tensors, before they are cut."""
        (B, H, Nq, D), Nk, Dv = t["q"].shape, t["k"].shape[2], t["v"].shape[3]
        (b, bk), seed = sizes(o), o.get("seed", 0)
        nq, nk = ceil_div(Nq, b), ceil_div(Nk, bk)
        made = {}
        if o.get("gumbel"):
            made["gumbel_noise"] = gumbels(seed, "gumbel_noise", (B, H, nq, nk))
        if o.get("sort_net") == "linear":
            made["sort_w"] = normals(seed, "sort_w", (H, 2 * D, nk), 1.0)
        if o.get("causal") and is_topk(o):
            made |= {"null_k": normals(seed, "null_k", (H, D), 1.0),
                     "null_v": normals(seed, "null_v", (H, Dv), 1.0)}
        return made

    # --- steps of the specification

    def scores(self, f, t, k, o):
        """Steps 1 and 6: R [1,H,nq,nk]; with sortcut and topk [1,H,1,nk]."""
        q, (b, bk) = t["q"], sizes(o)
        (_, H, n, D), m = q.shape, k.shape[2]
        U, V = ceil_div(n, b), ceil_div(m, bk)

        def per_block(pool, x, size, count):
            return f.concat([pool(x[:, :, i * size:(i + 1) * size], 2, keepdims=True)
                             for i in range(count)], 2)

        if o.get("sort_net") == "linear":
            sums = [per_block(f.sum, q, b, U), per_block(f.sum, k, bk, max(U, V))[:, :, :U]]
            return f.concat(sums, 3) @ t["sort_w"][None, :, :, :V]
        if o.get("causal"):
            cq, ck = (f.cumsum(x, 2) * (1 / np.arange(1, x.shape[2] + 1))[:, None] for x in (q, k))
            sq, sk = cq[:, :, ::b], per_block(f.sum, ck, bk, V)
        else:
            whole = o.get("sortcut", 0) > 0 and is_topk(o)
            sq = f.mean(q, 2, keepdims=True) if whole else per_block(f.mean, q, b, U)
            sk = per_block(f.mean, k, bk, V)
        return (sq @ sk.swapaxes(-1, -2)) * D**-0.5

    def sinkhorn(self, f, R, t, o):
        """Step 2 and the causal form of step 6: S."""
        logs = f.log(f.relu(R) + 1e-6)
        U, V = R.shape[2:]
        if o.get("gumbel"):
            logs = logs + t["gumbel_noise"][:, :, :U, :V]
        logs = logs * (1 / o.get("temperature", 0.75))
        if o.get("causal"):
            return self.causal_sinkhorn(f, logs, o)
        iters = o.get("iters", 7)
        if f.rounding is None:
            for _ in range(iters):
                logs = logs - log_sum_exp(f, logs, 3)
                logs = logs - log_sum_exp(f, logs, 2)
            return f.exp(logs)
        # The same numbers as logs - of_rows - of_columns. Written so, the sums grow with the number
        # of iterations, as errors do: each potential is a mean of what it is made from.
        of_rows, of_columns = f.num(np.zeros((1, 1, 1, 1))), f.num(np.zeros((1, 1, 1, 1)))
        for _ in range(iters):
            of_rows = log_sum_exp(f, logs - of_columns, 3)
            of_columns = log_sum_exp(f, logs - of_rows, 2)
        return f.exp(logs - of_rows - of_columns)

    def causal_sinkhorn(self, f, logs, o):
        """Rows u see columns v < u; the column step sums over rows up to u."""
        H, U, V = logs.shape[1:]
        past = np.arange(V) < np.arange(U)[:, None]
        seen = past.any(axis=1)[:, None]
        for _ in range(o.get("iters", 7)):
            most = np.where(past, logs.x, -np.inf).max(axis=3, keepdims=True, initial=-np.inf)
            most = np.where(np.isfinite(most), most, 0)
            e = f.where(past, f.exp(f.where(past, logs - most)))
            logs = logs - most - f.log(f.where(seen, e.sum(3, keepdims=True), 1.0))
            # The largest of all rows: sums of earlier rows are not lost, since logs are <= 0 and
            # those of a column are near each other in the cases below.
            most = np.where(past, logs.x, -np.inf).max(axis=2, keepdims=True, initial=-np.inf)
            most = np.where(np.isfinite(most), most, 0)
            sums = f.cumsum(f.where(past, f.exp(f.where(past, logs - most))), 2)
            logs = f.where(past, logs - most - f.log(f.where(past, sums, 1.0)))
        return f.where(past, f.exp(logs))

    def sorted_blocks(self, f, t, k, v, o):
        """Steps 2 to 4: for each query block (with sortcut: for all of them) its sorted keys and
        values [1,H,slots,D] and which slots are visible [1,H,slots]; None: nothing is sorted."""
        b, bk = sizes(o)
        (_, H, n, D), m = t["q"].shape, k.shape[2]
        U, V, causal, cut = ceil_div(n, b), ceil_div(m, bk), o.get("causal"), o.get("sortcut", 0)
        local = o.get("local", cut == 0) and (causal or U == V)
        nulls = o.get("n_top", 2) if causal and is_topk(o) else 0
        if V + nulls == 0 or (local and not causal and max(U, V) <= 1):
            return [None] * U
        key_blocks, value_blocks = blocks(k, bk, V), blocks(v, bk, V)
        valid = (np.arange(V * bk) < m).reshape(V, bk)
        R = self.scores(f, t, k, o) if V else f.num(np.zeros((1, H, U, 0)))
        if is_topk(o):
            rows = self.topk(f, R, key_blocks, value_blocks, valid, t, o)
        else:
            S = self.sinkhorn(f, R, t, o)
            top = S.x.argmax(axis=3)
            rows = []
            for u in range(U):
                mixed = [f.einsum("bhv,bhvtd->bhtd", S[:, :, u], x)
                         for x in (key_blocks, value_blocks)]
                rows.append((*mixed, valid[top[:, :, u]]))
            if causal:
                rows[0] = None
        if not cut:
            return rows
        if not is_topk(o):
            kept = rows[:cut]
            rows = [(f.concat([r[0] for r in kept], 2), f.concat([r[1] for r in kept], 2),
                     np.concatenate([r[2] for r in kept], axis=2))]
        return rows * U

    def topk(self, f, R, key_blocks, value_blocks, valid, t, o):
        """Step 3 with the null blocks of step 6."""
        causal = o.get("causal")
        _, H, U, V = R.shape
        (_, bk), n = sizes(o), o.get("sortcut", 0) or o.get("n_top", 2 if causal else 1)
        left = np.ones((1, H, U, V), bool)
        if causal:
            R = R * (1 / o.get("temperature", 1.0))
            left &= np.arange(V) < np.arange(U)[:, None]
            left = np.concatenate([np.ones((1, H, U, n), bool), left], axis=3)
            R = f.concat([np.zeros((1, H, U, n)), R], 3)
            null_k, null_v = (f.expand(t[name].reshape(1, H, 1, 1, t[name].shape[1]),
                                       (1, H, n, bk, t[name].shape[1]))
                              for name in ("null_k", "null_v"))
            key_blocks = f.concat([null_k, key_blocks], 2)
            value_blocks = f.concat([null_v, value_blocks], 2)
            valid = np.concatenate([np.ones((n, bk), bool), valid])
        b_at, h_at, u_at = np.ogrid[:1, :H, :U]
        picked = []
        for _ in range(min(n, R.shape[3])):
            p = f.softmax(R, left)
            best = np.where(left, R.x, -np.inf).argmax(axis=3)
            left = left.copy()
            left[b_at, h_at, u_at, best] = False
            weight = p[b_at, h_at, u_at, best].reshape(1, H, U, 1, 1)
            picked.append([x[b_at, h_at, best] * weight for x in (key_blocks, value_blocks)]
                          + [valid[best]])
        return [(f.concat([p[0][:, :, u] for p in picked], 2),
                 f.concat([p[1][:, :, u] for p in picked], 2),
                 np.concatenate([p[2][:, :, u] for p in picked], axis=2)) for u in range(U)]

    def compute(self, f, t, o, offset):
        q, (b, bk) = t["q"], sizes(o)
        k, v = (f.repeat_heads(t[name], q.shape[1] // t["k"].shape[1]) for name in "kv")
        (_, H, n, D), m = q.shape, k.shape[2]
        U, V, causal = ceil_div(n, b), ceil_div(m, bk), o.get("causal")
        local = o.get("local", o.get("sortcut", 0) == 0) and (causal or U == V)
        if n == 0:
            return {"out": f.num(np.zeros((1, H, 0, v.shape[3]))),
                    "lse": f.num(np.zeros((1, H, 0)))}
        outs, lses = [], []
        for u, row in enumerate(self.sorted_blocks(f, t, k, v, o)):
            rows = np.arange(u * b, min((u + 1) * b, n))
            keys, values, masks = [], [], []
            if row is not None:
                keys, values = [row[0]], [row[1]]
                masks = [np.broadcast_to(row[2][:, :, None], (1, H, len(rows), row[2].shape[2]))]
            if local:
                j = np.arange(min(u * bk, m), min((u + 1) * bk, m))
                keys.append(k[:, :, j])
                values.append(v[:, :, j])
                mask = j <= rows[:, None] if causal else np.ones((len(rows), len(j)), bool)
                masks.append(np.broadcast_to(mask, (1, H, *mask.shape)))
            if not keys:
                keys, values, masks = [k[:, :, :0]], [v[:, :, :0]], [np.ones((1, H, len(rows), 0),
                                                                           bool)]
            logits = q[:, :, rows] @ f.concat(keys, 2).swapaxes(-1, -2)
            out, lse = f.attention(logits * o.get("scale", D**-0.5), f.concat(values, 2),
                                   np.concatenate(masks, axis=3))
            outs.append(out)
            lses.append(lse)
        return {"out": f.concat(outs, 2), "lse": f.concat(lses, 2)}

    # --- counts, and tensors that are drawn

    def pairs(self, t, o):
        """Slots of sorted blocks, hidden ones included, and keys of local blocks."""
        return t["q"].shape[1] * sum(self.pairs_of(*self._lengths(t, b), o)
                                     for b in range(t["q"].shape[0]))

    def pairs_of(self, n, m, o):
        b, bk = sizes(o)
        U, V, causal, cut = ceil_div(n, b), ceil_div(m, bk), o.get("causal"), o.get("sortcut", 0)
        local = o.get("local", cut == 0) and (causal or U == V)
        top = cut or o.get("n_top", 2 if causal and is_topk(o) else 1)
        pairs = 0
        for u in range(U):
            rows = range(u * b, min((u + 1) * b, n))
            keys = range(u * bk, min((u + 1) * bk, m))
            if local:
                pairs += sum(sum(j <= i for j in keys) if causal else len(keys) for i in rows)
            slots = min(bk, max(n, m) if causal else m)
            if causal and is_topk(o):
                # Without a block to choose, the keys of a null block are counted as one.
                picked = top * (slots if U > 1 and V > 0 else 1)
            elif causal:
                picked = slots if u > 0 and V > 0 else 0
            elif local and max(U, V) <= 1:
                picked = 0
            else:
                picked = slots * min(top, V if is_topk(o) else U if cut else 1)
            pairs += len(rows) * picked
        return pairs


SQUARE = qkv(6)


def learned(*letters, size=1.0):
    return lambda rng, case: size * rng.standard_normal(case.shape_of(",".join(letters)))


def noise(rng, case):
    b, bk = sizes(case.options)
    return rng.gumbel(size=(case.B, case.H, ceil_div(case.Nq, b), ceil_div(case.keys, bk)))


def weight(rng, case):
    b, bk = sizes(case.options)
    return 0.2 * rng.standard_normal((case.H, 2 * case.D, ceil_div(case.keys, bk)))


NULLS = {"null_k": learned("H", "D"), "null_v": learned("H", "Dv")}
LENGTHS = {"kv_lengths": (131, 65, 64, 63, 1, 0)}
BOTH = {"q_lengths": (0, 1, 63, 64, 65, 131), "kv_lengths": (131, 65, 64, 63, 1, 0)}


def of(**options):
    return {"block_size": 16} | options


def figures(results):
    out, lse = results["out"], results["lse"]
    return {"sum": out.sum(), "first": out[0, 0, 0, 0], "last": out[0, 1, -1, -1],
            "lse": lse[np.isfinite(lse)].sum()}


def golden(id, options, total, first, last, lse, more=None):
    """A row of "Check" of the specification."""
    def F(shape, a, b):
        return wave(np.sin, shape, a, a + b)

    shape = (1, 2, 8, 4)
    tensors = {"q": F(shape, 0.7, 0.1), "k": F(shape, 1.1, 0.2), "v": F(shape, 1.3, 0.3),
               "grad_out": np.ones(shape)}
    tensors |= {name: F((2, 4), *ab) for name, ab in (more or {}).items()}
    return Golden(id, tensors, {"block_size": 2} | options,
                  {"sum": total, "first": first, "last": last, "lse": lse}, figures)


def variants():
    """Options of every form, by name."""
    forms = {
        "sinkhorn": {}, "topk": {"sort": "topk"}, "topk-3": {"sort": "topk", "n_top": 3},
        "cut": {"sortcut": 2}, "cut-local": {"sortcut": 2, "local": True},
        "cut-topk": {"sortcut": 2, "sort": "topk"}, "alone": {"local": False},
        "linear": {"sort_net": "linear"},
        "linear-topk": {"sort_net": "linear", "sort": "topk", "n_top": 2},
        "gumbel": {"gumbel": True, "temperature": 1.5},
        "causal": {"causal": True}, "causal-1": {"causal": True, "n_top": 1},
        "causal-sinkhorn": {"causal": True, "sort": "sinkhorn", "iters": 2},
        "causal-gumbel": {"causal": True, "sort": "sinkhorn", "iters": 2, "gumbel": True},
        "causal-alone": {"causal": True, "local": False},
    }
    return {name: of(**options) for name, options in forms.items()}


def square(case):
    return case.options.get("causal") or case.options.get("sort_net") == "linear"


def each(suffix, **how):
    """A case of each variant that the sizes suit."""
    for name, options in variants().items():
        case = Case(f"{name}-{suffix}", options=options, **how)
        if case.Nq == case.keys or not square(case):
            yield case


def fit(case):
    """As many keys as queries where the options need it."""
    if not square(case) or case.Nq == case.keys:
        return case
    n = case.Nq
    lengths = {name: tuple(min(x, n) for x in values) for name, values in case.ints.items()}
    return dataclasses.replace(case, Nk=n, ints=lengths)


def of_one_branch(case):
    """The same in sizes that take the same launches: cut blocks, and a block before the last."""
    def uneven(n):
        n = max(n, 65 if case.options.get("causal") else 17)
        return n + 1 if n % 16 == 0 else n

    alone = not case.options.get("local", "sortcut" not in case.options)
    Nq = uneven(case.Nq)
    Nk = uneven(case.keys) if alone and not square(case) else Nq
    least = 32 if case.options.get("causal") else 0
    ints = {name: tuple(Nk if n == case.keys else min(max(n, least), Nk) for n in values)
            for name, values in case.ints.items()}
    return dataclasses.replace(case, Nq=Nq, Nk=Nk, ints=ints)


METHOD = Method(
    id="sinkhorn",
    oracle=SinkhornOracle(),
    options={"block_size": "int", "kv_block_size": "int", "sort": "enum", "sort_net": "enum",
             "iters": "int", "temperature": "float", "gumbel": "bool", "n_top": "int",
             "sortcut": "int", "local": "bool", "scale": "float", "causal": "bool", "seed": "int"},
    tensors={"q", "k", "v", "q_lengths", "kv_lengths", "gumbel_noise", *SORTED},
    differentiable=["q", "k", "v", *SORTED],
    fit_options=fit,
    fit_sizes=of_one_branch,
    peers=[
        "sinkhorn_transformer SinkhornAttention, SinkhornCausalAttention (needs PyTorch)",
        "xformers components/attention/sinkhorn.py (gone from its releases)",
        "long-range-arena sinkhorn_attention.py (cannot match: sums over blocks and sort indices)",
    ],
    cases=[
        Case("defaults", dtypes=ALL, B=2, Nq=131),
        Case("defaults-causal", dtypes=ALL, B=2, Nq=131, options={"causal": True}),
        *each("n64", B=2, Nq=64, dtypes=ALL),
        *each("n65", Nq=65, Dv=7),
        *each("cross", Nq=63, Nk=100),
        *each("gqa", B=2, H=4, Hkv=2, Nq=48),
        *each("lengths", B=6, Nq=131, ints=LENGTHS),
        *each("both-lengths", B=6, Nq=131, ints=BOTH),
        *each("n1", Nq=1, D=1),
        *each("n16", Nq=16),
        *each("n17", Nq=17),
        Case("blocks-of-1", Nq=33, options=of(block_size=1)),
        Case("causal-blocks-of-1", Nq=33, options=of(block_size=1, causal=True)),
        Case("blocks-of-7", Nq=65, options=of(block_size=7)),
        Case("wide-blocks", Nq=131, options=of(block_size=2**30)),
        Case("wide-blocks-alone", Nq=131, options=of(block_size=200, local=False)),
        Case("wide-blocks-causal", Nq=131, options=of(block_size=500, causal=True)),
        Case("kv-blocks", B=2, Nq=64, Nk=96, options=of(kv_block_size=24)),
        Case("kv-blocks-cut", B=2, Nq=65, Nk=97, options=of(kv_block_size=24, sortcut=1)),
        Case("kv-blocks-topk", Nq=65, Nk=33, options=of(kv_block_size=3, sort="topk", n_top=9)),
        Case("n-top-above", Nq=65, options=of(sort="topk", n_top=50)),
        Case("n-top-above-causal", Nq=65, options=of(causal=True, n_top=9)),
        Case("sortcut-above", Nq=65, options=of(sortcut=50)),
        Case("sortcut-above-topk", Nq=65, options=of(sortcut=50, sort="topk")),
        Case("no-iterations", Nq=65, options=of(iters=0)),
        Case("iterations", Nq=65, options=of(iters=50)),
        Case("iterations-causal", Nq=65, options=of(iters=7, causal=True, sort="sinkhorn")),
        Case("cold", Nq=65, options=of(temperature=0.3)),
        Case("warm-causal", Nq=65, options=of(causal=True, temperature=3.0)),
        Case("scale", Nq=65, options=of(scale=2.5)),
        Case("noise", B=2, H=4, Hkv=2, Nq=64, Nk=96, options=of(gumbel=True),
             made={"gumbel_noise": noise}),
        Case("noise-lengths", B=6, Nq=131, ints=LENGTHS, options=of(gumbel=True),
             made={"gumbel_noise": noise}),
        Case("noise-causal", Nq=65, options=of(gumbel=True, causal=True, sort="sinkhorn", iters=2),
             made={"gumbel_noise": noise}),
        Case("noise-seed", Nq=65, options=of(gumbel=True, seed=2**64 - 1)),
        Case("weight", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, options=of(sort_net="linear"),
             made={"sort_w": weight}),
        Case("weight-topk", Nq=65, options=of(sort_net="linear", sort="topk", n_top=2),
             made={"sort_w": weight}),
        Case("weight-lengths", B=6, Nq=131, ints=BOTH, options=of(sort_net="linear"),
             made={"sort_w": weight}),
        Case("nulls", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, Dv=7, options=of(causal=True),
             made=NULLS),
        Case("nulls-lengths", B=6, Nq=131, ints=LENGTHS, options=of(causal=True), made=NULLS),
        Case("null-k-alone", Nq=65, options=of(causal=True, n_top=3),
             made={"null_k": learned("H", "D")}),
        Case("n0", Nq=0, Nk=3, options=of(), grad_lse=False),
        *each("n0-cut", Nq=0, Nk=100),
        *each("no-query-rows", B=2, Nq=23, ints={"q_lengths": (0, 0)}),
        *each("no-query-rows-of-some", B=3, Nq=23, ints={"q_lengths": (0, 16, 0)}),
        Case("n0-causal", Nq=0, options=of(causal=True), made=NULLS),
        Case("n0-linear", Nq=0, options=of(sort_net="linear")),
        Case("nk0", Nq=3, Nk=0, options=of()),
        Case("nk0-topk", Nq=3, Nk=0, options=of(sort="topk", local=False)),
        Case("equal-lengths", B=3, Nq=65, ints={"kv_lengths": (40, 40, 40)}, options=of()),
        Case("bnhd", B=2, H=4, Hkv=2, Nq=65, layout="BNHD", options=of()),
        Case("bnhd-causal", B=2, H=4, Hkv=2, Nq=65, layout="BNHD", options=of(causal=True)),
        Case("strided", B=2, H=4, Hkv=2, Nq=65, strided=True, options=of()),
        Case("strided-bnhd", dtypes=ALL, B=2, Nq=65, strided=True, layout="BNHD",
             options=of(causal=True)),
        Case("shifted", Nq=131, options=of(), shift=1.0),
    ],
    batches=list(variants().values()),
    tensor_batches=[
        Case("nulls", options=of(causal=True), made=NULLS),
        Case("noise", options=of(gumbel=True), made={"gumbel_noise": noise}),
        Case("weight", options=of(sort_net="linear"), made={"sort_w": weight}),
    ],
    perf=[{}, {"sort": "topk"}, {"causal": True}],
    growth=[Growth({"sort": "topk"}, 1, 1), Growth({"causal": True}, 1, 1),
            Growth({"sortcut": 2}, 1, 1), Growth({"block_size": 512}, 1, 1)],
    visible=[
        Visible("b4", 12, 12, {"block_size": 4}, 12 * 8),
        Visible("b4-cross", 12, 9, {"block_size": 4, "kv_block_size": 5}, 12 * 5),
        Visible("one-block", 12, 12, {}, 12 * 12),
        Visible("topk", 12, 12, {"block_size": 4, "sort": "topk", "n_top": 2}, 12 * 12),
        Visible("cut", 12, 12, {"block_size": 4, "sortcut": 2}, 12 * 8),
        Visible("causal", 8, 8, {"block_size": 4, "causal": True}, 8 * 8 + 20),
        Visible("causal-sinkhorn", 8, 8, {"block_size": 4, "causal": True, "sort": "sinkhorn"},
                4 * 4 + 20),
        Visible("nothing", 5, 0, {}, 0),
    ],
    golden=[
        golden("default", {}, 1.008449147, 0.248358390, 0.368591934, 24.490088097),
        golden("topk", {"sort": "topk"}, 0.881738197, 0.507019587, 0.435279394, 23.577906213),
        golden("causal-topk", {"causal": True, "n_top": 2, "temperature": 1.0}, 0.264234348,
               0.833481060, 0.382823376, 28.549300219,
               more={"null_k": (0.6, 0.5), "null_v": (0.8, 0.6)}),
        golden("causal-sinkhorn", {"causal": True, "sort": "sinkhorn"}, 0.922203886, 0.999573603,
               0.086494967, 19.243728626),
        golden("sortcut", {"sortcut": 2}, 3.755621953, 0.061530250, 0.569188504, 23.880440433),
    ],
    refused=common_refusals({}, (), ("q_lengths", "kv_lengths", "gumbel_noise", *SORTED)) + [
        Refused("block-0", {"block_size": 0}, ["block_size must be in 1..1073741824, got 0"]),
        Refused("kv-block-0", {"kv_block_size": -3},
                ["kv_block_size must be in 1..1073741824, got -3"]),
        Refused("sort", {"sort": "best"}, ['sort must be one of sinkhorn, topk, got "best"']),
        Refused("sort-net", {"sort_net": "mlp"},
                ['sort_net must be one of attention, linear, got "mlp"']),
        Refused("iters", {"iters": 51}, ["iters must be in 0..50, got 51"]),
        Refused("temperature", {"temperature": 0.0},
                ["temperature must be >= 1e-15 and <= 1e+30, got 0"]),
        Refused("gumbel-type", {"gumbel": 1}, ["gumbel must be a bool, got 1"]),
        Refused("n-top-0", {"n_top": 0, "sort": "topk"}, ["n_top must be in 1..65536, got 0"]),
        Refused("sortcut-low", {"sortcut": -1}, ["sortcut must be in 0..65536, got -1"]),
        Refused("local-type", {"local": 2.5}, ["local must be a bool, got 2.5"]),
        Refused("seed", {"seed": -1}, ["seed must be in 0..2^64-1, got -1"]),
        Refused("n-top-sinkhorn", {"n_top": 2}, ["n_top must be 1 with sort sinkhorn, got 2"]),
        Refused("n-top-sortcut", {"n_top": 2, "sort": "topk", "sortcut": 2},
                ["n_top must be 1 with sortcut, got 2"]),
        Refused("gumbel-topk", {"gumbel": True, "sort": "topk"},
                ["gumbel needs sort sinkhorn, got topk"]),
        Refused("causal-cross", {"causal": True}, ["Nk must be Nq = 6 with causal, got 7"]),
        Refused("causal-blocks", {"causal": True, "kv_block_size": 32},
                ["kv_block_size must be block_size = 64 with causal, got 32"],
                change=SQUARE),
        Refused("causal-linear", {"causal": True, "sort_net": "linear"},
                ["sort_net must be attention with causal, got linear"], change=SQUARE),
        Refused("causal-sortcut", {"causal": True, "sortcut": 3},
                ["sortcut must be 0 with causal, got 3"], change=SQUARE),
        Refused("sortcut-linear", {"sortcut": 1, "sort_net": "linear"},
                ["sort_net must be attention with sortcut, got linear"]),
        Refused("linear-blocks", {"sort_net": "linear", "block_size": 2},
                ["sort_net linear needs as many blocks of queries as of keys, got 3 and 4"]),
        Refused("noise-unread", {}, ["gumbel_noise needs gumbel, got [2,4,1,1]"],
                change={"gumbel_noise": zeros(2, 4, 1, 1)}),
        Refused("weight-unread", {}, ["sort_w needs sort_net linear, got [4,6,1]"],
                change={"sort_w": zeros(4, 6, 1)}),
        Refused("nulls-unread", {}, ["null_k needs causal and sort topk, got [4,3]",
                                     "null_v needs causal and sort topk, got [4,5]"],
                change={"null_k": zeros(4, 3), "null_v": zeros(4, 5)}),
        Refused("noise-rows", {"gumbel": True, "block_size": 2},
                ["gumbel_noise shape must be [B,H,nq,nk] with nq = ceil(Nq / block_size) = 3, got "
                 "[2,4,4,4]"], change={"gumbel_noise": zeros(2, 4, 4, 4)}),
        Refused("noise-columns", {"gumbel": True, "block_size": 2},
                ["gumbel_noise shape must be [B,H,nq,nk] with nk = ceil(Nk / kv_block_size) = 4, "
                 "got [2,4,3,3]"], change={"gumbel_noise": zeros(2, 4, 3, 3)}),
        Refused("weight-shape", {"sort_net": "linear"},
                ["sort_w shape must be [H,2D,nk] with 2D = 6, got [4,3,1]"],
                change={"sort_w": zeros(4, 3, 1)}),
        Refused("nulls-heads", {"causal": True},
                ["null_k shape must be [H,D] with H = 4, got [2,3]"],
                change=SQUARE | {"null_k": zeros(2, 3)}),
        Refused("large-draw", {"gumbel": True, "block_size": 1},
                ["gumbel_noise must be sent where it has more than 16777216 elements, got "
                 "18000000"], change={name: zeros(2, 1, 3000, d)
                                      for name, d in (("q", 3), ("k", 3), ("v", 5))}),
        Refused("many-sorted", {"block_size": 1, "sort": "topk", "n_top": 65536},
                ["n_top must leave at most 268435456 sorted keys, got 20000 blocks of 1 for 20000 "
                 "blocks of queries"], change={name: zeros(1, 1, 20000, 1) for name in "qkv"}),
        Refused("many-sorted-by-sinkhorn", {"block_size": 1, "kv_block_size": 4096},
                ["Nq must leave at most 268435456 sorted keys, got 1 blocks of 4096 for 131072 "
                 "blocks of queries"],
                change={"q": zeros(1, 1, 131072, 1), "k": zeros(1, 1, 4096, 1),
                        "v": zeros(1, 1, 4096, 1)}),
    ],
)
