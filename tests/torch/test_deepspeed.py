"""sparse_fixed, local, bigbird and block_sparse against the layouts of DeepSpeed 0.14.5, the last
with ops.sparse_attention, through a dense mask. Its kernels need an old Triton and a GPU; the file
of the layouts is loaded alone, because the package needs much more."""

import importlib.util
import pathlib
import random

import numpy as np
import pytest
import torch.nn.functional as F

from tests.torch.compared import compare, qkv


def load():
    package = importlib.util.find_spec("deepspeed")
    folder = pathlib.Path(package.origin).parent if package else pathlib.Path()
    path = folder / "ops/sparse_attention/sparsity_config.py"
    if not package or not path.is_file():
        pytest.skip("deepspeed 0.14.5 is not installed", allow_module_level=True)
    spec = importlib.util.spec_from_file_location("sparsity_config", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


layouts = load()
B, H, BLOCK = 2, 4, 4
DIRECTIONS = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])


def direction(causal):
    return "unidirectional" if causal else "bidirectional"


def check(method, options, layout, fixed=None):
    """A causal layout keeps the whole diagonal block: the caller adds the triangle."""
    n = layout.shape[1] * BLOCK
    mask = layout.bool().repeat_interleave(BLOCK, 1).repeat_interleave(BLOCK, 2)
    if options.get("causal"):
        mask = mask.tril()
    compare(method, options, qkv(B=B, H=H, Nq=n),
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask[None]),
            fixed, pairs=B * int(mask.sum()))


def check_tiles(layout, causal):
    check("block_sparse", {"block_q": BLOCK, "block_k": BLOCK, "causal": causal}, layout,
          {"layout": layout.numpy().astype(np.uint8)})


@DIRECTIONS
@pytest.mark.parametrize("blocks", [16, 17, 18, 19])
@pytest.mark.parametrize("summary, verts", [(1, 1), (1, 4), (2, 2)])
def test_fixed(summary, verts, blocks, causal):
    """Where the last segment is short, its summary follows DeepSpeed's own rule: tail_summary."""
    config = layouts.FixedSparsityConfig(
        H, BLOCK, different_layout_per_head=True, num_local_blocks=4, num_global_blocks=summary,
        attention=direction(causal), num_different_global_patterns=verts)
    check("sparse_fixed",
          {"stride": 4 * BLOCK, "summary": summary * BLOCK, "num_verts": verts, "causal": causal,
           "tail_summary": True}, config.make_layout(blocks * BLOCK))


@pytest.mark.parametrize("blocks", [16, 18])
def test_fixed_horizontal(blocks):
    config = layouts.FixedSparsityConfig(
        H, BLOCK, different_layout_per_head=True, num_local_blocks=4, num_global_blocks=1,
        horizontal_global_attention=True, num_different_global_patterns=2)
    check("sparse_fixed",
          {"stride": 4 * BLOCK, "summary": BLOCK, "num_verts": 2, "horizontal": True,
           "tail_summary": True}, config.make_layout(blocks * BLOCK))


@DIRECTIONS
@pytest.mark.parametrize("window", [1, 3, 7])
def test_local_sliding_window(window, causal):
    config = layouts.LocalSlidingWindowSparsityConfig(H, BLOCK, window, direction(causal))
    check("local", {"granularity": "block", "block": BLOCK, "look_backward": window // 2,
                    "look_forward": 0 if causal else window // 2, "causal": causal},
          config.make_layout(15 * BLOCK))


def test_bigbird():
    """Global blocks on the left only, as keys and as queries; random ones may be in the window."""
    random.seed(4)
    config = layouts.BigBirdSparsityConfig(
        H, BLOCK, different_layout_per_head=True, num_random_blocks=2,
        num_sliding_window_blocks=5, num_global_blocks=1)
    layout = config.make_layout(15 * BLOCK)
    # rand_blocks lists all blocks of a row; those in the window or global still count once.
    slots = np.full((H, 14, 15), -1, np.int32)
    for h, t, c in np.argwhere(layout[:, 1:].numpy() != 0):
        slots[h, t, c] = c
    check("bigbird", {"block_size": BLOCK, "window_blocks": 5, "global_left": 1,
                      "global_right": 0}, layout, {"rand_blocks": slots})


@DIRECTIONS
def test_variable(causal):
    """Random blocks, local windows of several sizes, global blocks in the middle."""
    random.seed(5)
    config = layouts.VariableSparsityConfig(
        H, BLOCK, different_layout_per_head=True, num_random_blocks=0 if causal else 2,
        local_window_blocks=[2, 5, 3], global_block_indices=[0, 6], attention=direction(causal))
    check_tiles(config.make_layout(17 * BLOCK), causal)


@DIRECTIONS
def test_longformer_of_blocks(causal):
    config = layouts.BSLongformerSparsityConfig(
        H, BLOCK, num_sliding_window_blocks=3, global_block_indices=[0, 9],
        attention=direction(causal))
    check_tiles(config.make_layout(15 * BLOCK), causal)
