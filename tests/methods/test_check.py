"""Mode check: forward against the oracle on every ISA and dtype, and equalities bit for bit.
Every engine hands out memory full of NaN; rows of q, k and v beyond the lengths hold NaN."""

import dataclasses
import functools

import numpy as np
import pytest

from tests.methods import harness, library
from tests.methods.cases import LAID_OUT, Case, tensors
from tests.methods.harness import (case_params, engine, fit, fit_to_options, method_params,
                                   methods, on_every_isa, request, same_bits, suited,
                                   unpacked_batches, visible_params)
from tests.methods.tolerance import check_bound, check_ratio

LENGTHS = (0, 1, 63, 64, 65, 131)


def option_params():
    return [pytest.param(m, o, id=f"{m.id}-{i}-" + ("-".join(f"{k}={v}" for k, v in o.items())
                                                     or "defaults"))
            for m in methods().values() for i, o in enumerate(m.batches)]


@pytest.mark.parametrize("isa", harness.ISAS)
def test_instruction_set(isa):
    """Symptom: a machine without AVX-512 counted 7,384 skipped tests; this one speaks for them."""
    if lacks := harness.machine_lacks(isa):
        pytest.skip(f"no {isa} here: this machine lacks {' '.join(lacks)}")
    assert engine(isa).peak_flops > 0


@on_every_isa
@pytest.mark.parametrize("method, case, dtype", case_params())
def test_forward(method, case, dtype, isa):
    want = harness.expected(method, case, dtype, False)
    reply = harness.run(isa, method, case, want.tensors)
    assert list(reply.outputs) == list(want.want)
    assert reply.outputs["out"].dtype == want.tensors["v"].dtype
    assert "lse" not in want.want or reply.outputs["lse"].dtype == np.float32
    assert reply.bnhd == ({"out"} if case.layout == "BNHD" else set())
    assert reply.pairs == method.oracle.pairs(want.tensors, case.options)
    assert reply.peak_bytes <= reply.planned_bytes
    unit = harness.weight_unit(isa, method, case, dtype)
    for name in want.want:
        got = reply.outputs[name]
        check_bound(name, got, want.want[name], want.sums[name], want.amplification,
                    want.terms[name], dtype, unit)
        if case.ratio:
            check_ratio(name, got, want.want[name], want.plain[name], want.sums[name])


def batch_params(methods, id, **sizes):
    """pytest params (method, case): each of `batches` and `tensor_batches`, in these sizes."""
    params = []
    for method in methods:
        for like in unpacked_batches(method):
            case = fit_to_options(method, dataclasses.replace(
                like, id=f"{id}-{like.id}", H=4, Nq=40, Nk=40, D=16, **sizes))
            params.append(pytest.param(method, case, id=f"{method.id}-{like.id}"))
    return params


def check_case(method, case, backward):
    want = harness.expected(method, case, "f32", backward)
    reply = harness.run("", method, case, want.tensors, backward)
    assert reply.peak_bytes <= reply.planned_bytes
    for name, got in reply.outputs.items():
        check_bound(name, got, want.want[name], want.sums[name], want.amplification,
                    want.terms[name], "f32")


EQUAL = (30, 30, 17, 30)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("method, case", batch_params(
    methods().values(), "equal", B=4, Hkv=2, ints={"q_lengths": EQUAL, "kv_lengths": EQUAL}))
def test_sequences_of_equal_lengths(method, case, backward):
    """A plan describes them once and a run, where they are neighbours, as one problem."""
    check_case(method, case, backward)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("method, case", batch_params(
    [m for m in methods().values() if m.gqa], "multi-query", B=2, Hkv=1))
def test_one_head_of_keys(method, case, backward):
    """Repeated for all query heads it is a view, which more than one head is not."""
    check_case(method, case, backward)


