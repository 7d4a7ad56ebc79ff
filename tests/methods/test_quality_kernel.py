"""How good the estimates of performer and rfa are: unbiased, with the errors that their papers
claim, converging to exact attention like m^-1/2. The kernel heads of one request are the draws: each
head has an omega of its own. All seeds are fixed, so the tests are deterministic; each bound is a
confidence interval that is stated where it is used."""

import pathlib

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.methods import library
from tests.methods.harness import engine
from tests.methods.random_features import drawn_omega

SAMPLE = pathlib.Path(__file__).resolve().parents[1] / "data/genesis_512.safetensors"
KINDS = ("positive", "hyperbolic", "trig")


def call(method, t, options):
    t = {name: np.ascontiguousarray(x, np.float32) for name, x in t.items()}
    return engine("").execute([library.Request(method, t, options, False, ())])[0].outputs


def one_pair(x, y, omega, v):
    """q, k and v of one query and one key, the same for every draw of omega [R,m,D]."""
    R = len(omega)
    return {"q": np.tile(x, (1, R, 1, 1)), "k": np.tile(y, (1, R, 1, 1)),
            "v": np.full((1, R, 1, 1), v), "omega": omega}


def performer_kernel(x, y, omega, kind):
    """Estimates of exp(x.y), one a draw."""
    options = {"kind": kind, "scale": 1.0, "feature_eps": 0.0, "renormalize": False}
    out = call("performer", one_pair(x, y, omega, 1.0), options)["out"]
    return out.ravel().astype(np.float64)


def rfa_kernel(x, y, omega, **options):
    """phi(x).phi(y), one a draw: with den_min this large the divisor is den_min."""
    most = 2.0**20
    options = {"qk_norm": False, "den_min": most} | options
    out = call("rfa", one_pair(x, y, omega, most), options)["out"]
    return out.ravel().astype(np.float64)


def pair(D, lengths, direction):
    """x and y of these lengths: both along (1,..,1), or drawn."""
    rng = np.random.default_rng(5)
    vectors = np.ones((2, D)) if direction == "ones" else rng.standard_normal((2, D))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) * np.array(lengths)[:, None]


def mse_of(kind, x, y, m):
    """Of one estimate from m independent rows (specification, performer, "Expected error")."""
    K, z = np.exp(x @ y), ((x + y) ** 2).sum()
    if kind == "trig":
        return np.exp(z) * K**-2 * (1 - np.exp(-((x - y) ** 2).sum())) ** 2 / (2 * m)
    positive = K**2 * np.expm1(z) / m
    return positive if kind == "positive" else 0.5 * (1 - np.exp(-z)) * positive


@pytest.mark.parametrize("options", [
    {}, {"orthogonal": False}, {"norms": "sqrt_d"}, {"redraw": 3},
    {"orthogonal": False, "redraw": 12}], ids=str)
def test_performer_draws_what_is_sent(options):
    """The seed and the tensor that it draws give the same bits."""
    rng = np.random.default_rng(1)
    t = {name: rng.standard_normal((2, 3, 20, 7)) for name in "qkv"}
    drawn = call("performer", t, options | {"num_features": 30, "seed": 42})
    omega = drawn_omega(30, 7, 42, 0, **options)
    sent = call("performer", t | {"omega": omega}, {"seed": 1})
    assert all(drawn[name].tobytes() == sent[name].tobytes() for name in ("out", "lse"))


@pytest.mark.parametrize("orthogonal", [False, True])
def test_rfa_draws_what_is_sent(orthogonal):
    rng = np.random.default_rng(1)
    t = {name: rng.standard_normal((2, 3, 20, 7)) for name in "qkv"}
    drawn = call("rfa", t, {"num_features": 30, "seed": 42, "orthogonal": orthogonal})
    sent = call("rfa", t | {"omega": drawn_omega(30, 7, 42, 3, orthogonal)}, {"seed": 1})
    assert drawn["out"].tobytes() == sent["out"].tobytes()


