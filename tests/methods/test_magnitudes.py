"""Weights of softmax at every magnitude of the scores, up to float32's range: in a gradient the
weights of a row sum to 1 and are those of the forward, whatever the scores, masks and sinks are.

One rounded lse is not enough for that: exp(s - lse) is off by |lse| 6e-8."""

import copy
import dataclasses
import functools
import zlib

import numpy as np
import pytest

from tests.methods import etc, linformer, long_short, longformer, memory_core, reformer, sinkhorn
from tests.methods import harness, library, local, random, set_transformer, transformer_xl
from tests.methods.axial import SumOfSoftmaxes
from tests.methods.cases import DTYPES, TINY, UNIT, Case, tensors
from tests.methods.harness import engine, methods, on_every_isa, request
from tests.methods.magnitudes import KEYS, LOWEST, MASKS, QUERIES, VALUES, Exact, problems
from tests.methods.pattern_core import PatternOracle
from tests.methods.tolerance import bound_of

# Methods without softmax weights over keys, and what they have instead.
LEFT_OUT = {
    "fast_weights": "a recurrence of linear memories",
    "fnet": "a Fourier transform",
    "gmlp_sgu": "a learned matrix over positions",
    "linear_attention": "feature maps, divided by their sum",
    "linear_mixing": "learned matrices over positions",
    "mlp_mixer": "learned matrices over positions",
    "performer": "random features of exp, divided by their sum",
    "random_mixing": "a drawn matrix over positions",
    "relu_attention": "relu of the scores, which does not sum to 1",
    "rfa": "random features of exp, divided by their sum",
}


def test_every_method_is_tested_or_left_out():
    assert not EXACT.keys() & LEFT_OUT.keys()
    assert {*EXACT, *LEFT_OUT} == {*methods()}


# --- what the methods are asked for

N, D = 20, 4


def case(id, options=None, made=None, floats=None, **sizes):
    sizes = {"H": 4, "Hkv": 2, "Nq": N, "D": D} | sizes
    return Case(id, options=options or {}, made=made or {}, floats=floats or {}, **sizes)


def of_pattern(method):
    """Its batches with a bias, and those of its tensor batches whose scores can be exact: with a
    soft cap and the logarithm of a multiplicity they cannot."""
    bias = {"bias": "B,H,Nq,Nk"}
    cases = [case(f"options-{i}", o, floats=bias) for i, o in enumerate(method.batches)]
    for like in method.tensor_batches:
        o = {name: x for name, x in like.options.items() if name != "logit_softcap"}
        if not (like.packed or o.get("axis_bias") or o.get("duplicates") == "multiset"):
            cases.append(case(like.id, o, like.made, like.floats | bias, segments=like.segments))
    return cases


SHORTER = 3  # keys that every third sequence lacks


def whole(name, scale=1.0):
    """[rows, columns] tables whose columns have a single 1."""
    def make(rng, case):
        table = np.zeros((case.keys, 6))
        table[rng.integers(0, case.keys, 6), np.arange(6)] = scale
        return table
    return {name: make}


def identities(f=2):
    """Convolutions whose cells are the first keys of their windows."""
    made = {}
    for x, letters in (("k", "Hkv,D"), ("v", "Hkv,Dv")):
        made[f"conv_b{x}"] = lambda rng, case, letters=letters: np.zeros(case.shape_of(letters))

        def taps(rng, case, letters=letters):
            heads, width = case.shape_of(letters)
            table = np.zeros((heads, width, width, f))
            table[..., 0] = np.eye(width)
            return table

        made[f"conv_w{x}"] = taps
    return made


def one_hot(rng, case):
    """dyn_logits that choose one key, of those that short sequences have, too: exp(-1024) is 0."""
    x = np.zeros((case.B, case.heads_kv, case.keys, 3))
    chosen = rng.integers(0, case.keys - SHORTER, (case.B, case.heads_kv, 1, 3))
    np.put_along_axis(x, chosen, 1024, 2)
    return x


def cells(letters, count):
    return {"bias": lambda rng, case: np.zeros(case.shape_of(letters.replace("C", str(count))))}


def memories(rows, **more):
    """Of transformer_xl; without w_r and drawn heads, whose products are not exact."""
    return (memory_core.memory(rows) | memory_core.head_biases() | memory_core.rel_k(rows)
            | memory_core.bias("B,H,Nq,K", rows) | more)


