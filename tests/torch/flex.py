"""PyTorch's flex_attention, eager and in float64, as a peer of every pattern: the common core of
the specification as one mask_mod and one score_mod, with what a method adds to them.

A function of `at` sees one pair: at.b and at.h, sequence and query head; at.i and at.j, query and
key, counted in their packed sequence where there are some; at.p, the position of the query.
flex_attention traces these functions: what they look up must be tensors.
"""

import dataclasses
import math
import types
import typing

import numpy as np
import torch
from torch.nn.attention import flex_attention as flex_module
from torch.nn.attention.flex_attention import (AuxRequest, create_block_mask, create_mask,
                                               flex_attention)

from tests.torch import compared

# Refuses gradients on the CPU because the compiled kernels have none there; the eager form has.
flex_module._validate_device = lambda *tensors: None


@dataclasses.dataclass
class Case:
    id: str
    method: str
    options: dict
    # at -> bool; causality, lengths and segments are added. A list: one softmax each, added.
    visible: typing.Callable
    sizes: dict = dataclasses.field(default_factory=dict)  # of compared.qkv, with further tensors
    fixed: dict = dataclasses.field(default_factory=dict)  # index tensors
    # (case, t) -> out, lse, for methods of more than one softmax.
    peer: typing.Callable = lambda case, t: attend(case, t["q"], t["k"], t["v"], t)
    relative: typing.Callable = None  # (case, t) -> (at -> the term added to the scaled q.k)
    weight: typing.Callable = None  # at -> the term added last
    distance: typing.Callable = lambda at: abs(at.p - at.j)
    bias_at: typing.Callable = None  # at -> row and column of the bias; None: of the flat tensor
    causal: bool = None  # whether j <= p is added; None: as the option is

    def run(self):
        t = compared.qkv(**self.sizes)
        self.B, self.H, self.Nq, D = t["q"].shape
        self.Nk = t["k"].shape[2]
        self.scale = self.options.get("scale", D**-0.5)
        self.ints = {name: torch.tensor(x.astype(np.int64)) for name, x in self.fixed.items()}
        pairs = sum(int(create_mask(mask_of(self, visible), self.B, self.H, self.Nq, self.Nk,
                                    "cpu").sum()) for visible in self.softmaxes())
        compared.compare(self.method, self.options, t, lambda **leaves: self.peer(self, leaves),
                         self.fixed, pairs)

    def softmaxes(self):
        """The predicates whose pairs count."""
        return self.visible if isinstance(self.visible, list) else [self.visible]


def places(case):
    """(b, h, i, j) as flex_attention counts -> at, with at.together: whether in one sequence."""
    ints = case.ints
    if "cu_seqlens_q" not in ints:
        offset = ints.get("causal_offset", torch.full([case.B], case.Nk - case.Nq))
        return lambda b, h, i, j: types.SimpleNamespace(b=b, h=h, i=i, j=j, p=i + offset[b],
                                                        together=True)
    starts_q, starts_k = ints["cu_seqlens_q"], ints["cu_seqlens_k"]
    of_query = torch.searchsorted(starts_q[1:], torch.arange(case.Nq), right=True)
    of_key = torch.searchsorted(starts_k[1:], torch.arange(case.Nk), right=True)
    offset = starts_k.diff() - starts_q.diff()

    def place(b, h, i, j):
        local = i - starts_q[of_query[i]]
        return types.SimpleNamespace(b=b, h=h, i=local, j=j - starts_k[of_key[j]],
                                     p=local + offset[of_query[i]],
                                     together=of_query[i] == of_key[j])

    return place


def mask_of(case, visible):
    place, ints = places(case), case.ints
    causal = case.options.get("causal", False) if case.causal is None else case.causal

    def mask(b, h, i, j):
        at = place(b, h, i, j)
        seen = visible(at) & at.together
        if causal:
            seen = seen & (at.j <= at.p)
        if "kv_lengths" in ints:
            seen = seen & (j < ints["kv_lengths"][b])
        if "q_lengths" in ints:
            seen = seen & (i < ints["q_lengths"][b])
        if "segment_ids_q" in ints:
            of_query, of_key = ints["segment_ids_q"][b, i], ints["segment_ids_kv"][b, j]
            seen = seen & (of_query == of_key) & (of_query >= 0)
        return seen

    return mask


def attend(case, q, k, v, t, visible=None):
    """(out, lse) by steps 1 to 7 of the common core."""
    cap, place = case.options.get("logit_softcap", 0.0), places(case)
    bias, slopes = t.get("bias"), t.get("alibi_slopes")
    if bias is not None:
        bias = bias.expand(case.B, case.H, *bias.shape[-2:])
    if slopes is None and case.options.get("alibi"):
        slopes = torch.tensor(standard_slopes(case.H))
    if slopes is not None:
        slopes = slopes.expand(case.B, case.H)
    relative = case.relative(case, t) if case.relative else None

    def score(x, b, h, i, j):
        at = place(b, h, i, j)
        if relative is not None:
            x = x + relative(at)
        if cap > 0:
            x = cap * torch.tanh(x / cap)
        if bias is not None:
            row, column = case.bias_at(at) if case.bias_at else (i, j)
            x = x + bias[b, h, row, column]
        if slopes is not None:
            x = x - slopes[b, h] * case.distance(at)
        return x if case.weight is None else x + case.weight(at)

    # Its cache of traces counts all functions of a process against one limit.
    torch._dynamo.reset()
    mask = create_block_mask(mask_of(case, visible or case.visible), case.B, case.H, case.Nq,
                             case.Nk, "cpu")
    out, aux = flex_attention(q, k, v, score, mask, case.scale, enable_gqa=True,
                              return_aux=AuxRequest(lse=True))
    return with_sinks(case, out, aux.lse, t.get("sink_logits"))


def with_sinks(case, out, lse, sinks):
    """The identities of the specification; a row beyond q_lengths has no sink."""
    if sinks is None:
        return out, lse
    z = sinks[None, :, None].expand_as(lse)
    out = out * torch.sigmoid(lse - z)[..., None]
    both = torch.logaddexp(lse, z)
    if "q_lengths" in case.ints:
        rows = torch.arange(case.Nq) < case.ints["q_lengths"][:, None, None]
        both = torch.where(rows, both, -math.inf)
    return out, both


def standard_slopes(H):
    c = 2 ** int(math.log2(H))
    return [2.0 ** (-8 * (h + 1) / c) if h < c else 2.0 ** (-4 * (2 * (h - c) + 1) / c)
            for h in range(H)]