def test_the_specified_rows():
    """Specification, performer: seed 42, m = 6, D = 4."""
    omega = drawn_omega(6, 4, 42)
    assert omega[0] == pytest.approx([-1.43557606, 1.10759028, -2.08318904, 0.54948125], abs=1e-7)
    assert omega[5] == pytest.approx([-0.91187414, -0.05909804, -0.35146846, -0.12176166],
                                     abs=1e-7)


@pytest.mark.parametrize("direction", ["ones", "drawn"])
@pytest.mark.parametrize("orthogonal", [False, True], ids=["iid", "orthogonal"])
@pytest.mark.parametrize("kind", KINDS)
def test_performer_is_unbiased(kind, orthogonal, direction):
    """The mean of 4000 estimates is within 5 standard errors of exp(x.y); a QR without a positive
    diagonal of R is 50 off."""
    R, m, D = 4000, 6, 4
    x, y = pair(D, (0.8, 0.7), direction)
    estimates = performer_kernel(x, y, drawn_omega(m, D, 3, R, orthogonal), kind)
    allowed = 5 * np.sqrt(mse_of(kind, x, y, m) / R) + 1e-6
    assert abs(estimates.mean() - np.exp(x @ y)) < allowed


@pytest.mark.parametrize("kind", KINDS)
def test_performer_error_of_independent_rows(kind):
    """The mean square of 20000 errors is within 10% of the formula."""
    R, m, D = 20000, 32, 4
    x, y = pair(D, (0.9, 0.8), "drawn")
    estimates = performer_kernel(x, y, drawn_omega(m, D, 4, R, False), kind)
    mse = ((estimates - np.exp(x @ y)) ** 2).mean()
    assert mse == pytest.approx(mse_of(kind, x, y, m), rel=0.1)


def test_performer_error_of_orthogonal_rows():
    """At most the bound of theorem 2, and below the error of independent rows by more than three
    standard errors of 40000 squares."""
    R, m, D = 40000, 4, 4
    x, y = pair(D, (0.4, 0.4), "ones")
    K = np.exp(x @ y)
    errors = (performer_kernel(x, y, drawn_omega(m, D, 6, R), "positive") - K) ** 2
    deviation = 3 * errors.std() / np.sqrt(R)
    iid = mse_of("positive", x, y, m)
    gain = 2 * (m - 1) / (m * (D + 2)) * (K - np.exp(-(x @ x + y @ y) / 2)) ** 2
    assert errors.mean() < iid - gain + deviation
    assert errors.mean() + deviation < iid


@pytest.mark.parametrize("orthogonal", [False, True], ids=["iid", "orthogonal"])
def test_rfa_trig_is_unbiased(orthogonal):
    """Of exp(-|s (x - y)|^2 / 2), s = sigma / tau: within 5 standard errors, and independent rows
    have the mean square error (1 - K^2)^2 / 2 m within 10%."""
    R, m, D, tau = 20000, 8, 4, 1.3
    x, y = pair(D, (0.8, 0.7), "drawn")
    sent = {"omega": drawn_omega(m, D, 7, R, orthogonal)}
    estimates = rfa_kernel(x, y, sent["omega"], tau=tau)
    K = np.exp(-((x - y) ** 2).sum() / tau**2 / 2)
    mse = (1 - K**2) ** 2 / (2 * m)
    assert abs(estimates.mean() - K) < 5 * np.sqrt(mse / R) + 1e-6
    if not orthogonal:
        assert ((estimates - K) ** 2).mean() == pytest.approx(mse, rel=0.1)


def test_rfa_arccos_is_unbiased():
    """Of |x| |y| / 2 pi (sin t + (pi - t) cos t): within 5 standard errors of the sample."""
    R, m, D = 20000, 8, 4
    x, y = pair(D, (0.8, 0.7), "drawn")
    estimates = rfa_kernel(x, y, drawn_omega(m, D, 8, R, False), feature="arccos")
    t = np.arccos(x @ y / (0.8 * 0.7))
    expected = 0.8 * 0.7 / (2 * np.pi) * (np.sin(t) + (np.pi - t) * np.cos(t))
    assert abs(estimates.mean() - expected) < 5 * estimates.std() / np.sqrt(R)


