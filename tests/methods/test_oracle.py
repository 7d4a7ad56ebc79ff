"""The oracles against the specs' figures, finite differences, and facts that hold by definition.
Needs no library."""

import dataclasses

import numpy as np
import pytest

from tests.methods import etc, local, longformer, pattern_core, random, relu_attention
from tests.methods.cases import LAID_OUT, Case, tensors
from tests.methods.harness import fit, method_params, methods, suited, visible_params

SOFTMAX, LOCAL, LONGFORMER, ETC, RANDOM, BIGBIRD, RELU, LINEAR = (methods()[id] for id in (
    "softmax", "local", "longformer", "etc", "random", "bigbird", "relu_attention",
    "linear_attention"))


def results_of(method, t, options):
    """Forward and gradients under one naming, as golden figures read them."""
    grads = method.oracle.backward(t, options)
    return method.oracle.forward(t, options) | {f"d{name}": x for name, x in grads.items()}


def both(method, t, options):
    """Forward and the gradient of every input."""
    return method.oracle.forward(t, options) | method.oracle.backward(t, options)


@pytest.mark.parametrize("method, golden", method_params("golden"))
def test_golden(method, golden):
    figures = golden.figures(results_of(method, golden.tensors, golden.options))
    for name, value in golden.expected.items():
        assert figures[name] == pytest.approx(value, abs=6e-10), name
    if golden.pairs is not None:
        assert method.oracle.pairs(golden.tensors, golden.options) == golden.pairs


@pytest.mark.parametrize("method, case, pairs", visible_params())
def test_visible_pairs(method, case, pairs):
    assert method.oracle.pairs(tensors(case, "f32"), case.options) == pairs


def small(method, case):
    """The same case at a size where every derivative can be taken numerically."""
    n = {0: 0, 1: 1}
    Nq, Nk = n.get(case.Nq, 6), n.get(case.keys, 5 if case.keys < case.Nq else 7)
    Nk = Nq if case.Nq == case.keys else Nk
    limit = {"q_lengths": Nq, "kv_lengths": Nk}
    ints = {
        name: tuple(min(x, limit[name]) if name in limit else max(-4, min(x, 4)) for x in values)
        for name, values in case.ints.items()
    }
    return fit(method, dataclasses.replace(
        case, id=f"small-{case.id}", Nq=Nq, Nk=Nk, D=min(case.D, 3), Dv=2, ints=ints, layout="BHND",
        strided=False, v_scale=1.0, wide_floats=False, far_floats=False))


def loss(method, t, options):
    """A scalar whose gradients are those of backward: sum of grad . output over finite outputs."""
    result = method.oracle.forward(t, options)
    lse = result.get("lse", np.zeros(result["out"].shape[:3]))  # some have none
    alive = np.isfinite(lse)
    # A row that sees nothing may still have an out: set_transformer adds its query.
    total = (np.nan_to_num(t["grad_out"]) * np.nan_to_num(result["out"])).sum()
    if "grad_lse" in t:
        total += np.where(alive, np.nan_to_num(t["grad_lse"]), 0).ravel() @ np.where(
            alive, lse, 0).ravel()
    for name in result.keys() - {"out", "lse"}:
        if f"grad_{name}" in t:
            total += (t[f"grad_{name}"] * result[name]).sum()
    return total


@pytest.mark.parametrize("method, case", [
    pytest.param(m, c, id=f"{m.id}-{c.id}") for m in methods().values() for c in m.cases
    if c.backward and c.keys and c.Nq])
