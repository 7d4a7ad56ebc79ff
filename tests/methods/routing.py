"""Routing attention: oracle from the specification of learned patterns (routing), cases, golden
values, refusals."""

import dataclasses

import numpy as np

from tests.methods import drawn
from tests.methods.cases import ALL, Case
from tests.methods.golden import Golden
from tests.methods.learned import F
from tests.methods.method import Growth, Method, Visible
from tests.methods.refused import B, H, Hkv, Nk, Nq, D, Dv, Refused, common_refusals, ints, zeros
from tests.methods.traced import Tape, TracedOracle

MEMORY = ["mem_k", "mem_v"]
CENTROIDS = ["centroids", "ema_count", "ema_means"]


def shares(o):
    return o.get("shared_qk", True)


def normals(seed, name, shape):
    size = int(np.prod(shape))
    u = (drawn.philox(seed, name, -(-size // 4)).astype(np.float64) + 0.5) / 2**32
    radius, angle = np.sqrt(-2 * np.log(u[:, ::2])), 2 * np.pi * u[:, 1::2]
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=2)
    return pairs.ravel()[:size].reshape(shape).astype(np.float32).astype(np.float64)


def normalised(f, x, norm):
    if norm == "layernorm":
        return f.layer_norm(x, (-1,), 1.0, 0.0, 1e-6)
    if norm == "l2":
        return x / f.norm(x, 1e-12)
    return x


def best(scores, w):
    """[H,C,w]: the indices of the largest of [H,C,n], ties to the lowest, NaN last; ascending."""
    order = np.argsort(np.where(np.isnan(scores), np.inf, -scores), axis=2, kind="stable")
    return np.sort(order[:, :, :w], axis=2)


class RoutingOracle(TracedOracle):
    differentiable = ("q", "k", "v", *MEMORY, "bias")
    axes = {"bias": "B,H,Nq,Nk"}

    def gives_lse(self, o):
        return False

    def _lengths(self, t, b):
        nq, nk = super()._lengths(t, b)
        return nq if "k" in t or "q_lengths" in t else nk, nk

    def visible(self, t, o):
        """Which pairs share a cluster follows from all rows."""
        return np.ones((1, 1, 1, 1), bool)

    def sizes(self, t, o):
        """Clusters, and members of each, before any cut."""
        N = t["v"].shape[2]
        C = t["means"].shape[1] if "means" in t else o.get("n_clusters", max(1, round(N ** 0.5)))
        w = o.get("window", max(1, -(-N // C)))
        return C, w, o.get("kv_window", w)

    def prepared(self, t, o):
        """What is drawn, and what a sequence does not know of its request."""
        C, w, w_k = self.sizes(t, o)
        heads, D, Dv = t["q"].shape[1], t["q"].shape[3], t["v"].shape[3]
        made, seed = {}, o.get("seed", 0)
        if "means" not in t:
            x = normals(seed, "means", (heads, C, D))
            made["means"] = normalised(Tape(), Tape().num(x), "layernorm").x
        for name, other, size in (("mem_k", "mem_v", D), ("mem_v", "mem_k", Dv)):
            if other in t and name not in t:
                made[name] = normals(seed, name, (heads, C, t[other].shape[2], size))
        lengths = [self._lengths(t, b) for b in range(t["v"].shape[0])]
        rows = heads * sum(nq + (0 if shares(o) else nk) for nq, nk in lengths)
        return made | t, o | {"window": w, "kv_window": w_k, "rows": rows}

    # --- one sequence

    def routed(self, f, t, o, name):
        """(normalised rows [H,n,D] of every query head, their scores [H,C,n])."""
        group = t["q"].shape[1] // t[name].shape[1]
        y = normalised(f, t[name], o.get("route_norm", "layernorm"))
        y = f.repeat_heads(y, group)[0]
        means = t["means"].x if hasattr(t["means"], "x") else t["means"]
        return y, np.einsum("hid,hcd->hci", y.x, means)

    def rows_of(self, f, t, o):
        """The names of what is routed, and `routed` of each."""
        return {name: self.routed(f, t, o, name) for name in ("q" if shares(o) else "qk")}

    def compute(self, f, t, o, offset):
        routed = self.rows_of(f, t, o)
        q, v, n, nk = t["q"], t["v"], t["q"].shape[2], t["v"].shape[2]
        heads, group = q.shape[1], q.shape[1] // v.shape[1]
        at_q = best(routed["q"][1], o["window"])
        at_k = at_q if shares(o) else best(routed["k"][1], o["kv_window"])
        C, w = at_q.shape[1:]

        norm = o.get("attend_norm", "layernorm")
        k = q if shares(o) else t["k"]
        if norm == "layernorm":
            q, k = normalised(f, q, norm), normalised(f, k, norm)
        if norm == "l2_key":
            k = normalised(f, k, "l2")
        if shares(o) and nk < n:
            # Rows from kv_lengths on are queries alone.
            v = f.concat([v, np.zeros((1, v.shape[1], n - nk, v.shape[3]))], 2)
        k, v = f.repeat_heads(k, heads // k.shape[1]), f.repeat_heads(v, group)
        of_head = np.arange(heads)[:, None, None]
        q, k, v = q[0, of_head, at_q], k[0, of_head, at_k], v[0, of_head, at_k]  # [H,C,w,.]
        scale = o.get("scale", q.shape[3] ** -0.5)
        logits = (q @ k.swapaxes(-1, -2)) * scale
        i, j = at_q[..., :, None], at_k[..., None, :]
        mask = np.broadcast_to(j < nk, (heads, C, w, at_k.shape[2]))
        if o.get("causal"):
            mask = mask & (j <= i + (0 if shares(o) else offset))
        if "bias" in t:
            bias = t["bias"].reshape(*(1,) * (4 - t["bias"].ndim), *t["bias"].shape)
            bias = f.expand(bias, (1, heads, n, nk))
            if nk < n:
                bias = f.concat([bias, np.zeros((1, heads, n, n - nk))], 3)
            bias = bias[0, of_head[..., None], i, j]
            mask = mask & ~(bias.x == -np.inf)
            logits = f.where(mask, logits + f.where(mask, bias), 0.0)
        if o.get("self_mask"):
            logits, mask = f.where(i == j, -5e4, logits), mask | ((i == j) & (j < nk))
        if MEMORY[0] in t:
            slots = (q @ t["mem_k"].swapaxes(-1, -2)) * scale
            logits, v = f.concat([slots, logits], 3), f.concat([t["mem_v"], v], 2)
            mask = np.concatenate([np.ones(slots.shape, bool), mask], 3)
        out, _ = f.attention(logits, v, mask)
        seen = mask.any(axis=3).reshape(heads, C * w)

        chosen = (np.arange(n)[:, None] == at_q.reshape(heads, 1, C * w)).astype(f.dtype)
        count = (chosen * seen[:, None]).sum(2)[..., None] + o.get("mean_eps", 0)
        total = f.num(chosen) @ out.reshape(heads, C * w, out.shape[3])
        total = total / np.where(count == 0, 1, count)
        made = {"out": total.reshape(1, *total.shape)}
        if o.get("aux_loss"):
            made["aux"] = self.aux(f, t, o, routed)
        return made

    def aux(self, f, t, o, routed):
        total = f.num(np.zeros(1))
        for y, scores in routed.values():
            if y.shape[1] == 0:
                continue
            nearest = np.where(np.isnan(scores), -np.inf, scores).argmax(axis=1)
            d = y - t["means"][np.arange(y.shape[0])[:, None], nearest]
            total = total + (d * d).reshape(1, -1).sum(1)
        return total * (o.get("commitment", 1e-4) / max(o["rows"] * t["q"].shape[3], 1))

    # --- the request

    def centroids(self, f, t, o):
        C, heads = t["means"].shape[1], t["means"].shape[0]
        counts, sums = np.zeros((heads, C, 1)), f.num(np.zeros(t["means"].shape))
        for b in range(t["v"].shape[0]):
            cut = {name: f.num(x) if x.dtype.kind not in "iub" else x
                   for name, x in self._cut(t, b).items()}
            for y, scores in self.rows_of(f, cut, o).values():
                if y.shape[1] == 0:
                    continue
                nearest = np.where(np.isnan(scores), -np.inf, scores).argmax(axis=1)
                chosen = (np.arange(C)[:, None] == nearest[:, None]).astype(f.dtype)
                counts = counts + chosen.sum(2, keepdims=True)
                sums = sums + f.num(chosen) @ y
        d = o.get("ema_decay", 0.999)
        before = t["ema_count"][..., None] if "ema_count" in t else np.zeros((heads, C, 1))
        count = f.num(before) * d + f.num(counts) * (1 - d)
        moved = f.num(t.get("ema_means", t["means"])) * d + sums * (1 - d)
        total = count.sum(1, keepdims=True)
        share = (count + 1e-5) / (total + C * 1e-5)
        is_empty = total.x == 0
        centres = f.where(is_empty, t["means"], moved / f.where(is_empty, 1.0, share * total))
        return dict(zip(CENTROIDS, (centres, count.reshape(heads, C), moved)))

    def _whole(self, name, t, made, b, pick, whole):
        if name != "aux":
            super()._whole(name, t, made, b, pick, whole)
        else:
            whole[name] = whole.get(name, 0) + pick(made)

    def _run(self, t, o, tape_of, pick):
        whole = super()._run(t, o, tape_of, pick)
        if o.get("return_centroids"):
            f = tape_of()
            whole |= {name: pick(x) for name, x in self.centroids(f, t, o).items()}
        return whole

    def forward(self, t, o, dtype=np.float64):
        return super().forward(*self.prepared(t, o), dtype)

    def backward(self, t, o, dtype=np.float64, store=lambda x: x):
        grads = super().backward(*self.prepared(t, o), dtype, store)
        return {name: g for name, g in grads.items() if name in t}

    def magnitude(self, t, o):
        sums, amplification = super().magnitude(*self.prepared(t, o))
        return {name: s for name, s in sums.items()
                if name in t or name not in self.differentiable}, amplification

    def pairs(self, t, o):
        """Pairs within clusters. Those that come too late by their positions count, too."""
        C, w, w_k = self.sizes(t, o)
        slots = next((t[name].shape[2] for name in MEMORY if name in t), 0)
        count = 0
        for b in range(t["v"].shape[0]):
            nq, nk = self._lengths(t, b)
            q, k = min(w, nq), min(w, nq) if shares(o) else min(w_k, nk)
            within = q * (q + 1) // 2 if shares(o) and o.get("causal") else q * k
            count += C * (within + q * slots)
        return count * t["q"].shape[1]


def fitted(case):
    """With shared rows as many keys as queries."""
    if not shares(case.options) or case.Nq == case.keys:
        return case
    n = case.Nq
    lengths = {name: tuple(min(x, n) for x in values) for name, values in case.ints.items()}
    return dataclasses.replace(case, Nk=n, ints=lengths)


def of_one_branch(case):
    """A bias repeats where it has a dimension of 1: sizes in which those of a batch repeat alike."""
    letters = case.floats.get("bias")
    if letters is None:
        return fitted(case)
    B = 2 if "B" in letters else case.B
    ints = {name: (values * 2)[:B] for name, values in case.ints.items()}
    sizes = {name: 2 if n == 1 else n for name, n in (("Nq", case.Nq), ("Nk", case.keys))}
    return fitted(dataclasses.replace(case, B=B, ints=ints, **sizes))


# --- tensors of cases


def means(C, size=1.0):
    return {"means": lambda rng, case: size * rng.standard_normal((case.H, C, case.D))}


def memory(C, M):
    return {"mem_k": lambda rng, case: rng.standard_normal((case.H, C, M, case.D)),
            "mem_v": lambda rng, case: rng.standard_normal((case.H, C, M, case.Dv or case.D))}


def ema(C):
    return {"ema_count": lambda rng, case: rng.random((case.H, C)).astype(np.float32),
            "ema_means": lambda rng, case: rng.standard_normal((case.H, C, case.D))
            .astype(np.float32)}


GRAD_AUX = {"grad_aux": lambda rng, case: rng.standard_normal(1)}
SEPARATE = {"shared_qk": False}
LUCIDRAINS = {"route_norm": "l2", "attend_norm": "l2_key", "self_mask": True, "mean_eps": 1e-5}
ORIGINAL = {"scale": 1.0, "mean_eps": 0.01}
CAUSAL = {"causal": True}
ALL_OUTPUTS = {"return_centroids": True, "aux_loss": True}
LENGTHS = {"q_lengths": (0, 1, 63, 64, 65, 131), "kv_lengths": (131, 65, 64, 63, 1, 0)}
SAME = {name: (0, 1, 63, 64, 65, 131) for name in LENGTHS}
KV = {"kv_lengths": (0, 1, 63, 64, 65, 131)}


def routed(id, options=None, C=5, made=None, **how):
    return Case(id, options=options or {}, made=means(C) | (made or {}), **how)


def check(id, options, total, first=None, last=None, more=None):
    """A row of "Check": w = 3, two centroids of each head."""
    shape = (1, 2, 8, 4)
    tensors = {"q": F(shape, 0.7, 0.1), "v": F(shape, 1.3, 0.3), "grad_out": np.ones(shape),
               "means": F((2, 2, 4), 0.5, 0.2)} | (more or {})
    expected = {"sum(out)": total, "out[0,0,0,0]": first, "out[0,1,-1,-1]": last}

    def figures(results):
        out = results["out"]
        return {"sum(out)": out.sum(), "out[0,0,0,0]": out[0, 0, 0, 0],
                "out[0,1,-1,-1]": out[0, 1, -1, -1]}

    return Golden(id, tensors, {"window": 3} | options,
                  {name: x for name, x in expected.items() if x is not None}, figures)


KEYS = {"k": F((1, 2, 8, 4), 1.1, 0.2)}
GOOD_K = {"k": zeros(B, Hkv, Nq, D)}

METHOD = Method(
    id="routing",
    oracle=RoutingOracle(),
    options={"n_clusters": "int", "window": "int", "kv_window": "int", "shared_qk": "bool",
             "route_norm": "enum", "attend_norm": "enum", "self_mask": "bool",
             "mean_eps": "float", "causal": "bool", "scale": "float", "commitment": "float",
             "aux_loss": "bool", "return_centroids": "bool", "ema_decay": "float", "seed": "int"},
    tensors={"q", "k", "v", "q_lengths", "kv_lengths", "means", *MEMORY, "bias", "ema_count",
             "ema_means"},
    required=frozenset("qv"),
    differentiable=["q", "k", "v", *MEMORY, "bias"],
    outputs=["aux", *CENTROIDS],
    shares_qk=shares,
    peers=["lucidrains/routing-transformer KmeansAttention (needs PyTorch)",
           "google-research routing_transformer utils.py (not on PyPI)"],
    cases=[
        routed("plain", dtypes=ALL, B=2, Nq=63),
        Case("defaults", H=1, Nq=131, D=8),
        Case("drawn", B=2, H=3, Nq=65, D=5, options={"n_clusters": 4, "window": 9, "seed": 7}),
        routed("causal", CAUSAL, dtypes=ALL, B=2, Nq=65, C=4),
        routed("original", ORIGINAL | CAUSAL, Nq=131, C=8, D=8),
        routed("lucidrains", LUCIDRAINS, dtypes=ALL, B=2, Nq=65),
        routed("lucidrains-causal", LUCIDRAINS | CAUSAL, B=2, Nq=131, C=7),
        routed("separate", SEPARATE, dtypes=ALL, B=2, Nq=65),
        routed("separate-causal", SEPARATE | CAUSAL, dtypes=ALL, B=2, Nq=65),
        routed("separate-causal-slots", SEPARATE | CAUSAL, B=2, Nq=65, made=memory(5, 1)),
        routed("cross", SEPARATE | CAUSAL, dtypes=ALL, B=2, Nq=33, Nk=131, D=5, Dv=7),
        routed("cross-fewer-keys", SEPARATE | CAUSAL, Nq=131, Nk=33),
        routed("kv-window", SEPARATE | {"window": 7, "kv_window": 31}, Nq=65, Nk=70),
        routed("gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=65),
        routed("gqa-separate", SEPARATE | CAUSAL, dtypes=ALL, B=2, H=6, Hkv=2, Nq=33, Nk=65),
        routed("mqa-separate", SEPARATE | ALL_OUTPUTS, H=4, Hkv=1, Nq=65, made=GRAD_AUX),
        *[routed(f"{route}-{attend}", {"route_norm": route, "attend_norm": attend}, Nq=40)
          for route in ("layernorm", "l2", "none") for attend in ("layernorm", "l2_key", "none")],
        routed("separate-l2", SEPARATE | {"route_norm": "l2", "attend_norm": "l2_key"}, Nq=40),
        routed("separate-none", SEPARATE | {"route_norm": "none", "attend_norm": "none"}, Nq=40),
        *[routed(f"far-{route}-{attend}-{spread:g}", {"route_norm": route, "attend_norm": attend, "scale": s},
                 Nq=40, spread=spread, ratio=False)
          for route, attend, spread, s in (
              ("l2", "l2_key", 1e-13, 1e13), ("l2", "l2_key", 1e20, 1e-20),
              ("l2", "layernorm", 1e20, 1.0), ("layernorm", "layernorm", 1e20, 1.0))],
        routed("separate-far", SEPARATE | {"route_norm": "l2"}, Nq=40, Nk=33, spread=1e-13,
               ratio=False),
        routed("self-alone", {"self_mask": True, "window": 1}, Nq=20),
        routed("self-slots", {"self_mask": True, "window": 9}, Nq=33, made=memory(5, 2)),
        routed("slots", B=2, dtypes=ALL, Nq=65, made=memory(5, 3)),
        routed("slots-f32", B=2, dtypes=("bf16",), Nq=65, made=memory(5, 3), wide_floats=True),
        routed("slots-lengths", B=6, Nq=131, ints=KV, made=memory(5, 3)),
        routed("slots-separate", SEPARATE | LUCIDRAINS | {"self_mask": False}, H=4, Hkv=2, Nq=33,
               Nk=20, made=memory(5, 2)),
        routed("drawn-mem-k", Nq=33, made={"mem_v": memory(5, 2)["mem_v"]}),
        routed("drawn-mem-v", {"seed": 3}, Nq=33, made={"mem_k": memory(5, 2)["mem_k"]}),
        routed("no-slots", Nq=33, made=memory(5, 0)),
        routed("bias", dtypes=ALL, B=2, Nq=65, floats={"bias": "B,H,Nq,Nk"}),
        routed("bias-hidden", CAUSAL, B=2, Nq=65, floats={"bias": "B,H,Nq,Nk"}, hidden_bias=True),
        routed("bias-shared", SEPARATE | CAUSAL, B=2, H=4, Hkv=2, Nq=33, Nk=65,
               floats={"bias": "Nq,Nk"}),
        routed("bias-heads", B=2, Nq=33, floats={"bias": "H,1,Nk"}),
        routed("bias-rows", B=2, Nq=33, floats={"bias": "B,1,Nq,1"}),
        routed("bias-one", SEPARATE, B=2, Nq=33, floats={"bias": "1"}),
        routed("bias-lengths", SEPARATE, B=6, Nq=131, ints=LENGTHS,
               floats={"bias": "B,1,Nq,Nk"}),
        routed("bias-shared-lengths", SEPARATE | CAUSAL, B=6, Nq=131, ints=LENGTHS,
               floats={"bias": "1,H,Nq,Nk"}),
        routed("bias-self", LUCIDRAINS, B=2, Nq=33, floats={"bias": "1,1,Nq,Nk"},
               hidden_bias=True),
        routed("window-above-n", {"window": 100}, Nq=20, C=3),
        routed("few", {"window": 2}, Nq=65, C=3),
        routed("one-cluster", CAUSAL, dtypes=ALL, Nq=65, C=1),
        routed("more-clusters", Nq=5, C=9),
        routed("lengths", B=6, Nq=131, ints=SAME),
        routed("kv-lengths", CAUSAL, dtypes=ALL, B=6, Nq=131, ints=KV),
        routed("q-lengths", LUCIDRAINS, B=6, Nq=131, ints={"q_lengths": KV["kv_lengths"]}),
        *[routed(f"both-lengths-{name}", options, B=6, Nq=131, ints=LENGTHS, **how)
          for name, options, how in (
              ("shared", {}, {"dtypes": ALL}), ("causal", CAUSAL, {"H": 4, "Hkv": 2}),
              ("self", LUCIDRAINS, {}), ("self-causal", LUCIDRAINS | CAUSAL, {}),
              ("slots", {}, {"made": memory(5, 3)}), ("outputs", ALL_OUTPUTS, {"made": GRAD_AUX}),
              ("bias", CAUSAL, {"floats": {"bias": "B,H,Nq,Nk"}}),
              ("bias-rows", LUCIDRAINS, {"floats": {"bias": "B,1,Nq,1"}}),
              ("bias-keys", {}, {"floats": {"bias": "Nk"}}))],
        routed("lengths-separate", SEPARATE, dtypes=ALL, B=6, Nq=131, ints=LENGTHS),
        routed("lengths-separate-causal", SEPARATE | CAUSAL, B=6, H=4, Hkv=2, Nq=131,
               ints=LENGTHS),
        routed("equal-lengths", ALL_OUTPUTS, B=5, Nq=65, ints={"kv_lengths": (20, 20, 20, 7, 7)},
               made=GRAD_AUX),
        # A run has a problem for each of them, a plan one for each length.
        routed("alternating-lengths", SEPARATE | ALL_OUTPUTS, C=6, B=96, H=3, Hkv=1, Nq=0, Nk=1,
               D=8, ints={"kv_lengths": (0, 1) * 48}, made=GRAD_AUX),
        routed("aux", {"aux_loss": True, "commitment": 0.5}, dtypes=ALL, B=2, Nq=65,
               made=GRAD_AUX),
        routed("aux-separate", SEPARATE | {"aux_loss": True, "route_norm": "l2"}, B=2, Nq=33,
               Nk=20, made=GRAD_AUX),
        routed("aux-none", {"aux_loss": True, "route_norm": "none", "commitment": 1.0}, Nq=33,
               made=GRAD_AUX),
        routed("aux-lengths", SEPARATE | {"aux_loss": True}, B=6, Nq=131, ints=LENGTHS,
               made=GRAD_AUX),
        routed("centroids", {"return_centroids": True}, dtypes=ALL, B=2, Nq=65),
        routed("centroids-ema", {"return_centroids": True, "ema_decay": 0.5}, B=2, Nq=65,
               made=ema(5)),
        routed("centroids-lengths", SEPARATE | {"return_centroids": True, "ema_decay": 0.0}, B=6,
               Nq=131, ints=LENGTHS, made=ema(5)),
        Case("centroids-drawn", H=2, Nq=40, options=ALL_OUTPUTS),
        routed("centroids-without-rows", ALL_OUTPUTS, B=2, Nq=9, ints={"kv_lengths": (0, 0)},
               made=GRAD_AUX),
        routed("n0", ALL_OUTPUTS, Nq=0, made=GRAD_AUX),
        routed("nk0", SEPARATE, Nq=3, Nk=0),
        routed("nk0-slots", SEPARATE, Nq=3, Nk=0, made=memory(5, 2)),
        routed("n1", dtypes=ALL, Nq=1, D=1, Dv=1, C=2),
        routed("odd-d", CAUSAL, dtypes=ALL, Nq=65, D=5, Dv=7),
        routed("bnhd", B=2, Nq=65, layout="BNHD"),
        routed("strided", B=2, H=4, Hkv=2, Nq=65, strided=True),
        routed("strided-bnhd", SEPARATE, dtypes=ALL, B=2, Nq=65, strided=True, layout="BNHD"),
        routed("subnormal", dtypes=("f16",), Nq=33, v_scale=1e-6),
    ],
    batches=[{"n_clusters": 4}, {"n_clusters": 3} | CAUSAL, LUCIDRAINS | CAUSAL,
             SEPARATE | {"n_clusters": 4}, SEPARATE | CAUSAL | {"n_clusters": 4, "window": 9},
             {"n_clusters": 4} | ALL_OUTPUTS, SEPARATE | {"n_clusters": 4} | ALL_OUTPUTS],
    tensor_batches=[
        Case("means", options=LUCIDRAINS | ALL_OUTPUTS, made=means(5) | ema(5)),
        Case("slots", options=SEPARATE | CAUSAL, made=means(5) | memory(5, 2)),
        Case("bias", options=SEPARATE | CAUSAL, made=means(5), floats={"bias": "B,H,Nq,Nk"}),
        Case("bias-shared", options=CAUSAL, made=means(5), floats={"bias": "1,H,Nq,Nk"}),
        Case("bias-keys", options=CAUSAL, made=means(5), floats={"bias": "1,1,1,Nk"}),
    ],
    fit_options=fitted,
    fit_sizes=of_one_branch,
    perf=[{}, CAUSAL],
    growth=[Growth(CAUSAL, 1.5, 1)],
    visible=[
        Visible("c4-w4", 16, 16, {"n_clusters": 4}, 64),
        Visible("c4-w4-causal", 16, 16, {"n_clusters": 4} | CAUSAL, 40),
        Visible("self", 16, 16, {"n_clusters": 4, "self_mask": True}, 64),
        Visible("separate", 16, 12, SEPARATE | {"n_clusters": 3, "window": 5, "kv_window": 2}, 30),
        Visible("nothing", 5, 0, SEPARATE, 0),
    ],
    golden=[
        check("default", {}, 0.917899319, 0, 0.090342503),
        check("causal", CAUSAL, 1.517718066),
        check("original", CAUSAL | ORIGINAL, 1.400148583),
        check("lucidrains", LUCIDRAINS, 0.276675259),
        check("separate-causal", SEPARATE | CAUSAL, 1.820900365, 0, 0.240464780, KEYS),
    ],
    good_tensors={"v": zeros(B, Hkv, Nq, Dv)},
    refused=common_refusals({}, (), ("q_lengths", "kv_lengths", "means", *MEMORY, "bias",
                                     "ema_count", "ema_means"),
                            ("out", "aux"), lacks=("sent_k", "cross")) + [
        Refused("clusters-0", {"n_clusters": 0}, ["n_clusters must be in 1..4096, got 0"]),
        Refused("clusters-4097", {"n_clusters": 4097},
                ["n_clusters must be in 1..4096, got 4097"]),
        Refused("window-0", {"window": 0}, ["window must be >= 1, got 0"]),
        Refused("kv-window-0", SEPARATE | {"kv_window": 0}, ["kv_window must be >= 1, got 0"],
                change=GOOD_K),
        Refused("kv-window-shared", {"kv_window": 3},
                ["kv_window must be absent with shared_qk, got 3"]),
        Refused("sent-k", {}, ["k must be absent with shared_qk, got [2,2,6,3]"], change=GOOD_K),
        Refused("no-k", SEPARATE, ["k is required with shared_qk = false, got none"]),
        Refused("cross", {}, ["Nk must be Nq = 6 with shared_qk, got 7"],
                change={"v": zeros(B, Hkv, Nk, Dv)}),
        Refused("self-separate", SEPARATE | {"self_mask": True},
                ["self_mask needs shared_qk, got shared_qk = false"], change=GOOD_K),
        Refused("route-norm", {"route_norm": "rms"},
                ['route_norm must be one of layernorm, l2, none, got "rms"']),
        Refused("attend-norm", {"attend_norm": "l2"},
                ['attend_norm must be one of layernorm, l2_key, none, got "l2"']),
        Refused("mean-eps", {"mean_eps": -1.0}, ["mean_eps must be >= 0 and <= 1e+30, got -1"]),
        Refused("commitment", {"commitment": -1.0},
                ["commitment must be >= 0 and <= 1e+30, got -1"]),
        Refused("decay-low", {"ema_decay": -0.5}, ["ema_decay must be >= 0 and <= 1, got -0.5"]),
        Refused("decay-1", {"ema_decay": 1.0}, ["ema_decay must be < 1, got 1"]),
        Refused("scale-0", {"scale": 0.0}, ["scale must be > 0 and <= 1e+30, got 0"]),
        Refused("seed", {"seed": -1}, ["seed must be in 0..2^64-1, got -1"]),
        Refused("means-heads", {}, ["means shape must be [H,C,D] with H = 4, got [2,5,3]"],
                change={"means": zeros(2, 5, 3)}),
        Refused("means-rank", {}, ["means shape must be [H,C,D], got [5,3]"],
                change={"means": zeros(5, 3)}),
        Refused("means-empty", {}, ["means shape must have C in 1..4096, got [4,0,3]"],
                change={"means": zeros(4, 0, 3)}),
        Refused("means-4097", {}, ["means shape must have C in 1..4096, got [4,4097,3]"],
                change={"means": zeros(4, 4097, 3)}),
        Refused("slots-clusters", {}, ["mem_k shape must be [H,C,M,D] with C = 5, got [4,2,1,3]"],
                change={"means": zeros(4, 5, 3), "mem_k": zeros(4, 2, 1, 3),
                        "mem_v": zeros(4, 5, 1, 5)}),
        Refused("slots-differ", {}, ["mem_v shape must be [H,C,M,Dv] with M = 1, got [4,5,2,5]"],
                change={"means": zeros(4, 5, 3), "mem_k": zeros(4, 5, 1, 3),
                        "mem_v": zeros(4, 5, 2, 5)}),
        Refused("bias-shape", {},
                ["bias shape must be broadcastable to [B,H,Nq,Nk] with Nk = 6, got [6,5]"],
                change={"bias": zeros(6, 5)}),
        Refused("ema-shape", {"return_centroids": True},
                ["ema_count shape must be [H,C] with C = 5, got [4,4]"],
                change={"means": zeros(4, 5, 3), "ema_count": zeros(4, 4)}),
        Refused("ema-dtype", {"return_centroids": True},
                ["ema_means dtype must be float32, got float16"],
                change={"means": zeros(4, 5, 3), "ema_means": zeros(4, 5, 3, dtype=np.float16)}),
        Refused("ema-unread", {}, [
            f"{name} needs return_centroids, got return_centroids = false"
            for name in ("ema_count", "ema_means")],
                change={"means": zeros(4, 5, 3), "ema_count": zeros(4, 5),
                        "ema_means": zeros(4, 5, 3)}),
        Refused("grad-aux", {}, ["grad_aux needs aux_loss, got aux_loss = false"], backward=True,
                change={"grad_aux": zeros(1)}),
        Refused("grad-aux-shape", {"aux_loss": True}, ["grad_aux shape must be [1], got [2]"],
                backward=True, change={"grad_aux": zeros(2)}),
        Refused("grad-centroids", {"return_centroids": True},
                ["grad_centroids must be absent: centroids is a constant, got [4,2,3]"],
                backward=True, change={"grad_centroids": zeros(4, 2, 3)}),
        Refused("grad-ema-count", {"return_centroids": True},
                ["grad_ema_count must be absent: ema_count is a constant, got [4,2]"],
                backward=True, change={"grad_ema_count": zeros(4, 2)}),
        Refused("large-draw", {"n_clusters": 4096},
                ["means must be sent where it has more than 16777216 elements, got 33554432"],
                change={"q": zeros(1, 4, 2, 2048), "v": zeros(1, 2, 2, 5)}),
        Refused("members", {"n_clusters": 4096, "window": 2000},
                ["window must be at most 64 with 4096 clusters and Nq = 3000, got 2000"],
                change={"q": zeros(1, 1, 3000, 1), "v": zeros(1, 1, 3000, 1)}),
        Refused("members-of-rows", {"n_clusters": 65, "window": 10000},
                ["window must be at most 9846 with 65 clusters and Nq = 10000, got 10000"],
                change={"q": zeros(1, 1, 10000, 1), "v": zeros(1, 1, 10000, 1)}),
        Refused("members-of-keys", SEPARATE | {"n_clusters": 4096, "window": 1, "kv_window": 2000},
                ["kv_window must be at most 64 with 4096 clusters and Nk = 3000, got 2000"],
                change={"q": zeros(1, 1, 3000, 1), "k": zeros(1, 1, 3000, 1),
                        "v": zeros(1, 1, 3000, 1)}),
    ],
)
