"""Global and long tokens with relative labels: oracle in float64 from the pattern specification
(Common core, etc), cases, golden sums, refusals."""

import dataclasses
import functools

import numpy as np

from tests.methods.cases import ALL, Case, fill_padding
from tests.methods.golden import pattern_golden, wave
from tests.methods.method import Growth, Visible
from tests.methods.pattern_core import Core, Kind, PatternOracle
from tests.methods.pattern_method import pattern_method
from tests.methods.refused import INT, Refused, zeros

LEARNED = ("rel_emb_long", "rel_emb_global", "rel_bias_long", "rel_bias_global")
PIECES = ("l2l_ids", "l2g_ids", "g2g_ids", "g2l_ids")
OWN = (*LEARNED, "sentence_ids", "long_example_ids", "global_example_ids", *PIECES, "k_global",
       "v_global")


class Split:
    """The two parts of a sequence: ng global tokens, nl long ones, and the labels of pairs of them.
    a and c count inside the parts; names of pieces are from and to, as in the spec."""

    def __init__(self, seq):
        self.seq, self.ng = seq, seq.o["num_global"]
        self.nl = seq.Nq - self.ng
        self.sentence = self.ints("sentence_ids", np.arange(self.nl) * self.ng // max(self.nl, 1))
        self.examples = np.concatenate([
            self.ints("global_example_ids", np.zeros(self.ng, int)),
            self.ints("long_example_ids", np.zeros(self.nl, int))])

    def ints(self, name, absent):
        return self.seq.t[name][self.seq.b] if name in self.seq.t else absent

    def joined(self, g2g, g2l, l2g, l2l):
        """[N,N] of its four pieces."""
        g, l = self.ng, self.nl
        pieces = [np.broadcast_to(x, shape) for x, shape in (
            (g2g, (g, g)), (g2l, (g, l)), (l2g, (l, g)), (l2l, (l, l)))]
        return np.block([pieces[:2], pieces[2:]])

    def distance(self, n):
        return np.arange(n)[None, :] - np.arange(n)[:, None]  # delta = c - a

    @property
    def of_sentence(self):
        """[nl,ng]: whether the global token is that of the long one's sentence."""
        return self.sentence[:, None] == np.arange(self.ng)

    def seen(self):
        o = self.seq.o
        near = abs(self.distance(self.nl)) <= o.get("local_radius", 84)
        seen = self.joined(True, self.of_sentence.T if o.get("hard_g2l", False) else True,
                           self.of_sentence if o.get("hard_l2g", False) else True, near)
        return seen & (self.examples[:, None] == self.examples)

    def labels(self):
        """[N,N]; any label where a long token has no window slot for another."""
        k, r = self.seq.o.get("max_distance", 12), self.seq.o.get("local_radius", 84)

        def of_distance(delta):
            return np.where(delta > 0, np.minimum(delta, k), 0) + np.where(
                delta < 0, k + np.minimum(-delta, k), 0)

        between = 2 * k + 1 + self.of_sentence
        l2l = of_distance(self.distance(self.nl))
        if "l2l_ids" in self.seq.t:
            slot = np.clip(self.distance(self.nl) + r, 0, 2 * r)
            l2l = np.take_along_axis(self.ints("l2l_ids", None), slot, axis=1)
            l2l = np.where(abs(self.distance(self.nl)) <= r, l2l, 0)
        return self.joined(self.ints("g2g_ids", of_distance(self.distance(self.ng))),
                           self.ints("g2l_ids", between.T), self.ints("l2g_ids", between), l2l)


class RelativeCore(Core):
    """Adds E[label] . q + beta[label] to the products of q and k, before the scale. Each kind of
    rows has a separate table."""

    @functools.cached_property
    def labels(self):
        return np.array([Split(seq).labels() for seq in self.seqs])[:, None]  # [B,1,N,N]

    @functools.cached_property
    def tables(self):
        """E [H,V,D] and beta [H,V] of this kind; zeros where absent."""
        shape = (self.o.get("relative_vocab_size", 32), *self.q.shape[1::2])
        made = {}
        for name, sizes in (("rel_emb", shape), ("rel_bias", shape[:2])):
            x = self.t.get(f"{name}_{self.kind.id}", np.zeros(sizes))
            made[name] = x.astype(self.dtype).swapaxes(0, 1)
        return made

    def relative(self, size=lambda x: x):
        """[B,H,N,N]; with size=abs the sums of sizes behind it."""
        E, beta = (size(x) for x in self.tables.values())
        of_labels = size(self.q) @ E.swapaxes(1, 2) + beta[:, None]  # [B,H,N,V]
        return np.take_along_axis(of_labels, np.broadcast_to(self.labels, self.seen.shape), axis=3)

    def products(self):
        return super().products() + self.relative()

    def size_of_products(self):
        return super().size_of_products() + self.relative(abs)

    def flows(self, dS, through_cap, P, dO, back=None, size=lambda x: x):
        grads = super().flows(dS, through_cap, P, dO, back, size)
        E = size(self.tables["rel_emb"])
        dT = size(self.scale) * dS * through_cap
        by_label = np.zeros((*dT.shape[:3], E.shape[1]), self.dtype)
        b, h, i, _ = np.indices(dT.shape, sparse=True)
        np.add.at(by_label, (b, h, i, np.broadcast_to(self.labels, dT.shape)), dT)
        grads["q"] = grads["q"] + by_label @ E
        made = {
            "rel_emb": np.einsum("bhiv,bhid->vhd", by_label, size(self.q)),
            "rel_bias": by_label.sum(axis=(0, 2)).T,
        }
        return grads | {f"{name}_{self.kind.id}": x for name, x in made.items()
                        if f"{name}_{self.kind.id}" in self.t}


@dataclasses.dataclass(frozen=True)
class Part(Kind):
    """Rows of one part; `id` ends the names of its tables."""

    id: str = ""


def is_global(seq):
    return seq.i[:, 0] < seq.o["num_global"]


# --- tensors of cases ---


def fit_options(case):
    """At most as many global tokens as there are tokens."""
    ng = min(case.options["num_global"], case.Nq)
    return dataclasses.replace(case, options=case.options | {"num_global": ng})


def fit_sizes(case):
    """At least as many tokens as there are global ones."""
    ng = case.options["num_global"]
    return case if case.Nq >= ng else dataclasses.replace(case, Nq=ng, Nk=ng)


def sizes(case):
    """B, ng, nl."""
    ng = case.options["num_global"]
    return case.B, ng, case.Nq - ng


def sentences(rng, case):
    """Runs of random lengths; a tenth of the tokens belongs to no sentence."""
    B, ng, nl = sizes(case)
    ids = np.sort(rng.integers(0, ng + 1, (B, nl)), axis=1)
    return np.where(rng.random((B, nl)) < 0.1, -5, ids).astype(INT)


def examples(part):
    """Two examples one after another, with arbitrary ids; the global part is divided alike."""

    def make(rng, case):
        B, ng, nl = sizes(case)
        n = nl if part == "long" else ng
        cut = (n * (np.arange(B)[:, None] + 2)) // 4
        return np.where(np.arange(n) < cut, -7, 2**31 - 1).astype(INT)

    return make


def mixed_examples(part):
    """Five examples, token by token."""
    return lambda rng, case: rng.integers(
        -2, 3, (case.B, sizes(case)[1 if part == "global" else 2])).astype(INT)


def label_ids(piece):
    """Any labels; slots of a long token at the edge that have no key hold an invalid label."""

    def make(rng, case):
        (B, ng, nl), r = sizes(case), case.options.get("local_radius", 84)
        shape = {"l2l_ids": (B, nl, 2 * r + 1), "l2g_ids": (B, nl, ng), "g2g_ids": (B, ng, ng),
                 "g2l_ids": (B, ng, nl)}[piece]
        ids = rng.integers(0, case.options.get("relative_vocab_size", 32), shape)
        if piece == "l2l_ids":
            c = np.arange(nl)[:, None] + np.arange(-r, r + 1)
            ids = np.where((c < 0) | (c >= nl), np.where(c % 2 == 0, -1, 2**31 - 1), ids)
        return ids.astype(INT)

    return make


def of_keys(letters):
    """Tensors of the keys of global rows; NaN in padding."""
    return lambda rng, case: fill_padding(rng.standard_normal(case.shape_of(letters)),
                                          case.ints.get("kv_lengths"))


GLOBAL = {"k_global": of_keys("B,Hkv,Nk,D"), "v_global": of_keys("B,Hkv,Nk,Dv")}
SENTENCES = {"sentence_ids": sentences}
EXAMPLES = {f"{part}_example_ids": examples(part) for part in ("long", "global")}
MIXED_EXAMPLES = {f"{part}_example_ids": mixed_examples(part) for part in ("long", "global")}
IDS = {piece: label_ids(piece) for piece in PIECES}


def tables(V, *names):
    """Shapes of the learned tables of V labels: all four, or those named."""
    return {name: f"{V},H,D" if "emb" in name else f"{V},H" for name in names or LEARNED}


def split(ng, r, k=None, V=None, **more):
    labels = {"max_distance": k, "relative_vocab_size": V}
    return {"num_global": ng, "local_radius": r} | {
        name: x for name, x in labels.items() if x is not None} | more


LABELS = split(3, 2, 2, 8)


def int_zeros(*shape):
    return zeros(*shape, dtype=INT)


# The good request has B = 2, H = 4, N = 6, D = 3; with these it has nl = 4.
GOOD_OPTIONS = split(2, 2)


def shape(id, name, rule, *sizes, options=GOOD_OPTIONS):
    make = zeros if name.startswith(("rel", "k", "v")) else int_zeros
    got = ",".join(str(n) for n in sizes)
    return Refused(f"{name}-{id}", options, [f"{name} shape must be {rule}, got [{got}]"],
                   change={name: make(*sizes)})


def value(name, shape, values, reported, last, options=GOOD_OPTIONS):
    """`values`: {index: value}, of which the message names the one at index `reported`."""
    x = int_zeros(*shape)
    for at, number in values.items():
        x[at] = number
    at = ",".join(str(i) for i in reported)
    return Refused(f"{name}-value", options, [
        f"{name}[{at}] must be in 0..relative_vocab_size-1 = 0..{last}, got {values[reported]}"],
                   values=True, change={name: x})


TOGETHER = "long_example_ids and global_example_ids must be sent together, got"


METHOD = pattern_method(
    id="etc",
    oracle=PatternOracle(lambda seq: Split(seq).seen(), core=RelativeCore, kinds=(
        Part(lambda seq: ~is_global(seq), id="long"),
        Part(is_global, {"k": "k_global", "v": "v_global"}, id="global"))),
    options={"num_global": "int", "local_radius": "int", "max_distance": "int",
             "relative_vocab_size": "int", "hard_g2l": "bool", "hard_l2g": "bool"},
    own=OWN,
    own_differentiable=(*LEARNED, "k_global", "v_global"),
    lacks=("causal", "alibi", "cross", "packed"),
    good_options=GOOD_OPTIONS,
    plans_pairs=lambda t, o: "long_example_ids" not in t and (
        "sentence_ids" not in t or not (o.get("hard_l2g", False) or o.get("hard_g2l", False))),
    peers=[
        "etcmodel layers.attention QkvRelativeLocalAttention, QkvRelativeAttention"
        " (needs TensorFlow)",
    ],
    fit_options=fit_options,
    fit_sizes=fit_sizes,
    cases=[
        Case("plain", dtypes=ALL, B=2, Nq=65, options=split(5, 3)),
        Case("defaults", Nq=131, options={"num_global": 7}, floats=tables(32)),
        Case("labels", dtypes=ALL, B=2, Nq=65, options=LABELS, floats=tables(8)),
        Case("labels-k0", Nq=65, options=split(4, 3, 0, 4), floats=tables(4)),
        Case("labels-k12-wide-vocabulary", Nq=65, options=split(6, 20, 12, 77), floats=tables(77)),
        Case("labels-max-distance", Nq=9, options=split(3, 5, 32000, 64004),
             floats=tables(64004, "rel_bias_long", "rel_bias_global")),
        Case("biases-only", dtypes=ALL, Nq=65, options=LABELS,
             floats=tables(8, "rel_bias_long", "rel_bias_global")),
        Case("embeddings-only", Nq=65, options=LABELS,
             floats=tables(8, "rel_emb_long", "rel_emb_global")),
        Case("tables-of-long", Nq=65, options=LABELS,
             floats=tables(8, "rel_emb_long", "rel_bias_long")),
        Case("tables-of-global", Nq=65, options=LABELS,
             floats=tables(8, "rel_emb_global", "rel_bias_global")),
        Case("embedding-of-long-bias-of-global", Nq=65, options=LABELS,
             floats=tables(8, "rel_emb_long", "rel_bias_global")),
        Case("global-tensors", dtypes=ALL, B=2, Nq=65, options=split(5, 3), made=GLOBAL),
        Case("global-tensors-labels", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, options=LABELS,
             floats=tables(8), made=GLOBAL),
        Case("k-global-only", Nq=65, options=split(5, 3), made={"k_global": GLOBAL["k_global"]}),
        Case("v-global-only", Nq=65, options=split(5, 3), made={"v_global": GLOBAL["v_global"]}),
        Case("no-globals", Nq=65, options=split(0, 3)),
        Case("no-globals-labels", Nq=65, options=split(0, 3, 2, 8), floats=tables(8), made=GLOBAL),
        Case("only-globals", Nq=33, options=split(33, 3)),
        Case("only-globals-labels", Nq=33, options=split(33, 3, 2, 8), floats=tables(8),
             made=GLOBAL),
        Case("one-long", Nq=33, options=split(32, 3, 2, 8), floats=tables(8)),
        Case("more-globals-than-long", Nq=65, options=split(50, 3, 2, 8), floats=tables(8)),
        Case("n1-global", Nq=1, options=split(1, 1)),
        Case("n1-long", Nq=1, options=split(0, 1, 2, 8), floats=tables(8)),
        Case("n0", Nq=0, options=split(0, 3), grad_lse=False),
        Case("n64-d64", H=1, Nq=64, D=64, options=split(8, 9, 4, 12), floats=tables(12)),
        Case("n131-radius-64", H=1, Nq=131, D=32, Dv=16, options=split(2, 64, 12),
             floats=tables(32)),
        Case("long", H=1, Nq=323, D=8, options=split(9, 16, 12), floats=tables(32)),
        Case("radius-1", Nq=65, options=split(5, 1, 2, 8), floats=tables(8)),
        Case("radius-beyond-n", Nq=65, options=split(5, 1000)),
        Case("huge-radius", Nq=65, options=split(5, 2**63 - 1, 2, 8), floats=tables(8)),
        Case("hard-g2l", dtypes=ALL, Nq=65, options=LABELS | {"hard_g2l": True},
             floats=tables(8)),
        Case("hard-l2g", Nq=65, options=LABELS | {"hard_l2g": True}, floats=tables(8)),
        Case("hard-both", B=2, Nq=65, options=split(5, 3, hard_g2l=True, hard_l2g=True),
             made=GLOBAL),
        Case("sentences", dtypes=ALL, B=2, Nq=65, options=LABELS, floats=tables(8), made=SENTENCES),
        Case("sentences-hard", dtypes=ALL, B=2, Nq=65,
             options=LABELS | {"hard_g2l": True, "hard_l2g": True}, floats=tables(8),
             made=SENTENCES | GLOBAL),
        Case("examples", dtypes=ALL, B=2, Nq=65, options=LABELS, floats=tables(8), made=EXAMPLES),
        Case("examples-mixed-over-many-tiles", H=1, Nq=900, D=8, options=split(500, 60, 2, 8),
             floats=tables(8), made=MIXED_EXAMPLES),
        Case("examples-hard", B=2, Nq=65, options=split(4, 3, hard_l2g=True),
             made=EXAMPLES | SENTENCES),
        Case("ids", dtypes=ALL, B=2, Nq=65, options=LABELS, floats=tables(8), made=IDS),
        Case("ids-of-long", Nq=65, options=split(2, 3, 2, 9), floats=tables(9),
             made={"l2l_ids": IDS["l2l_ids"]}),
        Case("ids-of-globals", Nq=65, options=LABELS, floats=tables(8),
             made={"g2g_ids": IDS["g2g_ids"]}),
        Case("ids-between", Nq=65, options=LABELS, floats=tables(8), made=SENTENCES | {
            "l2g_ids": IDS["l2g_ids"], "g2l_ids": IDS["g2l_ids"]}),
        Case("ids-without-tables", Nq=33, options=LABELS, made=IDS),
        Case("ids-wider-than-n", Nq=20, options=split(3, 30, 2, 8), floats=tables(8), made=IDS),
        Case("lengths", dtypes=ALL, B=6, H=1, Nq=131, options=LABELS, floats=tables(8), made=GLOBAL,
             ints={"q_lengths": (131, 65, 64, 63, 1, 0), "kv_lengths": (0, 1, 63, 64, 65, 131)}),
        Case("lengths-inside-globals", B=2, Nq=65, options=split(20, 3), made=GLOBAL,
             ints={"q_lengths": (10, 40), "kv_lengths": (40, 10)}),
        Case("gqa", dtypes=ALL, B=2, H=6, Hkv=2, Nq=65, options=LABELS, floats=tables(8)),
        Case("scale-dv", Nq=65, D=5, Dv=33, options=LABELS | {"scale": 0.7}, floats=tables(8)),
        Case("scale-negative", Nq=33, options=LABELS | {"scale": -0.4}, floats=tables(8)),
        Case("softcap", dtypes=ALL, Nq=65, spread=2.0, options=LABELS | {"logit_softcap": 1.5},
             floats=tables(8)),
        Case("multiset", Nq=33, options=LABELS | {"duplicates": "multiset"}, floats=tables(8)),
        Case("bias", dtypes=ALL, B=2, Nq=65, options=split(5, 3), floats={"bias": "B,H,Nq,Nk"}),
        Case("bias-hides", B=2, Nq=65, options=LABELS, hidden_bias=True,
             floats={"bias": "1,1,Nq,Nk"} | tables(8)),
        Case("sinks", dtypes=ALL, B=2, Nq=65, options=LABELS,
             floats={"sink_logits": "H"} | tables(8), ints={"kv_lengths": (65, 0)}),
        Case("segments", B=2, Nq=131, segments="runs", options=LABELS, floats=tables(8)),
        Case("segments-mixed", B=2, Nq=65, segments="mixed", options=split(9, 6), made=SENTENCES),
        Case("all-terms", dtypes=ALL, B=2, H=4, Hkv=2, Nq=131, D=33, Dv=17,
             options=split(11, 8, 3, 12, logit_softcap=3.0, hard_g2l=True),
             floats={"bias": "1,H,Nq,Nk", "sink_logits": "H"} | tables(12),
             made=SENTENCES | EXAMPLES | IDS | GLOBAL,
             ints={"q_lengths": (131, 40), "kv_lengths": (50, 131)}),
        Case("wide-floats", dtypes=("f16", "bf16"), B=2, Nq=65, wide_floats=True, options=LABELS,
             floats={"bias": "B,1,1,Nk", "sink_logits": "H"} | tables(8), made=GLOBAL),
        Case("bnhd", B=2, H=4, Hkv=2, Nq=65, layout="BNHD", options=LABELS, floats=tables(8),
             made=GLOBAL),
        Case("strided", dtypes=ALL, B=2, H=4, Hkv=2, Nq=65, strided=True, options=LABELS,
             floats=tables(8), made=GLOBAL),
        Case("strided-bnhd", B=2, Nq=65, strided=True, layout="BNHD", options=LABELS,
             floats=tables(8), made=GLOBAL),
    ],
    batches=[split(5, 3), split(2, 10, hard_g2l=True)],
    tensor_batches=[
        Case("tables", options=LABELS, floats=tables(8), made=GLOBAL),
        Case("ids", options=LABELS, floats=tables(8), made=IDS | SENTENCES | EXAMPLES),
        Case("terms", options=LABELS | {"logit_softcap": 2.0},
             floats={"bias": "1,H,Nq,Nk", "sink_logits": "H"} | tables(8)),
        Case("segments", options=split(3, 5, hard_l2g=True), segments="mixed"),
    ],
    preset={"num_global": "min(16, Nq)"},
    perf=[split(16, 84)],
    growth=[Growth(split(16, 84), 1, 1)],
    visible=[
        Visible("ng3-r2", 15, 15, split(3, 2), 135),
        Visible("ng3-r2-hard-g2l", 15, 15, split(3, 2, hard_g2l=True), 111),
        Visible("ng3-r2-hard-l2g", 15, 15, split(3, 2, hard_l2g=True), 111),
    ],
    golden=[
        pattern_golden("no-tables", split(4, 2), 332, 0.1450603124, -0.3710360547, -0.3851417778,
                       -0.0485010065, 0.8832178742),
        pattern_golden("labels", split(4, 2, 2, 8), 332, -1.0444425205, 1.8462731448, -3.7520892379,
                       0.4579794856, 0.3034654764, {
                           "rel_emb_long": wave(np.sin, (8, 2, 4), 0.11, 0.4),
                           "rel_bias_long": wave(np.cos, (8, 2), 0.21, 0.5),
                           "rel_emb_global": wave(np.cos, (8, 2, 4), 0.13, 0.6),
                           "rel_bias_global": wave(np.sin, (8, 2), 0.17, 0.7)}),
    ],
    refused=[
        Refused("no-num-global", {}, ["num_global is required, got none"]),
        Refused("num-global-low", split(-1, 2), ["num_global must be >= 0, got -1"]),
        Refused("num-global-high", split(7, 2), ["num_global must be in 0..N = 0..6, got 7"]),
        Refused("num-global-type", split("two", 2), ['num_global must be an integer, got "two"']),
        Refused("local-radius", split(2, 0), ["local_radius must be >= 1, got 0"]),
        Refused("max-distance-low", split(2, 2, -1), ["max_distance must be in 0..32000, got -1"]),
        Refused("max-distance-high", split(2, 2, 32001),
                ["max_distance must be in 0..32000, got 32001"]),
        Refused("vocabulary-low", split(2, 2, 0, 3),
                ["relative_vocab_size must be in 4..65535, got 3"]),
        Refused("vocabulary-high", split(2, 2, 0, 65536),
                ["relative_vocab_size must be in 4..65535, got 65536"]),
        Refused("vocabulary-below-labels", split(2, 2, None, 8),
                ["relative_vocab_size must be >= 2 max_distance + 4 = 28, got 8"]),
        Refused("default-vocabulary-below-labels", split(2, 2, 20),
                ["relative_vocab_size must be >= 2 max_distance + 4 = 44, got 32"]),
        Refused("hard-type", split(2, 2, hard_g2l=1), ["hard_g2l must be a bool, got 1"]),
        Refused("causal", split(2, 2, causal=True),
                ["causal is not an option of this method, got true"]),
        shape("v", "rel_emb_long", "[V,H,D] with V = relative_vocab_size = 32", 8, 4, 3),
        shape("v", "rel_emb_global", "[V,H,D] with V = relative_vocab_size = 9", 32, 4, 3,
              options=split(2, 2, 2, 9)),
        shape("v", "rel_bias_long", "[V,H] with V = relative_vocab_size = 32", 8, 4),
        shape("v", "rel_bias_global", "[V,H] with V = relative_vocab_size = 9", 32, 4,
              options=split(2, 2, 2, 9)),
        shape("h", "rel_emb_long", "[V,H,D] with H = 4", 32, 2, 3),
        shape("d", "rel_emb_global", "[V,H,D] with D = 3", 32, 4, 4),
        shape("rank", "rel_bias_global", "[V,H]", 32),
        shape("nl", "sentence_ids", "[B,nl] with nl = 4", 2, 6),
        shape("b", "sentence_ids", "[B,nl] with B = 2", 1, 4),
        shape("w", "l2l_ids", "[B,nl,W] with W = 2 local_radius + 1 = 5", 2, 4, 3),
        shape("nl", "l2l_ids", "[B,nl,W] with nl = 4", 2, 6, 3),
        shape("ng", "l2g_ids", "[B,nl,ng] with ng = 2", 2, 4, 6),
        shape("rank", "l2g_ids", "[B,nl,ng]", 2, 4),
        shape("ng", "g2g_ids", "[B,ng,ng] with ng = 2", 2, 2, 4),
        shape("nl", "g2l_ids", "[B,ng,nl] with nl = 4", 2, 2, 2),
        shape("b", "g2l_ids", "[B,ng,nl] with B = 2", 3, 2, 4),
        shape("nk", "k_global", "[B,Hkv,Nk,D] with Nk = 6", 2, 2, 2, 3),
        Refused("table-dtype", GOOD_OPTIONS, ["rel_emb_global dtype must be float32, got int32"],
                change={"rel_emb_global": int_zeros(32, 4, 3)}),
        Refused("sentence-ids-dtype", GOOD_OPTIONS,
                ["sentence_ids dtype must be int32, got float32"],
                change={"sentence_ids": zeros(2, 4)}),
        Refused("long-example-ids-alone", GOOD_OPTIONS, [f"{TOGETHER} long_example_ids alone"],
                change={"long_example_ids": int_zeros(2, 4)}),
        Refused("global-example-ids-alone", GOOD_OPTIONS, [f"{TOGETHER} global_example_ids alone"],
                change={"global_example_ids": int_zeros(2, 2)}),
        Refused("example-ids", GOOD_OPTIONS,
                ["long_example_ids shape must be [B,nl] with nl = 4, got [2,2]",
                 "global_example_ids shape must be [B,ng] with ng = 2, got [2,4]"],
                change={"long_example_ids": int_zeros(2, 2),
                        "global_example_ids": int_zeros(2, 4)}),
        value("l2g_ids", (2, 4, 2), {(0, 1, 0): 40}, (0, 1, 0), 31),
        value("g2g_ids", (2, 2, 2), {(1, 0, 1): -1}, (1, 0, 1), 7, split(2, 2, 2, 8)),
        value("g2l_ids", (2, 2, 4), {(1, 1, 3): 32}, (1, 1, 3), 31),
        # Column 2 is the token itself; column 0 of the first token lies before all.
        value("l2l_ids", (2, 4, 5), {(0, 0, 0): 77, (0, 0, 2): 99}, (0, 0, 2), 31),
        Refused("everything-at-once", split(7, 0, 12, 8, scale=float("nan")),
                ["num_global must be in 0..N = 0..6, got 7", "local_radius must be >= 1, got 0",
                 "relative_vocab_size must be >= 2 max_distance + 4 = 28, got 8",
                 "scale must be finite, got nan",
                 'tensors must be among q, k, v, q_lengths, kv_lengths, segment_ids_q, '
                 f'segment_ids_kv, bias, sink_logits, {", ".join(OWN)}, got "alibi_slopes"'],
                change={"alibi_slopes": zeros(4)}),
    ],
)
