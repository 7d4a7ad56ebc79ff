"""Public implementations of low-rank, kernel and mixing methods as functions of q, k, v and the
learned tensors, in our shapes and names: their projections are replaced by given results and their
parameters by given tensors. tests/torch compares them in float64, tests/bench/torch times them.

A package that is not installed raises ImportError. The settings that make a peer equal to ours are
beside each test.
"""

import importlib.util
import pathlib

import torch
import torch.nn.functional as F


class Given(torch.nn.Module):
    """A projection with a given result, which its caller may change in place."""

    def forward(self, *_):
        return self.x.clone()


class Zero(torch.nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)


def given(module, *names):
    for name in names:
        setattr(module, name, Given())
    return module


def put(module, **tensors):
    """Tensors in the place of parameters: gradients flow to them."""
    for name, x in tensors.items():
        module._parameters.pop(name, None)
        setattr(module, name, x)


def flat(x):
    """[B,H,N,D] -> [B,N,H*D]."""
    return x.transpose(1, 2).flatten(2)


def heads(x, H):
    """[B,N,H*D] -> [B,H,N,D]."""
    return x.unflatten(2, (H, -1)).transpose(1, 2)


def fla(name):
    """A module of plain functions of flash-linear-attention, read from its file alone."""
    found = importlib.util.find_spec("fla")
    if found is None:
        raise ImportError("fla-core is not installed")
    path = pathlib.Path(found.submodule_search_locations[0]) / "ops" / name / "naive.py"
    spec = importlib.util.spec_from_file_location(f"fla_{name}_naive", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- linformer ---


def linformer(H, D, length, k, **options):
    """lucidrains/linformer. Shorter sequences use the first rows of e and f."""
    from linformer import LinformerSelfAttention

    module = LinformerSelfAttention(H * D, length, k=k, heads=H, dim_head=D, **options)
    given(module, "to_q", "to_k", "to_v").to_out = torch.nn.Identity()

    def peer(q, k, v, e, f):
        module.to_q.x, module.to_k.x, module.to_v.x = flat(q), flat(k), flat(v)
        put(module, proj_k=e, proj_v=f)
        return heads(module(flat(q), context=flat(k)), H)

    return peer


def linformer_xformers(length, k):
    from xformers.components.attention.linformer import LinformerAttention

    module = LinformerAttention(dropout=0.0, seq_len=length, k=k)

    def peer(q, k, v, e, f):
        put(module.E, weight=e.T)
        put(module.F, weight=f.T)
        return module(*(x.flatten(0, 1) for x in (q, k, v))).unflatten(0, q.shape[:2])

    return peer


# --- nystromformer ---


def nystrom(H, D, landmarks, iterations=6, kernel=0):
    """lucidrains/nystrom-attention; its n must be a multiple of `landmarks`."""
    from nystrom_attention import NystromAttention

    module = NystromAttention(H * D, D, H, landmarks, iterations, residual=kernel > 0,
                              residual_conv_kernel=kernel or 33)
    given(module, "to_qkv").to_out = torch.nn.Identity()

    def peer(q, k, v, conv_weight=None):
        module.to_qkv.x = torch.cat([flat(x) for x in (q, k, v)], dim=2)
        if conv_weight is not None:
            put(module.res_conv, weight=conv_weight[:, None, :, None])
        return heads(module(flat(q)), H)

    return peer


def nystrom_transformers(H, D, n, landmarks, init, kernel=0):
    """`n`: without it the default configuration is exact attention (transformers#21755)."""
    from transformers.models.nystromformer import modeling_nystromformer as modeling

    config = modeling.NystromformerConfig(
        hidden_size=H * D, num_attention_heads=H, num_landmarks=landmarks, segment_means_seq_len=n,
        conv_kernel_size=kernel or 3, attention_probs_dropout_prob=0.0)
    module = given(modeling.NystromformerSelfAttention(config), "query", "key", "value")
    # In the configuration "exact" raises, and so does an absent convolution.
    module.init_option, module.conv_kernel_size = init, kernel or None

    def peer(q, k, v, conv_weight=None):
        module.query.x, module.key.x, module.value.x = flat(q), flat(k), flat(v)
        if conv_weight is not None:
            put(module.conv, weight=conv_weight[:, None, :, None])
        return heads(module(flat(q))[0], H)

    return peer


def nystrom_xformers(H, landmarks, iterations, init, kernel=0):
    from xformers.components.attention.nystrom import NystromAttention

    module = NystromAttention(dropout=0.0, num_heads=H, num_landmarks=landmarks,
                              pinverse_original_init=init == "original",
                              inv_iterations=iterations, conv_kernel_size=kernel or None)

    def peer(q, k, v, conv_weight=None):
        if conv_weight is not None:
            put(module.skip_connection, weight=conv_weight[:, None, :, None])
        return module(*(x.flatten(0, 1) for x in (q, k, v))).unflatten(0, q.shape[:2])

    return peer


# --- long_short ---


def long_short(H, D, window, segment, rank, causal):
    """lucidrains/long-short-transformer: one tensor for keys and values, without rotation."""
    from long_short_transformer.long_short_transformer import LongShortAttention

    module = LongShortAttention(dim=H * D, heads=H, dim_head=D, causal=causal, window_size=window,
                                segment_size=segment, r=rank)
    given(module, "to_q", "to_kv").to_out = torch.nn.Identity()
    module.pos_emb = None

    def peer(q, kv, dyn_weight, local_weight, local_bias, global_weight, global_bias, mask=None):
        n = q.shape[2]
        more = -n % module.pad_to_multiple
        module.to_q.x, module.to_kv.x = (F.pad(flat(x), (0, 0, 0, more)) for x in (q, kv))
        put(module.to_dynamic_proj, weight=dyn_weight.T)
        put(module.local_norm, weight=local_weight, bias=local_bias)
        put(module.global_norm, weight=global_weight, bias=global_bias)
        return heads(module(flat(q), mask=mask), H)

    return peer


# --- linear_attention, performer ---


def performer(omega, causal=False, **options):
    """performer-pytorch. Its causal form adds 1e-6 times the sum of a query's features to each
    divisor, here 0."""
    from functools import partial

    from performer_pytorch import performer_pytorch as public

    module = public.FastAttention(omega.shape[1], omega.shape[0], **options)
    module.causal = causal
    module.causal_linear_fn = partial(public.causal_linear_attention_noncuda, eps=0.0)
    module.projection_matrix = torch.as_tensor(omega)
    return module


def favor_xformers(omega, kind):
    """xformers' FAVOR with given features, of kind "positive" or "hyperbolic"."""
    from xformers.components.attention import favor

    m, name = (len(omega), "SMOrf") if kind == "positive" else (2 * len(omega), "SMHyp")
    module = favor.FavorAttention(dim_features=m,
                                  feature_map_type=getattr(favor.FeatureMapType, name))
    module.feature_map.features = torch.as_tensor(omega).T

    def peer(q, k, v):
        return module(*(x.flatten(0, 1) for x in (q, k, v))).unflatten(0, q.shape[:2])

    return peer


# --- fnet ---


def fnet_transformers():
    from transformers.models.fnet import modeling_fnet as modeling

    module = modeling.FNetBasicFourierTransform(modeling.FNetConfig())
    return lambda v: heads(module(flat(v))[0], v.shape[1])


def fnet_xformers():
    from xformers.components.attention.fourier_mix import FourierMix

    module = FourierMix(dropout=0.0)
    return lambda v: heads(module(flat(v)), v.shape[1])


# --- gmlp_sgu, mlp_mixer ---


def gmlp(H, width, length, causal, act=None):
    """lucidrains/g-mlp-pytorch on q = u, the gated half, and v = z, the gate. width: H * Dg."""
    from g_mlp_pytorch.g_mlp_pytorch import SpatialGatingUnit

    module = SpatialGatingUnit(2 * width, length, causal=causal, heads=H,
                               act=act or torch.nn.Identity())

    def peer(q, v, weight, bias, norm_weight, norm_bias, gate_residual=None):
        put(module, weight=weight, bias=bias)
        put(module.norm, weight=norm_weight.flatten(), bias=norm_bias.flatten())
        residual = None if gate_residual is None else flat(gate_residual)
        return heads(module(torch.cat([flat(q), flat(v)], dim=2), residual), H)

    return peer


def gmlp_timm(width, length):
    from timm.models.mlp_mixer import SpatialGatingUnit

    module = SpatialGatingUnit(2 * width, length)

    def peer(q, v, weight, bias, norm_weight, norm_bias):
        put(module.proj, weight=weight, bias=bias)
        put(module.norm, weight=norm_weight.flatten(), bias=norm_bias.flatten())
        return heads(module(torch.cat([flat(q), flat(v)], dim=2)), q.shape[1])

    return peer


def mixer_timm(width, length, tokens, act=torch.nn.GELU):
    """The first half of timm's block, with its residual; the channel MLP gives zero."""
    from timm.models.mlp_mixer import MixerBlock

    module = MixerBlock(width, length, mlp_ratio=(tokens / width, 1.0), act_layer=act)
    assert module.mlp_tokens.fc1.out_features == tokens
    module.norm2, module.mlp_channels = torch.nn.Identity(), Zero()

    def peer(v, w1, b1, w2, b2, norm_weight, norm_bias):
        put(module.norm1, weight=norm_weight, bias=norm_bias)
        put(module.mlp_tokens.fc1, weight=w1.T, bias=b1)
        put(module.mlp_tokens.fc2, weight=w2.T, bias=b2)
        return heads(module(flat(v)), v.shape[1])

    return peer


def mixer(width, length, factor):
    """The first half of a block of lucidrains/mlp-mixer-pytorch, with its residual."""
    from mlp_mixer_pytorch import MLPMixer

    model = MLPMixer(image_size=(length, 1), channels=1, patch_size=1, dim=width, depth=1,
                     num_classes=1, expansion_factor=factor)
    block = model[2][0]

    def peer(v, w1, b1, w2, b2, norm_weight, norm_bias):
        put(block.norm, weight=norm_weight, bias=norm_bias)
        put(block.fn[0], weight=w1.T[:, :, None], bias=b1)
        put(block.fn[3], weight=w2.T[:, :, None], bias=b2)
        return heads(block(flat(v)), v.shape[1])

    return peer


# --- set_transformer, memory_compressed ---


class Result(torch.nn.Module):
    """A projection with a given result, which its caller leaves as it is."""

    def forward(self, *_):
        return self.x


class Product(torch.nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return F.linear(x, self.weight)


class Twice(torch.nn.Module):
    def forward(self, x):
        return torch.cat([x, x], dim=2)


def isab(H, M):
    """lucidrains/isab-pytorch, heads of 64. w_k2, w_v2: of all heads, [H*64,H*64], or None."""
    from isab_pytorch import ISAB

    module = ISAB(dim=64 * H, heads=H, num_latents=M)
    gather, attend = module.attn1, module.attn2
    gather.to_q = gather.to_out = attend.to_out = torch.nn.Identity()
    gather.to_kv, attend.to_q = Result(), Result()

    def peer(q, k, v, inducing, w_k2=None, w_v2=None, mask=None):
        gather.to_kv.x = torch.cat([flat(k), flat(v)], dim=2)
        attend.to_q.x = flat(q)
        attend.to_kv = Twice()
        if w_k2 is not None:
            weight = torch.cat([w_k2, w_v2], dim=1).T
            attend.to_kv = Product(weight)
        put(module, latents=inducing.transpose(0, 1).flatten(1))
        return heads(module(flat(q), mask=mask)[0], H)

    return peer


# --- reformer ---


def reformer_rotations(seed, shape, dtype=torch.float32):
    """What the peers draw after they, or their caller, have seeded."""
    torch.manual_seed(seed)
    return torch.randn(shape, dtype=dtype)


def reformer(bucket_size, n_hashes, seed=0, **options):
    """lucidrains/reformer-pytorch. Its rotations [1,D,n_hashes,N / bucket_size / 2] are drawn in
    the dtype of q by each call."""
    from reformer_pytorch import LSHAttention

    module = LSHAttention(bucket_size=bucket_size, n_hashes=n_hashes, **options).eval()

    def peer(q, v):
        torch.manual_seed(seed)
        return module(q.flatten(0, 1), v.flatten(0, 1))[0].unflatten(0, q.shape[:2])

    return peer


def memory_compressed(H, D, f, causal):
    """lucidrains/memory-compressed-attention; its scale is (H*D)^-0.5."""
    from memory_compressed_attention import MemoryCompressedAttention

    module = MemoryCompressedAttention(H * D, heads=H, causal=causal, compression_factor=f)
    module.to_qkv, module.to_out = Result(), torch.nn.Identity()

    def peer(q, k, v, conv_wk, conv_bk, null_k, null_v):
        module.to_qkv.x = torch.cat([flat(q), flat(k), flat(v)], dim=2)
        put(module.compress_fn.conv, weight=conv_wk.flatten(0, 1), bias=conv_bk.flatten())
        put(module, null_k=null_k.flatten()[None, None], null_v=null_v.flatten()[None, None])
        return heads(module(flat(q)), H)

    return peer


# --- transformer_xl, compressive ---


def relative_shift(x):
    """[.., i, c] of scores by place to scores by key: the relative shift of Dai et al. 2019,
    appendix B, as kimiyoung/transformer-xl has it (_rel_shift)."""
    padded = torch.cat([x.new_zeros(*x.shape[:-1], 1), x], dim=-1)
    rows, columns = x.shape[-2:]
    return padded.reshape(*x.shape[:-2], columns + 1, rows)[..., 1:, :].reshape(x.shape)


def relative_attention(q, k, v, r, u, v_bias):
    """RelPartialLearnableMultiHeadAttn of kimiyoung/transformer-xl without its projections, norm
    and dropout, written down since no package has it. k and v with their memory; r [H,L,D] from the
    largest distance, L - 1, down."""
    content = (q + u[:, None]) @ k.transpose(-1, -2)
    places = relative_shift((q + v_bias[:, None]) @ r.transpose(-1, -2))
    scores = (content + places) * q.shape[-1] ** -0.5
    later = torch.ones(scores.shape[-2:], dtype=bool).triu(1 + k.shape[2] - q.shape[2])
    scores = scores.masked_fill(later, -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def sinusoids(rows, size):
    """PositionalEmbedding of kimiyoung/transformer-xl, of places rows - 1 .. 0."""
    frequency = 1 / 10000 ** (torch.arange(0.0, size, 2.0, dtype=torch.float64) / size)
    angle = torch.outer(torch.arange(rows - 1, -1, -1.0, dtype=torch.float64), frequency)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def compressive(H, D, n, mem_len, cmem_len, rate=4):
    """lucidrains/compressive-transformer-pytorch, without u and v_bias. Row d of rel_k is place
    L - 1 - d of its table."""
    from compressive_transformer_pytorch.compressive_transformer_pytorch import SelfAttention

    module = SelfAttention(H * D, n, mem_len, cmem_len, rate, heads=H)
    given(module, "to_q", "to_kv").to_out = torch.nn.Identity()

    def peer(q, k, v, rel_k, mem_k=None, mem_v=None, cmem_k=None, cmem_v=None):
        rows = [[y for y in x if y is not None] for x in ((cmem_k, mem_k, k), (cmem_v, mem_v, v))]
        k_all, v_all = (torch.cat(x, dim=2) for x in rows)
        before = [flat(x) if x is not None else None for x in (mem_k, cmem_k)]
        module.to_q.x = flat(q)
        module.to_kv.x = torch.cat([flat(k_all), flat(v_all)], dim=2)
        out, _, _ = module(flat(q), memories=before, calc_memory=False,
                           pos_emb=rel_k[:, :k_all.shape[2]].flip(1))
        return heads(out, H)

    return peer


# --- sinkhorn ---


def sinkhorn(H, D, n, block, causal=False, **options):
    """sinkhorn-transformer's attention with given noise, zeros where there is none. Its linear sort
    net reads sort_w [H,2D,blocks], its causal form null_k and null_v [H,D]."""
    from sinkhorn_transformer import sinkhorn_transformer as lucidrains

    kind = lucidrains.SinkhornCausalAttention if causal else lucidrains.SinkhornAttention
    module = kind(block, H * D, D, H, n, **options)

    def peer(q, k, v, noise=None, sort_w=None, null_k=None, null_v=None):
        if sort_w is not None:
            put(module.sort_net, linear=sort_w[None])
        if causal:
            put(module, null_keys=null_k[:, None], null_values=null_v[:, None])
        drawn = lucidrains.sample_gumbel
        lucidrains.sample_gumbel = lambda shape, device, dtype: (
            torch.zeros(shape, dtype=dtype) if noise is None else noise.reshape(shape).to(dtype))
        try:
            return module(q, k, v)
        finally:
            lucidrains.sample_gumbel = drawn

    return peer


# --- routing ---


def routing(H, D, clusters, window, **options):
    """lucidrains/routing-transformer: out, or with `with_aux` the loss of the clusters alone. A k of
    its own needs shared_qk=False."""
    from routing_transformer.routing_transformer import KmeansAttention

    with_aux = options.pop("with_aux", False)
    module = KmeansAttention(clusters, window, H, D, **options).eval()
    module.kmeans.initted.fill_(True)

    def peer(q, v, means, k=None, mem_k=None, mem_v=None):
        module.kmeans.means = means.to(q)
        memory = q.new_zeros(H, clusters, 0, D)
        put(module, mem_key=memory if mem_k is None else mem_k,
            mem_value=memory if mem_v is None else mem_v)
        out, aux = module(q, q if k is None else k, v)
        return aux if with_aux else out

    return peer


def reformer_transformers(H, D, chunk_len, n_hashes, n_buckets, seed=0, before=1, after=0,
                          causal=False):
    """Hugging Face's. Its rotations [H,D,n_hashes,S] are drawn in the dtype of q by each call."""
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    config = ReformerConfig(
        attn_layers=["lsh"], hidden_size=2 * H * D, num_attention_heads=H, attention_head_size=D,
        lsh_attn_chunk_length=chunk_len, num_hashes=n_hashes, num_buckets=n_buckets,
        lsh_num_chunks_before=before, lsh_num_chunks_after=after, hash_seed=seed,
        is_decoder=causal, lsh_attention_probs_dropout_prob=0.0)
    module = LSHSelfAttention(config).eval()
    one, zero = torch.eye(H * D), torch.zeros(H * D, H * D)
    module.query_key.weight.data = torch.cat([one, zero], 1)
    module.value.weight.data = torch.cat([zero, one], 1)

    def peer(q, v):
        module.to(q.dtype)
        return heads(module(torch.cat([flat(q), flat(v)], 2)).hidden_states, H)

    return peer
