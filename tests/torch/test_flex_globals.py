"""flex_attention against the patterns with separate tensors for global tokens: longformer, etc.
Each kind of query rows takes one call."""

import numpy as np
import pytest
import torch

from tests.torch.flex import Case, attend

GQA = {"B": 2, "H": 4, "Hkv": 2}
ALL_TERMS = {"bias": (1, 4, 61, 61), "alibi_slopes": (2, 4), "sink_logits": (4,)}
LENGTHS = {"q_lengths": np.int32([61, 20]), "kv_lengths": np.int32([40, 61])}


def rows_of(is_global, special, plain):
    """(out, lse) with the rows [B,H,Nq] of `special` where `is_global`, else of `plain`."""
    return (torch.where(is_global[..., None], special[0], plain[0]),
            torch.where(is_global, special[1], plain[1]))


# --- longformer ---


def longformer(id, options, mask, sizes, own=(), **more):
    """`own`: which of q_global, k_global, v_global are sent."""
    w = options["window"]
    dilation = torch.tensor(np.broadcast_to(options.get("dilation", 1), sizes["H"]))
    Nq, Nk = sizes["Nq"], sizes.get("Nk", sizes["Nq"])
    on = torch.tensor(np.broadcast_to(mask, (sizes["B"], Nk)) != 0)

    def is_global(at):
        return on[at.b, torch.clamp(at.p, 0, Nk - 1)] & (at.p >= 0) & (at.p < Nk)

    def local(at):
        delta, d = at.p - at.j, dilation[at.h]
        return ((abs(delta) <= w * d) & (delta % d == 0)) | on[at.b, at.j]

    def peer(case, t):
        plain = attend(case, t["q"], t["k"], t["v"], t, local)
        tensors = (t.get(f"{name}_global", t[name]) for name in "qkv")
        special = attend(case, *tensors, t, lambda at: at.j >= 0)
        p = torch.arange(Nq) + case.ints.get("causal_offset", torch.tensor([Nk - Nq]))[:, None]
        rows = torch.gather(on, 1, p.clamp(0, Nk - 1).expand(case.B, -1)) & (p >= 0) & (p < Nk)
        return rows_of(rows[:, None].expand(-1, case.H, -1), special, plain)

    heads = {"q_global": sizes["H"], "k_global": sizes.get("Hkv", sizes["H"]),
             "v_global": sizes.get("Hkv", sizes["H"])}
    shapes = {name: (sizes["B"], heads[name], Nq if name == "q_global" else Nk, 16) for name in own}
    return Case(id, "longformer", options, lambda at: is_global(at) | local(at), sizes | shapes,
                {"global_mask": np.uint8(mask)} | more.pop("fixed", {}), peer, **more)


def at(*rows, Nk=61):
    """[B,Nk]: the listed positions are global."""
    return np.array([np.isin(np.arange(Nk), row) for row in rows], np.uint8)


OWN = ("q_global", "k_global", "v_global")
UNEVEN = at([0, 7, 40], [60])
LONGFORMER = [
    longformer("shared", {"window": 4}, UNEVEN, GQA | {"Nq": 61}),
    longformer("own", {"window": 4}, UNEVEN, GQA | {"Nq": 61}, OWN),
    longformer("own-keys", {"window": 4}, UNEVEN, GQA | {"Nq": 61}, ("k_global",)),
    longformer("causal", {"window": 4, "causal": True}, UNEVEN, GQA | {"Nq": 61}, OWN),
    longformer("dilated", {"window": 3, "dilation": [1, 2, 3, 1]}, UNEVEN, GQA | {"Nq": 61}, OWN),
    longformer("no-globals", {"window": 5}, at([], []), GQA | {"Nq": 61}),
    longformer("more-keys", {"window": 4}, at([0, 20, 70], [72], Nk=73),
               GQA | {"Nq": 61, "Nk": 73}, OWN),
    longformer("offsets", {"window": 4, "causal": True}, at([0, 20, 70], [], Nk=73),
               GQA | {"Nq": 61, "Nk": 73}, OWN, fixed={"causal_offset": np.int32([-9, 30])}),
    longformer("all-terms", {"window": 6, "logit_softcap": 2.0}, UNEVEN,
               GQA | {"Nq": 61} | ALL_TERMS, OWN, fixed=LENGTHS),
]


# --- etc ---


def label(delta, k):
    return np.where(delta < 0, k + np.minimum(-delta, k), np.minimum(delta, k))