def test_finite_differences(method, case):
    """Along random directions, one per tensor and sequence; errors of h^2."""
    case = small(method, case)
    t = {name: x.astype(np.float64) if x.dtype.kind == "f" else x
         for name, x in tensors(case, "f32", gradients=True).items()}
    with np.errstate(all="ignore"):
        grads = method.oracle.backward(t, case.options)
        t |= method.oracle.constants(t, case.options)
        rng = np.random.default_rng(1)
        constants = method.constants(case.options)
        for name in (n for n in method.differentiable if n in t and n not in constants):
            # One direction a sequence, or one for a tensor that sequences share.
            for b in range(case.B) if name in "qkv" else [slice(None)]:
                direction = np.zeros_like(t[name])
                direction[b] = rng.standard_normal(direction[b].shape)
                # A kink of relu or abs between the two points would invalidate the difference.
                unit = case.spread if name in "qk" else 1.0
                h = 1e-6 * max(unit, abs(case.shift) / 10)
                up, down = (loss(method, t | {name: t[name] + sign * h * direction}, case.options)
                            for sign in (1, -1))
                slope = (grads[name] * direction).sum()
                scale = max(abs(slope), abs(grads[name][b]).max(initial=0), 1e-3 / unit)
                # Each loss is rounded, too: it has the lse of rows whose every score is -1e5.
                rounding = np.finfo(np.float64).eps * max(abs(up), abs(down)) / h
                close = pytest.approx(slope, abs=2e-6 * scale + rounding)
                assert (up - down) / (2 * h) == close, (name, b)


def test_padding_gets_no_gradient():
    for method in methods().values():
        for case in method.cases:
            if case.ints.keys() & {"q_lengths", "kv_lengths"}:
                t = tensors(suited(method, case), "f32", gradients=True)
                grads = method.oracle.backward(t, case.options)
                for name in grads.keys() & set(LAID_OUT):
                    lengths = case.ints.get("q_lengths" if name[0] == "q" else "kv_lengths", ())
                    for b, n in enumerate(lengths):
                        assert not grads[name][b, :, n:].any(), (method.id, case.id, name, b)


PARAMETERS = {"bias": "B,1,Nq,Nk", "alibi_slopes": "H", "sink_logits": "H"}


def test_a_sink_scales_the_output():
    """out_with_sink = out sigmoid(lse - z), lse_with_sink = logaddexp(lse, z); rows that see
    nothing have lse = z, rows beyond q_lengths -inf."""
    case = Case("sink", B=2, H=3, Nq=9, Nk=6, D=4, options={"causal": True},
                floats={"sink_logits": "H"}, ints={"q_lengths": (9, 8)})
    t = tensors(case, "f32")
    sunk = SOFTMAX.oracle.forward(t, case.options)
    z = t.pop("sink_logits").astype(np.float64)[:, None]
    bare = SOFTMAX.oracle.forward(t, case.options)
    lse = np.logaddexp(bare["lse"], z)
    lse[1, :, 8:] = -np.inf
    np.testing.assert_allclose(sunk["lse"], lse, rtol=1e-12)
    assert (sunk["lse"][0, :, 0] == z[:, 0]).all()
    scale = 1 / (1 + np.exp(np.minimum(z - bare["lse"], 700)))
    np.testing.assert_allclose(sunk["out"], bare["out"] * scale[..., None], atol=1e-12)


def test_packed_sequences_are_problems_of_their_own():
    case = Case("packed", H=4, Hkv=2, Nq=23, Nk=30, D=4, Dv=3, packed=5, floats=PARAMETERS,
                made=longformer.own(longformer.at(0, 3, 8, 9, 20)))
    drawn = tensors(case, "f32", gradients=True)
    for method, options in ((SOFTMAX, {"causal": True, "logit_softcap": 2.0}),
                            (LOCAL, local.token(5)), (LOCAL, local.block(4)),
                            (LONGFORMER, longformer.token(2, 1, 2, 1, 3)),
                            (RELU, relu_attention.norm("avg", causal=True))):
        t = {name: x for name, x in drawn.items()
             if name in method.tensors or name.startswith("grad_")}
        packed = both(method, t, options)
        whole = {name: t[name] for name in ("alibi_slopes", "sink_logits") if name in t}
        sums = {name: 0 for name in whole}
        for s in range(5):
            i, j = (slice(*t[f"cu_seqlens_{x}"][s:s + 2]) for x in "qk")
            where = {"bias": np.s_[:, :, i, j], "global_mask": np.s_[:, j]}
            where |= {name: np.s_[:, :, i]
                      for name in ("q", "q_global", "grad_out", "grad_lse", "out", "lse")}
            where |= {name: np.s_[:, :, j] for name in ("k", "v", "k_global", "v_global")}
            alone = whole | {name: t[name][at] for name, at in where.items() if name in t}
            want = both(method, alone, options)
            for name in want.keys() - sums.keys():
                np.testing.assert_array_equal(packed[name][where[name]], want[name])
            sums = {name: sums[name] + want[name] for name in sums}
        for name, x in sums.items():
            np.testing.assert_allclose(packed[name], x, atol=1e-12)


