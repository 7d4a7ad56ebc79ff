"""The oracles against the specs' figures, finite differences, and facts that hold by definition.
Needs no library."""

import numpy as np
import pytest

from tests.methods import linear_attention, local, pattern_core, softmax
from tests.methods.cases import Case, tensors
from tests.methods.harness import method_params, methods


def results_of(method, t, options):
    """Forward and gradients under one naming, as golden figures read them."""
    grads = method.backward(t, options)
    return method.forward(t, options) | {f"d{name}": grads[name] for name in "qkv"}


@pytest.mark.parametrize("method, golden", method_params("GOLDEN"))
def test_golden(method, golden):
    figures = golden.figures(results_of(method, golden.tensors, golden.options))
    for name, value in golden.expected.items():
        assert figures[name] == pytest.approx(value, abs=6e-10), name
    if golden.pairs is not None:
        assert method.pairs(golden.tensors, golden.options) == golden.pairs


@pytest.mark.parametrize(
    "method, Nq, Nk, options, pairs",
    [pytest.param(m, *row[1:], id=f"{m.ID}-{row[0]}") for m in methods().values()
     for row in m.VISIBLE])
def test_visible_pairs(method, Nq, Nk, options, pairs):
    assert method.pairs(tensors(Case("pairs", H=1, Nq=Nq, Nk=Nk, D=2), "f32"), options) == pairs


def small(case):
    """The same case at a size where every derivative can be taken numerically."""
    n = {0: 0, 1: 1}
    Nq, Nk = n.get(case.Nq, 6), n.get(case.keys, 5 if case.keys < case.Nq else 7)
    Nk = Nq if case.Nq == case.keys else Nk
    limit = {"q_lengths": Nq, "kv_lengths": Nk}
    ints = {
        name: tuple(min(x, limit[name]) if name in limit else max(-4, min(x, 4)) for x in values)
        for name, values in case.ints.items()
    }
    return Case(f"small-{case.id}", B=case.B, H=case.H, Hkv=case.Hkv, Nq=Nq, Nk=Nk,
                D=min(case.D, 3), Dv=2, options=case.options, ints=ints, shift=case.shift,
                spread=case.spread, grad_lse=case.grad_lse, floats=case.floats,
                hidden_bias=case.hidden_bias, hidden_channels=case.hidden_channels,
                segments=case.segments, packed=case.packed)


def loss(method, t, options):
    """A scalar whose gradients are those of backward: sum of grad . output over finite outputs."""
    result = method.forward(t, options)
    lse = result.get("lse", np.zeros(result["out"].shape[:3]))  # some have none
    alive = np.isfinite(lse)
    total = np.where(alive[..., None], np.nan_to_num(t["grad_out"]) * result["out"], 0).sum()
    if "grad_lse" in t:
        total += np.where(alive, np.nan_to_num(t["grad_lse"]), 0).ravel() @ np.where(
            alive, lse, 0).ravel()
    return total


@pytest.mark.parametrize("method, case", [
    pytest.param(m, c, id=f"{m.ID}-{c.id}") for m in methods().values() for c in m.CASES
    if c.backward and c.keys and c.Nq])
def test_finite_differences(method, case):
    """Along random directions, one per tensor and batch row; errors of h^2."""
    case = small(case)
    t = {name: x.astype(np.float64) if x.dtype.kind == "f" else x
         for name, x in tensors(case, "f32", gradients=True).items()}
    with np.errstate(all="ignore"):
        grads = method.backward(t, case.options)
        rng = np.random.default_rng(1)
        for name in (n for n in method.DIFFERENTIABLE if n in t):
            # One direction a batch row, or one for a tensor that rows share.
            for b in range(case.B) if name in "qkv" else [slice(None)]:
                direction = np.zeros_like(t[name])
                direction[b] = rng.standard_normal(direction[b].shape)
                # A kink of relu or abs between the two points would spoil the difference.
                h = 1e-6 * max(1.0, abs(case.shift) / 10)
                up, down = (loss(method, t | {name: t[name] + sign * h * direction}, case.options)
                            for sign in (1, -1))
                slope = (grads[name] * direction).sum()
                scale = max(abs(slope), abs(grads[name][b]).max(initial=0), 1e-3)
                assert (up - down) / (2 * h) == pytest.approx(slope, abs=2e-6 * scale), (name, b)


def test_padding_gets_no_gradient():
    for method in methods().values():
        for case in method.CASES:
            if case.ints.keys() & {"q_lengths", "kv_lengths"}:
                t = tensors(case, "f32", gradients=True)
                grads = method.backward(t, case.options)
                for name, lengths in (("q", "q_lengths"), ("k", "kv_lengths"), ("v", "kv_lengths")):
                    for b, n in enumerate(case.ints.get(lengths, ())):
                        assert not grads[name][b, :, n:].any(), (method.ID, case.id, name, b)