def softmax(scores):
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def matrix_errors(method, q, k, P, omega, options):
    """||P^ - P|| / ||P||, one a draw of omega; values of one hot rows show P^."""
    R, L = len(omega), len(k)
    t = {"q": np.broadcast_to(q, (1, R, *q.shape)), "k": np.broadcast_to(k, (1, R, *k.shape)),
         "v": np.broadcast_to(np.eye(L), (1, R, L, L)), "omega": omega}
    estimate = call(method, t, options)["out"][0].astype(np.float64)
    return np.linalg.norm(estimate - P, axis=(1, 2)) / np.linalg.norm(P)


def slope(ms, errors):
    return np.polyfit(np.log(ms), np.log(errors), 1)[0]


# Median errors for entries N(0, 0.5^2), L = 256, D = 16, at F = 64, 256 and 1024 (specification).
MEDIANS = {
    ("positive", False): (0.30, 0.16, 0.091), ("positive", True): (0.26, 0.15, 0.082),
    ("hyperbolic", False): (0.28, 0.16, 0.091), ("hyperbolic", True): (0.22, 0.13, 0.074),
    ("trig", False): (0.29, 0.14, 0.068), ("trig", True): (0.17, 0.08, 0.043),
}


@pytest.mark.parametrize("kind, orthogonal", MEDIANS, ids=str)
def test_performer_converges(kind, orthogonal):
    """The median of 20 draws, on data of their own in groups of 4: within 25% of the specified
    one, the spread that it states; as m^(-1/2 +- 0.1)."""
    L, D, F = 256, 16, np.array([64, 256, 1024])
    rng = np.random.default_rng(11)
    errors = np.zeros((3, 20))
    for group in range(5):
        q, k = 0.5 * rng.standard_normal((2, L, D))
        P = softmax(q @ k.T / np.sqrt(D))
        for i, m in enumerate(F if kind == "positive" else F // 2):
            omega = drawn_omega(m, D, 100 + group, 4, orthogonal)
            errors[i, 4 * group:4 * group + 4] = matrix_errors(
                "performer", q, k, P, omega, {"kind": kind, "feature_eps": 0.0})
    medians = np.median(errors, axis=1)
    assert medians == pytest.approx(MEDIANS[kind, orthogonal], rel=0.25)
    assert slope(F, medians) == pytest.approx(-0.5, abs=0.1)


def real_rows(n=128):
    """Queries and keys of head 3 of the sample."""
    t = load_file(SAMPLE)
    return (t[name][0, 3, :n].astype(np.float64) for name in "qk")


@pytest.mark.parametrize("kind", KINDS)
def test_performer_converges_on_the_real_sample(kind):
    """At a sixteenth of the usual scale: the relative variance of a kernel value is exp(|x + y|^2) / m,
    which at the usual scale of these rows (|q| near 8) no number of features makes small."""
    q, k = real_rows()
    ms, scale = np.array([64, 256, 1024]), 1 / 16 / 32**0.5
    P = softmax(q @ k.T * scale)
    medians = [np.median(matrix_errors("performer", q, k, P, drawn_omega(m, 32, 21, 24), {
        "kind": kind, "feature_eps": 0.0, "scale": scale})) for m in ms]
    assert slope(ms, medians) == pytest.approx(-0.5, abs=0.1)
    assert medians[-1] < 0.1


@pytest.mark.parametrize("data", ["drawn", "real"])
@pytest.mark.parametrize("orthogonal", [False, True], ids=["iid", "orthogonal"])
def test_rfa_converges(orthogonal, data):
    """To softmax of q and k divided by their norms."""
    q, k = real_rows() if data == "real" else np.random.default_rng(13).standard_normal((2, 128, 32))
    ms = np.array([64, 256, 1024])
    qh, kh = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (q, k))
    P = softmax(qh @ kh.T)
    medians = [np.median(matrix_errors("rfa", q, k, P, drawn_omega(m, 32, 22, 24, orthogonal), {}))
               for m in ms]
    assert slope(ms, medians) == pytest.approx(-0.5, abs=0.1)
    assert medians[-1] < 0.1
