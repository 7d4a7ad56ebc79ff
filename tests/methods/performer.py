"""Performer: oracle from the low-rank specification (R1, R2, R7, performer), cases, golden values,
refusals. The oracle forms the whole matrix of kernel values, each query with the stabiliser of the
keys that it sees."""

import math

import numpy as np

from tests.methods.cases import ALL, Case
from tests.methods.golden import lowrank_golden, wave
from tests.methods.method import Growth, Method, Visible
from tests.methods.random_features import drawn_omega, seen_of, seen_pairs
from tests.methods.refused import Refused, common_refusals
from tests.methods.traced import Num, Tape, TracedOracle

KERNEL_FNS = {
    "relu": lambda f, x: f.relu(x),
    "relu_squared": lambda f, x: f.relu(x) * f.relu(x),
    "exp": lambda f, x: f.exp(x),
    "elu_plus_one": lambda f, x: f.where(x.x > 0, x + 1.0, f.exp(f.where(x.x > 0, 0.0, x))),
    "gelu": lambda f, x: f.gelu_erf(x),
    "sigmoid": lambda f, x: f.sigmoid(x),
    "tanh": lambda f, x: f.tanh(x),
    "abs": lambda f, x: f.abs(x),
    "identity": lambda f, x: x,
    "cos": lambda f, x: f.cos(x),
    "sin": lambda f, x: f.sin(x),
}