def of_compressive(rows, compressed):
    made = memories(rows) | memory_core.memory(compressed, "cmem")
    return made | memory_core.rel_k(rows + compressed) | memory_core.bias(
        "B,H,Nq,K", rows + compressed)


BIAS = {"bias": "B,H,Nq,Nk"}
NEAR = {"dual_ln": False, "rank": 3}
BOTH = {"dyn_logits": one_hot,
        "bias_local": lambda rng, case: np.zeros(case.shape_of("B,H,Nq,Nk")),
        "bias_global": lambda rng, case: np.zeros(case.shape_of("B,H,Nq,3"))}
ROUTED = {"shared_qk": False, "attend_norm": "none", "route_norm": "none", "n_clusters": 2,
          "window": 1000, "kv_window": 1000}
LATENTS = {"inducing": lambda rng, case: np.zeros((case.B, case.H, 5, case.D))}
SEEDS = {"seeds": lambda rng, case: np.zeros((case.H, 7, case.D))}
KEEPS = {"grad_memory": True}


@functools.cache
def exact_cases():
    """Cases of each method whose scores are exact, by id."""
    found = {id: of_pattern(m) for id, m in methods().items()
             if isinstance(m.oracle, PatternOracle | SumOfSoftmaxes) and id not in LEFT_OUT}
    return found | {
        "transformer_xl": [
            case("memory", KEEPS, memories(9)),
            case("window", KEEPS | {"same_length": 12}, memories(9)),
        ],
        "compressive": [case("memories", KEEPS, of_compressive(9, 5))],
        "synthesizer": [
            case("dot", {"components": ["dot"]}, floats=BIAS),
            case("dot-causal", {"components": ["dot"], "causal": True}, floats=BIAS),
            case("dense", {}, {"w_dense": lambda rng, case: np.zeros((case.D, case.keys))}, BIAS),
        ],
        "long_short": [
            case("far", NEAR, BOTH),
            case("near-alone", {"dual_ln": False, "rank": 0, "window": 8}, {
                "bias_local": BOTH["bias_local"]}),
            case("far-alone", NEAR | {"window": -1}, {
                name: BOTH[name] for name in ("dyn_logits", "bias_global")}),
        ],
        "reformer": [
            case(f"{id}", reformer.opts(8, 2, key_norm="none", **more),
                 {"buckets": reformer.buckets_made(2)}, BIAS)
            for id, more in (("rounds", {}), ("causal", {"causal": True}))],
        "memory_compressed": [
            case("local", {"layer": "local", "block": 10}, floats=BIAS),
            case("local-causal", {"layer": "local", "block": 10, "causal": True}, floats=BIAS),
            case("cells", {"null": False, "factor": 2}, identities() | cells("B,H,Nq,C", 10)),
            case("cells-causal", {"factor": 2, "causal": True}, identities() | sinkhorn.NULLS
                 | cells("B,H,Nq,C", 10)),
        ],
        "linformer": [case("tables", {}, whole("e") | whole("f"))],
        "set_transformer": [
            case("pma", {"mode": "pma", "num_seeds": 7}, SEEDS, {"bias": "B,1,1,Nk"}, out_rows=7),
            case("pma-all-masked", {"mode": "pma", "num_seeds": 7}, SEEDS, {"bias": "B,1,1,Nk"},
                 out_rows=7),
            case("isab", {}, LATENTS, {"bias": "B,1,1,Nk"}),
        ],
        "sinkhorn": [
            # More blocks mix keys with weights of their own, whose products are not exact.
            case("one-block", {"block_size": 32}),
            case("one-block-causal", {"block_size": 32, "causal": True}, sinkhorn.NULLS),
        ],
        "routing": [
            # All rows are members of both clusters: no choice of rounded scores.
            case("all-members", ROUTED, floats=BIAS),
            case("all-members-causal", ROUTED | {"causal": True}, floats=BIAS),
        ],
        # Landmarks multiply three matrices, whose product does not sum to 1.
        "nystromformer": [case("no-landmarks")],
    }


