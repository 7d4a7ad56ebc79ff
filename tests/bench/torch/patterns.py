"""Sparse patterns against public implementations on the CPU: same process, same threads, in turns.
One JSON object a line, as compare.py prints them; a case is named `method, pattern / peer, calls`.

B 1, H 8, N 4096, D 64, float32. Peers get q, k and v: projections are outside on both sides. "both"
is a forward call and a backward call of ours (which computes its forward again), and a forward with
its autograd of the peer. flex_attention has no compiled backward on the CPU and its eager form is
five times as slow as dense attention: there the peer is dense attention with the same mask.

Usage: python -m tests.bench.torch.patterns [text in the case's name]
"""

import inspect
import json
import os
import sys
import textwrap
import warnings

# A separate folder, because all kernels in it are compiled for two threads, see Compiled.
os.environ["TORCHINDUCTOR_CACHE_DIR"] = "build/bench/inductor"

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch._inductor.compile_fx import compile_fx  # noqa: E402
from torch.nn.attention.flex_attention import (create_block_mask, create_mask,  # noqa: E402
                                               flex_attention)

from tests.bench.torch import measured  # noqa: E402
from tests.bench.torch.measured import leaves  # noqa: E402

H, N, D = 8, 4096, 64
SIDE = 64  # of the grids
GOAL = ">= 5"


def qkv():
    torch.manual_seed(1)
    return leaves(**{name: (1, H, N, D) for name in "qkv"})


class Case:
    """`peers`: by "forward" and "both", or what there is of them, (name, function). The function
    makes out [1,H,N,D] of `tensors()`, given by name; `fixed` are index tensors, sent to us."""

    def __init__(self, name, method, options, peers, tensors=qkv, fixed=None):
        self.method, self.options, self.peers = method, options, peers
        self.tensors, self.fixed = tensors, fixed or {}
        self.names = {calls: f"{method}, {name} / {peer}, {calls}"
                      for calls, (peer, _) in peers.items()}

    def measure(self, threads, calls):
        return measured.measure(threads, calls, self.method, self.options, self.tensors(),
                                self.fixed, (1, H, N, D), self.peers[calls][1])


def always(name, peer):
    return dict.fromkeys(("forward", "both"), (name, peer))


# --- transformers, local-attention ---


class Given(torch.nn.Module):
    """A projection with a given result."""

    def forward(self, _):
        # The module scales its input in place.
        return self.x.clone()


def longformer(window, count):
    from transformers.models.longformer import modeling_longformer as modeling

    config = modeling.LongformerConfig(
        hidden_size=H * D, num_attention_heads=H, attention_window=[2 * window],
        attention_probs_dropout_prob=0.0)
    module = modeling.LongformerSelfAttention(config, 0)
    projections = {"query": "q", "key": "k", "value": "v", "query_global": "q_global",
                   "key_global": "k_global", "value_global": "v_global"}
    for name in projections:
        setattr(module, name, Given())
    marks, hidden = torch.zeros(1, N), torch.zeros(1, N, H * D)
    marks[:, :count] = 10000.0

    def peer(**t):
        for name, tensor in projections.items():
            x = t[tensor][:, :, :count] if tensor == "q_global" else t[tensor]
            getattr(module, name).x = x.permute(2, 0, 1, 3).flatten(2)
        out, = module(hidden, marks, marks < 0, marks > 0, True)
        return out.unflatten(2, (H, D)).transpose(1, 2)

    def tensors():
        return qkv() | leaves(**{f"{name}_global": (1, H, N, D) for name in "qkv"})

    plural = "" if count == 1 else "s"
    return Case(f"window {2 * window}, {count} global{plural}", "longformer", {"window": window},
                always("transformers", peer), tensors,
                fixed={"global_mask": (marks > 0).numpy().astype(np.uint8)})


def without_weights(method):
    """The peer's method without its last part, which writes all weights into an N x N matrix that
    is not needed here; None where the source code differs."""
    source = textwrap.dedent(inspect.getsource(method))
    head, found, _ = source.partition("    attention_probs = torch.zeros(")
    if not found:
        return None
    scope = dict(inspect.getmodule(method).__dict__)
    exec(head + "    return context_layer, None\n", scope)
    return scope[method.__name__]


