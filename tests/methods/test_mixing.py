"""Methods that mix the rows of v: oracles against formulas of NumPy, drawn tables."""

import numpy as np
import pytest

from tests.methods import drawn
from tests.methods.cases import Case, tensors
from tests.methods.harness import engine, methods, request
from tests.methods.mixing_core import lecun_normals, normals


def values(case):
    return tensors(case, "f32")["v"].astype(np.float64)


def test_fnet_is_the_real_part_of_fft2():
    case = Case("fft2", B=2, H=3, Nq=10, D=4)
    v = values(case)
    oracle = methods()["fnet"].oracle
    rows = v.swapaxes(1, 2).reshape(2, 10, 12)
    want = np.fft.fft2(rows).real.reshape(2, 10, 3, 4).swapaxes(1, 2)
    np.testing.assert_allclose(oracle.forward({"v": v}, {})["out"], want, atol=1e-11)
    np.testing.assert_allclose(oracle.forward({"v": v}, {"hidden_scope": "per_head"})["out"],
                               np.fft.fft2(v).real, atol=1e-11)


def test_linear_mixing_is_the_einsum_of_its_paper():
    rng = np.random.default_rng(1)
    v, seq, hidden = values(Case("einsum", B=2, H=1, Nq=10, D=4)), rng.standard_normal(
        (10, 10)), rng.standard_normal((4, 4))
    out = methods()["linear_mixing"].oracle.forward(
        {"v": v, "seq_kernel": seq, "hidden_kernel": hidden}, {})["out"]
    want = np.einsum("bij,jk,ni->bnk", v[:, 0], hidden, seq)
    np.testing.assert_allclose(out[:, 0], want, atol=1e-12)


def test_drawn_numbers():
    """The check values of the specification: seed 42, stream "omega"."""
    np.testing.assert_allclose(
        normals(42, "omega", (4,), 1.0),
        [-1.196759363435, -1.745841146282, 0.453554796295, 0.584877430203], rtol=1e-7)
    x = lecun_normals(7, "seq_kernel", (200, 200), 200)
    assert x.var() * 200 == pytest.approx(1, abs=0.02)
    assert abs(x).max() <= 2 / 0.87962566103423978 / 200**0.5 * (1 + 1e-7)


N, C = 20, 8
TABLES = {
    "linear_mixing": {"seq_kernel": normals(5, "seq_kernel", (N, N), 0.02),
                      "hidden_kernel": normals(5, "hidden_kernel", (C, C), 0.02)},
    "random_mixing": {"seq_kernel": lecun_normals(5, "seq_kernel", (N, N), N),
                      "hidden_kernel": lecun_normals(5, "hidden_kernel", (C, C), C)},
    "gmlp_sgu": {"weight": drawn.uniforms(5, "weight", (N, N), 1e-3 / N), "bias": np.ones(N)},
    "mlp_mixer": {"w1": lecun_normals(5, "w1", (N, 9), N), "w2": lecun_normals(5, "w2", (9, N), 9),
                  "b1": np.zeros(9), "b2": np.zeros(N), "norm_weight": np.ones(C),
                  "norm_bias": np.zeros(C)},
}


@pytest.mark.parametrize("id", TABLES)
def test_sent_tables_give_what_their_seed_gives(id):
    method = methods()[id]
    options = {"seed": 5} | ({"tokens_dim": 9} if id == "mlp_mixer" else {})
    case = Case("draws", B=2, H=2, Nq=N, D=4, options=options)
    t = tensors(case, "f32")
    sent = t | {name: x.astype(np.float32) for name, x in TABLES[id].items()}
    outs = [engine("").execute([request(method, case, x)])[0].outputs["out"] for x in (t, sent)]
    np.testing.assert_array_equal(*outs)
