"""Low-rank, kernel and mixing methods against public implementations on the CPU: same process, same
threads, in turns. One JSON object a line, as compare.py prints them; a case is named
`method, options / peer, N, calls`. Peers that cannot run are named on stderr with the reason.

B 1, H 8, D 64, float32, N 4096 and 16384 (2048 for the cost of scores by distance). Peers get q, k and v: projections are outside on both
sides. "both" is a forward call and a backward call of ours (which computes its forward again), and
a forward with its autograd of the peer. Where the peer is PyTorch's own transform, product or
attention, no public implementation of the method does more than call it: goal 1. "bound" is the
time of our products at the peak rate of the threads.

Usage: python -m tests.bench.torch.methods [--quick] [--threads T] [text in the case's name ...]
"""

import argparse
import gc
import json
import sys
import warnings

import numpy as np
import torch
import torch.nn.functional as F

from tests.bench.torch import measured
from tests.methods import library
from tests.torch import public

H, D = 8, 64
C = H * D
LENGTHS = (4096, 16384)
FEATURES = 256  # of performer and rfa, and columns of linformer
FASTER, EVEN = ">= 5", ">= 1"


class Case:
    """`make(n)`: a function of the tensors, given by name, that makes out; made where it is needed.
    `shapes(n)`: of the tensors that are differentiated besides q, k and v, or with `alone` all.
    `fixed(n)`: tensors sent to us alone; `options_of(n)`: more options. `limits`: the longest n of
    "forward", of "both", and why."""

    def __init__(self, name, method, options, peer, make, shapes=None, fixed=None, alone=False,
                 goal=FASTER, limits=None, tolerance=1e-4, spread=None, tied=None, out=(H, D),
                 options_of=lambda n: {}):
        self.title, self.method, self.options, self.peer = name, method, options, peer
        self.make, self.goal, self.tolerance, self.out = make, goal, tolerance, out
        self.tied, self.options_of = tied, options_of
        self.shapes, self.fixed = shapes or (lambda n: {}), fixed or (lambda n: {})
        self.alone, self.limits, self.spread = alone, limits, spread or {}

    def name(self, n, calls):
        return f"{self.method}, {self.title} / {self.peer}, N {n}, {calls}"

    def barred(self, n, calls):
        """Why the peer does not run, or nothing."""
        return self.limits[2] if self.limits and n > self.limits[calls == "both"] else ""

    def tensors(self, n):
        torch.manual_seed(1)
        shapes = {} if self.alone else {name: (1, H, n, D) for name in "qkv"}
        t = measured.leaves(**shapes | self.shapes(n))
        for name, factor in self.spread.items():
            t[name].data *= factor(n) if callable(factor) else factor
        return t

    def measure(self, n, calls, threads):
        return measured.measure(threads, calls, self.method, self.options | self.options_of(n),
                                self.tensors(n),
                                self.fixed(n), (1, self.out[0], n, self.out[1]), self.make(n),
                                self.tolerance, self.tied)


# --- low rank ---


def low_rank():
    projections = {"shapes": lambda n: {"e": (n, FEATURES), "f": (n, FEATURES)},
                   "spread": dict.fromkeys("ef", lambda n: n**-0.5)}
    yield Case("k 256", "linformer", {}, "linformer",
               lambda n: public.linformer(H, D, n, FEATURES), **projections)
    yield Case("k 256", "linformer", {}, "xformers",
               lambda n: public.linformer_xformers(n, FEATURES), **projections)
    # Their inverse ends far from converged, and what float32 loses in it is multiplied.
    loose = {"tolerance": 2e-2}
    for m in (64, 256):
        original = {"num_landmarks": m, "pinv_init": "original"}
        yield Case(f"{m} landmarks", "nystromformer", original, "nystrom-attention",
                   lambda n, m=m: public.nystrom(H, D, m), **loose)
    yield Case("64 landmarks, convolution of 33", "nystromformer",
               {"num_landmarks": 64, "pinv_init": "original", "conv_kernel_size": 33},
               "nystrom-attention", lambda n: public.nystrom(H, D, 64, kernel=33),
               shapes=lambda n: {"conv_weight": (H, 33)}, **loose)
    yield Case("64 landmarks", "nystromformer", {}, "transformers",
               lambda n: public.nystrom_transformers(H, D, n, 64, "exact"), **loose)
    yield Case("64 landmarks", "nystromformer", {}, "xformers",
               lambda n: public.nystrom_xformers(H, 64, 6, "exact"), **loose)
    yield from long_short()