EXACT = exact_cases()
# Of more keys than a tile and than four, in lists, unions, residue classes and a second source.
LONG = [
    ("softmax", case("long", {}, floats=BIAS)),
    ("softmax", case("long-causal-sinks", {"causal": True},
                     floats=BIAS | {"sink_logits": "H", "alibi_slopes": "B,H"})),
    ("random", case("long", random.drawn(100), floats=BIAS)),
    ("longformer", case("long", longformer.token(30, 2), longformer.own(longformer.scattered),
                        BIAS)),
    ("bigbird", case("long", {"block_size": 16, "num_random_blocks": 2}, floats=BIAS)),
    ("compressive", case("long", KEEPS, of_compressive(150, 40))),
    ("long_short", case("long", NEAR | {"window": 100}, BOTH)),
]
LONG = [(id, dataclasses.replace(c, H=2, Hkv=1, Nq=150 if "memory" in id or id == "compressive"
                                 else 290)) for id, c in LONG]


# --- gradients at scores that are exact

# Largest gap of scores whose weight is no zero, in units of four: see check_bound.
GAP = 32


def exact_request(method, like, dtype, names, scale_bits):
    """(case, tensors) of the problems `names`."""
    every = like.id.endswith("all-masked")
    ints = {}
    if "kv_lengths" in method.tensors and not like.segments:
        ints["kv_lengths"] = tuple(like.keys - SHORTER * (b % 3 == 1) for b in range(len(names)))
    options = like.options | {"scale": 2.0**scale_bits}
    made = harness.fit(method, dataclasses.replace(
        like, id=f"{method.id}-{like.id}", B=len(names), ints=ints, options=options,
        wide_floats=True))
    seed = zlib.crc32(made.id.encode())
    exact = Exact(names, scale_bits, np.random.default_rng(seed), every=every,
                  by_key="seeds" in made.made, is_second="inducing" in made.made,
                  shared=method.shares_qk(options))
    t = exact.replace(tensors(made, dtype, gradients=True))
    if isinstance(method.oracle, PatternOracle | SumOfSoftmaxes) and "bias" in t:
        show_rows(method, made, t, exact)
    return made, t


def show_rows(method, case, t, exact):
    """Takes the finite masks from rows that they would leave with masked keys alone, unless these
    are ties: with a distance or a label on top they are not."""
    bare = {name: x for name, x in t.items() if name != "bias"}
    seen = method.oracle.visible(bare, case.options)
    seen = np.broadcast_to(seen, (case.B, case.H, case.Nq, case.keys))
    rows = (seen & ~exact.hidden(case.keys)).any(axis=3) == 0
    if "alibi_slopes" in t:
        rows = rows | (np.arange(case.Nq) % 7 == 3)
    finite = np.isfinite([MASKS[mask] for _, mask in exact.names])[:, None, None]
    t["bias"][rows & finite] = 0


# What belongs to one problem; the batch shares all others.
OF_PROBLEMS = {"sum of dv", "out", "lse", "alibi_slopes", "dyn_logits", "bias", "bias_local",
               "bias_global", *QUERIES, *KEYS, *VALUES} - {"seeds", "w_dense", "null_k", "null_v"}


def within(name, got, want, bound, names, failures):
    """`got` is between `want` - `bound` and `want` + `bound`, as its dtype rounds and overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = ((want + sign * bound).astype(got.dtype).astype(float) for sign in (-1, 1))
        x = got.astype(float)
        wrong = ~((low <= x) & (x <= high))
        # Beyond its range a type has the sign alone, and not even that of a sum of its numbers.
        wrong &= ~np.isinf(want.astype(got.dtype))
    if wrong.any():
        error = np.where(wrong, np.nan_to_num(abs(x - want), nan=np.inf), -1)
        at = np.unravel_index(error.argmax(), error.shape)
        is_own = name in OF_PROBLEMS or name.removeprefix("d") in OF_PROBLEMS
        where = ", ".join(names[at[0]]) if is_own else "shared"
        failures.append(f"{name}{[int(i) for i in at]} ({where}): got {x[at]:.9g}, want "
                        f"{want[at]:.9g} within {bound[at]:.2g}; {wrong.sum()} of {wrong.size}")


def sums_of_weights(case, grads, want_out, dtype, names, failures):
    """Sum of dv over keys where v and grad_out are 1: of the weights of all rows of a kv head."""
    of_values = [f"d{n}" for n in VALUES if f"d{n}" in grads and n != "null_v"]
    got = sum(grads[n][..., 0].astype(float).sum(axis=2) for n in of_values)  # [B,Hkv]
    rows = want_out[..., 0].sum(axis=2)  # [B,H]
    want = rows.reshape(case.B, got.shape[1], -1).sum(axis=2)
    # A row within 1e-5, an element of dv within its rounding.
    unit = UNIT[dtype] if dtype != "f32" else 0
    bound = (1e-5 + unit) * np.maximum(want, 1)
    within("sum of dv", got, want, bound, names, failures)


@functools.lru_cache(maxsize=2)  # float32 and bfloat16 have the same numbers
def answers(method, like, names, scale_bits):
    """The oracle's outputs, gradients and sums, of tensors that are exact in every dtype."""
    made, t = exact_request(method, like, "f32", names, scale_bits)
    oracle = copy.copy(method.oracle)
    oracle.exact_logits = True
    forward = {name: x for name, x in t.items() if not name.startswith("grad_")}
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        want = oracle.forward(forward, made.options)
        grads = oracle.backward(t, made.options)
        sums, _ = oracle.magnitude(t, made.options)
    return want, {f"d{name}": x for name, x in grads.items()}, sums


