"""Exact attention as `compare` takes it for a reference."""

from dataclasses import dataclass

import numpy as np

from attnd._arrays import Array


@dataclass
class Reference:
    out: Array
    grads: dict[str, Array]  # by input; none where no gradients are compared


def with_shared_q(tensors: dict[str, Array], heads: int) -> dict[str, Array]:
    """What exact attention takes where q serves as the keys, too: k = q, and v for each of its
    heads; the length of a sequence holds for its queries as well."""
    q, v = tensors["q"], tensors["v"]
    shared = {"k": q, "v": np.repeat(v, q.shape[heads] // v.shape[heads], axis=heads)}
    if "kv_lengths" in tensors and "q_lengths" not in tensors:
        shared["q_lengths"] = tensors["kv_lengths"]
    return shared


def of_shared_q(grads: dict[str, Array], kv_heads: int, heads: int) -> dict[str, Array]:
    """The gradients of q and v from those of exact attention with with_shared_q."""
    v = grads["v"]
    groups = v.shape[:heads] + (kv_heads, v.shape[heads] // kv_heads) + v.shape[heads + 1 :]
    return {"q": grads["q"] + grads["k"], "v": v.reshape(groups).sum(axis=heads + 1)}
