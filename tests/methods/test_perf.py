"""Mode perf under pytest: the planned workspace bounds the counted one. Seconds are printed by
`python -m tests.methods.perf`, not judged: a busy machine would fail them."""

import math

import pytest

from tests.methods import perf
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