def labels(B, ng, nl, k, sent):
    """[B,N,N] int64: what the four id tensors hold, or the labels of the specification."""
    a, g = np.arange(nl), np.arange(ng)
    sentence = sent.get("sentence_ids", np.broadcast_to(a * ng // nl, (B, nl)))
    ids = np.zeros((B, ng + nl, ng + nl), np.int64)
    ids[:, :ng, :ng] = sent.get("g2g_ids", label(g[None, :] - g[:, None], k))
    same = sentence[:, :, None] == g
    ids[:, ng:, :ng] = sent.get("l2g_ids", 2 * k + 1 + same)
    ids[:, :ng, ng:] = sent.get("g2l_ids", 2 * k + 1 + same.swapaxes(1, 2))
    ids[:, ng:, ng:] = label(a[None, :] - a[:, None], k)
    if "l2l_ids" in sent:
        window = sent["l2l_ids"]
        radius = window.shape[2] // 2
        for row in range(nl):
            for c in range(max(0, row - radius), min(nl, row + radius + 1)):
                ids[:, ng + row, ng + c] = window[:, row, radius + c - row]
    return ids


def etc(id, options, sizes, tables=(), own=(), fixed=None):
    B, H, N, sent = sizes["B"], sizes["H"], sizes["Nq"], fixed or {}
    ng, r = options["num_global"], options["local_radius"]
    nl, k, V = N - ng, options.get("max_distance", 12), options.get("relative_vocab_size", 32)
    ids = torch.tensor(labels(B, ng, nl, k, sent))
    sentence = torch.tensor(np.broadcast_to(
        sent.get("sentence_ids", np.arange(nl) * ng // nl), (B, nl)).copy())
    # Example ids of every position; where they are not sent all belong to one example.
    example = torch.tensor(np.concatenate(
        [sent.get("global_example_ids", np.zeros((B, ng))),
         sent.get("long_example_ids", np.zeros((B, nl)))], axis=1))

    def visible(at):
        from_long, to_long = at.i >= ng, at.j >= ng
        a, c = (torch.clamp(x - ng, min=0) for x in (at.i, at.j))
        l2g = sentence[at.b, a] == at.j if options.get("hard_l2g") else at.j >= 0
        g2l = sentence[at.b, c] == at.i if options.get("hard_g2l") else at.j >= 0
        seen = torch.where(from_long, torch.where(to_long, abs(a - c) <= r, l2g),
                           torch.where(to_long, g2l, at.j >= 0))
        return seen & (example[at.b, at.i] == example[at.b, at.j])

    def relative(case, t):
        """scale (q_i . E[id] + beta[id]) from the table of the row's part."""
        terms = []
        for part in ("global", "long"):
            term = 0
            if f"rel_emb_{part}" in t:
                term = torch.einsum("bhid,vhd->bhiv", t["q"], t[f"rel_emb_{part}"])
            if f"rel_bias_{part}" in t:
                term = term + t[f"rel_bias_{part}"].T[None, :, None]
            terms.append(torch.zeros(B, H, N, V, dtype=torch.float64) + term)
        scores = case.scale * torch.where((torch.arange(N) < ng)[:, None], *terms)
        return lambda at: scores[at.b, at.h, at.i, ids[at.b, at.i, at.j]]

    def peer(case, t):
        plain = attend(case, t["q"], t["k"], t["v"], t)
        if not own:
            return plain
        special = attend(case, t["q"], *(t.get(f"{x}_global", t[x]) for x in "kv"), t)
        return rows_of((torch.arange(N) < ng).expand(B, H, N), special, plain)

    shapes = {name: (V, H, 16) if "emb" in name else (V, H) for name in tables}
    shapes |= {name: (B, sizes.get("Hkv", H), N, 16) for name in own}
    return Case(id, "etc", options, visible, sizes | shapes, sent, peer,
                relative=relative if tables else None)


def split(ng, r, k=None, V=None, **more):
    options = {"num_global": ng, "local_radius": r}
    return options | ({} if k is None else {"max_distance": k, "relative_vocab_size": V}) | more


def ids(*shape, high=9, seed=4):
    return np.random.default_rng(seed).integers(0, high, shape, dtype=np.int32)


TABLES = ("rel_emb_long", "rel_bias_long", "rel_emb_global", "rel_bias_global")
SENTENCES = {"sentence_ids": np.sort(ids(2, 54, high=7), axis=1)}
ETC = [
    etc("plain", split(7, 4), GQA | {"Nq": 61}),
    etc("labels", split(7, 9, 3, 10), GQA | {"Nq": 61}, TABLES),
    etc("labels-default-vocabulary", split(7, 20), GQA | {"Nq": 61}, TABLES),
    etc("tables-of-long", split(7, 9, 3, 10), GQA | {"Nq": 61}, TABLES[:2]),
    etc("biases", split(7, 9, 3, 10), GQA | {"Nq": 61}, TABLES[1::2]),
    etc("own-keys-and-values", split(7, 9, 3, 10), GQA | {"Nq": 61}, TABLES,
        ("k_global", "v_global")),
    etc("sentences", split(7, 9, 3, 10), GQA | {"Nq": 61}, TABLES, fixed=SENTENCES),
    etc("hard", split(7, 4, hard_g2l=True, hard_l2g=True), GQA | {"Nq": 61}, fixed=SENTENCES),
    etc("examples", split(7, 9, 3, 10), GQA | {"Nq": 61}, TABLES,
        fixed={"long_example_ids": ids(2, 54, high=2),
               "global_example_ids": ids(2, 7, high=2, seed=5)}),
    etc("ids", split(7, 4, 3, 10), GQA | {"Nq": 61}, TABLES,
        fixed={"l2l_ids": ids(2, 54, 9), "l2g_ids": ids(2, 54, 7), "g2g_ids": ids(2, 7, 7),
               "g2l_ids": ids(2, 7, 54)}),
    # The relative term comes before the cap.
    etc("all-terms", split(7, 9, 3, 10, logit_softcap=2.0),
        GQA | {"Nq": 61, "bias": (1, 4, 61, 61), "sink_logits": (4,)}, TABLES,
        ("k_global", "v_global"), LENGTHS),
]


@pytest.mark.parametrize("case", LONGFORMER + ETC, ids=lambda case: f"{case.method}-{case.id}")
def test_flex_attention(case):
    case.run()