def bigbird(block, count, weights):
    from transformers.models.big_bird import modeling_big_bird as modeling

    config = modeling.BigBirdConfig(hidden_size=H * D, num_attention_heads=H, block_size=block,
                                    num_random_blocks=count)
    module = modeling.BigBirdBlockSparseAttention(config, seed=0).eval()
    blocked, band, of_query, of_key = modeling.BigBirdModel.create_masks_for_block_sparse_attn(
        torch.ones(1, N), block)
    # In eval mode it has no random blocks and in training it draws in Python at every call.
    lists = random_blocks(block, count)
    module._bigbird_block_rand_mask = lambda *_, **__: next(module.rows)
    attend = modeling.BigBirdBlockSparseAttention.bigbird_block_sparse_attention
    name = "transformers as it is"
    if not weights:
        attend, name = without_weights(attend), "transformers less its N x N weights"
        if attend is None:
            raise ImportError("transformers' BigBird has another source")

    def peer(q, k, v):
        module.rows = iter(lists)
        out, _ = attend(module, q, k, v, band, of_query, of_key, blocked, blocked, H, count, D,
                        block, block, 1, N, N, 0, None, None)
        return out.transpose(1, 2)

    return Case(f"block {block}, {count} random", "bigbird",
                {"block_size": block, "duplicates": "multiset"}, always(name, peer),
                fixed={"rand_blocks": lists})


def random_blocks(block, count):
    random = np.random.default_rng(3)
    rows = N // block
    return np.stack([[random.choice(rows, count, replace=False) for _ in range(rows - 2)]
                     for _ in range(H)]).astype(np.int32)


def local(window, causal):
    from local_attention import LocalAttention

    module = LocalAttention(window, causal=causal, use_rotary_pos_emb=False)
    return Case(f"block {window}{', causal' if causal else ''}", "local",
                {"granularity": "block", "block": window, "causal": causal},
                always("local-attention", lambda q, k, v: module(q, k, v)))


def axial_rows():
    from axial_attention.axial_attention import SelfAttention

    module = SelfAttention(H * D, H)
    module.to_q, module.to_kv, module.to_out = Given(), Given(), torch.nn.Identity()

    def peer(q, k, v):
        # One row of the grid is one sequence; lines of columns it would copy first.
        q, k, v = (x.transpose(1, 2).reshape(SIDE, SIDE, H * D) for x in (q, k, v))
        module.to_q.x, module.to_kv.x = q, torch.cat([k, v], dim=2)
        return module(q).reshape(1, N, H, D).transpose(1, 2)

    return Case(f"{SIDE} x {SIDE}, rows", "axial", {"grid": [SIDE, SIDE], "axis": 1},
                always("axial-attention", peer))


# --- flex_attention ---


class Compiled:
    """flex_attention of one mask. Compiled once, for two threads, and run by two or one: its
    buffers are for as many threads as there were, and compiling takes ten seconds. The kernel is
    called without the guards before it, which would compile again for another number, and on the
    tensors of the first call: qkv() draws the same numbers every time."""

    def __init__(self, visible, heads, block):
        self.kernel = None
        self.make = lambda: create_block_mask(visible, 1, heads, N, N, "cpu", BLOCK_SIZE=block)

    def backend(self, graph, inputs):
        kernel = compile_fx(graph, inputs)

        def keep(*arguments):
            self.kernel, self.arguments = kernel, arguments
            return kernel(*arguments)

        return keep

    def __call__(self, q, k, v):
        if self.kernel is not None:
            return self.kernel(*self.arguments)[0]
        threads = torch.get_num_threads()
        torch.set_num_threads(2)
        torch._dynamo.reset()
        out = torch.compile(flex_attention, backend=self.backend)(q, k, v, block_mask=self.make())
        torch.set_num_threads(threads)
        return out