def by_library(method, case, t):
    """(outputs, gradients)"""
    forward = {name: x for name, x in t.items() if not name.startswith("grad_")}
    got = harness.run("", method, case, forward).outputs
    grads = harness.run("", method, case, t, backward=True).outputs
    return got, {f"d{name}": x for name, x in grads.items()}


def check_exact(method, like, dtype, names, scale_bits):
    made, t = exact_request(method, like, dtype, names, scale_bits)
    want, grads, sums = answers(method, like, names, scale_bits)
    got, got_grads = by_library(method, made, t)
    unit = harness.weight_unit("", method, made, dtype)
    longest = max(made.keys, made.Nq * made.H // made.heads_kv, made.D)
    every = made.B * made.H * made.Nq * made.keys
    # A weight below the smallest normal number is 0, times numbers as large as these.
    flushed = 2**10 * TINY["f32"] * max(abs(t[n]).max() for n in "qk" if n in t)
    failures = []
    for name, x in (got | got_grads).items():
        exact, input = (want | grads)[name], name if name in want else name[1:]
        terms = longest if input in ("out", "lse", *QUERIES, *KEYS, *VALUES) else every
        of_one = UNIT["f32"] if x.dtype == np.float32 else UNIT[dtype]
        bound = bound_of(input, exact, sums[input], GAP, terms, dtype, of_one, unit) + flushed
        if method.id == "etc" and name == "dq":
            bound = bound + of_one * sums[input][0]  # one part by scores, one by labels, each rounded
        within(name, x, exact, bound, names, failures)
    if "inducing" not in t:  # its gathered values are the keys of a second attention
        sums_of_weights(made, got_grads, want["out"], dtype, names, failures)
    return failures


def exact_params():
    return [pytest.param(methods()[id], like, dtype, id=f"{id}-{like.id}-{dtype}")
            for id, cases in EXACT.items() for like in cases for dtype in ("f32", "bf16", "f16")]


@pytest.mark.parametrize("method, like, dtype", exact_params())
def test_gradients_of_exact_scores(method, like, dtype):
    """Symptom: dv of one key with q = k = 1000 was 0.9958, of 8 keys masked by -1e9 eight times too
    large. Against the oracle, with sums of weights, for all magnitudes and masks."""
    failures = []
    for names, scale_bits in problems(dtype):
        failures += check_exact(method, like, dtype, names, scale_bits)
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("method, like", [
    pytest.param(methods()[id], like, id=f"{id}-{like.id}") for id, like in LONG])
def test_gradients_of_exact_scores_over_many_tiles(method, like):
    (_, scale_bits), = problems("f32")
    names = (("1e6", "-1e9"), ("1e6", "finfo.min"), ("1e8", "-inf"), ("1e30", "none"))
    failures = check_exact(method, like, "f32", names, scale_bits)
    assert not failures, "\n".join(failures)


# --- the weights of the forward and of the gradient, of any inputs

SPREADS = np.array([1e6, 1e30, 1, 1e4, 1e12, 1e2, 1e8])  # of rows, in turns
SLOTS = ("mem_v", "null_v", "cmem_v")  # values beside those of keys
EXTRA = {
    "softmax": [
        case("cap-1e6", {"logit_softcap": 1e6}),
        case("cap-1e30", {"logit_softcap": 1e30, "causal": True}, floats={"sink_logits": "H"}),
        case("tiles", {"causal": True}, H=2, Hkv=1, Nq=7, Nk=300),
        # Keys of a tile of queries in two parts.
        case("split", {}, B=1, H=1, Hkv=1, Nq=3, Nk=4200),
        case("split-all-terms", {"logit_softcap": 1e5}, floats={
            "bias": "1,H,Nq,Nk", "alibi_slopes": "H", "sink_logits": "H"},
             B=1, H=1, Hkv=1, Nq=3, Nk=4200),
    ],
    "local": [case("tiles", local.token(200, 3), H=2, Hkv=1, Nq=300)],
    "random": [case("tiles", random.drawn(150), H=2, Hkv=1, Nq=300)],
    "longformer": [case("tiles", longformer.token(60, 1, 3), longformer.own(longformer.scattered),
                        H=2, Hkv=1, Nq=300)],
    "bigbird": [case("tiles", {"block_size": 16, "num_random_blocks": 2}, H=2, Hkv=1, Nq=300)],
    "etc": [case("tiles", etc.split(9, 100, 2, 8), floats=etc.tables(8), H=2, Hkv=1, Nq=300)],
    "transformer_xl": [
        case("memory", KEEPS, transformer_xl.sent(150), H=2, Hkv=1, Nq=150),
        case("memory-window", KEEPS | {"same_length": 90}, transformer_xl.sent(40)),
    ],
    "compressive": [case("memories", KEEPS, of_compressive(60, 40))],
    "long_short": [
        case("far", {"dual_ln": False, "rank": 5}),
        case("far-causal", {"dual_ln": False} | long_short.CAUSAL),
    ],
    "memory_compressed": [
        case("local", {"layer": "local", "block": 40}),
        case("cells", {"factor": 2, "causal": True}, identities() | sinkhorn.NULLS),
    ],
    "sinkhorn": [dataclasses.replace(case(id, o), Nq=70) for id, o in (
        ("one-block", {"block_size": 128}), ("one-block-causal", {
            "block_size": 128, "causal": True, "sort": "sinkhorn"}))],
    "nystromformer": [case("no-landmarks", {"num_landmarks": 1024}),
                      case("one-landmark", {"num_landmarks": 1})],
    "set_transformer": [case("seeds", {"mode": "pma", "num_seeds": 7}, {
        "seeds": set_transformer.drawn("H", 7, "D")}, out_rows=7)],
    "linformer": [case("tables", {}, linformer.made(k="9", biases=False))],
}


def is_linear(method, like):
    """Whether out is a matrix, that does not depend on v, times v, channel by channel."""
    o, made = like.options, like.made
    if method.id == "long_short":
        return not o.get("dual_ln", True)
    if method.id == "set_transformer":
        return o.get("mode") == "pma" and not o.get("residual")
    if method.id == "memory_compressed":  # convolutions mix channels
        return o.get("layer") == "local"
    if method.id == "linformer":
        return o.get("projection", "linear") == "linear" and not made.keys() & {
            "conv_weight_v", "f_bias"} and o.get("projection") != "max_pool"
    if method.id == "sinkhorn":  # null blocks that are drawn have values
        return not sinkhorn.is_topk(o) or not o.get("causal") or "null_v" in made
    if method.id == "nystromformer":  # its inverse is as large as the scores are
        return False
    return True


def weight_params():
    params = []
    for id in EXACT:
        method = methods()[id]
        likes = [dataclasses.replace(case(f"options-{i}", o), Nq=70, D=16)
                 for i, o in enumerate(method.batches)]
        likes += [dataclasses.replace(c, H=4, Hkv=2, Nq=70, D=16) for c in method.tensor_batches]
        likes = [like for like in likes if is_linear(method, like)]
        likes += [dataclasses.replace(c, Nq=70) if c.Nq == N else c for c in EXTRA.get(id, [])]
        params += [pytest.param(method, like, id=f"{id}-{like.id}") for like in likes]
    return params


def spread_rows(method, t, options):
    """Scores of all magnitudes: q, or what stands for it, times a number for each row."""
    name = next(n for n in ("seeds", "q", "r", "r1") if n in t)
    # Scores that are products of two of them.
    is_square = method.shares_qk(options) or "factorized_dense" in options.get("components", ())
    for n in (name, f"{name}_global"):
        if n in t:
            rows = np.resize(SPREADS, t[n].shape[-2]) ** (0.5 if is_square else 1)
            t[n] = (t[n] * rows[:, None]).astype(np.float32)


MOST_COLUMNS = 512  # where there are more keys, several share one


def one_hot_values(t, names):
    """Sets each value to a unit vector, that of its key: then a row of out is one of weights.
    Returns (name, column of each key) of every tensor of values."""
    places, first = [], 0
    for name in (n for n in names if n in t):
        t[name] = np.zeros_like(t[name])
        n = t[name].shape[2]
        columns = (first + np.arange(n)) % MOST_COLUMNS
        t[name][:, :, np.arange(n), columns] = 1
        places.append((name, columns))
        first += n
    if "v_global" in t:
        t["v_global"] = t["v"].copy()
        places.append(("v_global", places[-1][1]))
    return places


@on_every_isa
@pytest.mark.parametrize("method, like", weight_params())
def test_weights_of_gradients_are_those_of_forwards(method, like, isa):
    """Symptom: weights of a gradient were exp(s - lse), wrong by |lse| units of float32. With v of
    unit vectors out is P; with grad_out of unit vectors, one for each row, dv is its transpose."""
    made = harness.fit(method, dataclasses.replace(like, id=f"weights-{method.id}-{like.id}"))
    group = made.H // made.heads_kv
    rows = made.out_rows or made.Nq
    probe = tensors(made, "f32")
    keys = sum(probe[n].shape[2] for n in ("v", "mem_v", "cmem_v") if n in probe)
    made = dataclasses.replace(made, Dv=max(min(keys, MOST_COLUMNS), group * rows), grad_lse=False)
    t = tensors(made, "f32", gradients=True)
    spread_rows(method, t, made.options)
    for name in t.keys() & {*SLOTS}:
        t[name] = np.zeros_like(t[name])
    # Memories that have a gradient are keys like others.
    memories = ("cmem_v", "mem_v") if made.options.get("grad_memory", False) else ()
    places = one_hot_values(t, (*memories, "v"))
    t["grad_out"] = np.zeros_like(t["grad_out"])
    for h in range(made.H):
        t["grad_out"][:, h, np.arange(rows), h % group * rows + np.arange(rows)] = 1
    forward = {name: x for name, x in t.items() if not name.startswith("grad_")}
    weights = harness.run(isa, method, made, forward).outputs["out"]
    grads = harness.run(isa, method, made, t, backward=True).outputs
    again = np.zeros_like(weights)
    for name, columns in places:
        for h in range(made.H):
            dv = grads[name][:, h // group, :, h % group * rows:][..., :rows]
            np.add.at(again, (slice(None), h, slice(None), columns), dv.transpose(1, 0, 2))
    assert np.isfinite(weights).all()
    error = np.nan_to_num(abs(weights - again), nan=np.inf) / np.maximum(
        1, abs(weights).max(axis=3, keepdims=True))
    at = np.unravel_index(error.argmax(), error.shape)
    assert error[at] <= 1e-5, (
        f"row {at[:3]}, whose scores are about {SPREADS[at[2] % len(SPREADS)]:g}: weight of key "
        f"{at[3]} is {weights[at]:.9g} in the forward, {again[at]:.9g} in the gradient; "
        f"{(error > 1e-5).sum()} of {error.size} are off by more than 1e-5")


# --- single rows

def one_call(method, options, backward=True, **tensors):
    """Outputs of a request of float tensors in lists of rows, of one head and one sequence."""
    placed = {name: np.float32(x).reshape(1, 1, len(x), -1) for name, x in tensors.items()}
    if "grad_lse" in placed:
        placed["grad_lse"] = placed["grad_lse"][..., 0]
    call = library.Request(method, placed, options, backward)
    return engine("").execute([call])[0].outputs


PATTERNS = [id for id, m in methods().items()
            if isinstance(m.oracle, PatternOracle | SumOfSoftmaxes) and id not in LEFT_OUT]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("id", PATTERNS)
def test_one_key_has_all_the_weight(id, dtype):
    """Symptom: dv was 0.9958 for q = k = 1000, 0.0169 for 12000, 9e-25 for 33000."""
    method = methods()[id]
    made = harness.fit(method, Case("one-key", H=1, Nq=1, D=1, options=method.batches[0] | {
        "scale": 1.0}))
    for x in (1.0, 1e3, 1.2e4, 3.3e4):
        t = tensors(made, dtype, gradients=True)
        t |= {name: np.full_like(t[name], x) for name in ("q", "k")}
        t |= {name: np.ones_like(t[name]) for name in ("v", "grad_out")}
        grads = harness.run("", method, made, t | {"grad_lse": np.zeros((1, 1, 1), np.float32)},
                            backward=True).outputs
        softmaxes = len(made.options["grid"]) if made.options.get("mode") == "sum" else 1
        got = {name: float(grads[name].item()) for name in "qkv"}
        assert got == {"q": 0, "k": 0, "v": softmaxes}, x


def test_a_gradient_of_lse_alone_at_large_scores():
    """dq of one key is k, dk is q."""
    for x in (1e3, 1.2e4, 3.3e4, 1e15):
        grads = one_call("softmax", {"scale": 1.0}, q=[x], k=[x], v=[1], grad_lse=[1])
        assert {name: grads[name].item() for name in "qkv"} == {
            "q": np.float32(x), "k": np.float32(x), "v": 0}


@pytest.mark.parametrize("size", (1e4, 3e4, 1e10))
@pytest.mark.parametrize("causal", (False, True))
def test_weights_of_normal_inputs_times_a_size(size, causal):
    """Symptom: sums of weights of a row of D 16 were up to 2214 at a size of 1e4, 5e23 at 3e4."""
    rng = np.random.default_rng(1)
    x = {name: size * rng.standard_normal((65, 16)) for name in "qk"}
    # A channel of v and grad_out for each row.
    grads = one_call("softmax", {"causal": causal}, v=np.ones((65, 65)), grad_out=np.eye(65), **x)
    np.testing.assert_allclose(grads["v"][0, 0].astype(float).sum(axis=0), 1, atol=1e-5)


@pytest.mark.parametrize("mask", (-1e7, -1e9, LOWEST))
def test_a_row_that_is_masked_by_finite_numbers(mask):
    """Symptom: dv of 8 keys whose bias is -1e9 summed to 8, of -1e7 to 0.64; lse of finfo.min was
    -2.29e38."""
    rng = np.random.default_rng(2)
    x = {name: rng.standard_normal((8, 16)) for name in "qk"}
    bias = np.full((8, 8), mask, np.float32)
    placed = {name: np.float32(a)[None, None] for name, a in (x | {"v": np.ones((8, 8))}).items()}
    placed["bias"] = bias
    forward = engine("").execute([library.Request("softmax", placed)])[0].outputs
    placed["grad_out"] = np.eye(8, dtype=np.float32)[None, None]
    backward = engine("").execute([library.Request("softmax", placed, {}, True)])[0].outputs
    np.testing.assert_allclose(forward["out"], 1, rtol=1e-6)
    np.testing.assert_allclose(backward["v"][0, 0].astype(float).sum(axis=0), 1, atol=1e-5)
    if mask < -1e8:  # no digit of a score is left
        np.testing.assert_allclose(backward["v"], 1 / 8, rtol=1e-5)
        np.testing.assert_array_equal(forward["lse"], np.float32(mask + np.log(8)))


@pytest.mark.parametrize("id", PATTERNS)
def test_rows_masked_by_finite_numbers_in_parts_that_are_merged(id):
    """Symptom: where all keys of a row were masked by -1e9 or finfo.min, parts of unions were
    merged by a rounded lse, as if each had one key: out was not the mean of the values."""
    method = methods()[id]
    for i, options in enumerate(method.batches):
        made = harness.fit(method, Case(f"merged-{i}", H=1, Nq=70, D=4, options=options))
        t = tensors(made, "f32")
        seen = np.broadcast_to(method.oracle.visible(t, made.options), (1, 1, 70, 70))
        if not method.oracle.gives_lse(made.options):
            continue  # a sum of softmaxes
        t["v"] = np.eye(70, dtype=np.float32)[None, None]
        for mask in (-1e9, LOWEST):
            t["bias"] = np.full(1, mask, np.float32)
            got = harness.run("", method, made, t).outputs["out"]
            count = np.maximum(seen.sum(axis=3, keepdims=True), 1)
            np.testing.assert_allclose(got, seen / count, atol=1e-6, err_msg=f"{options} {mask}")
