"""flex_attention against the sparse patterns of one axis: strided, fixed, blocks."""

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from tests.torch import compared
from tests.torch.flex import Case

GQA = {"B": 2, "H": 4, "Hkv": 2}
TERMS = {"bias": (1, 4, 61, 61), "alibi_slopes": (4,), "sink_logits": (4,)}
LENGTHS = {"q_lengths": np.int32([61, 20]), "kv_lengths": np.int32([40, 61])}
SEGMENTS = {name: np.repeat([[0, 1, -1], [5, 0, 3]], [20, 21, 20], axis=1).astype(np.int32)
            for name in ("segment_ids_q", "segment_ids_kv")}
PACKED = {"cu_seqlens_q": np.int32([0, 20, 31, 61]), "cu_seqlens_k": np.int32([0, 20, 44, 73])}


# --- sparse_strided, sparse_fixed ---


def strided(s, part="union"):
    def visible(at):
        d = at.p - at.j
        near, comb = abs(d) < s, d % s == 0
        parts = {"union": near | comb, "window": near, "comb": comb}
        return torch.where(at.h % 2 == 0, near, comb) if part == "alternate" else parts[part]

    return visible


def fixed(s, c, verts=1, part="union", horizontal=False, tail=None):
    """`tail`: Nk, where a short last segment has its summary by DeepSpeed's rule."""

    def visible(at):
        v = at.h % verts

        def summary(x):
            rest = x % s
            plain = (rest >= s - (v + 1) * c) & (rest < s - v * c)
            if tail is None or tail % s == 0:
                return plain
            last = tail // s * s
            start = torch.clamp(last + s - (v + 1) * c, max=tail - c).clamp(min=0)
            return torch.where(x >= last, (x >= start) & (x < start + c),
                               plain | (x >= start) & (x < start + c))

        own = at.p // s == at.j // s
        if part == "alternate":
            return torch.where(at.h % 2 == 0, own, summary(at.j))
        parts = {"union": own | summary(at.j), "segment": own, "summary": summary(at.j)}
        return parts[part] | (summary(at.p) if horizontal else False)

    return visible


STRIDED = [
    Case("union", "sparse_strided", {"stride": 7}, strided(7), {"Nq": 130}),
    Case("union-causal", "sparse_strided", {"stride": 8, "causal": True}, strided(8), {"Nq": 130}),
    *[Case(part, "sparse_strided", {"stride": 5, "part": part}, strided(5, part),
           GQA | {"Nq": 61, "Nk": 50}) for part in ("window", "comb", "alternate")],
    Case("stride-1", "sparse_strided", {"stride": 1}, strided(1)),
    # A comb goes on to the left of 0: d mod s of negative positions.
    Case("all-terms", "sparse_strided", {"stride": 6, "causal": True, "logit_softcap": 2.0},
         strided(6), GQA | {"Nq": 61} | TERMS, LENGTHS),
    Case("more-queries", "sparse_strided", {"stride": 9}, strided(9), {"Nq": 61, "Nk": 40}),
    Case("packed", "sparse_strided", {"stride": 4, "causal": True}, strided(4),
         {"Nq": 61, "Nk": 73}, PACKED),
    Case("segments", "sparse_strided", {"stride": 6}, strided(6), {"B": 2, "Nq": 61}, SEGMENTS),
]
FIXED = [
    Case("union", "sparse_fixed", {"stride": 8, "summary": 2}, fixed(8, 2), {"Nq": 130}),
    Case("union-causal", "sparse_fixed", {"stride": 8, "summary": 2, "causal": True}, fixed(8, 2),
         {"Nq": 130}),
    *[Case(part, "sparse_fixed", {"stride": 6, "summary": 2, "num_verts": 3, "part": part},
           fixed(6, 2, 3, part), GQA | {"Nq": 61, "Nk": 50})
      for part in ("union", "segment", "summary", "alternate")],
    Case("horizontal", "sparse_fixed", {"stride": 6, "summary": 2, "horizontal": True},
         fixed(6, 2, horizontal=True), GQA | {"Nq": 61}),
    *[Case(f"tail-{n}", "sparse_fixed",
           {"stride": 8, "summary": 2, "num_verts": 4, "tail_summary": True},
           fixed(8, 2, 4, tail=n), {"H": 4, "Nq": n}) for n in (57, 61, 64)],
    Case("all-terms", "sparse_fixed",
         {"stride": 6, "summary": 1, "num_verts": 2, "causal": True, "logit_softcap": 2.0},
         fixed(6, 1, 2), GQA | {"Nq": 61} | TERMS, LENGTHS),
    Case("packed", "sparse_fixed", {"stride": 4, "summary": 1, "causal": True}, fixed(4, 1),
         {"Nq": 61, "Nk": 73}, PACKED),
]


