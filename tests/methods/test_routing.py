"""routing: what only its shared rows have."""

import numpy as np
import pytest

from tests.methods.cases import Case, tensors
from tests.methods.harness import methods, on_every_isa, request
from tests.methods.test_check import check_batch

METHOD = methods()["routing"]
LENGTHS = {"q_lengths": (9, 0, 40, 33), "kv_lengths": (40, 7, 16, 0)}


@on_every_isa
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("options, floats", [
    ({}, {}), ({"causal": True, "aux_loss": True}, {}), ({"self_mask": True}, {}),
    ({"causal": True}, {"bias": "B,H,Nq,Nk"})], ids=["plain", "causal", "self", "bias"])
def test_batches_of_queries_that_are_no_keys(options, floats, backward, isa):
    """q_lengths above kv_lengths: the same bits in a batch, and plans bound it."""
    calls = []
    for N in (40, 65, 131):
        case = Case(f"unseen-{N}", B=4, H=4, Hkv=2, Nq=N, options=options | {"n_clusters": 4},
                    ints=LENGTHS, floats=floats, absent=("k",), grad_lse=False)
        calls.append(request(METHOD, case, tensors(case, "f32", gradients=backward), backward))
    check_batch(isa, calls)


def test_rows_that_are_no_keys_are_not_read_as_such():
    """Queries from kv_lengths on move no other row, whatever v holds there."""
    case = Case("unseen", B=1, Nq=40, D=8, options={"n_clusters": 1, "window": 40},
                ints={"q_lengths": (40,), "kv_lengths": (25,)}, absent=("k",))
    t = tensors(case, "f32")
    first = METHOD.oracle.forward(t, case.options)["out"]
    alone = {name: t[name][:, :, :25] for name in "qv"}
    np.testing.assert_allclose(first[:, :, :25],
                               METHOD.oracle.forward(alone, case.options)["out"], atol=1e-12)
    assert (abs(first[:, :, 25:]).sum(axis=3) > 0).all()