def test_segments_hide_what_packing_leaves_out():
    """Without positions in the formula, runs of ids are packed sequences."""
    t = tensors(Case("runs", H=2, Nq=21, D=4, packed=4), "f32", gradients=True)
    ends = t.pop("cu_seqlens_q"), t.pop("cu_seqlens_k")
    ids = np.searchsorted(ends[0][1:], np.arange(21), side="right").astype(np.int32)[None]
    by_id = results_of(SOFTMAX, t | {"segment_ids_q": ids, "segment_ids_kv": ids}, {})
    packed = results_of(SOFTMAX, t | {"cu_seqlens_q": ends[0], "cu_seqlens_k": ends[1]}, {})
    for name in packed:
        np.testing.assert_allclose(by_id[name], packed[name], atol=1e-12)


def test_standard_slopes():
    """Press et al. 2022, section 3; the figures of the pattern specification."""
    np.testing.assert_array_equal(pattern_core.standard_slopes(8), 0.5 ** np.arange(1, 9))
    np.testing.assert_array_equal(pattern_core.standard_slopes(6),
                                  [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125])


def test_wide_windows_are_softmax():
    case = Case("wide", B=2, H=4, Hkv=2, Nq=21, Nk=30, D=4, Dv=3,
                ints={"kv_lengths": (30, 11), "q_lengths": (20, 21)})
    t = tensors(case, "f32", gradients=True)
    for causal in (False, True):
        for window in (local.token(-1), local.token(100), local.block(50)):
            ours, exact = (results_of(m, t, o | {"causal": causal})
                           for m, o in ((LOCAL, window), (SOFTMAX, {})))
            for name in ours:
                np.testing.assert_allclose(ours[name], exact[name], atol=1e-12)


def check_equal(t, ours, theirs):
    """Two (method, options) give the same results."""
    a, b = (both(method, t, o) for method, o in (ours, theirs))
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], atol=1e-12, err_msg=name)


def test_longformer_at_its_ends():
    """Equals local without globals, softmax over the global tensors with all tokens global, and,
    with a window over everything, softmax except in global rows."""
    case = Case("ends", B=2, H=4, Hkv=2, Nq=21, Nk=30, D=4, Dv=3, floats=PARAMETERS,
                made=longformer.own(longformer.everywhere),
                ints={"kv_lengths": (30, 11), "q_lengths": (20, 21)})
    t = tensors(case, "f32", gradients=True)
    roles = {"q": "q_global", "k": "k_global", "v": "v_global"}
    for causal in (False, True):
        o = {"causal": causal}
        bare = {name: x for name, x in t.items() if not name.endswith(("_global", "_mask"))}
        check_equal(bare, (LONGFORMER, o | {"window": 3}), (LOCAL, o | {"window_left": 3}))
        check_equal(bare, (LONGFORMER, o | {"window": 40}), (SOFTMAX, o))
        as_global = bare | {role: t[name] for role, name in roles.items()}
        ours = both(LONGFORMER, t, o | {"window": 3})
        want = both(SOFTMAX, as_global, o)
        for name, x in want.items():
            np.testing.assert_allclose(ours[roles.get(name, name)], x, atol=1e-12, err_msg=name)
            assert name not in roles or not ours[name].any()