class PerformerOracle(TracedOracle):
    differentiable = ("q", "k", "v", "state_s", "state_z", "state_v")
    axes = {"s_q": "B,H,Nq,1", "s_k": "B,H,Nq,1", "s_all": "B,H,1,1"} | {
        f"{grad}{name}": shape for grad in ("", "grad_")
        for name, shape in (("state_s", "B,Hkv,F,Dv"), ("state_z", "B,Hkv,F"),
                            ("state_shift", "B,Hkv"), ("state_v", "B,Hkv,Dv"), ("state_n", "B"))}

    def constants(self, t, o):
        """The stabilisers, which have no gradient."""
        B, H, Nq = t["q"].shape[:3]
        made = {"s_q": np.zeros((B, H, Nq, 1)), "s_k": np.zeros((B, H, Nq, 1)),
                "s_all": np.zeros((B, H, 1, 1))}
        for b in range(B):
            outputs = self._sequence(Tape(), t, o | {"shows_constants": True}, b)[0]
            for name in made.keys() & outputs.keys():
                x = outputs[name].x
                made[name][b, :, :x.shape[2]] = x[0]
        return made

    def visible(self, t, o):
        return seen_pairs(t, o)

    def pairs(self, t, o):
        return int(seen_pairs(t, o).sum()) * t["q"].shape[1]

    def features(self, f, x, omega, o):
        """(log, wave, each row's stabiliser): features are exp(log) wave, without feature_eps."""
        kind = o.get("kind", "positive")
        u = x @ omega.swapaxes(-1, -2)
        half = 0.5 * (x * x).sum(-1, keepdims=True)
        if kind == "trig":
            return half, f.concat([f.cos(u), f.sin(u)], -1), f.stop(half)
        if kind == "hyperbolic":
            u = f.concat([u, -u], -1)
        most = u.x.max(axis=-1, keepdims=True, initial=-np.inf)
        return u - half, None, f.num(most)

    def compute(self, f, t, o, offset):
        q, k, v = t["q"], t["k"], t["v"]
        Hkv, D = k.shape[1], q.shape[3]
        group = q.shape[1] // Hkv
        root = math.sqrt(o.get("scale", D**-0.5))
        kind = o.get("kind", "positive")
        general = kind == "generalized"
        eps = o.get("feature_eps", {"trig": 0, "generalized": 1e-3}.get(kind, 1e-6))
        den_eps = o.get("den_eps", 0.0 if general else 1e-6)
        k, v = f.repeat_heads(k, group), f.repeat_heads(v, group)
        x, y = root * q, root * k
        omega = None
        if not general or o.get("project", True):
            omega = t.get("omega")
            if omega is None:
                omega = f.num(drawn_omega(
                    o.get("num_features", 256), D, o.get("seed", 0), 0, o.get("orthogonal", True),
                    o.get("norms", "chi"), o.get("redraw", 0)))
            omega = omega.reshape(1, *omega.shape[-2:]) if omega.ndim == 2 else (
                f.repeat_heads(omega.reshape(1, *omega.shape), group)[0])
        seen = seen_of(q.shape[2], k.shape[2], o, offset)
        if general:
            ratio = omega.shape[-2] ** -0.5 if o.get("feature_ratio", False) and omega else 1.0
            fn = KERNEL_FNS[o.get("kernel_fn", "relu")]

            def phi(z):
                u = z if omega is None else z @ omega.swapaxes(-1, -2)
                return fn(f, ratio * u) + eps

            pq, pk = phi(x), phi(y)
            A = f.where(seen, pq @ pk.swapaxes(-1, -2))
            if o.get("shows_constants", False):
                return {}
            held = [(1.0, 1.0, *self.sent(f, t, group))] if "state_s" in t else []
            none = f.num(np.zeros(A.shape[:3] + (1,)))
            row = seen.any(axis=1)[:, None] | bool(held)
            return self.read(f, o, A, v, row, den_eps, none, group, pq, pk, held)
        log_q, wave_q, s_q = self.features(f, x, omega, o)
        log_k, wave_k, m_k = self.features(f, y, omega, o)
        F = (wave_k or log_k).shape[-1]
        factor = (F / 2 if kind == "trig" else F) ** -0.5
        first = np.full((*m_k.shape[:2], 1, 1), -np.inf)
        if "state_shift" in t:
            first[...] = np.repeat(t["state_shift"].x, group, 1)[:, :, None, None]
        most = np.maximum(first, m_k.x.max(axis=2, keepdims=True, initial=-np.inf))
        whole = np.where(np.isfinite(most), most, 0)
        prefix = o.get("stabilizer", "prefix" if o.get("causal", False) else "global") == "prefix"
        # s_k of each query [..,Nq,1].
        if prefix and o.get("causal", False):
            s_k = np.where(seen, m_k.x.swapaxes(2, 3), -np.inf).max(
                axis=3, keepdims=True, initial=-np.inf)
            s_k = np.maximum(s_k, first)
            s_k = np.where(np.isfinite(s_k), s_k, 0)
        else:
            s_k = np.broadcast_to(whole, (*whole.shape[:2], q.shape[2], 1))
        s_k, whole = f.num(s_k), f.num(whole)
        if "s_q" in t:
            s_q, s_k, whole = t["s_q"], t["s_k"], t["s_all"]
        if o.get("shows_constants", False):
            return {"s_q": s_q, "s_k": s_k, "s_all": whole}
        of_q = f.exp(log_q - s_q)
        of_k = f.exp(log_k - whole)
        state = factor * (of_k * wave_k if wave_k else of_k + eps)
        if wave_k:
            pq = factor * (of_q * wave_q)
            A = factor * ((pq @ wave_k.swapaxes(-1, -2)) * f.exp(
                f.where(seen, log_k.swapaxes(-1, -2) - s_k)))
        else:
            # sum_f phi_q,if (exp(log_k,jf - s_i) + eps) for each pair (i, j).
            pq = factor * (of_q + eps)
            shifted = f.exp(f.where(seen[:, :, None], log_k.reshape(
                *log_k.shape[:2], 1, *log_k.shape[2:]) - s_k.reshape(*s_k.shape, 1)))
            pairs = pq.reshape(*pq.shape[:3], 1, F) * (factor * (shifted + eps))
            A = pairs.sum(-1)
        A = f.where(seen, A)
        # The stabiliser is as exact as the exponents that it is subtracted from.
        sums = None if log_k.s is None else log_k.s.max(axis=(2, 3), initial=0)[:, ::group]
        held, totals = [], {"state_shift": Num(f, most[:, ::group, 0, 0], sums)}
        if "state_s" in t:
            # Relative to the stabilisers of now: all but what feature_eps has made of it.
            S, z = self.sent(f, t, group)
            if eps > 0:
                ones = f.num(np.full((1, 1, F, 1), factor * eps))
                of_eps = (ones @ f.repeat_heads(t["state_v"].reshape(1, Hkv, 1, -1), group),
                          ones * t["state_n"].reshape(1, 1, 1, 1))
                held.append((1.0, 1.0, *of_eps))
                S, z = S - of_eps[0], z - of_eps[1]
            held.append((np.exp(first - s_k.x), np.exp(first - whole.x), S, z))
        if eps > 0:
            own = v[:, ::group]
            totals["state_v"] = own.sum(2) + t.get("state_v", 0.0)
            totals["state_n"] = f.num(np.full(1, float(own.shape[2]))) + t.get("state_n", 0.0)
        row = seen.any(axis=1)[:, None] | (first > -np.inf)
        return self.read(f, o, A, v, row, den_eps, f.num(s_q.x + s_k.x), group, pq, state, held,
                         totals)

    def sent(self, f, t, group):
        """The state of each query head, [1,H,F,Dv] and [1,H,F,1]."""
        z = t["state_z"]
        return (f.repeat_heads(t["state_s"], group),
                f.repeat_heads(z.reshape(*z.shape, 1), group))

    def read(self, f, o, A, v, row, den_eps, shift, group, pq, pk, held, totals=None):
        """`held`: parts (scale for each query, scale at the end, S, z) of a state that was sent."""
        num, d = A @ v, A.sum(-1, keepdims=True)
        for of_rows, _, S, z in held:
            num, d = num + of_rows * (pq @ S), d + of_rows * (pq @ z)
        if o.get("renormalize", True):
            den = d + np.where(abs(d.x) <= den_eps, 2 * den_eps, 0.0)
            some = den.x != 0
            out = f.where(some, f.normalised(num, f.where(some, den, 1.0)))
        else:
            out = num * f.exp(shift)
        log = f.log(f.where(d.x > 0, d, 1.0)) + shift
        lse = f.where(row, f.where(d.x > 0, log, np.nan), -np.inf)[..., 0]
        made = {"out": out, "lse": lse}
        if o.get("return_state", False):
            phi, v = pk[:, ::group], v[:, ::group]
            states = {"state_s": phi.swapaxes(-1, -2) @ v, "state_z": phi.sum(2)} | (totals or {})
            for _, at_end, S, z in held:
                at_end = f.num(np.broadcast_to(at_end, (1, S.shape[1], 1, 1)))[:, ::group]
                states["state_s"] = states["state_s"] + at_end * S[:, ::group]
                states["state_z"] = states["state_z"] + (at_end * z[:, ::group])[..., 0]
            made |= dict(sorted(states.items()))
        return made


