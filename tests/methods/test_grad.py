"""Mode grad: the library's gradients against the oracle's analytic ones (which test_oracle.py holds
against finite differences in double), on every ISA and dtype."""

import numpy as np
import pytest

from tests.methods import harness
from tests.methods.cases import LAID_OUT, Case, tensors
from tests.methods.harness import (case_params, engine, fit, methods, on_every_isa, request,
                                   same_bits)
from tests.methods.tolerance import check_bound, check_ratio


@on_every_isa
@pytest.mark.parametrize("method, case, dtype", case_params(lambda case: case.backward))
def test_gradients(method, case, dtype, isa):
    want = harness.expected(method, case, dtype, True)
    reply = harness.run(isa, method, case, want.tensors, backward=True)
    constants = method.constants(case.options)
    assert list(reply.outputs) == [n for n in method.differentiable
                                   if n in want.tensors and n not in constants]
    assert reply.bnhd == {n for n in reply.outputs if n in LAID_OUT and case.layout == "BNHD"}
    assert reply.pairs == method.oracle.pairs(want.tensors, case.options)
    assert reply.peak_bytes <= reply.planned_bytes
    unit = harness.weight_unit(isa, method, case, dtype)
    # Scores are in base 2 there, so that even a row of one key does not get its lse back.
    of_lse = int(engine(isa).device.startswith("cuda"))
    for name, got in reply.outputs.items():
        assert got.dtype == want.tensors[name].dtype
        check_bound(name, got, want.want[name], want.sums[name], want.amplification,
                    want.terms[name], dtype, unit)
        if case.ratio:
            check_ratio(name, got, want.want[name], want.plain[name], want.sums[name], of_lse)


@on_every_isa
@pytest.mark.parametrize("method", [
    pytest.param(m, id=m.id) for m in methods().values() if m.oracle.gives_lse(m.batches[0])])
def test_each_incoming_gradient_alone(method, isa):
    """grad_out alone and grad_lse alone: an absent one is zero, bit for bit."""
    case = fit(method, Case("alone", B=2, H=4, Hkv=2, Nq=65, options=method.batches[0]))
    both = tensors(case, "f32", gradients=True)
    for absent in ("grad_out", "grad_lse"):
        zero = both | {absent: np.zeros_like(both[absent])}
        without = {name: x for name, x in both.items() if name != absent}
        replies = [harness.run(isa, method, case, t, backward=True) for t in (zero, without)]
        assert not same_bits(replies[0].outputs, replies[1].outputs), absent
        want = method.oracle.backward(without, case.options)
        for name, got in replies[1].outputs.items():
            np.testing.assert_allclose(got, want[name], atol=2e-5)


@pytest.mark.parametrize("method", methods().values(), ids=methods())
def test_gradient_agrees_with_forward(method):
    """The library against itself: a small step along the gradient changes the output by the amount
    that the gradient predicts. Independent of every oracle; float32 limits it to three digits."""
    case = fit(method, Case("step", H=2, Nq=20, D=4, options=method.batches[0]))
    t = tensors(case, "f32", gradients=True)
    grads = engine("").execute([request(method, case, t, backward=True)])[0].outputs
    inputs = {name: x for name, x in t.items() if not name.startswith("grad_")}
    for name in (n for n in method.gradients_of_qkv if n in t):
        step = grads[name] / np.linalg.norm(grads[name]) * 1e-2
        ends = []
        for sign in (1, -1):
            moved = inputs | {name: inputs[name] + sign * step}
            got = engine("").execute([request(method, case, moved)])[0].outputs
            ends.append(sum((t[f"grad_{o}"] * got[o].astype(np.float64)).sum()
                            for o in ("out", "lse") if o in got))
        rise = (grads[name].astype(np.float64) * step).sum()
        assert (ends[0] - ends[1]) / 2 == pytest.approx(rise, rel=5e-3), name