def test_etc_at_its_ends():
    """Without tables: local where there are no globals, softmax where the window is wide, and
    softmax of each example where there are several."""
    case = Case("ends", B=2, H=4, Hkv=2, Nq=21, D=4, Dv=3, options=etc.split(4, 30),
                floats={"bias": "B,1,Nq,Nk", "sink_logits": "H"}, made=etc.EXAMPLES,
                ints={"kv_lengths": (21, 11), "q_lengths": (20, 21)})
    t = tensors(case, "f32", gradients=True)
    ids = np.concatenate([t.pop("global_example_ids"), t.pop("long_example_ids")], axis=1)
    check_equal(t, (ETC, etc.split(0, 3)), (LOCAL, local.token(3)))
    for ng in (0, 4, 21):
        check_equal(t, (ETC, etc.split(ng, 30)), (SOFTMAX, {}))
    segments = abs(ids)  # equal where ids are, and none is padding
    ours = results_of(ETC, t | {"global_example_ids": ids[:, :4], "long_example_ids": ids[:, 4:]},
                      etc.split(4, 30))
    want = results_of(SOFTMAX, t | {"segment_ids_q": segments, "segment_ids_kv": segments}, {})
    for name in ours:
        np.testing.assert_allclose(ours[name], want[name], atol=1e-12)


def test_labels_of_etc():
    """ng = 3, nl = 6, k = 2, two long tokens a sentence: the spec's labels, spelled out."""
    t = tensors(Case("labels", H=1, Nq=9, D=2), "f32")
    labels = etc.Split(pattern_core.Seq(etc.split(3, 2, 2, 8), t, 0)).labels()
    assert labels[:3].tolist() == [[0, 1, 2, 6, 6, 5, 5, 5, 5], [3, 0, 1, 5, 5, 6, 6, 5, 5],
                                   [4, 3, 0, 5, 5, 5, 5, 6, 6]]
    assert labels[3:, :3].tolist() == [[6, 5, 5], [6, 5, 5], [5, 6, 5], [5, 6, 5], [5, 5, 6],
                                       [5, 5, 6]]
    assert labels[5, 3:].tolist() == [4, 3, 0, 1, 2, 2]


def test_relu_attention_sums_what_it_names():
    """The formula as written, pair by pair, against the oracle of whole matrices."""
    case = Case("sums", B=2, Nq=7, Nk=9, D=4, Dv=3, floats={"bias": "1,1,Nq,Nk"}, hidden_bias=True,
                ints={"kv_lengths": (9, 6)})
    t = tensors(case, "f32")
    for norm, length in (("nk", lambda b, seen: (9, 6)[b]), ("visible", lambda b, seen: len(seen)),
                         ("avg", lambda b, seen: ((9, 6)[b] + 1) / 2), ("none", lambda b, seen: 1)):
        out = RELU.oracle.forward(t, relu_attention.norm(norm, alpha=0.7, causal=True))["out"]
        for b, h, i in np.ndindex(2, 2, 7):
            bias = t["bias"][0, 0, i].astype(np.float64)
            seen = [j for j in range((9, 6)[b]) if j <= i + 2 and bias[j] > -np.inf]
            q, k, v = (t[name][b, h].astype(np.float64) for name in "qkv")
            want = sum((max(q[i] @ k[j] / 2 + bias[j], 0) * v[j] for j in seen), np.zeros(3))
            want *= length(b, seen) ** -0.7 if seen else 0
            np.testing.assert_allclose(out[b, h, i], want, atol=1e-12)


def test_activations_and_their_derivatives():
    s = np.linspace(-9, 9, 200)
    for name, (phi, slope, steepest, bend, _) in relu_attention.ACTIVATIONS.items():
        h = 1e-6
        np.testing.assert_allclose((phi(s + h) - phi(s - h)) / (2 * h), slope(s), atol=1e-8,
                                   err_msg=name)
        assert (abs(slope(s)) <= steepest(abs(s)) + 1e-12).all(), name
        if name not in ("relu", "relu6", "relu_squared"):
            assert (abs(slope(s + h) - slope(s - h)) / (2 * h) <= bend + 1e-6).all(), name
    assert [relu_attention.ACTIVATIONS[name][1](np.array([0.0, 6.0])).tolist()
            for name in ("relu", "relu6")] == [[0, 1], [0, 0]]


