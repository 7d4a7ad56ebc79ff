"""bigbird against transformers' BigBirdBlockSparseAttention: the attention alone, for given q, k
and v. It counts a block as often as it is listed: duplicates = multiset. It masks with -10000, far
below all scores here, and zeroes padded rows."""

import numpy as np
import pytest
import torch

from tests.torch.compared import TOLERANCE, compare, qkv

bigbird = pytest.importorskip("transformers.models.big_bird.modeling_big_bird")
B, H, D = 2, 4, 8


def attention(block, r, train, longest=4096):
    config = bigbird.BigBirdConfig(
        hidden_size=H * D, num_attention_heads=H, block_size=block, num_random_blocks=r,
        max_position_embeddings=longest)
    module = bigbird.BigBirdBlockSparseAttention(config, seed=5).double()
    return module.train(train)


def peer_of(module, n, lengths, heads=H):
    valid = (torch.arange(n) < torch.tensor(lengths)[:, None]).double()
    blocked, band, of_query, of_key = bigbird.BigBirdModel.create_masks_for_block_sparse_attn(
        valid, module.block_size)

    def peer(q, k, v):
        out, _ = module.bigbird_block_sparse_attention(
            q, k, v, band, of_query, of_key, blocked, blocked, heads, module.num_random_blocks, D,
            module.block_size, module.block_size, len(lengths), n, n, seed=module.seed,
            plan_from_length=None, plan_num_rand_blocks=None)
        return out.transpose(1, 2)

    return peer


def check(module, n, rand_blocks, lengths, duplicates="multiset", heads=H, B=B):
    sent = np.int32(lengths)
    compare("bigbird", {"block_size": module.block_size, "duplicates": duplicates},
            qkv(B=B, H=heads, Nq=n, D=D), peer_of(module, n, lengths, heads),
            {"rand_blocks": np.int32(rand_blocks), "q_lengths": sent, "kv_lengths": sent},
            tolerance=2 * TOLERANCE)


def drawn(module, n, heads=H):
    """The list of random blocks that the next call makes, from the same seed."""
    np.random.seed(module.seed)
    b, r = module.block_size, module.num_random_blocks
    if n in (1024, 3072, 4096):
        return [module._bigbird_block_rand_mask(module.max_seqlen, module.max_seqlen, b, b, r,
                                                last_idx=1024)[: n // b - 2] for _ in range(heads)]
    lengths, numbers = module._get_rand_attn_plan(n, b, r)
    return module._bigbird_block_rand_mask_with_head(n, n, b, b, heads, lengths, numbers)


@pytest.mark.parametrize("lengths", [[64, 64], [64, 27]], ids=["full", "padded"])
@pytest.mark.parametrize("r", [1, 3])
def test_eval_mode(r, lengths):
    """Every random slot names block 0 (huggingface/transformers#23056), so that block counts 1 + r
    times."""
    check(attention(4, r, train=False), 64, np.zeros((H, 14, r)), lengths)


@pytest.mark.parametrize("lengths", [[64, 64], [64, 27]], ids=["full", "padded"])
def test_training_mode(lengths):
    """Its list never names a block that is seen anyway: set is multiset."""
    module = attention(4, 2, train=True)
    for duplicates in ("multiset", "set"):
        check(module, 64, drawn(module, 64), lengths, duplicates)


def test_training_mode_of_1024():
    """The plan of the paper's lengths draws from blocks 1..15, and 15 is the right global block: it
    is counted twice where it is drawn."""
    module = attention(64, 3, train=True)
    lists = np.array(drawn(module, 1024, heads=1))
    assert (lists == 15).any()
    check(module, 1024, lists, [1024], heads=1, B=1)


def test_least_blocks():
    """Five blocks, of which three are local to the one in the middle."""
    check(attention(8, 1, train=False), 40, np.zeros((H, 3, 1)), [40, 40])