def omega_of(m, heads=0):
    """Directions of the usual lengths."""
    def make(rng, case):
        return rng.standard_normal((*((case.heads_kv,) if heads else ()), m, case.D))
    return make


def state_grads(F):
    def state_s(rng, case):
        return rng.standard_normal((case.B, case.heads_kv, F, case.Dv or case.D))

    def state_z(rng, case):
        return rng.standard_normal((case.B, case.heads_kv, F))
    return {"grad_state_s": state_s, "grad_state_z": state_z}


def states(F, *names):
    """A state as some keys would have left it: sums of features in state_z are positive, and those
    of feature_eps a small part."""
    letters = {"state_s": f"B,Hkv,{F},Dv", "state_z": f"B,Hkv,{F}", "state_shift": "B,Hkv",
               "state_v": "B,Hkv,Dv", "state_n": "B"}

    def made(name):
        def make(rng, case):
            x = rng.standard_normal(case.shape_of(letters[name]))
            if name == "state_z":
                x = 2 + abs(x)
            if name == "state_n":
                x = np.floor(1 + 4 * abs(x))
            return x.astype(np.float32)
        return make
    return {name: made(name) for name in names}


STATE = ("state_s", "state_z", "state_shift")
TOTALS = (*STATE, "state_v", "state_n")


def grad_state_v(rng, case):
    return rng.standard_normal((case.B, case.heads_kv, case.Dv or case.D))