@on_every_isa
@pytest.mark.parametrize("method, golden", method_params("golden"))
def test_golden(method, golden, isa):
    """The specs' figures, from float32: sums of a hundred terms of order 1. On a CUDA device, whose
    products are three of TF32, each term is the quotient of two sums: four roundings."""
    of_size = 2**-22 if engine(isa).device.startswith("cuda") else 0
    t = {name: x.astype(np.float32) if x.dtype.kind == "f" else x
         for name, x in golden.tensors.items()}
    case = Case("golden", options=golden.options)
    grads = harness.run(isa, method, case, t, backward=True)
    del t["grad_out"]
    reply = harness.run(isa, method, case, t)
    results = reply.outputs | {f"d{name}": x for name, x in grads.outputs.items()}
    figures = golden.figures({name: x.astype(np.float64) for name, x in results.items()})
    for name, value in golden.expected.items():
        assert figures[name] == pytest.approx(value, rel=of_size, abs=1e-5), name
    if golden.pairs is not None:
        assert (reply.pairs, grads.pairs) == (golden.pairs, golden.pairs)


@pytest.mark.parametrize("method, case, pairs", visible_params())
def test_visible_pairs(method, case, pairs):
    """The plan counts pairs in closed form, forward and backward, without data. Where data decide
    what is visible, the call counts them."""
    both = tensors(suited(method, case), "f32", gradients=True)
    forward = {name: x for name, x in both.items() if not name.startswith("grad_")}
    for t, backward in ((forward, False), (both, True)):
        call = request(method, case, t, backward)
        planned = engine("").plan(call).pairs
        executed = engine("").execute([call])[0].pairs
        assert executed == pairs
        assert planned == pairs or not method.plans_pairs(t, case.options)


@pytest.mark.parametrize("method, case", method_params("cases"))
def test_plans_count_as_runs_do(method, case):
    """Symptom: estimates of pairs and FLOPs were 0 or too many times what a run counts, where no
    data decide, and nothing said so where data do."""
    for backward in (False, True) if case.backward else (False,):
        t = tensors(suited(method, case), "f32", gradients=backward)
        call = request(method, case, t, backward)
        plan = engine("").plan(call)
        if method.plans_pairs(t, case.options) and "segment_ids_q" not in t:
            assert not plan.estimates_pairs
        if not plan.estimates_pairs:
            counted = engine("").execute([call])[0]
            assert plan.pairs == counted.pairs
            assert plan.flops == pytest.approx(counted.flops, rel=1e-9)


@pytest.mark.parametrize("sequences, is_estimate", [(1000, False), (1100, True)])
def test_plans_of_many_lengths_say_that_they_estimate(sequences, is_estimate):
    """A plan describes at most 1024 different lengths; of more it rounds them up."""
    t = {name: np.zeros((sequences, 1, n, 1), np.float32)
         for name, n in (("q", 1), ("k", sequences), ("v", sequences))}
    t["kv_lengths"] = np.arange(1, sequences + 1, dtype=np.int32)
    plan = engine("").plan(library.Request("softmax", t))
    exact = sequences * (sequences + 1) / 2
    assert plan.estimates_pairs == is_estimate
    assert exact <= plan.pairs <= exact * (1.01 if is_estimate else 1)


def test_flops_with_counted_lengths_are_those_of_the_attention():
    """Symptom: 2,312 FLOPs forward and none backward, and twice the pairs in an estimate."""
    x = np.ones((2, 1, 17, 16), np.float32)
    t, options = {"q": x, "k": x, "v": x}, {"length_norm": "visible"}
    for more, flops in ({}, 36992), ({"grad_out": x}, 92480):
        call = library.Request("relu_attention", t | more, options, backward=bool(more))
        for reply in engine("").plan(call), engine("").execute([call])[0]:
            assert (reply.pairs, reply.flops) == (578, flops)


