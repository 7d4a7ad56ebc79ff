"""The request that `attn compare` sends without options is valid for every method."""

import numpy as np
import pytest

from attnd.cli import presets
from tests.methods import library
from tests.methods.harness import engine, methods


@pytest.mark.parametrize("N", [2, 15, 16, 65, 131, 512])
@pytest.mark.parametrize("id", methods())
def test_preset_is_a_good_request(id, N):
    preset = presets.preset(id, N, N)
    names = "qv" if methods()[id].shares_qk(preset.options) else "qkv"
    zeros = {name: np.zeros((1, 2, N, 8), np.float32) for name in names}
    engine("").plan(library.Request(id, zeros | preset.tensors, preset.options))
