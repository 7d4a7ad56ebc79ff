"""bigbird: facts that hold by definition."""

import numpy as np
import pytest

from tests.methods.bigbird import MULTISET
from tests.methods.cases import Case, tensors
from tests.methods.harness import engine, methods, request, same_bits

METHOD = methods()["bigbird"]
OPTIONS = {"block_size": 16, "window_blocks": 1, "global_left": 0, "global_right": 0, **MULTISET}


def slots(step):
    """Two blocks of each row of blocks: the third after it, and one `step` further."""
    def make(rng, case):
        rows = np.arange(case.Nq // 16)
        after = np.stack([rows + 3, rows + 3 + step], axis=1)
        return (after % len(rows))[None].astype(np.int32)
    return {"rand_blocks": make}


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_list_in_which_another_repeats_blocks(dtype, backward):
    """A block that is named twice is a constant of its scores, as no other request has one."""
    calls = []
    for step in (4, 0, 5):
        case = Case(f"step-{step}", B=1, H=1, Nq=320, D=64, options=OPTIONS, made=slots(step))
        calls.append(request(METHOD, case, tensors(case, dtype, gradients=backward), backward))
    together = engine("").execute(calls)
    for i, call in enumerate(calls):
        assert not same_bits(engine("").execute([call])[0].outputs, together[i].outputs), i
