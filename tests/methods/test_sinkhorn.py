"""sinkhorn: facts that hold by definition, of the oracle and of the library."""

import numpy as np
import pytest

from tests.methods.cases import Case, tensors
from tests.methods.harness import engine, methods, on_every_isa, request, run
from tests.methods.traced import Tape

METHOD = methods()["sinkhorn"]
CAUSAL = [{"block_size": 8, "causal": True},
          {"block_size": 8, "causal": True, "sort": "sinkhorn"}]


def test_weights_of_the_specification():
    """Row 0 of S of head 0; columns sum to 1."""
    golden = next(g for g in METHOD.golden if g.id == "default")
    tape = Tape()
    t = {name: tape.num(x) for name, x in golden.tensors.items()}
    R = METHOD.oracle.scores(tape, t, t["k"], golden.options)
    S = METHOD.oracle.sinkhorn(tape, R, t, golden.options).x
    np.testing.assert_allclose(S[0, 0, 0], [0.012843, 0.999960, 0, 0.110257], atol=6e-7)
    np.testing.assert_allclose(S.sum(axis=2), 1, rtol=1e-12)


def test_potentials_are_the_iterations():
    """The oracle's sums are those of another form of the same numbers."""
    case = Case("potentials", Nq=65, options={"block_size": 8, "gumbel": True})
    t = tensors(case, "f32")
    plain = METHOD.oracle.forward(t, case.options)
    t |= METHOD.oracle.drawn(t, case.options)
    tape = Tape(rounding=1.0)
    traced = METHOD.oracle._sequence(tape, t, case.options, 0)[0]
    for name in ("out", "lse"):
        np.testing.assert_allclose(traced[name].x, plain[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", CAUSAL, ids=["topk", "sinkhorn"])
def test_later_tokens_change_nothing_before_them(options):
    """Bit for bit, whatever the later tokens are."""
    case = Case("causal", B=1, H=2, Nq=40, D=8, options=options)
    t = tensors(case, "f32")
    first = engine("").execute([request(METHOD, case, t)])[0].outputs
    for at in (0, 7, 8, 9, 31, 39):
        moved = {name: x.copy() for name, x in t.items()}
        for name in "qkv":
            moved[name][:, :, at] += 3
        again = engine("").execute([request(METHOD, case, moved)])[0].outputs
        for name in ("out", "lse"):
            assert first[name][:, :, :at].tobytes() == again[name][:, :, :at].tobytes(), (name, at)
            assert (first[name][:, :, at] != again[name][:, :, at]).any()


def test_a_sequence_is_the_same_cut_to_its_lengths():
    lengths = np.int32([5, 16, 23])
    for options in METHOD.batches:
        case = Case("cut", B=3, H=4, Hkv=2, Nq=23, D=8, options=options | {"gumbel": False})
        t = tensors(case, "f32") | {"kv_lengths": lengths}
        whole = engine("").execute([request(METHOD, case, t)])[0].outputs
        for b, n in enumerate(lengths):
            alone = {name: np.ascontiguousarray(t[name][b:b + 1, :, :n]) for name in "qkv"}
            if options.get("sort_net"):
                alone["sort_w"] = METHOD.oracle.drawn(t, options)["sort_w"][
                    :, :, :-(-n // 16)].astype(np.float32)
            cut = engine("").execute([request(METHOD, case, alone)])[0].outputs
            for name in ("out", "lse"):
                np.testing.assert_allclose(whole[name][b, :, :n], cut[name][0], rtol=1e-5,
                                           atol=1e-6)
            assert not whole["out"][b, :, n:].any()
            assert np.isneginf(whole["lse"][b, :, n:]).all()


def test_small_requests_are_planned_at_once():
    """Blocks and picks without end: the plan states their memory in no time."""
    x = np.ones((1, 1, 4, 1), np.float32)
    wide = {"block_size": 2**30}
    for options, megabytes in ((wide, 1), (wide | {"causal": True}, 1), ({"sortcut": 65536}, 1),
                               (wide | {"causal": True, "n_top": 65536}, 40)):
        device = engine("", 1)
        plan = device.plan(request(METHOD, Case("small", options=options),
                                   {"q": x, "k": x, "v": x}))
        assert plan.planned_bytes <= megabytes << 20, options
        # Of an emulated device: a second of one whose tensor cores compute 1.6 * 10^12 FLOP/s.
        assert plan.planned_seconds < (1 if device.device == "cpu" else 1.6e12 / device.peak_flops)


def spread(rng, shape, size):
    """Two channels of rows for queries of blocks, [B,H,blocks,4]: their products with `few` are
    scores of about `size` that float32 holds, with ties, gaps of order one up to a million, and gaps
    beyond any weight."""
    x = np.zeros((*shape, 4))
    x[..., 0] = rng.choice([1, 1, -1, 0], shape) * size
    x[..., 1] = rng.integers(0, 4, shape) * max(0.25, size / 2**22)
    return x


def few(rng, shape):
    x = np.zeros((*shape, 4))
    x[..., 0] = rng.choice([1, 1, 1, 0, -1], shape)
    x[..., 1] = rng.integers(-2, 3, shape)
    return x


def with_running_means(means):
    """Rows whose running means are these."""
    sums = means * np.arange(1, means.shape[2] + 1)[:, None]
    return np.diff(sums, axis=2, prepend=0)


WEIGHED = {
    "topk-1": {"sort": "topk"},
    "topk-2": {"sort": "topk", "n_top": 2},
    "topk-5": {"sort": "topk", "n_top": 5},
    "all": {"sort": "topk", "n_top": 50},
    "cut": {"sort": "topk", "sortcut": 2},
    "causal-1": {"causal": True, "n_top": 1},
    "causal": {"causal": True},
    "causal-3": {"causal": True, "n_top": 3},
    "causal-iterations": {"causal": True, "sort": "sinkhorn", "temperature": 0.1},
}


@on_every_isa
@pytest.mark.parametrize("power", [0, 7, 13, 20, 40, 100])
@pytest.mark.parametrize("options", WEIGHED.values(), ids=WEIGHED)
def test_weights_of_blocks_at_any_size_of_their_scores(options, power, isa):
    """Symptom: dq was 1.3e-2 of its largest off at scores of 1e4, 61 times its largest at 1e6, NaN
    at 1e30, and two equal scores of 1e8 had weights of 1 and 1: a score less the rounded logarithm
    of a sum was the logarithm of a weight. Of causal iterations at a temperature of 0.1, dk was 0.1
    of its largest off at 1e30. The attention's own scores stay of order one."""
    rng = np.random.default_rng(power)
    causal = options.get("causal", False)
    # Causal, running means of three rows are exact in float32.
    B, H, b, n = (32, 4, 1, 3) if causal else (6, 4, 2, 8)
    size = 2.0**power
    case = Case("weighed", B=B, H=H, Hkv=2, Nq=b * n, D=4,
                options=options | {"block_size": b, "scale": 1 / size})
    t = tensors(case, "f32", gradients=True)
    q, k = spread(rng, (B, H, n), size), few(rng, (B, 2, n))
    if options.get("sortcut"):  # one mean of all queries
        q[:] = q[:, :, :1]
    if causal:
        q, k = with_running_means(q), with_running_means(k)
    t["q"], t["k"] = (np.repeat(x, b, axis=2).astype(np.float32) for x in (q, k))
    forward = {name: x for name, x in t.items() if not name.startswith("grad_")}
    want = METHOD.oracle.forward(forward, case.options) | {
        f"d{n}": x for n, x in METHOD.oracle.backward(t, case.options).items()}
    got = run(isa, METHOD, case, forward).outputs | {
        f"d{n}": x for n, x in run(isa, METHOD, case, t, backward=True).outputs.items()}
    for name, x in want.items():
        assert np.isfinite(got[name]).all(), name
        np.testing.assert_allclose(got[name], x, rtol=1e-5, atol=1e-5 * max(1, abs(x).max()),
                                   err_msg=name)