def ragged(method, options, dtype, backward, like=None):
    """Requests of one bucket: lengths, batch sizes and padding differ. `like`: a case with the
    other tensors that each of them has."""
    for i, n in enumerate(LENGTHS):
        Nk = LENGTHS[-1 - i] if i % 3 == 2 else n
        packed = like is not None and like.packed > 0
        B = 1 if packed else 1 + i % 2
        ints = {} if packed else {"kv_lengths": (Nk, Nk // 2)[:B]}
        case = dataclasses.replace(like or Case("ragged", options=options), B=B, H=4, Hkv=2, Nq=n,
                                   Nk=Nk, D=16, ints=ints, id=f"ragged-{method.id}-{i}")
        case = fit_to_options(method, case)
        yield request(method, case, tensors(case, dtype, gradients=backward), backward)


@on_every_isa
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("method, options", option_params())
def test_batched_equals_alone(method, options, dtype, backward, isa):
    check_batch(isa, list(ragged(method, options, dtype, backward)))


@on_every_isa
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("method, like", [
    pytest.param(m, c, id=f"{m.id}-{c.id}") for m in methods().values() for c in m.tensor_batches])
def test_batched_equals_alone_with_other_tensors(method, like, backward, isa):
    calls = list(ragged(method, like.options, "f32", backward, like))
    check_batch(isa, calls)
    counts = []
    for count in (1, 16):
        before = engine(isa).launches()
        engine(isa).execute(calls[-1:] * count)
        counts.append(engine(isa).launches() - before)
    assert counts[0] == counts[1] > 0


def check_batch(isa, calls):
    """The same bits in a batch, in another order, with one thread, and alone."""
    together = engine(isa).execute(calls)
    reversed_order = engine(isa).execute(calls[::-1])[::-1]
    one_thread = engine(isa, threads=1).execute(calls)
    assert together[0].peak_bytes <= sum(reply.planned_bytes for reply in together)
    for i, call in enumerate(calls):
        alone = engine(isa).execute([call])[0].outputs
        assert not same_bits(alone, together[i].outputs), i
        assert not same_bits(alone, reversed_order[i].outputs), i
        assert not same_bits(alone, one_thread[i].outputs), i


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("method, options", option_params())
def test_plans_bound_a_batch_of_different_heads(method, options, backward):
    """One head lies in memory as another order of dimensions does: where one problem of
    a batch must be copied, the others are not."""
    calls = []
    for H, N in ((4, 64), (1, 64), (4, 3), (1, 3)):
        case = fit_to_options(method, Case(f"heads-{H}-{N}", H=H, Nq=N, D=16, options=options))
        calls.append(request(method, case, tensors(case, "f32", gradients=backward), backward))
    for other in calls:
        try:
            replies = engine("").execute([calls[0], other])
        except library.Refused:
            continue  # another bucket, or heads that the options do not allow
        assert replies[0].peak_bytes <= sum(reply.planned_bytes for reply in replies)


@pytest.mark.parametrize("backward", (False, True))
@pytest.mark.parametrize("method", ("performer", "rfa"))
def test_plans_bound_sequences_whose_lengths_alternate(method, backward):
    """A run has a problem for each of them, a plan one for each length: directions are packed once."""
    lengths = (1, 2, 0, 2) * 16
    method = methods()[method]
    case = fit_to_options(method, Case("alternating", B=64, H=2, Nq=2, D=8,
                                       options={"num_features": 512},
                                       ints={"q_lengths": lengths, "kv_lengths": lengths}))
    t = tensors(case, "f32", gradients=backward)
    reply = engine("").execute([request(method, case, t, backward)])[0]
    assert reply.peak_bytes <= reply.planned_bytes


@on_every_isa
@pytest.mark.parametrize("method, options", option_params())
def test_threads_and_runs_agree(method, options, isa):
    """One head large enough for two threads to share: same bits from one, and again."""
    case = fit(method, Case("threads", H=1, Nq=1100, D=32, options=options))
    for backward in (False, True):
        t = tensors(case, "f32", gradients=backward)
        first, again = (harness.run(isa, method, case, t, backward).outputs for _ in range(2))
        one = harness.run(isa, method, case, t, backward, threads=1).outputs
        assert not same_bits(first, again)
        assert not same_bits(first, one)


@pytest.mark.parametrize("method, options", option_params())
def test_one_launch_for_a_list(method, options):
    """64 problems cost as many parallel launches as one."""
    for backward in (False, True):
        case = fit(method, Case("launches", H=2, Nq=70, D=8, options=options))
        call = request(method, case, tensors(case, "f32", gradients=backward), backward)
        counts = []
        for count in (1, 64):
            before = engine("").launches()
            engine("").execute([call] * count)
            counts.append(engine("").launches() - before)
        assert counts[0] == counts[1] > 0


@on_every_isa
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("method", methods().values(), ids=methods())
def test_nan_and_inf_stay_in_their_request(method, backward, isa):
    """A request full of NaN and one full of Inf do not change the others of their batch."""
    options = method.batches[0]
    calls = list(ragged(method, options, "f32", backward))
    clean = engine(isa).execute(calls)
    for value in (np.nan, np.inf):
        dirty = [dataclasses.replace(call, tensors=dict(call.tensors)) for call in calls]
        for i in (1, 4):
            for name in ("q", "k", "v", "grad_out")[: 4 if backward else 3]:
                if name in calls[i].tensors:
                    dirty[i].tensors[name] = np.full_like(calls[i].tensors[name], value)
        replies = engine(isa).execute(dirty)
        for i in (0, 2, 3, 5):
            assert not same_bits(clean[i].outputs, replies[i].outputs), (value, i)
        changed = method.differentiable[0] if backward else "out"
        assert not np.isfinite(replies[4].outputs[changed]).all()


def seen_by(method, case, t):
    """[B,H,Nq,Nk]: which keys the rows of each head see."""
    shape = (case.B, case.H, case.Nq, case.keys)
    return np.broadcast_to(method.oracle.visible(t, case.options), shape)


def hiding_params():
    """pytest params (method, case): two sequences of four heads, all finite, under each of the
    options of `batches` and the tensors of `tensor_batches` that hide some pairs."""
    params = []
    for name, method in methods().items():
        for like in unpacked_batches(method):
            case = fit_to_options(method, dataclasses.replace(
                like, id=f"finite-{like.id}", B=2, H=4, Hkv=2, Nq=131, D=16))
            if not seen_by(method, case, tensors(case, "f32")).all():
                params.append(pytest.param(method, case, id=f"{name}-{like.id}"))
    return params


def middle(choice):
    """The index in the middle of those where `choice` holds."""
    at = np.flatnonzero(choice)
    assert at.size, "each is seen by all or by none"
    return at[len(at) // 2]


@functools.cache
def places(method, case, name):
    """A row of `name` to overwrite and the query rows, not all, that see it: (b, head, row),
    [B,H,Nq]. The case's tensors are float32."""
    t = tensors(case, "f32")
    seen = seen_by(method, case, t)
    if name in method.decides:
        hit = np.zeros(seen.shape[:3], bool)
        hit[1] = True
        return (1, 0, case.Nq // 2), hit
    if name == "q":
        at = 1, 0, middle(seen[1, 0].any(axis=1) & ~seen[1, 0].all(axis=1))
        hit = np.zeros(seen.shape[:3], bool)
        hit[at] = True
        return at, hit
    group = case.H // case.heads_kv
    of_keys = seen[1, :group].reshape(-1, case.keys)
    at = 1, 0, middle(of_keys.any(axis=0) & ~of_keys.all(axis=0))
    # A query row sees the key if it has a weight on a value that only that key carries. Rows of
    # their own k and v do not.
    probe = t | {n: np.zeros_like(t[n]) if n[0] == "v" else np.ones_like(t[n])
                 for n in t if n in LAID_OUT and n not in method.decides}
    none = method.oracle.forward(probe, case.options)["out"]
    probe["v"][at] = 1
    hit = (method.oracle.forward(probe, case.options)["out"] != none).any(axis=3)
    if method.shares_qk(case.options):  # a token sees itself, with a weight that may round to 0
        hit[1, :group, at[2]] |= seen[1, :group, at[2], at[2]]
    return at, hit


@functools.cache
def weighted(method, case):
    """Those query rows of places("v") whose weight on the value is not 0, as relu gives."""
    at, hit = places(method, case, "v")
    t = tensors(case, "f32")
    moved = t | {"v": t["v"].copy()}
    moved["v"][at] += 1
    ends = [method.oracle.forward(x, case.options)["out"] for x in (t, moved)]
    return hit & (ends[0] != ends[1]).any(axis=3)


@on_every_isa
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=["nan", "inf", "minus-inf"])
@pytest.mark.parametrize("method, case", hiding_params())
def test_not_finite_stays_in_its_rows(method, case, value, isa):
    """One row of q, k or v that is not finite affects the query rows that see it and no others: the
    library skips hidden pairs and does not multiply them by zero."""
    clean_t = tensors(case, "f32")
    clean = harness.run(isa, method, case, clean_t).outputs
    for name in method.gradients_of_qkv:
        at, hit = places(method, case, name)
        t = clean_t | {name: clean_t[name].copy()}
        t[name][at] = value
        got = harness.run(isa, method, case, t).outputs
        assert hit.any() and not hit.all()
        for output in ("out", "lse"):
            if output in got:
                kept = got[output][~hit]
                assert kept.tobytes() == clean[output][~hit].tobytes(), (name, output)
        if name == "v":
            hit = weighted(method, case)
        if name in method.decides:
            assert not np.isfinite(got["out"][hit]).all(), name
        elif np.isnan(value):
            assert np.isnan(got["out"][hit]).all(), name
            assert name == "v" or "lse" not in got or np.isnan(got["lse"][hit]).all(), name
        elif name == "v":
            assert not np.isfinite(got["out"][hit]).any(), name


@on_every_isa
@pytest.mark.parametrize("method, case", hiding_params())
def test_not_finite_gradient_stays_in_its_rows(method, case, isa):
    """NaN in one row of grad_out: dq of that row and dk, dv of the keys it sees, nothing else. Rows
    that share a sum with it may round differently."""
    clean_t = tensors(case, "f32", gradients=True)
    clean = harness.run(isa, method, case, clean_t, backward=True).outputs
    at, must, may = gradients_of(method, case)
    t = clean_t | {"grad_out": clean_t["grad_out"].copy()}
    t["grad_out"][at] = np.nan
    got = harness.run(isa, method, case, t, backward=True).outputs
    for name, where in may.items():
        assert must[name].any() and not where.all()
        assert np.isnan(got[name][must[name]]).all(), name
        np.testing.assert_allclose(got[name][~where], clean[name][~where], rtol=1e-5, atol=1e-6)


@functools.cache
def gradients_of(method, case):
    """A row of grad_out to overwrite, (b, head, row), and by gradient the elements that another
    number there changes (a gradient through a weight of 0 may stay finite) and the rows that may
    change."""
    t = tensors(case, "f32", gradients=True)
    seen = seen_by(method, case, t)
    b, head = 1, case.H // 2
    row = middle(seen[b, head].any(axis=1) & ~seen[b, head].all(axis=1))
    moved = t | {"grad_out": t["grad_out"].copy()}
    moved["grad_out"][b, head, row] += 1
    ends = [method.oracle.backward(x, case.options) for x in (t, moved)]
    may = {name: np.zeros(ends[0][name].shape[:3], bool) for name in method.gradients_of_qkv}
    group = case.H // case.heads_kv
    for name, rows in may.items():
        if name == "q":
            rows[b, head, row] = True
            if method.shares_qk(case.options):
                rows[b, head, seen[b, head, row]] = True
        else:
            rows[b, head // group, seen[b, head, row]] = True
    return (b, head, row), {name: ends[0][name] != ends[1][name] for name in may}, may


def one(method, options, **tensors):
    """Of one head, tensors of [N] or [N,D]."""
    shape = {name: (1, 1, *x.shape) if x.ndim == 2 or name.endswith("logits") else
             (1, 1, len(x), 1) for name, x in tensors.items()}
    tensors = {name: np.float32(x).reshape(shape[name]) for name, x in tensors.items()}
    return engine("", 1).execute([library.Request(method, tensors, options)])[0]


def test_keys_whose_product_overflows_write_nothing_with_beta_0():
    reply = one("fast_weights", {"feature_map": "identity", "feature_norm": "none", "scale": 1.0},
                q=np.ones(4), k=np.array([2e19, 2e19, 1, 1]), v=np.ones(4),
                beta_logits=np.array([-1e4, -1e4, 0, 0]))
    np.testing.assert_allclose(reply.outputs["out"].ravel(), [0, 0, 0.5, 0.75], rtol=1e-6)


def test_silu_of_normal_numbers_is_not_0():
    x = np.full((4, 16), -89.0)
    reply = one("fast_weights", {"feature_map": "silu", "feature_norm": "sum"}, q=x, k=x,
                v=np.ones((4, 16)), beta_logits=np.zeros(4))
    assert np.all(reply.outputs["out"][0, 0, 0] > 0)


def test_a_segment_is_as_long_as_its_keys():
    """Symptom: 93 bytes took 14 s and 4 GB."""
    x = np.ones((8, 1, 1, 1), np.float32)
    options = {"causal": True, "rank": 1024, "segment_len": 65536}
    plan = engine("", 1).plan(library.Request("long_short", {"q": x, "k": x, "v": x}, options))
    assert plan.planned_bytes < 1 << 20