def flex(name, method, options, visible, heads=1, both=True, fixed=None):
    """`visible` on tiles of 64, which the patterns of blocks have and which fits the others best.
    `both`: also the dense mask, unless the pattern has another peer with gradients."""
    torch._inductor.config.cpp.dynamic_threads = True
    compiled, made = Compiled(visible, heads, 64), {}

    def dense(q, k, v):
        if "dense" not in made:
            made["dense"] = create_mask(visible, 1, heads, N, N, "cpu")
        return F.scaled_dot_product_attention(q, k, v, attn_mask=made["dense"])

    peers = {"forward": ("flex compiled", compiled), "both": ("dense mask", dense)}
    if not both:
        del peers["both"]
    return Case(name, method, options, peers, fixed=fixed)


def longformer_mask(w, d, count):
    return lambda b, h, i, j: (((abs(i - j) <= w * d) & ((i - j) % d == 0)) | (i < count)
                               | (j < count))


def bigbird_mask(block, lists):
    rows = N // block
    on = torch.zeros(H, rows, rows, dtype=torch.bool)
    for h, t in np.ndindex(lists.shape[:2]):
        on[h, t + 1, lists[h, t]] = True
    t = torch.arange(rows)
    on |= abs(t[:, None] - t) <= 1
    on[:, [0, -1]] = True
    on[:, :, [0, -1]] = True
    return lambda b, h, i, j: on[h, i // block, j // block]


def image_mask(width, qh, qw, mh, mw):
    def visible(b, h, i, j):
        top, left = i // width // qh * qh, i % width // qw * qw
        v, u = j // width, j % width
        return ((v >= top - mh) & (v < top + qh + mh) & (u >= left - mw) & (u < left + qw + mw))

    return visible


def flex_cases():
    first = np.arange(N)[None] < 16
    lists = random_blocks(64, 3)
    layout = np.random.default_rng(4).random((H, N // 64, N // 64)) < 0.125
    layout |= np.eye(N // 64, dtype=bool)
    on = torch.tensor(layout)
    yield flex("window 512, 16 globals", "longformer", {"window": 256},
               longformer_mask(256, 1, 16), both=False,
               fixed={"global_mask": first.astype(np.uint8)})
    yield flex("window 128, dilation 4", "longformer", {"window": 64, "dilation": [4]},
               longformer_mask(64, 4, 0))
    yield flex("block 64, 3 random", "bigbird", {"block_size": 64}, bigbird_mask(64, lists),
               H, both=False, fixed={"rand_blocks": lists})
    yield flex("block 64, 1 of 8", "block_sparse", {}, lambda b, h, i, j: on[h, i // 64, j // 64],
               H, fixed={"layout": layout.astype(np.uint8)})
    yield flex("stride 64, causal", "sparse_strided", {"stride": 64, "causal": True},
               lambda b, h, i, j: (j <= i) & ((i - j < 64) | ((i - j) % 64 == 0)))
    yield flex(f"{SIDE} x {SIDE}, columns", "axial", {"grid": [SIDE, SIDE], "axis": 0},
               lambda b, h, i, j: i % SIDE == j % SIDE)
    yield flex(f"{SIDE} x {SIDE}, block 8 x 16", "image_local_2d", {"grid": [SIDE, SIDE]},
               image_mask(SIDE, 8, 16, 8, 16))


def cases():
    for make in (lambda: longformer(256, 1), lambda: longformer(256, 16),
                 lambda: bigbird(64, 3, weights=False), lambda: bigbird(64, 3, weights=True),
                 lambda: local(256, True), lambda: local(256, False), axial_rows):
        try:
            yield make()
        except ImportError as error:
            print(f"patterns: left out, {error}", file=sys.stderr)
    yield from flex_cases()


def main():
    warnings.simplefilter("ignore")
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for case in cases():
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for calls, name in case.names.items():
                if wanted not in name:
                    continue
                mine, theirs, _ = case.measure(threads, calls)
                print(json.dumps({
                    "case": f"{name} T{threads}", "value": round(mine * 1e3, 4), "unit": "ms",
                    "peer": name.split(" / ")[1].split(",")[0], "peer_ms": round(theirs * 1e3, 4),
                    "ratio": round(theirs / mine, 3), "goal": GOAL}), flush=True)


if __name__ == "__main__":
    main()
