"""Random feature attention: oracle from the low-rank specification (R1, R2, R7, rfa), cases, golden
values, refusals. The oracle forms the whole matrix A; the gate multiplies it by products of gammas."""

import numpy as np

from tests.methods.cases import ALL, Case
from tests.methods.golden import lowrank_golden, wave
from tests.methods.method import Growth, Method, Visible
from tests.methods.performer import omega_of, state_grads
from tests.methods.random_features import drawn_omega, seen_of, seen_pairs
from tests.methods.refused import Refused, common_refusals
from tests.methods.traced import TracedOracle


class RfaOracle(TracedOracle):
    differentiable = ("q", "k", "v", "sigma", "gate_logits", "state_s", "state_z")
    axes = {"gate_logits": "B,Hkv,Nk"} | {
        f"{grad}{name}": shape for grad in ("", "grad_")
        for name, shape in (("state_s", "B,Hkv,F,Dv"), ("state_z", "B,Hkv,F"))}

    def visible(self, t, o):
        return seen_pairs(t, o)

    def pairs(self, t, o):
        return int(seen_pairs(t, o).sum()) * t["q"].shape[1]

    def gives_lse(self, o):
        return False

    def features(self, f, x, W, o):
        if o.get("qk_norm", True):
            squares = (x * x).sum(-1, keepdims=True)
            some = squares.x > 0
            norm = f.where(some, f.sqrt(f.where(some, squares, 1.0))) + o.get("norm_eps", 0.0)
            x = f.where(some, x / f.where(some, norm, 1.0))
        u = x @ W.swapaxes(-1, -2)
        scale = o.get("feature_scale", W.shape[-2] ** -0.5)
        if o.get("feature", "trig") == "arccos":
            return scale * f.relu(u)
        return scale * f.concat([f.sin(u), f.cos(u)], -1)

    def compute(self, f, t, o, offset):
        Hkv, D = t["k"].shape[1], t["q"].shape[3]
        group = t["q"].shape[1] // Hkv
        k, v = f.repeat_heads(t["k"], group), f.repeat_heads(t["v"], group)
        omega = t.get("omega")
        if omega is None:
            omega = f.num(drawn_omega(o.get("num_features", 64), D, o.get("seed", 0), Hkv,
                                      o.get("orthogonal", False)))
        if omega.ndim == 2:
            omega = omega.reshape(1, *omega.shape)
        W = omega * (1 / o.get("tau", 1.0))
        if "sigma" in t:
            W = W * t["sigma"].reshape(Hkv, 1, D)
        W = W.reshape(1, *W.shape)
        if W.shape[1] > 1:
            W = f.repeat_heads(W, group)
        pq, pk = self.features(f, t["q"], W, o), self.features(f, k, W, o)
        Nq, Nk = pq.shape[2], pk.shape[2]
        seen = seen_of(Nq, Nk, o, offset)
        # What is left of key j, and of the state from outside, when query i reads.
        kept, of_state = f.num(np.ones((1, 1, Nq, Nk))), f.num(np.ones((1, 1, Nq, 1)))
        last = f.num(np.ones((1, 1, Nk)))
        of_final = f.num(np.ones((1, 1, 1)))
        if o.get("gated", False):
            gate = t.get("gate_logits", f.num(np.full((1, Hkv, Nk), 3.0)))
            gamma = f.sigmoid(gate)
            sums = f.cumsum(-f.log(1.0 + f.exp(-gate)), 2)  # of log gamma
            write = 1.0 - gamma
            none = f.num(np.zeros((*sums.shape[:2], 1)))
            sums0 = f.concat([none, sums], 2)  # after so many keys
            reads = np.clip(np.arange(Nq) + offset + 1, 0, Nk)
            at = sums0[:, :, reads]
            differ = at.reshape(*at.shape, 1) - sums.reshape(*sums.shape[:2], 1, Nk)
            kept = f.exp(f.where(seen, differ)) * write.reshape(*write.shape[:2], 1, Nk)
            kept = f.repeat_heads(kept, group)
            of_state = f.repeat_heads(f.exp(at.reshape(*at.shape, 1)), group)
            last = f.exp(sums0[:, :, Nk:] - sums) * write
            of_final = f.exp(sums0[:, :, Nk:])
        A = f.where(seen, (pq @ pk.swapaxes(-1, -2)) * kept)
        num, d = A @ v, A.sum(-1, keepdims=True)
        row = seen.any(axis=1)[:, None]
        if "state_s" in t:
            num, row = num + of_state * (pq @ f.repeat_heads(t["state_s"], group)), True
        if "state_z" in t:
            z = f.repeat_heads(t["state_z"], group)
            d, row = d + of_state * (pq @ z.reshape(*z.shape, 1)), True
        least = o.get("den_min", 1e-6)
        mode = o.get("den_mode", "clamp")
        den = d
        if mode == "clamp":
            den = f.where(d.x > least, d, least)
        if mode == "abs_clamp":
            den = f.where(abs(d.x) > least, f.abs(d), least)
        some = den.x != 0
        out = f.where(some & row, f.normalised(num, f.where(some, den, 1.0)))
        made = {"out": out}
        if o.get("return_state", False):
            phi = pk[:, ::group] * last.reshape(*last.shape, 1)
            state_s, state_z = phi.swapaxes(-1, -2) @ t["v"], phi.sum(2)
            if "state_s" in t:
                state_s = state_s + of_final.reshape(*of_final.shape, 1) * t["state_s"]
            if "state_z" in t:
                state_z = state_z + of_final * t["state_z"]
            made |= {"state_s": state_s, "state_z": state_z}
        return made