PARAMETERS = {"bias": "B,1,Nq,Nk", "alibi_slopes": "H", "sink_logits": "H"}


def test_a_sink_scales_the_output():
    """out_with_sink = out sigmoid(lse - z), lse_with_sink = logaddexp(lse, z); rows that see nothing
    have lse = z, rows beyond q_lengths -inf."""
    case = Case("sink", B=2, H=3, Nq=9, Nk=6, D=4, options={"causal": True},
                floats={"sink_logits": "H"}, ints={"q_lengths": (9, 8)})
    t = tensors(case, "f32")
    sunk = softmax.forward(t, case.options)
    z = t.pop("sink_logits").astype(np.float64)[:, None]
    bare = softmax.forward(t, case.options)
    lse = np.logaddexp(bare["lse"], z)
    lse[1, :, 8:] = -np.inf
    np.testing.assert_allclose(sunk["lse"], lse, rtol=1e-12)
    assert (sunk["lse"][0, :, 0] == z[:, 0]).all()
    scale = 1 / (1 + np.exp(np.minimum(z - bare["lse"], 700)))
    np.testing.assert_allclose(sunk["out"], bare["out"] * scale[..., None], atol=1e-12)


def test_packed_sequences_are_problems_of_their_own():
    case = Case("packed", H=4, Hkv=2, Nq=23, Nk=30, D=4, Dv=3, packed=5, floats=PARAMETERS)
    t = tensors(case, "f32", gradients=True)
    for method, options in ((softmax, {"causal": True, "logit_softcap": 2.0}),
                            (local, local.token(5)), (local, local.block(4))):
        packed = method.forward(t, options) | method.backward(t, options)
        sums = {name: 0 for name in ("alibi_slopes", "sink_logits")}
        for s in range(5):
            i, j = (slice(*t[f"cu_seqlens_{x}"][s:s + 2]) for x in "qk")
            alone = {"q": t["q"][:, :, i], "k": t["k"][:, :, j], "v": t["v"][:, :, j],
                     "grad_out": t["grad_out"][:, :, i], "grad_lse": t["grad_lse"][:, :, i],
                     "bias": t["bias"][:, :, i, j], "alibi_slopes": t["alibi_slopes"],
                     "sink_logits": t["sink_logits"]}
            want = method.forward(alone, options) | method.backward(alone, options)
            for name, at in (("out", np.s_[:, :, i]), ("lse", np.s_[:, :, i]), ("q", np.s_[:, :, i]),
                             ("k", np.s_[:, :, j]), ("bias", np.s_[:, :, i, j])):
                np.testing.assert_array_equal(packed[name][at], want[name])
            sums = {name: sums[name] + want[name] for name in sums}
        for name, x in sums.items():
            np.testing.assert_allclose(packed[name], x, atol=1e-12)


def test_segments_hide_what_packing_leaves_out():
    """Without positions in the formula, runs of ids are packed sequences."""
    t = tensors(Case("runs", H=2, Nq=21, D=4, packed=4), "f32", gradients=True)
    ends = t.pop("cu_seqlens_q"), t.pop("cu_seqlens_k")
    ids = np.searchsorted(ends[0][1:], np.arange(21), side="right").astype(np.int32)[None]
    by_id = results_of(softmax, t | {"segment_ids_q": ids, "segment_ids_kv": ids}, {})
    packed = results_of(softmax, t | {"cu_seqlens_q": ends[0], "cu_seqlens_k": ends[1]}, {})
    for name in packed:
        np.testing.assert_allclose(by_id[name], packed[name], atol=1e-12)


def test_standard_slopes():
    """Press et al. 2022, section 3; the figures of patterns.md."""
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
                           for m, o in ((local, window), (softmax, {})))
            for name in ours:
                np.testing.assert_allclose(ours[name], exact[name], atol=1e-12)


def test_offset_of_a_cached_prefill():
    """A padded key buffer with causal_offset = kv_length - q_length is the buffer cut to length."""
    case = Case("prefill", B=1, H=2, Nq=4, Nk=30, D=4, ints={
        "q_lengths": (3,), "kv_lengths": (17,), "causal_offset": (14,)})
    t = tensors(case, "f32", gradients=True)
    cut = {"q": t["q"][:, :, :3], "k": t["k"][:, :, :17], "v": t["v"][:, :, :17],
           "grad_out": t["grad_out"][:, :, :3], "grad_lse": t["grad_lse"][:, :, :3]}
    for method, options in ((softmax, {}), (local, local.token(5)), (local, local.block(4))):
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
    result = linear_attention.forward(t, {"causal": True})
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
    result = linear_attention.forward(t, case.options)
    np.testing.assert_allclose(result["out"], A @ v / A.sum(axis=3)[..., None], rtol=1e-12)
    np.testing.assert_allclose(result["lse"], np.log(A.sum(axis=3)), rtol=1e-12)
