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
    # linformer, nystromformer, long_short
    ("fairseq MultiheadLinearAttention", "linformer",
     "cannot match: it projects the input before the key and value layers, which have biases"),
    ("linformer-pytorch causal mask", "linformer",
     "cannot match: takes columns of the projection for positions"),
    ("mlpen/Nystromformer attention_linformer.py, attention_nystrom.py", "linformer nystromformer",
     "a repository; test_linformer and test_nystromformer run the same forms"),
    ("long-range-arena LinformerAttention", "linformer", "a repository of old JAX"),
    ("nystrom-attention and xformers with masks", "nystromformer",
     "cannot match: means and landmarks of padding"),
    ("T2T-ViT token_nystromformer.py", "nystromformer",
     "a repository; xformers cuts segments in the same way"),
    ("NVIDIA/transformer-ls AttentionLS, ChunkedLSAttention", "long_short", "a repository"),
    ("long-short-transformer causal with r > 1", "long_short", "raises: its mask is not repeated"),
    # linear_attention, performer, rfa, fast_weights
    ("fla chunk_linear_attn, chunk_delta_rule", "linear_attention fast_weights",
     "need Triton and a GPU; their plain forms are compared"),
    ("cmsflash/efficient-attention", "linear_attention",
     "a repository; linear-attention-transformer and performer-pytorch have the same form"),
    ("long-range-arena linear_attention", "linear_attention", "a repository of old JAX"),
    ("google-research fast_attention, slim_performer", "performer",
     "a repository of JAX and TensorFlow"),
    ("HKUNLP/efficient-attention KernelizedAttention", "performer", "a repository"),
    ("tensorflow/models kernel_attention.py", "performer", "a package that needs TensorFlow"),
    ("xformers FavorAttention, causal", "performer",
     "cannot match: cumulates over channels instead of positions"),
    ("xformers FavorAttention, SMReg", "performer",
     "the hyperbolic kind with other rows of omega; test_performer sends its own"),
    ("Noahs-ARK/RFA random_project, incremental_rfa, masked_rfa", "rfa",
     "a repository whose package does not import without its CUDA extension"),
    ("IDSIA/lmtool-fwp, ischlag/fast-weight-transformers", "fast_weights",
     "repositories; the layers need CUDA"),
    ("fla DPFPFeatureMap", "fast_weights linear_attention",
     "cannot match: -relu(x) where DPFP has relu(-x)"),
    ("lmtool attention_normalize", "fast_weights", "no other public code has it; CUDA only"),
    # synthesizer, mixing
    ("mesh synthetic_attention", "synthesizer", "a package that needs TensorFlow 1"),
    ("long-range-arena synthetic_attention", "synthesizer",
     "a repository of old JAX; its dense mode mixes heads and positions for H > 1"),
    ("leaderj1001/Synthesizer-Rethinking-Self-Attention-Transformer-Models", "synthesizer",
     "a repository; two of its four forms are other methods"),
    ("google-research f_net FourierTransform", "fnet",
     "a repository; transformers and xformers have the same transform"),
    ("transformers FNet with use_tpu_fourier_optimizations", "fnet",
     "cannot match: cuts a transform matrix to the sequence length"),
    ("google-research f_net LinearTransform, RandomTransform", "linear_mixing random_mixing",
     "a repository, no package: two products, which the oracle has in NumPy"),
    ("google-research/vision_transformer MixerBlock", "mlp_mixer",
     "a repository of flax; timm and mlp-mixer-pytorch have the same block"),
]


@pytest.mark.parametrize("peer, methods, reason", ABSENT, ids=[peer for peer, *_ in ABSENT])
def test_peer(peer, methods, reason):
    pytest.skip(f"{peer} ({methods.replace(' ', ', ')}): {reason}")