def test_drawn_integers():
    """The check values of the pattern specification: seeded integer draws, random, bigbird."""
    assert int(random.mix(0)) == 0xE220A8397B1DCDAF
    assert int(random.key(42, 1, 0, 0, 0)) == 0x7C15E27C53336E6F
    t = tensors(Case("draws", H=2, Nq=8, D=2), "f32")
    seen = RANDOM.oracle.visible(t, {"num_random": 3, "seed": 42})[0, :, :3]
    assert [[np.flatnonzero(row).tolist() for row in head] for head in seen] == [
        [[1, 3, 7], [1, 5, 7], [0, 3, 7]], [[0, 4, 5], [4, 5, 7], [0, 5, 7]]]
    t = tensors(Case("draws", H=2, Nq=12, D=2), "f32")
    options = {"block_size": 1, "num_random_blocks": 2, "seed": 42}
    seen = BIGBIRD.oracle.visible(t, options)[0, :, 5]
    # Blocks 0 and 11 are global, 4 to 6 the window.
    assert [np.flatnonzero(row).tolist() for row in seen] == [
        [0, 2, 4, 5, 6, 7, 11], [0, 3, 4, 5, 6, 9, 11]]


def test_offset_of_a_cached_prefill():
    """A padded key buffer with causal_offset = kv_length - q_length is the buffer cut to length."""
    case = Case("prefill", B=1, H=2, Nq=4, Nk=30, D=4, ints={
        "q_lengths": (3,), "kv_lengths": (17,), "causal_offset": (14,)})
    t = tensors(case, "f32", gradients=True)
    cut = {"q": t["q"][:, :, :3], "k": t["k"][:, :, :17], "v": t["v"][:, :, :17],
           "grad_out": t["grad_out"][:, :, :3], "grad_lse": t["grad_lse"][:, :, :3]}
    for method, options in ((SOFTMAX, {}), (LOCAL, local.token(5)), (LOCAL, local.block(4))):
        padded, short = (results_of(method, x, options | {"causal": True}) for x in (t, cut))
        for name in short:
            n = short[name].shape[2]
            np.testing.assert_allclose(padded[name][:, :, :n], short[name], atol=1e-12)


def test_linear_attention_is_a_recurrence():
    """Katharopoulos et al. 2020, eq. 16-20, token by token."""
    t = tensors(Case("recurrence", H=1, Nq=20, D=4, Dv=3), "f32")
    q, k, v = (t[name][0, 0].astype(np.float64) for name in "qkv")
    phi = [np.where(x > 0, x + 1, np.exp(x)) for x in (q, k)]
    S, z = np.zeros((4, 3)), np.zeros(4)
    result = LINEAR.oracle.forward(t, {"causal": True})
    for i in range(20):
        S, z = S + np.outer(phi[1][i], v[i]), z + phi[1][i]
        d = phi[0][i] @ z
        np.testing.assert_allclose(result["out"][0, 0, i], phi[0][i] @ S / (d + 1e-6), atol=1e-12)
        assert result["lse"][0, 0, i] == pytest.approx(np.log(d))


def test_exp_map_is_shift_free():
    """In double, small inputs need no shift: the shifted oracle must agree with e^x as written."""
    case = Case("exp", Nq=9, D=3, options={"feature_map": "exp", "causal": True})
    t = tensors(case, "f32")
    q, k, v = (t[name].astype(np.float64) for name in "qkv")
    A = np.tril(np.exp(q) @ np.exp(k).swapaxes(2, 3))
    result = LINEAR.oracle.forward(t, case.options)
    np.testing.assert_allclose(result["out"], A @ v / A.sum(axis=3)[..., None], rtol=1e-12)
    np.testing.assert_allclose(result["lse"], np.log(A.sum(axis=3)), rtol=1e-12)
