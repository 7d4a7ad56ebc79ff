"""What `compare` takes where a method has no default: options and tensors that fit the sizes."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnd._arrays import Array

_BLOCK = 64  # block_sparse's default


@dataclass
class Preset:
    options: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Array] = field(default_factory=dict)


def preset(method: str, Nq: int, Nk: int) -> Preset:
    """The preset for `Nq` queries and `Nk` keys; empty where the defaults suffice."""
    match method:
        # derived: presets, from tests/methods (python -m tests.methods.support_table --write)
        case "axial":
            return Preset({"grid": grid(Nq), "axis": 0})
        case "block_sparse":
            return Preset(tensors={"layout": band_layout(Nq, Nk)})
        case "etc":
            return Preset({"num_global": min(16, Nq)})
        case "image_local_2d":
            return Preset({"grid": grid(Nq)})
        case "local":
            return Preset({"window_left": 64})
        case "random":
            return Preset({"num_random": max(1, min(64, Nk))})
        # end of presets
    return Preset()


def grid(N: int) -> list[int]:
    """Height and width, as near to a square as N allows."""
    height = next((h for h in range(math.isqrt(max(N, 1)), 0, -1) if N % h == 0), 1)
    return [height, N // height]


def band_layout(Nq: int, Nk: int) -> Array:
    """Every block sees its neighbours and the first block."""
    t, c = np.arange(-(-Nq // _BLOCK))[:, None], np.arange(-(-Nk // _BLOCK))[None, :]
    seen: Array = ((abs(t - c) <= 1) | (c == 0)).astype(np.uint8)[None]
    return seen
