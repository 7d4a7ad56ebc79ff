"""Peers of the specification that cannot be installed here, as skips that name them."""

import pytest

ABSENT = [
    # softmax, local
    ("flash-attn flash_attn_func", "softmax local", "needs a GPU"),
    ("FlashInfer prefill and decode wrappers", "softmax", "need a GPU"),
    ("xformers memory_efficient_attention", "softmax",
     "needs its C++ extension, built for one release of PyTorch"),
    ("ggml ggml_flash_attn_ext", "softmax", "no package; a C library to build"),
    ("attention-gym masks and ALiBi", "softmax local longformer",
     "not on PyPI; test_flex runs the same masks"),
    ("onnxruntime GroupQueryAttention local_window_size", "local",
     "a graph to build for a mask that test_sliding_window has"),
    ("OpenAI sparse_attention, modes local, strided and fixed", "local sparse_strided sparse_fixed",
     "a repository of TensorFlow 1 and blocksparse"),
    ("long-range-arena LocalAttention, build_mask, bigbird_attention",
     "local sparse_strided bigbird", "a repository of old JAX"),
    # relu_attention
    ("open_lm custom_attn", "relu_attention", "not on PyPI"),
    # sparse_fixed
    ("fairseq SparseMultiheadAttention", "sparse_fixed",
     "another reading of the paper that cannot match: segments of stride + 1 keys"),
    ("long-range-arena Fixed1Pattern, Fixed2Pattern", "sparse_fixed",
     "cannot match: column 0 of each segment is a summary, too"),
    # longformer, bigbird, etc
    ("allenai/longformer LongformerSelfAttention", "longformer",
     "a repository; transformers has the same module"),
    ("google-research/bigbird bigbird_block_sparse_attention", "bigbird",
     "a repository of TensorFlow; transformers has the same kernel"),
    ("etcmodel QkvRelativeLocalAttention", "etc", "a repository of TensorFlow"),
    ("borhanMorphy/ETC", "etc", "cannot match: other labels"),
    ("Hugging Face LongT5 transient global", "etc", "cannot match: global keys are made inside"),
    # block_sparse
    ("DeepSpeed SparseSelfAttention kernels", "block_sparse",
     "Triton 1.0.0 and a GPU; test_deepspeed compares the layouts"),
    ("xformers BlockSparseAttention", "block_sparse", "Triton and a GPU"),
    ("FlashInfer BlockSparseAttentionWrapper", "block_sparse", "needs a GPU"),
    ("mit-han-lab block_sparse_attn_func", "block_sparse", "needs a GPU"),
    # grids
    ("google-research axial attn_nd", "axial", "a repository of TensorFlow 1"),
    ("tensor2tensor local_attention_1d and its masked form", "image_local_1d local",
     "a package that needs TensorFlow"),
    ("tensor2tensor local_attention_2d and its masked forms", "image_local_2d",
     "a package that needs TensorFlow"),
    ("sahajgarg/image_transformer Attn", "image_local_1d", "a repository"),
]


@pytest.mark.parametrize("peer, methods, reason", ABSENT, ids=[peer for peer, *_ in ABSENT])
def test_peer(peer, methods, reason):
    pytest.skip(f"{peer} ({methods.replace(' ', ', ')}): {reason}")