# --- blockwise, block_sparse ---


def blockwise(id, options, perm, sizes, Nk, **more):
    perm, nb = torch.tensor(perm), options["num_blocks"]

    def visible(at):
        # A block of a position is floor(x nb / Nk); positions outside of 0..Nk-1 have none.
        block = torch.clamp(at.p, 0, Nk - 1) * nb // Nk
        inside = (at.p >= 0) & (at.p < Nk)
        return inside & (perm[at.h % len(perm), block] == at.j * nb // Nk)

    return Case(id, "blockwise", options, visible, sizes, **more)


SHIFTS = [[0, 1, 2], [0, 1, 2], [1, 2, 0], [2, 0, 1]]
BLOCKWISE = [
    # The standard permutations of four heads: 4 - 2 = 2 identities, then shifts 1 and 2.
    blockwise("standard", {"num_blocks": 3}, SHIFTS, GQA | {"Nq": 61}, 61),
    blockwise("sent", {"num_blocks": 5}, [[3, 0, 4, 1, 2]], GQA | {"Nq": 61, "Nk": 52}, 52,
              fixed={"perm": np.int32([[3, 0, 4, 1, 2]])}),
    blockwise("more-queries", {"num_blocks": 3}, SHIFTS, GQA | {"Nq": 61, "Nk": 40}, 40),
    # Shifted heads have rows that see nothing.
    blockwise("causal", {"num_blocks": 3, "causal": True}, SHIFTS,
              GQA | {"Nq": 61, "sink_logits": (4,)}, 61),
    blockwise("all-terms", {"num_blocks": 3, "logit_softcap": 2.0}, SHIFTS,
              GQA | {"Nq": 61} | TERMS, 61, fixed=LENGTHS),
]


def random_layout(*shape, share=0.4, seed=5):
    return (np.random.default_rng(seed).random(shape) < share).astype(np.uint8)


def tiles(id, options, layout, sizes, **more):
    on = torch.tensor(np.broadcast_to(layout, (sizes["B"], sizes["H"], *layout.shape[-2:])) != 0)
    bq, bk = options.get("block_q", 64), options.get("block_k", 64)
    sent = more.pop("fixed", {"layout": layout})
    # The layout goes by i, not by the position p.
    return Case(id, "block_sparse", options,
                lambda at: on[at.b, at.h, at.i // bq, at.j // bk], sizes, sent, **more)


def lists(layout):
    """The layout as indptr and indices."""
    ends = np.cumsum(layout.sum(-1).ravel()).reshape(layout.shape[:2])
    starts = np.concatenate([[0], ends[:-1, -1]])[:, None]
    return {"indptr": np.concatenate([starts, ends], axis=1).astype(np.int32),
            "indices": np.nonzero(layout)[2].astype(np.int32)}


BY_HEAD = random_layout(4, 8, 10)
BLOCK_SPARSE = [
    tiles("by-head", {"block_q": 8, "block_k": 8}, BY_HEAD, GQA | {"Nq": 61, "Nk": 77}),
    tiles("by-row", {"block_q": 16, "block_k": 4}, random_layout(2, 1, 4, 16), GQA | {"Nq": 61}),
    tiles("causal", {"block_q": 8, "block_k": 8, "causal": True}, BY_HEAD,
          GQA | {"Nq": 61, "Nk": 77}),
    tiles("lists", {"block_q": 8, "block_k": 8}, BY_HEAD, GQA | {"Nq": 61, "Nk": 77},
          fixed=lists(BY_HEAD)),
    tiles("all-terms", {"block_q": 8, "block_k": 7, "logit_softcap": 2.0},
          random_layout(4, 8, 9), GQA | {"Nq": 61} | TERMS,
          fixed={"layout": random_layout(4, 8, 9)} | LENGTHS),
]


# --- bigbird ---


def bigbird(id, options, rand_blocks, sizes, **more):
    N, b = sizes["Nq"], options["block_size"]
    g = options.get("num_global_tokens", 0)
    edge = 0 if options.get("variant") == "etc" else 1
    left, right = options.get("global_left", edge), options.get("global_right", edge)
    nb, u = -(-(N - g) // b), options.get("window_blocks", 3) // 2
    slots = torch.zeros(sizes["H"], nb, nb, dtype=torch.int64)
    for h in range(sizes["H"]):
        for t, row in enumerate(rand_blocks[h % len(rand_blocks)]):
            for c in row:
                slots[h, t + left, c] += int(c >= 0)

    def blocks(at):
        t, c = (torch.clamp(x - g, min=0) // b for x in (at.p, at.j))
        band = (c < left) | (c >= nb - right) | (abs(t - c) <= u)
        full = (t < left) | (t >= nb - right) | (at.p < g) | (at.j < g)
        return full, band, slots[at.h, t, c]

    def visible(at):
        full, band, listed = blocks(at)
        return full | band | (listed > 0)

    def weight(at):
        full, band, listed = blocks(at)
        return torch.where(full, 0.0, torch.log((band + listed).clamp(min=1)))

    if options.get("duplicates") == "multiset":
        more["weight"] = weight
    sent = {"rand_blocks": np.int32(rand_blocks)} | more.pop("fixed", {})
    return Case(id, "bigbird", options, visible, sizes, sent, **more)


def slots(H, rows, r, nb, seed=9):
    """-1 is an unused slot; blocks may repeat, and be in the window or global."""
    return np.random.default_rng(seed).integers(-1, nb, (H, rows, r))


BIGBIRD = [
    bigbird("plain", {"block_size": 4}, slots(4, 14, 2, 16), GQA | {"Nq": 61}),
    bigbird("multiset", {"block_size": 4, "duplicates": "multiset"}, slots(4, 14, 5, 16),
            GQA | {"Nq": 61}),
    bigbird("all-slots-0-multiset", {"block_size": 4, "duplicates": "multiset"},
            np.zeros((1, 14, 3), int), GQA | {"Nq": 61}),
    bigbird("causal", {"block_size": 5, "causal": True}, slots(4, 11, 2, 13), GQA | {"Nq": 61}),
    bigbird("left-only", {"block_size": 4, "global_left": 2, "global_right": 0, "window_blocks": 5},
            slots(1, 14, 1, 16), GQA | {"Nq": 61}),
    bigbird("etc", {"block_size": 4, "variant": "etc", "num_global_tokens": 6},
            slots(4, 14, 2, 14), GQA | {"Nq": 61}),
    bigbird("etc-multiset", {"block_size": 4, "variant": "etc", "num_global_tokens": 6,
                             "duplicates": "multiset"}, slots(4, 14, 4, 14), GQA | {"Nq": 61}),
    bigbird("all-terms", {"block_size": 4, "logit_softcap": 2.0, "duplicates": "multiset"},
            slots(4, 14, 3, 16), GQA | {"Nq": 61} | TERMS, fixed=LENGTHS),
]


@pytest.mark.parametrize("case", STRIDED + FIXED + BLOCKWISE + BLOCK_SPARSE + BIGBIRD,
                         ids=lambda case: f"{case.method}-{case.id}")
def test_flex_attention(case):
    case.run()


def test_compiled_lists_of_blocks():
    """BlockMask.from_kv_blocks: only the compiled form skips blocks, the eager one does not read
    the lists. Float32 and forward only, as its kernels are."""
    layout = random_layout(4, 4, 5)
    layout[:, :, 0] = 1
    order = np.argsort(layout == 0, axis=-1, kind="stable").astype(np.int32)
    t = compared.qkv(B=1, H=4, Nq=256, Nk=320)
    mask = BlockMask.from_kv_blocks(torch.tensor(layout.sum(-1, dtype=np.int32))[None],
                                    torch.tensor(order)[None], BLOCK_SIZE=(64, 64),
                                    seq_lengths=(256, 320))
    torch._dynamo.reset()
    peer = torch.compile(flex_attention)
    want = peer(*(torch.tensor(t[name]) for name in "qkv"), block_mask=mask)
    got = compared.ours("block_sparse", {"block_q": 64, "block_k": 64}, t | {"layout": layout})
    compared.close("out", got.outputs["out"], want)
