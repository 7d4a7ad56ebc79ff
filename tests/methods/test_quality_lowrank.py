"""How near linformer and nystromformer come to exact attention on the real sample (tests/data):
their errors fall as the rank or the landmarks grow, down to none."""

import pathlib

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.methods import library
from tests.methods.harness import engine

N = 512
DATA = pathlib.Path(__file__).resolve().parents[1] / "data" / "genesis_512.safetensors"


@pytest.fixture(scope="module", name="sample")
def real_sample():
    """Four heads of the sample in float32."""
    return {name: np.ascontiguousarray(x[:, ::3]).astype(np.float32)
            for name, x in load_file(DATA).items()}


def run(method, t, options=None, backward=False):
    return engine("").execute([library.Request(method, t, options or {}, backward)])[0].outputs


def distance(got, want):
    """Frobenius norm of the difference, relative."""
    return np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want.astype(np.float64))


def window_means(k):
    """[N,k]: column c is the mean of N / k rows; the identity at k = N."""
    return np.kron(np.eye(k), np.full((N // k, 1), k / N)).astype(np.float32)


def projected(sample, k):
    return sample | {"e": window_means(k), "f": window_means(k)}


def test_linformer_approaches_exact_attention(sample):
    exact = run("softmax", sample)["out"]
    errors = [distance(run("linformer", projected(sample, k))["out"], exact)
              for k in (8, 32, 128, 256, N)]
    # Half the rank that is needed leaves a third of the error of averages over all keys.
    assert all(b < 0.97 * a for a, b in zip(errors, errors[1:])), errors
    assert errors[-2] < 0.5 and errors[-1] < 1e-6, errors


def test_linformer_of_full_rank_is_exact_attention(sample):
    """out, lse and gradients."""
    rng = np.random.default_rng(1)
    grads = {"grad_out": rng.standard_normal(sample["q"].shape).astype(np.float32),
             "grad_lse": rng.standard_normal(sample["q"].shape[:3]).astype(np.float32)}
    exact = run("softmax", sample) | run("softmax", sample | grads, backward=True)
    t = projected(sample, N)
    ours = run("linformer", t) | run("linformer", t | grads, backward=True)
    for name, want in exact.items():
        assert distance(ours[name], want) < 2e-6, name
    assert {"e", "f"} <= ours.keys()


@pytest.mark.parametrize("projection", ["mean_pool", "max_pool"])
def test_pools_of_one_row_are_exact_attention(sample, projection):
    exact = run("softmax", sample)["out"]
    errors = [distance(run("linformer", sample, {"projection": projection, "k": k})["out"], exact)
              for k in (32, 128, N)]
    assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-6, errors


def test_nystromformer_approaches_exact_attention(sample):
    exact = run("softmax", sample)["out"]
    errors = [distance(run("nystromformer", sample, {"num_landmarks": m})["out"], exact)
              for m in (4, 8, 16, 32, 64, 128, 256)]
    assert all(b < 0.95 * a for a, b in zip(errors, errors[1:])), errors
    assert errors[-1] < 0.2, errors
    # As many landmarks as tokens: the attention itself.
    whole = run("nystromformer", sample, {"num_landmarks": N})["out"]
    assert whole.tobytes() == exact.tobytes()


def test_the_pseudo_inverse_converges(sample):
    """With one landmark less than tokens, K1 Z K3 is nearly the attention matrix, once Z is the
    pseudo-inverse."""
    exact = run("softmax", sample)["out"]
    errors = [distance(run("nystromformer", sample, {"num_landmarks": N - 1, "pinv_iterations": n}
                           )["out"], exact) for n in (4, 6, 9, 12)]
    assert all(b < a for a, b in zip(errors, errors[1:])) and errors[-1] < 0.01, errors