def few(**more):
    return {"num_features": 16} | more


# Of the request of refused.py with 8 features.
STATE_SHAPES = {"state_s": (2, 2, 8, 5), "state_z": (2, 2, 8), "state_shift": (2, 2),
                "state_v": (2, 2, 5), "state_n": (2,)}
CAUSAL = {"causal": True}
GEN = {"kind": "generalized"}
OMEGA = {"omega": 1.5 * wave(np.sin, (8, 4), 1.3, 0.5)}


def golden(id, options, *figures):
    return lowrank_golden(id, {"scale": 0.5} | options, *figures, more=OMEGA)


METHOD = Method(
    id="performer",
    oracle=PerformerOracle(),
    options={"kind": "enum", "num_features": "int", "orthogonal": "bool", "norms": "enum",
             "feature_eps": "float", "stabilizer": "enum", "den_eps": "float",
             "renormalize": "bool", "kernel_fn": "enum", "project": "bool",
             "feature_ratio": "bool", "redraw": "int", "scale": "float", "causal": "bool",
             "return_state": "bool", "seed": "int"},
    tensors={"q", "k", "v", "q_lengths", "kv_lengths", "omega", *TOTALS},
    differentiable=["q", "k", "v", "state_s", "state_z", "state_v"],
    outputs=["state_s", "state_z", "state_shift", "state_v", "state_n"],
    peers=["performer-pytorch FastAttention (needs PyTorch)"],
    cases=[
        Case("plain", dtypes=ALL, B=2, Nq=63, options=few()),
        Case("default-features", H=1, Nq=33, D=8),
        Case("causal", dtypes=ALL, B=2, Nq=65, options=few(causal=True)),
        Case("causal-eps-1e-2", dtypes=ALL, Nq=65, D=8, options=few(causal=True, feature_eps=1e-2)),
        Case("causal-eps-0", Nq=65, options=few(causal=True, feature_eps=0.0)),
        Case("causal-global", Nq=65, D=8,
             options=few(causal=True, feature_eps=1e-2, stabilizer="global")),
        Case("causal-rising", Nq=65, D=8, spread=4.0, grad_lse=False,
             options=few(causal=True, feature_eps=1e-3)),
        Case("causal-more-keys", Nq=33, Nk=65, D=8, options=few(causal=True, feature_eps=1e-2)),
        Case("causal-more-queries", Nq=65, Nk=33, D=8, options=few(causal=True, feature_eps=1e-2)),
        Case("prefix-not-causal", Nq=33, D=8, options=few(stabilizer="prefix")),
        Case("odd", dtypes=ALL, Nq=65, Nk=31, D=5, Dv=7, options={"num_features": 13}),
        Case("n0", Nq=0, Nk=3, D=8, options=few(), grad_lse=False),
        Case("nk0", Nq=3, Nk=0, D=8, options=few()),
        Case("nk0-causal", Nq=3, Nk=0, D=8, options=few(causal=True)),
        Case("n1", dtypes=ALL, Nq=1, D=1, Dv=1, options={"num_features": 1, "causal": True}),
        Case("lengths", B=6, Nq=66, D=8, options=few(),
             ints={"q_lengths": (0, 1, 63, 64, 65, 66), "kv_lengths": (66, 65, 64, 63, 1, 0)}),
        Case("lengths-causal", dtypes=ALL, B=6, H=1, Nq=66, D=8,
             options=few(causal=True, feature_eps=1e-3),
             ints={"q_lengths": (0, 1, 63, 64, 65, 66), "kv_lengths": (0, 1, 63, 64, 65, 66)}),
        Case("lengths-causal-cross", B=2, Nq=33, Nk=50, D=8, options=few(causal=True),
             ints={"q_lengths": (20, 33), "kv_lengths": (40, 10)}),
        Case("gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=33, D=8, options=few()),
        Case("gqa-causal", B=2, H=4, Hkv=2, Nq=33, D=8, options=few(causal=True, feature_eps=1e-2)),
        Case("hyperbolic", dtypes=ALL, Nq=65, D=8, options=few(kind="hyperbolic")),
        Case("hyperbolic-causal", Nq=65, D=8,
             options=few(kind="hyperbolic", causal=True, feature_eps=1e-2)),
        Case("trig", dtypes=ALL, Nq=65, D=8, spread=0.5,
             options={"num_features": 64, "kind": "trig"}),
        Case("trig-causal", Nq=65, D=8, spread=0.5,
             options={"num_features": 64, "kind": "trig", "causal": True}),
        *(Case(f"generalized-{fn}", Nq=33, D=8, options=few(**GEN, kernel_fn=fn))
          for fn in ("relu", "relu_squared", "exp", "elu_plus_one", "sigmoid", "abs")),
        # d has both signs.
        *(Case(f"generalized-{fn}", Nq=20, D=8, options=few(**GEN, kernel_fn=fn), grad_lse=False,
               backward=False) for fn in ("tanh", "identity", "cos", "sin")),
        # q and k near each other: d > 0.
        *(Case(f"generalized-{fn}-near", Nq=20, D=8, shift=1.0, spread=0.1,
               options=few(**GEN, kernel_fn=fn))
          for fn in ("tanh", "identity", "cos", "sin", "gelu")),
        Case("generalized-causal", dtypes=ALL, Nq=65, D=8, options=few(**GEN, causal=True)),
        Case("generalized-not-projected", Nq=33, D=8, options=GEN | {"project": False}),
        Case("ratio-not-projected", Nq=33, D=8,
             options=GEN | {"project": False, "feature_ratio": True}),
        Case("generalized-ratio", Nq=33, D=8,
             options=few(**GEN, feature_ratio=True, kernel_fn="elu_plus_one")),
        Case("generalized-nothing", Nq=20, D=8, shift=-40.0,
             options=GEN | {"project": False, "feature_eps": 0.0}),
        Case("iid", Nq=33, D=8, options=few(orthogonal=False, seed=7)),
        Case("sqrt-d", Nq=33, D=8, options=few(norms="sqrt_d")),
        Case("redraw", Nq=33, D=8, options=few(redraw=3, seed=2**64 - 1)),
        Case("redraw-iid", Nq=33, D=8, options=few(redraw=12, orthogonal=False)),
        Case("omega", dtypes=ALL, Nq=33, D=8, made={"omega": omega_of(20)}),
        Case("omega-heads", B=2, H=4, Hkv=2, Nq=33, D=8, made={"omega": omega_of(20, 1)},
             ints={"kv_lengths": (33, 12)}),
        Case("omega-heads-causal", B=2, H=4, Hkv=2, Nq=33, D=8, options=CAUSAL | {"feature_eps": 1e-2},
             made={"omega": omega_of(20, 1)}, ints={"q_lengths": (33, 12), "kv_lengths": (33, 12)}),
        Case("den-eps", Nq=33, D=8, options=few(den_eps=10.0)),
        Case("den-eps-causal", Nq=33, D=8, options=few(den_eps=10.0, causal=True)),
        Case("unnormalised", Nq=33, D=8, options=few(renormalize=False)),
        Case("unnormalised-causal", Nq=33, D=8,
             options=few(renormalize=False, causal=True, feature_eps=1e-2)),
        Case("scale", Nq=33, D=8, options=few(scale=0.1)),
        *(Case(f"state-{name}", B=2, H=4, Hkv=2, Nq=33, D=8, Dv=5, made=state_grads(F),
               options=few(causal=True, return_state=True, **options))
          for name, F, options in (
              ("prefix", 16, {"feature_eps": 1e-2}), ("eps-0", 16, {"feature_eps": 0.0}),
              ("global", 16, {"feature_eps": 1e-2, "stabilizer": "global"}),
              ("hyperbolic", 32, {"kind": "hyperbolic"}),
              ("trig", 32, {"kind": "trig", "scale": 0.05}), ("generalized", 16, GEN))),
        *(Case(f"from-state-{name}", dtypes=ALL if name == "prefix" else ("f32",), B=2, H=4, Hkv=2,
               Nq=33, D=8, Dv=5, wide_floats=True,
               made=states(F, *names) | state_grads(F) | (
                   {"grad_state_v": grad_state_v} if names == TOTALS else {}),
               options=few(causal=True, return_state=True, **options))
          for name, F, names, options in (
              ("prefix", 16, TOTALS, {"feature_eps": 1e-2}),
              ("eps-0", 16, STATE, {"feature_eps": 0.0}),
              ("hyperbolic", 32, TOTALS, {"kind": "hyperbolic"}),
              ("trig", 32, STATE, {"kind": "trig", "scale": 0.05}),
              ("unnormalised", 16, TOTALS, {"feature_eps": 1e-2, "renormalize": False}),
              ("generalized", 16, STATE[:2], GEN))),
        Case("from-state-lengths", B=3, Nq=33, D=8, made=states(16, *TOTALS),
             options=few(causal=True, feature_eps=1e-2),
             ints={"q_lengths": (3, 10, 33), "kv_lengths": (0, 20, 33)}),
        Case("from-state-more-queries", B=1, Nq=33, Nk=20, D=8, made=states(16, *TOTALS),
             options=few(causal=True, feature_eps=1e-2)),
        Case("from-state-nk0", B=2, Nq=3, Nk=0, D=8, made=states(16, *STATE),
             options=few(causal=True, feature_eps=0.0, return_state=True)),
        Case("state-lengths", B=3, Nq=33, D=8, made=state_grads(16),
             options=few(causal=True, return_state=True, feature_eps=1e-2),
             ints={"q_lengths": (0, 10, 33), "kv_lengths": (0, 20, 33)}),
        Case("bnhd", dtypes=ALL, B=2, Nq=33, D=8, layout="BNHD", options=few(causal=True)),
        Case("strided", B=2, H=4, Hkv=2, Nq=33, D=8, strided=True, options=few()),
        Case("strided-bnhd", B=2, Nq=33, D=8, strided=True, layout="BNHD", options=few()),
    ],
    batches=[few(), few(causal=True), few(causal=True, feature_eps=0.0), few(kind="hyperbolic"),
             few(kind="trig", scale=0.05), few(**GEN)],
    tensor_batches=[Case("omega", options=CAUSAL, made={"omega": omega_of(20, 1)})],
    perf=[{}, CAUSAL],
    growth=[Growth({}, 1, 1), Growth(CAUSAL, 1, 1)],
    visible=[Visible("causal", 16, 16, few(causal=True), 136),
             Visible("nq5-nk9-causal", 5, 9, few(causal=True), 35)],
    golden=[
        golden("positive", {}, 0.315126690, -0.316074472, -0.202853037, 27.807864579, 2.177075930),
        golden("positive-eps-0", {"feature_eps": 0.0}, 0.315128958, -0.316077066, -0.202855311,
               27.808167478, 2.177063998),
        golden("hyperbolic", {"kind": "hyperbolic"}, 0.241431543, -0.352977447, -0.265702861,
               27.568545107, 2.398733000),
        golden("trig", {"kind": "trig"}, 0.861973246, -0.932019520, -0.973072490, 104.766501315,
               2.231950963),
        golden("generalized", GEN, 0.543804236, -0.381060545, -0.465515811, 39.637691992,
               2.669551396),
        golden("causal-prefix", CAUSAL | {"feature_eps": 1e-2}, 0.909297427, -0.292002535,
               -0.190812259, 28.543184038, 1.711096370),
        golden("causal-global", CAUSAL | {"feature_eps": 1e-2, "stabilizer": "global"}, 0.909297427,
               -0.292002535, -0.190812259, 28.445950024, 1.711096370),
    ],
    refused=common_refusals({}, (), ("q_lengths", "kv_lengths", "omega", *TOTALS),
                            ("out", "lse", "state_s", "state_z", "state_v")) + [
        Refused("kind", {"kind": "relu"},
                ['kind must be one of positive, hyperbolic, trig, generalized, got "relu"']),
        Refused("features-0", {"num_features": 0}, ["num_features must be in 1..65536, got 0"]),
        Refused("features-65537", {"num_features": 65537},
                ["num_features must be in 1..65536, got 65537"]),
        Refused("norms", {"norms": "one"}, ['norms must be one of chi, sqrt_d, got "one"']),
        Refused("feature-eps", {"feature_eps": -1.0},
                ["feature_eps must be >= 0 and <= 1e+15, got -1"]),
        Refused("trig-eps", {"kind": "trig", "feature_eps": 0.5},
                ["feature_eps must be 0 with kind trig, got 0.5"]),
        Refused("stabilizer", {"stabilizer": "none"},
                ['stabilizer must be one of global, prefix, got "none"']),
        Refused("den-eps", {"den_eps": -1.0}, ["den_eps must be >= 0 and <= 1e+30, got -1"]),
        Refused("kernel-fn", {"kernel_fn": "silu"},
                [f'kernel_fn must be one of {", ".join(KERNEL_FNS)}, got "silu"']),
        Refused("redraw", {"redraw": -1}, ["redraw must be >= 0, got -1"]),
        Refused("scale-0", {"scale": 0.0}, ["scale must be > 0 and <= 1e+30, got 0"]),
        Refused("return-state", {"return_state": True},
                ["return_state needs causal, got causal = false"]),
        Refused("omega-features", {"num_features": 9},
                ["num_features must be that of omega, 8, got 9"],
                change={"omega": np.zeros((8, 3), np.float32)}),
        Refused("omega-0", {}, ["omega shape must have m in 1..65536, got [0,3]"],
                change={"omega": np.zeros((0, 3), np.float32)}),
        Refused("omega-d", {}, ["omega shape must be [m,D] or [Hkv,m,D] with D = 3, got "
                                "[8,4]"], change={"omega": np.zeros((8, 4), np.float32)}),
        Refused("omega-not-projected", GEN | {"project": False},
                ["omega must be absent with project = false, got [8,3]"],
                change={"omega": np.zeros((8, 3), np.float32)}),
        Refused("state-not-causal", {"num_features": 8},
                ["state_s needs causal, got causal = false"],
                change={name: np.zeros(shape, np.float32) for name, shape in STATE_SHAPES.items()}),
        Refused("state-global", {"causal": True, "num_features": 8, "stabilizer": "global"},
                ["stabilizer must be prefix with state_s, got global"],
                change={name: np.zeros(shape, np.float32) for name, shape in STATE_SHAPES.items()}),
        Refused("state-in-parts", {"causal": True, "num_features": 8},
                ["state_s is required with state_z, got none",
                 "state_shift is required with state_z, got none",
                 "state_v is required with state_z, got none",
                 "state_n is required with state_z, got none"],
                change={"state_z": np.zeros(STATE_SHAPES["state_z"], np.float32)}),
        Refused("state-eps-0", {"causal": True, "num_features": 8, "feature_eps": 0.0},
                ["state_v needs feature_eps > 0, got [2,2,5]",
                 "state_n needs feature_eps > 0, got [2]"],
                change={name: np.zeros(shape, np.float32) for name, shape in STATE_SHAPES.items()}),
        Refused("state-generalized", GEN | {"causal": True, "num_features": 8},
                [f"{name} must be absent with kind generalized, got {shape}" for name, shape in
                 (("state_shift", "[2,2]"), ("state_v", "[2,2,5]"), ("state_n", "[2]"))],
                change={name: np.zeros(shape, np.float32) for name, shape in STATE_SHAPES.items()}),
        Refused("grad-state-v", {"causal": True, "num_features": 8},
                ["grad_state_v needs return_state and feature_eps > 0, got [2,2,5]"],
                change={"grad_state_v": np.zeros((2, 2, 5), np.float32)}, backward=True),
        Refused("grad-state-features", {"causal": True, "return_state": True, "num_features": 8},
                ["grad_state_z shape must have F = 8, got [2,2,4]"],
                change={"grad_state_z": np.zeros((2, 2, 4), np.float32)}, backward=True),
        Refused("grad-state-without-state", {"causal": True, "num_features": 8},
                ["grad_state_s needs return_state, got return_state = false"],
                change={"grad_state_s": np.zeros((2, 2, 8, 5), np.float32)}, backward=True),
    ],
)
