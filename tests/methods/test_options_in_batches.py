"""Requests share a batch only if their options mean the same: a batch runs with those of one of them."""

import pytest

from tests.methods import library
from tests.methods.cases import tensors
from tests.methods.harness import engine, methods, same_bits
from tests.methods.test_notes import described, other_values, planned

MOST_CASES = 6  # of a method, spread over its list


def small_cases(method):
    cases = [case for case in method.cases
             if max(case.Nq, case.keys) <= 140 and "f32" in case.dtypes]
    return cases[::max(1, len(cases) // MOST_CASES)]


def outputs(requests):
    return [result.outputs for result in engine("").execute(requests)]


def batched(requests):
    """The outputs of requests that run as one batch; None: they may not."""
    try:
        return outputs(requests)
    except library.Refused as refused:
        assert "batch: buckets must be equal" in str(refused)
        return None


@pytest.mark.parametrize("method", [pytest.param(m, id=m.id) for m in methods().values()])
def test_what_shares_a_batch_has_the_results_that_it_has_alone(method):
    """Symptom: performer's feature_eps, den_eps and stabilizer were taken from the first request of
    a batch. Each option of each case: the case's value and another one, in either order."""
    compared = 0
    for case in small_cases(method):
        made = tensors(case, "f32")
        if not planned(method, made, case.options):
            continue  # options and tensors that fit each other are those of other tests
        for option in described()[method.id]["options"]:
            others = [case.options | {option["name"]: value} for value in other_values(option)]
            for other in [options for options in others if planned(method, made, options)][:3]:
                pair = [library.Request(method.id, made, o) for o in (case.options, other)]
                together = batched(pair)
                if together is None:
                    continue
                alone = [outputs([request])[0] for request in pair]
                swapped = batched(pair[::-1])[::-1]
                for got in (together, swapped):
                    for one, both in zip(alone, got, strict=True):
                        assert same_bits(one, both) == [], (case.id, option["name"], other)
                compared += 1
    # Those of reformer all change its results.
    assert compared or method.id == "reformer", "no value shares a batch with another one"
