"""Estimate: seconds within 2x of what is then measured, workspace an upper bound of it."""

import os
import pathlib

import ml_dtypes
import numpy as np
import pytest

from helpers import OPTIONS, ORACLES, noise

# Large enough that a forward takes 5 ms and more.
SHAPES = {
    "softmax": [(1, 4, 1024, 64), (2, 2, 1500, 128)],
    "local": [(1, 8, 4096, 64), (1, 4, 6000, 128)],
    "linear_attention": [(1, 8, 8192, 64), (1, 4, 8000, 128)],
}
WIDE = {"softmax": {}, "local": {"window_left": 128}, "linear_attention": {}}
CASES = [
    (method, shape, causal, backward)
    for method, shapes in SHAPES.items()
    for shape, causal in zip(shapes, (False, True), strict=True)
    for backward in (False, True)
]


def ask(client, tensors, method, options, backward):
    if backward:
        return client.backward(*tensors, tensors[0], method=method, options=options)
    return client.forward(*tensors, method=method, options=options)


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def quiet_seconds(pid, call):
    """Compute seconds of a request on an idle machine, measured on one that may not be.

    The median of what the server reports, or its processor time spread over its threads if that is
    less: time that other processes took is in the first only. Half a second of calls, so that the
    clock of processor time (10 ms) does not matter.
    """
    walls, start = [], cpu_seconds(pid)
    while cpu_seconds(pid) - start < 0.5:
        walls.append(call().compute_seconds)
    busy = (cpu_seconds(pid) - start) / len(walls) / len(os.sched_getaffinity(0))
    return min(np.median(walls), busy)


@pytest.mark.parametrize("method, shape, causal, backward", CASES, ids=str)
def test_seconds_and_workspace(client, server, rng, method, shape, causal, backward):
    options = WIDE[method] | {"causal": causal}
    tensors = [noise(rng, shape) for _ in range(3)]
    predicted = client.estimate(
        shape, shape, shape, method=method, options=options, backward=backward
    )

    stats = ask(client, tensors, method, options, backward).stats
    for _ in range(3):
        measured = quiet_seconds(
            server.pid, lambda: ask(client, tensors, method, options, backward).stats
        )
        if measured / 2 <= predicted.seconds <= measured * 2:
            break
    assert measured / 2 <= predicted.seconds <= measured * 2, (predicted.seconds, measured)

    assert stats.peak_workspace_bytes <= predicted.workspace_bytes
    # A bound of any use: it is what admission counts with.
    assert predicted.workspace_bytes <= 4 * stats.peak_workspace_bytes + 2**20
    assert np.isclose(predicted.flops, stats.flops)
    assert np.isclose(predicted.visible_pairs, stats.visible_pairs)
    payload = tensors[0].nbytes
    assert predicted.input_bytes == payload * (4 if backward else 3)
    assert predicted.device == "cpu"


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("method", ORACLES)
def test_workspace_is_a_bound_for_odd_shapes(client, rng, method, dtype):
    for q_shape, k_shape, v_shape in [
        ((1, 1, 1, 8),) * 3,
        ((2, 6, 65, 16), (2, 2, 127, 16), (2, 2, 127, 24)),
        ((3, 1, 257, 33), (3, 1, 31, 33), (3, 1, 31, 1)),
    ]:
        for backward in (False, True):
            predicted = client.estimate(
                q_shape, k_shape, v_shape, method=method, options=OPTIONS[method], dtype=dtype,
                backward=backward)  # fmt: skip
            q, k, v = (noise(rng, shape, dtype) for shape in (q_shape, k_shape, v_shape))
            send = {"method": method, "options": OPTIONS[method]}
            if backward:
                grad_out = noise(rng, (*q_shape[:3], v_shape[3]), dtype)
                stats = client.backward(q, k, v, grad_out, **send).stats
            else:
                stats = client.forward(q, k, v, **send).stats
            assert stats.peak_workspace_bytes <= predicted.workspace_bytes


def test_lengths_count_as_full(client):
    shape = (2, 1, 100, 8)
    lengths = {"q_lengths": np.array([3, 4]), "kv_lengths": ((2,), np.int32)}
    full = client.estimate(shape, shape, shape)
    ragged = client.estimate(shape, shape, shape, tensors=lengths)
    assert ragged.visible_pairs == full.visible_pairs == 2 * 100 * 100


def test_estimates_need_no_room(client):
    """A request far above every limit can be asked about."""
    shape = (1, 64, 1 << 20, 128)
    predicted = client.estimate(shape, shape, shape)
    assert predicted.input_bytes == 3 * 4 * 64 * (1 << 20) * 128
    assert predicted.flops == 4 * 128 * 64 * float(1 << 40)
