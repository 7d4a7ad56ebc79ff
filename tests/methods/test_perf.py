"""Mode perf under pytest: the planned workspace bounds the counted one. Seconds are printed by
`python -m tests.methods.perf`, not judged: a busy machine would fail them."""

import math
import random

import pytest

from tests.methods import harness, perf
from tests.methods.cases import Case, tensors
from tests.methods.harness import methods


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("method, options", [
    pytest.param(m, o, id=f"{m.id}-{i}") for m in methods().values() for i, o in enumerate(m.perf)])
def test_workspace_is_bounded(method, options, threads, backward):
    for tokens in (1, 64, 1000):
        row = perf.measure(method, options, tokens, backward, threads=threads, repeat=0)
        width = (len(method.gradients_of_qkv) * perf.D if backward
                 else perf.D + method.oracle.gives_lse(options))
        outputs = perf.HEADS * tokens * width * 4
        assert outputs <= row["peak_bytes"] <= row["planned_bytes"], row
        assert 0 < row["planned_seconds"] < math.inf, row


@pytest.mark.parametrize("method", methods().values(), ids=lambda m: m.id)
def test_workspace_of_lengths_is_bounded(method):
    """A plan counts equal sequences once, a run computes neighbours of equal lengths together."""
    sizes = random.Random(1)
    for options in method.batches:
        for _ in range(4):
            B, tokens = sizes.choice((2, 4, 20)), sizes.choice((4, 64, 130))
            of = [sizes.randint(0, tokens) for _ in range(sizes.choice((1, 1, 2, 8)))]
            lengths = [sizes.choice(of) for _ in range(B)]
            ints = {name: lengths for name in ("q_lengths", "kv_lengths") if name in method.tensors}
            case = harness.fit(method, Case("lengths", B=B, H=sizes.choice((1, 4)), Nq=tokens,
                                            D=sizes.choice((2, 8, 64)), options=options, ints=ints,
                                            grad_lse=False))
            for backward in (False, True):
                call = harness.request(method, case, tensors(case, "f32", gradients=backward),
                                       backward)
                for threads in (1, 2, 8):
                    reply = harness.engine("", threads, poison=False).execute([call])[0]
                    row = (case, backward, threads, reply.peak_bytes, reply.planned_bytes)
                    assert 0 < reply.peak_bytes <= reply.planned_bytes, row