def long_short():
    for causal, segment, rank in ((True, 16, 1), (False, 16, 128)):
        options = {"rank": rank, "window": 128, "window_mode": "blocks", "ln_scope": "head"}
        if causal:
            options |= {"causal": True, "segment_len": segment, "segment_visibility": "completed"}

        def make(n, causal=causal, segment=segment, rank=rank):
            attend = public.long_short(H, D, 128, segment, rank, causal)
            weight, bias = torch.ones(D), torch.zeros(D)
            # One tensor for keys and values.
            return lambda q, k, dyn_weight: attend(q, k, dyn_weight, weight, bias, weight, bias)

        yield Case(f"window 128, rank {rank}{', causal' if causal else ''}", "long_short", options,
                   "long-short-transformer", make, alone=True, tied={"v": "k"},
                   shapes=lambda n, rank=rank: {"q": (1, H, n, D), "k": (1, H, n, D),
                                                "dyn_weight": (D, rank)})


# --- kernels ---


def omega(rows=FEATURES, columns=D):
    return np.random.default_rng(3).standard_normal((rows, columns)).astype(np.float32)


def fast_transformers(causal, features=None):
    from fast_transformers.attention import CausalLinearAttention, LinearAttention
    from fast_transformers.masking import FullMask, LengthMask, TriangularCausalMask

    module = (CausalLinearAttention if causal else LinearAttention)(D, feature_map=features)

    def make(n):
        mask = TriangularCausalMask(n) if causal else FullMask(n)
        lengths = LengthMask(torch.tensor([n]))

        def peer(q, k, v):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return module(q, k, v, mask, lengths, lengths).transpose(1, 2)

        return peer

    return make


def random_features(name, random, **options):
    """A feature map of fast-transformers with given features."""
    from fast_transformers import feature_maps

    features = getattr(feature_maps, name)(D, n_dims=2 * len(random), **options)
    features.omega = torch.tensor(random.T)
    features.new_feature_map = lambda device: None
    return lambda dimensions: features


CAUSAL = {"causal": True}
OUTER = "the outer products of all positions would need more than 12 GB"


def linear_attention():
    from linear_attention_transformer import linear_attention_transformer as shen

    for causal in (False, True):
        yield Case("elu" + ", causal" * causal, "linear_attention", CAUSAL if causal else {},
                   "fast-transformers", lambda n, c=causal: fast_transformers(c)(n),
                   tolerance=1e-3)
    yield Case("softmax", "linear_attention", {"feature_map": "softmax"},
               "linear-attention-transformer",
               lambda n: lambda q, k, v: shen.linear_attn(q, k, v) * D**0.5)
    yield Case("softmax, causal", "linear_attention",
               {"feature_map": "softmax", "causal": True, "causal_norm": "joint"},
               "linear-attention-transformer",
               lambda n: lambda q, k, v: shen.causal_linear_attn(q, k, v, bucket_size=1),
               limits=(16384, 4096, OUTER), tolerance=1e-3)


def performer():
    random = omega()
    fixed = {"fixed": lambda n: {"omega": random},
             # Scores of a unit: N(0,1) would leave the estimate to chance, and to rounding.
             "spread": {"q": 0.5, "k": 0.5}, "tolerance": 2e-3}
    options = {"feature_eps": 1e-4, "stabilizer": "global", "den_eps": 0.0}
    yield Case("256 features", "performer", options, "performer-pytorch",
               lambda n: public.performer(random), **fixed)
    yield Case("256 features, causal", "performer", options | CAUSAL, "performer-pytorch",
               lambda n: public.performer(random, True), goal=">= 40",
               limits=(16384, 4096, OUTER), **fixed)
    yield Case("256 features, relu", "performer", {"kind": "generalized"}, "performer-pytorch",
               lambda n: public.performer(random, generalized_attention=True), **fixed)
    bare = {"feature_eps": 0.0, "den_eps": 0.0}
    for kind in ("positive", "hyperbolic"):
        yield Case(f"256 rows, {kind}", "performer", bare | {"kind": kind}, "xformers",
                   lambda n, kind=kind: public.favor_xformers(random, kind), **fixed)
    for causal in (False, True):
        yield Case("256 rows, hyperbolic" + ", causal" * causal, "performer",
                   bare | {"kind": "hyperbolic", "causal": causal}, "fast-transformers",
                   lambda n, c=causal: fast_transformers(c, random_features("Favor", random))(n),
                   **fixed)