def states(F, names=("state_s", "state_z")):
    """States as some positive keys would have left them."""
    def state_s(rng, case):
        x = rng.random((case.B, case.heads_kv, F, case.Dv or case.D))
        return x.astype(np.float32)

    def state_z(rng, case):
        return 2 + rng.random((case.B, case.heads_kv, F)).astype(np.float32)
    return {name: {"state_s": state_s, "state_z": state_z}[name] for name in names}


def few(**more):
    return {"num_features": 16} | more


CAUSAL = {"causal": True}
GATED = {"causal": True, "gated": True}
ARC = {"feature": "arccos"}
# Wide kernels, so that d stays away from 0.
TAME = {"tau": 3.0}
TAME_CAUSAL = {"tau": 3.0, "causal": True}
TAME_GATED = {"tau": 3.0, "causal": True, "gated": True}
P0 = 1.5 * wave(np.sin, (8, 4), 1.3, 0.5)
OMEGA = {"omega": np.stack([P0, 0.9 * P0])}


def golden(id, options, *figures, **more):
    return lowrank_golden(id, options, *figures, more=OMEGA | more)


def case(id, options=None, **how):
    return Case(id, grad_lse=False, options=few(**(options or {})), **how)


METHOD = Method(
    id="rfa",
    oracle=RfaOracle(),
    options={"feature": "enum", "num_features": "int", "gated": "bool", "qk_norm": "bool",
             "norm_eps": "float", "tau": "float", "feature_scale": "float", "den_mode": "enum",
             "den_min": "float", "orthogonal": "bool", "causal": "bool", "return_state": "bool",
             "seed": "int"},
    tensors={"q", "k", "v", "q_lengths", "kv_lengths", "omega", "sigma", "gate_logits", "state_s",
             "state_z"},
    differentiable=["q", "k", "v", "sigma", "gate_logits", "state_s", "state_z"],
    outputs=["state_s", "state_z"],
    peers=["Noahs-ARK/RFA random_project, incremental_rfa, masked_rfa (need PyTorch)"],
    cases=[
        case("plain", TAME, dtypes=ALL, B=2, Nq=63, D=8),
        case("default-tau", {"den_min": 0.5, "den_mode": "abs_clamp"}, Nq=33, D=8),
        Case("default-features", H=1, Nq=33, D=8, grad_lse=False),
        case("causal", TAME_CAUSAL, dtypes=ALL, B=2, Nq=65, D=8),
        case("gated", TAME_GATED, dtypes=ALL, B=2, Nq=65, D=8, floats={"gate_logits": "B,Hkv,Nk"}),
        case("gated-usual-logits", TAME_GATED, Nq=65, D=8),
        case("gated-more-keys", TAME_GATED, Nq=33, Nk=65, D=8, floats={"gate_logits": "B,Hkv,Nk"}),
        case("gated-more-queries", TAME_GATED, Nq=65, Nk=33, D=8,
             floats={"gate_logits": "B,Hkv,Nk"}),
        case("gated-lengths", TAME_GATED, B=5, H=4, Hkv=2, Nq=66, D=8,
             floats={"gate_logits": "B,Hkv,Nk"},
             ints={"q_lengths": (0, 1, 63, 64, 66), "kv_lengths": (0, 1, 63, 64, 66)}),
        case("arccos", ARC, dtypes=ALL, Nq=65, D=8),
        case("arccos-causal", ARC | CAUSAL, Nq=65, D=8),
        case("arccos-gated", ARC | GATED, Nq=65, D=8, floats={"gate_logits": "B,Hkv,Nk"}),
        case("odd", TAME, dtypes=ALL, Nq=65, Nk=31, D=5, Dv=7),
        case("n0", TAME, Nq=0, Nk=3, D=8),
        case("nk0", TAME, Nq=3, Nk=0, D=8),
        case("n1", TAME_CAUSAL, dtypes=ALL, Nq=1, D=1, Dv=1),
        case("lengths", TAME, B=6, Nq=66, D=8,
             ints={"q_lengths": (0, 1, 63, 64, 65, 66), "kv_lengths": (66, 65, 64, 63, 1, 0)}),
        case("gqa", TAME, dtypes=ALL, B=2, H=6, Hkv=2, Nq=33, D=8),
        case("sigma", {}, dtypes=ALL, B=2, H=4, Hkv=2, Nq=33, D=8,
             made={"sigma": lambda rng, case: 0.3 + 0.1 * rng.random((case.heads_kv, case.D))}),
        case("sigma-lengths-gated", GATED, B=2, H=4, Hkv=2, Nq=33, D=8,
             floats={"gate_logits": "B,Hkv,Nk"},
             made={"sigma": lambda rng, case: 0.3 + 0.1 * rng.random((case.heads_kv, case.D))},
             ints={"q_lengths": (20, 33), "kv_lengths": (20, 33)}),
        Case("omega", Nq=33, D=8, grad_lse=False, options=TAME, made={"omega": omega_of(20)}),
        Case("omega-heads", B=2, H=4, Hkv=2, Nq=33, D=8, grad_lse=False, options=TAME,
             made={"omega": omega_of(20, 1)}, ints={"kv_lengths": (33, 12)}),
        case("orthogonal", TAME | {"orthogonal": True, "seed": 11}, Nq=33, D=8),
        case("not-normed", {"qk_norm": False, "tau": 4.0}, Nq=33, D=8),
        case("norm-eps", TAME | {"norm_eps": 0.1}, Nq=33, D=8),
        case("feature-scale", TAME | {"feature_scale": 0.1}, Nq=33, D=8),
        case("clamped", TAME_CAUSAL | {"feature_scale": 0.1, "den_min": 1.0}, Nq=33, D=8),
        case("abs-clamp", {"den_mode": "abs_clamp", "den_min": 0.3}, Nq=33, D=8),
        case("den-none", TAME | {"den_mode": "none"}, Nq=33, D=8),
        *(case(f"state-{name}", options | {"return_state": True}, B=2, H=4, Hkv=2, Nq=33, D=8, Dv=5,
               made=state_grads(32) | (made or {}))
          for name, options, made in (
              ("out", TAME_CAUSAL, None), ("out-gated", TAME_GATED, None),
              ("both", TAME_CAUSAL, states(32)), ("both-gated", TAME_GATED, states(32)))),
        case("state-in", TAME | {"den_mode": "abs_clamp", "den_min": 0.1}, Nq=33, D=8,
             made=states(32)),
        case("state-s-only", TAME_GATED, Nq=33, D=8, made=states(32, ("state_s",))),
        case("state-z-only", TAME_CAUSAL | {"den_mode": "abs_clamp", "den_min": 0.1}, Nq=33, D=8,
             made=states(32, ("state_z",))),
        case("state-lengths", TAME_GATED | {"return_state": True}, B=3, Nq=33, D=8,
             made=state_grads(32) | states(32), floats={"gate_logits": "B,Hkv,Nk"},
             ints={"q_lengths": (0, 10, 33), "kv_lengths": (0, 20, 33)}),
        case("bnhd", TAME_CAUSAL, dtypes=ALL, B=2, Nq=33, D=8, layout="BNHD"),
        case("strided", TAME, B=2, H=4, Hkv=2, Nq=33, D=8, strided=True),
    ],
    batches=[few(**TAME), few(**TAME_CAUSAL), few(**TAME_GATED), few(feature="arccos")],
    tensor_batches=[Case("gate", options=few(**TAME_GATED), floats={"gate_logits": "B,Hkv,Nk"}),
                    Case("sigma", floats={"sigma": "Hkv,D", "omega": "20,D"})],
    perf=[{}, GATED],
    growth=[Growth({}, 1, 1), Growth(GATED, 1, 1)],
    visible=[Visible("causal", 16, 16, few(causal=True), 136)],
    golden=[
        golden("trig", {}, 0.800125382, -0.772556732, -0.600252565, 91.830866470),
        golden("trig-causal", CAUSAL, 0.909297427, -0.772556732, -0.569270199, 76.924159791),
        golden("arccos-causal", CAUSAL | ARC, 0.909297427, -0.395259935, -0.328381994,
               40.718267710),
        golden("gated", GATED, 0.909297427, -0.970223530, -0.510206630, 60.463711470,
               gate_logits=0.5 * wave(np.cos, (1, 2, 12), 0.3, 0.0)),
        golden("release", CAUSAL | {"feature_scale": 0.1, "norm_eps": 1e-3, "den_min": 1.0},
               0.020640100, -0.189138128, -0.083770907, 9.088751403),
    ],
    refused=common_refusals({}, (), ("q_lengths", "kv_lengths", "omega", "sigma", "gate_logits",
                                     "state_s", "state_z"), ("out", "state_s", "state_z"),
                            lacks=("scale",)) + [
        Refused("feature", {"feature": "relu"},
                ['feature must be one of trig, arccos, got "relu"']),
        Refused("features-0", {"num_features": 0}, ["num_features must be in 1..65536, got 0"]),
        Refused("gated", {"gated": True}, ["gated needs causal, got causal = false"]),
        Refused("gate-logits", {}, ["gate_logits needs gated, got gated = false"],
                change={"gate_logits": np.zeros((2, 2, 7), np.float32)}),
        Refused("gate-shape", GATED,
                ["gate_logits shape must be [B,Hkv,Nk] with Nk = 7, got [2,2,6]"],
                change={"gate_logits": np.zeros((2, 2, 6), np.float32)}),
        Refused("sigma-shape", {}, ["sigma shape must be [Hkv,D] with D = 3, got [2,4]"],
                change={"sigma": np.zeros((2, 4), np.float32)}),
        Refused("norm-eps", {"norm_eps": -1.0}, ["norm_eps must be >= 0 and <= 1e+30, got -1"]),
        Refused("tau", {"tau": 0.0}, ["tau must be >= 1e-15 and <= 1e+30, got 0"]),
        Refused("feature-scale", {"feature_scale": 0.0},
                ["feature_scale must be >= 1e-15 and <= 1e+15, got 0"]),
        Refused("den-mode", {"den_mode": "add"},
                ['den_mode must be one of clamp, abs_clamp, none, got "add"']),
        Refused("den-min", {"den_min": -1.0}, ["den_min must be >= 0 and <= 1e+30, got -1"]),
        Refused("return-state", {"return_state": True},
                ["return_state needs causal, got causal = false"]),
        Refused("omega-features", {"num_features": 9},
                ["num_features must be that of omega, 8, got 9"],
                change={"omega": np.zeros((8, 3), np.float32)}),
        Refused("state-features", {"num_features": 8},
                ["state_s shape must have F = 16, got [2,2,8,5]"],
                change={"state_s": np.zeros((2, 2, 8, 5), np.float32)}),
        Refused("grad-state-without-state", {"causal": True, "num_features": 8},
                ["grad_state_z needs return_state, got return_state = false"],
                change={"grad_state_z": np.zeros((2, 2, 16), np.float32)}, backward=True),
    ],
)
