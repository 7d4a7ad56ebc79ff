"""Small ids and lists that need many masks: random segment ids of 65536 rows took 1 GB for a
request of 0.9 MB, a mask for every tile of 64 x 64 pairs."""

import os
import pathlib

import numpy as np
import pytest

import attnd
from helpers import noise

MIB = 1 << 20
N = 16384


def cpu_seconds(server):
    with open(f"/proc/{server.pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return sum(int(ticks) for ticks in fields[11:13]) / os.sysconf("SC_CLK_TCK")


def resident(server):
    """Resident bytes; resets the peak, which counts from here."""
    pathlib.Path(f"/proc/{server.pid}/clear_refs").write_text("5")
    return server.rss()


def segments(rng):
    ids = rng.integers(0, 8, (1, N), dtype=np.int32)
    return {"method": "local", "options": {"window_left": -1},
            "tensors": {"segment_ids_q": ids, "segment_ids_kv": ids}}


def small_blocks(rng):
    each = 12
    lists = np.sort(rng.integers(0, N, (N, each), dtype=np.int32), axis=1)
    return {"method": "block_sparse", "options": {"block_q": 1, "block_k": 1},
            "tensors": {"indptr": np.arange(0, each * N + 1, each, dtype=np.int32)[None],
                        "indices": lists.reshape(-1)}}


def examples(rng):
    globals_ = N // 2
    return {"method": "etc", "options": {"num_global": globals_},
            "tensors": {"long_example_ids": rng.integers(0, 8, (1, N - globals_), dtype=np.int32),
                        "global_example_ids": rng.integers(0, 8, (1, globals_), dtype=np.int32)}}


def sentences(rng):
    globals_, labels = N // 4, 32
    return {"method": "etc", "options": {"num_global": globals_},
            "tensors": {"sentence_ids": rng.integers(0, globals_, (1, N - globals_),
                                                     dtype=np.int32),
                        "rel_bias_long": noise(rng, (labels, 1))}}


@pytest.mark.parametrize("made", [segments, small_blocks, examples, sentences])
def test_memory_stays_near_what_was_sent(start_server, rng, made):
    server = start_server("--budget-bytes", str(256 * MIB))
    q = noise(rng, (1, 1, N, 1))
    with attnd.Client(server.target, timeout=120) as client:
        client.forward(q[:, :, :64], q[:, :, :64], q[:, :, :64])
        before = resident(server)
        reply = client.forward(q, q, q, **made(rng))
        assert reply.out.shape == q.shape
        assert server.peak_rss() - before < 16 * MIB


@pytest.mark.parametrize("made", [segments, small_blocks, examples, sentences])
def test_tokens_beyond_the_lengths_take_nothing(start_server, rng, made):
    # 604 MB of a device were left behind by a request of 1.3 MB, charged to nobody.
    server = start_server("--budget-bytes", str(256 * MIB))
    q = noise(rng, (1, 1, N, 1))
    request = made(rng)
    one = np.ones(1, np.int32)
    with attnd.Client(server.target, timeout=120) as client:
        client.forward(q[:, :, :64], q[:, :, :64], q[:, :, :64])
        before, spent = resident(server), cpu_seconds(server)
        request["tensors"] |= {"q_lengths": one, "kv_lengths": one}
        reply = client.forward(q, q, q, **request)
        assert reply.out.shape == q.shape
        assert server.peak_rss() - before < 16 * MIB
        assert cpu_seconds(server) - spent < 1


def test_pairs_of_random_ids_are_counted(start_server, rng):
    server = start_server()
    q = noise(rng, (1, 2, 4000, 4))
    ids = rng.integers(-1, 5, (1, q.shape[2]), dtype=np.int32)
    with attnd.Client(server.target, timeout=120) as client:
        reply = client.forward(q, q, q, method="softmax", options={"causal": True},
                               tensors={"segment_ids_q": ids, "segment_ids_kv": ids})
    seen = np.bincount(ids[ids >= 0])
    assert reply.stats.visible_pairs == 2 * (seen * (seen + 1) // 2).sum()


def test_blocks_of_one_position_in_any_order_are_no_quadratic_work(start_server, rng):
    server = start_server()
    q = noise(rng, (1, 1, 65536, 1))
    perm = rng.permutation(q.shape[2]).astype(np.int32)[None]
    with attnd.Client(server.target, timeout=120) as client:
        before = cpu_seconds(server)
        reply = client.forward(q, q, q, method="blockwise", options={"num_blocks": q.shape[2]},
                               tensors={"perm": perm})
        # Every query sees one key.
        np.testing.assert_array_equal(reply.out[0, 0, :, 0], q[0, 0, perm[0], 0])
        assert cpu_seconds(server) - before < 1.5