def rfa():
    random = omega(64)
    for causal in (False, True):
        yield Case("64 features" + ", causal" * causal, "rfa",
                   {"qk_norm": False, "tau": 4.0, "causal": causal}, "fast-transformers",
                   lambda n, c=causal: fast_transformers(c, random_features(
                       "RandomFourierFeatures", random, softmax_temp=1 / 16))(n),
                   # Larger ones lie too far apart: their divisors would be near zero.
                   fixed=lambda n: {"omega": random}, spread={"q": 0.5, "k": 0.5}, tolerance=2e-3)
    gla = public.fla("simple_gla").naive_chunk_simple_gla

    def gated(q, k, v, gate_logits):
        phi = [torch.cat([u.sin(), u.cos()], dim=3) / 8
               for u in (F.normalize(x, dim=3) @ torch.tensor(random.T) / 2 for x in (q, k))]
        phi[1] = phi[1] * torch.sigmoid(-gate_logits)[..., None]
        v = torch.cat([v, torch.ones_like(v[..., :1])], dim=3)
        sums, _ = gla(*(x.transpose(1, 2) for x in (*phi, v, F.logsigmoid(gate_logits))), scale=1.0)
        return (sums[..., :-1] / sums[..., -1:]).transpose(1, 2)

    yield Case("64 features, gated", "rfa", {"tau": 2.0, "gated": True, "causal": True},
               "fla, chunks", lambda n: gated, shapes=lambda n: {"gate_logits": (1, H, n)},
               fixed=lambda n: {"omega": random}, tolerance=2e-3)


def fast_weights():
    rule = public.fla("delta_rule").delta_rule_chunkwise

    def dpfp(x):
        r = torch.cat([x.relu(), (-x).relu()], dim=3)
        phi = torch.cat([r * r.roll(1, 3), r * r.roll(2, 3)], dim=3)
        return phi / phi.sum(3, keepdim=True)

    def silu(x):
        return F.normalize(F.silu(x), dim=3)

    for name, phi, options in (
            ("dpfp", dpfp, {}), ("silu", silu, {"feature_map": "silu", "feature_norm": "l2"})):
        def peer(q, k, v, beta_logits, phi=phi):
            q, k = phi(q), phi(k)
            return rule(q * (q.shape[3] / D) ** 0.5, k, v, beta_logits.sigmoid())[0]

        yield Case(f"delta rule, {name}", "fast_weights", options, "fla, chunks",
                   lambda n, peer=peer: peer, shapes=lambda n: {"beta_logits": (1, H, n)},
                   tolerance=2e-3)


# --- synthetic scores and mixing ---


def synthesizer():
    def attend(q, v, scores):
        return F.scaled_dot_product_attention(torch.zeros_like(q), torch.zeros_like(q), v,
                                              attn_mask=scores)

    yield Case("random", "synthesizer", {"components": ["random"]}, "PyTorch's attention",
               lambda n: lambda v, r: attend(v, v, r[None]), alone=True, goal=EVEN,
               shapes=lambda n: {"v": (1, H, n, D), "r": (H, n, n)},
               limits=(4096, 4096, "its table and scores would need 17 GB"))
    yield Case("dense", "synthesizer", {}, "PyTorch's attention",
               lambda n: lambda q, v, w_dense: attend(q, v, q.relu() @ w_dense), alone=True,
               goal=EVEN, spread={"w_dense": 0.1},
               shapes=lambda n: {"q": (1, H, n, D), "v": (1, H, n, D), "w_dense": (D, n)},
               limits=(4096, 4096, "its scores would need 17 GB"))


def reformer():
    """Buckets and rotations as the peer takes them: N / 64 buckets, one table for all heads. Where
    tokens see themselves alone, its scores of -5e4 lose digits that add up to 1e-3 of out."""
    for causal in (False, True):
        yield Case(f"4 rounds, chunks of 64{', causal' if causal else ''}", "reformer",
                   {"chunk_len": 64, "n_hashes": 4, "key_norm": "unit", "dedup": False,
                    "causal": causal}, "reformer-pytorch",
                   lambda n, causal=causal: public.reformer(64, 4, causal=causal), alone=True,
                   shapes=lambda n: {"q": (1, H, n, D), "v": (1, H, n, D)},
                   fixed=lambda n: {"rotations": public.reformer_rotations(
                       0, (1, D, 4, n // 128)).numpy()},
                   tolerance=5e-3 if causal else 1e-4,
                   options_of=lambda n: {"n_buckets": [n // 64]})


def mixing():
    one = {"alone": True, "out": (1, C)}
    yield Case("1 head of 512", "fnet", {}, "PyTorch's FFT", lambda n: lambda v:
               torch.fft.fft2(v).real, shapes=lambda n: {"v": (1, 1, n, C)}, goal=EVEN, **one)
    yield Case("8 heads of 64", "fnet", {}, "transformers", lambda n: public.fnet_transformers(),
               shapes=lambda n: {"v": (1, H, n, D)}, goal=EVEN, alone=True)
    matrices = {"seq_kernel": lambda n: n**-0.5, "hidden_kernel": C**-0.5}
    yield Case("1 head of 512", "linear_mixing", {}, "PyTorch's products",
               lambda n: lambda v, seq_kernel, hidden_kernel: seq_kernel @ (v @ hidden_kernel),
               shapes=lambda n: {"v": (1, 1, n, C), "seq_kernel": (n, n), "hidden_kernel": (C, C)},
               spread=matrices, goal=EVEN, **one)
    gate = {"spread": {"weight": lambda n: n**-0.5},
            "shapes": lambda n: {"q": (1, 1, n, C), "v": (1, 1, n, C), "weight": (n, n),
                                 "bias": (n,), "norm_weight": (1, C), "norm_bias": (1, C)}}
    for causal in (False, True):
        def make(n, causal=causal):
            peer = public.gmlp(1, C, n, causal)
            return lambda weight, bias, **rest: peer(weight=weight[None], bias=bias[None], **rest)

        yield Case("512 channels" + ", causal" * causal, "gmlp_sgu", {"causal": causal},
                   "g-mlp-pytorch", make, **gate, **one)
    yield Case("512 channels", "gmlp_sgu", {}, "timm", lambda n: public.gmlp_timm(C, n), **gate,
               **one)
    mlp = {"spread": dict.fromkeys(("w1", "w2"), lambda n: n**-0.5),
           "shapes": lambda n: {"v": (1, 1, n, C), "w1": (n, 256), "b1": (256,), "w2": (256, n),
                                "b2": (n,), "norm_weight": (C,), "norm_bias": (C,)}}
    options = {"act": "gelu_erf", "residual": True}
    yield Case("512 channels", "mlp_mixer", options, "timm",
               lambda n: public.mixer_timm(C, n, 256), **mlp, **one)
    yield Case("512 channels", "mlp_mixer", options | {"norm_eps": 1e-5}, "mlp-mixer-pytorch",
               lambda n: public.mixer(C, n, 0.5), **mlp, **one)


# --- learned patterns and memories ---


def sets():
    for rows in (32, 256):
        yield Case(f"{rows} inducing rows", "set_transformer", {}, "isab-pytorch",
                   lambda n, rows=rows: public.isab(H, rows),
                   shapes=lambda n, rows=rows: {"inducing": (H, rows, D)})
    of_model = {"w_k2": (C, C), "w_v2": (C, C)}
    yield Case("32 inducing rows, weights of all heads", "set_transformer", {}, "isab-pytorch",
               lambda n: public.isab(H, 32), spread=dict.fromkeys(of_model, C**-0.5),
               shapes=lambda n: {"inducing": (H, 32, D), **of_model})


def memory_compressed():
    for causal in (False, True):
        yield Case("cells of 3" + ", causal" * causal, "memory_compressed",
                   {"share_conv": True, "scale": C**-0.5, "causal": causal},
                   "memory-compressed-attention",
                   lambda n, c=causal: public.memory_compressed(H, D, 3, c),
                   spread={"conv_wk": (3 * D) ** -0.5},
                   shapes=lambda n: {"conv_wk": (H, D, D, 3), "conv_bk": (H, D),
                                     "null_k": (H, D), "null_v": (H, D)},
                   limits=(16384, 4096, "its scores would need more than 12 GB"))


# --- memories ---


def memories():
    """A segment and a memory of as many rows."""
    fixed = {name: np.zeros((H, D), np.float32) for name in ("u", "v_bias")}
    yield Case("memory N", "compressive", {"grad_memory": True}, "compressive-transformer-pytorch",
               lambda n: public.compressive(H, D, n, n, n // 4), goal=EVEN,
               shapes=lambda n: {"rel_k": (H, 2 * n, D), "mem_k": (1, H, n, D),
                                 "mem_v": (1, H, n, D)},
               fixed=lambda n: fixed, limits=(4096, 4096, "its scores would need 17 GB"))


def routing():
    """sqrt(N) clusters of sqrt(N) members, and the enwik8 model's 16 of N / 16."""
    unit = {"route_norm": "l2", "mean_eps": 1e-5}
    shared = unit | {"attend_norm": "l2_key", "self_mask": True}
    separate = unit | {"attend_norm": "none", "shared_qk": False}
    for causal, own_keys, few in ((True, False, False), (False, False, False), (True, True, False),
                                  (False, True, False), (True, False, True)):
        def clusters(n, few=few):
            return 16 if few else round(n**0.5)

        def means(n, clusters=clusters):
            x = np.random.default_rng(3).standard_normal((H, clusters(n), D))
            return (x / np.linalg.norm(x, axis=2, keepdims=True)).astype(np.float32)

        def make(n, causal=causal, own_keys=own_keys, clusters=clusters, means=means):
            peer = public.routing(H, D, clusters(n), -(-n // clusters(n)), causal=causal,
                                  shared_qk=not own_keys, num_mem_kv=int(causal and own_keys))
            return lambda **tensors: peer(means=torch.tensor(means(n)), **tensors)

        def shapes(n, causal=causal, own_keys=own_keys, clusters=clusters):
            slots = (H, clusters(n), 1, D)
            return ({"q": (1, H, n, D), "v": (1, H, n, D)} | ({"k": (1, H, n, D)} if own_keys else {})
                    | ({"mem_k": slots, "mem_v": slots} if causal and own_keys else {}))

        title = ("16 clusters" if few else "sqrt(N) clusters") + ", own keys" * own_keys
        yield Case(title + ", causal" * causal, "routing",
                   (separate if own_keys else shared) | {"causal": causal}, "routing-transformer",
                   make, shapes=shapes, alone=True,
                   fixed=lambda n, means=means: {"means": means(n)})


# --- ours against ours ---


def ready_name(n, calls):
    return f"performer, 256 features / linear_attention, F 256, N {n}, {calls}"


def against_ready_features(name, n, calls, threads):
    """performer with 256 features against linear_attention whose q and k have 256 columns."""
    torch.manual_seed(1)
    t = {name: torch.randn(1, H, n, D) / 2 for name in "qkv"}
    wide = {name: torch.rand(1, H, n, FEATURES) for name in "qk"} | {"v": t["v"]}
    for causal in (False, True):
        sides = [measured.Ours(threads, method, options | {"causal": causal}, tensors, fixed,
                               (1, H, n, D))
                 for method, options, tensors, fixed in (
                     ("performer", {}, t, {"omega": omega()}),
                     ("linear_attention", {"feature_map": "identity"}, wide, {}))]
        runs = [getattr(side, calls) for side in sides]
        for run in runs:
            run()
        mine, ready = measured.in_turns(*runs)
        line(name + ", causal" * causal, threads, mine, ready, sides[0].bound(calls), mine / ready,
             "<= 1.5", "ours")
        for side in sides:
            side.close()


def relative_name(calls):
    return f"transformer_xl, memory 2048 / softmax of as many keys, N 2048, {calls}"


def against_plain_attention(name, calls, threads):
    """What scores by distance cost, beside attention over the same keys without them."""
    n = 2048
    torch.manual_seed(1)
    q, k, v, mem_k, mem_v = torch.randn(5, 1, H, n, D)
    t = {"q": q, "k": k, "v": v, "mem_k": mem_k, "mem_v": mem_v, "u": torch.randn(H, D),
         "v_bias": torch.randn(H, D), "rel_k": torch.randn(H, 2 * n, D)}
    whole = {"q": q, "k": torch.cat([mem_k, k], 2), "v": torch.cat([mem_v, v], 2)}
    sides = [measured.Ours(threads, method, options, tensors, {}, (1, H, n, D))
             for method, options, tensors in (("transformer_xl", {"grad_memory": True}, t),
                                              ("softmax", {"causal": True}, whole))]
    runs = [getattr(side, calls) for side in sides]
    for run in runs:
        run()
    mine, plain = measured.in_turns(*runs)
    line(name, threads, mine, plain, sides[0].bound(calls), mine / plain, "<= 1.6", "ours")
    for side in sides:
        side.close()


# --- sinkhorn ---


def sinkhorn():
    peer, block = "sinkhorn-transformer", 64

    def of_keys(n, **settings):
        attend = public.sinkhorn(H, D, n, block, **settings)
        # One tensor for keys and values: the peer makes sorted values from sorted keys.
        return lambda q, k: attend(q, k, k)

    two = {"alone": True, "tied": {"v": "k"},
           "shapes": lambda n: {"q": (1, H, n, D), "k": (1, H, n, D)}}
    yield Case("blocks of 64", "sinkhorn", {}, peer,
               lambda n: of_keys(n, non_permutative=False), tolerance=1e-3, **two)
    yield Case("blocks of 64, topk", "sinkhorn", {"sort": "topk"}, peer, of_keys, **two)
    yield Case("blocks of 64, SortCut of 2", "sinkhorn",
               {"sortcut": 2, "sort": "topk", "local": True}, peer,
               lambda n: public.sinkhorn(H, D, n, block, n_sortcut=2))


def cases():
    for group in (low_rank, linear_attention, performer, rfa, fast_weights, synthesizer, mixing, sets,
                  memory_compressed, memories, reformer, routing, sinkhorn):
        try:
            yield from group()
        except ImportError as error:
            print(f"methods: {group.__name__}: the rest left out, {error}", file=sys.stderr)


def line(name, threads, mine, theirs, bound, ratio, goal, peer):
    print(json.dumps({
        "case": f"{name} T{threads}", "value": round(mine * 1e3, 4), "unit": "ms",
        "peak": round(bound * 1e3, 4), "peer": peer, "peer_ms": round(theirs * 1e3, 4),
        "ratio": round(ratio, 3), "goal": goal}), flush=True)


def compare(case, n, calls, threads):
    name = case.name(n, calls)
    if reason := case.barred(n, calls):
        return print(f"methods: {name}: not run, {reason}", file=sys.stderr)
    try:
        mine, theirs, bound = case.measure(n, calls, threads)
    except (ImportError, AssertionError, library.Refused) as error:
        return print(f"methods: {name}: no figure, {error}", file=sys.stderr)
    line(name, threads, mine, theirs, bound, theirs / mine, case.goal, case.peer)


def main():
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="N 4096 only")
    parser.add_argument("--threads", type=int, action="append", help="default: 1, then 2")
    parser.add_argument("texts", nargs="*", help="all are in the names of the cases to run")
    args = parser.parse_args()

    def wanted(name):
        return all(text in name for text in args.texts)

    lengths = LENGTHS[:1] if args.quick else LENGTHS
    for threads in args.threads or (1, 2):
        torch.set_num_threads(threads)
        for n in lengths:
            for calls in ("forward", "both"):
                for case in cases():
                    if wanted(case.name(n, calls)):
                        compare(case, n, calls, threads)
                        gc.collect()
                if wanted(name := ready_name(n, calls)):
                    against_ready_features(name, n, calls, threads)
        for calls in ("forward", "both"):
            if wanted(name := relative_name(calls)):
                against_plain_attention(name, calls, threads)


if __name__ == "__main__":
    main()
