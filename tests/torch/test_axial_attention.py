"""axial against axial-attention. Its projections are set to pick parts of the input: of its 3 E
channels the first E are q, the next k, then v; the output takes E of 3 E channels."""

import pytest
import torch

from tests.torch.compared import compare, qkv

AxialAttention = pytest.importorskip("axial_attention").AxialAttention
B, H, D = 2, 3, 8
E = H * D


def attention(grid):
    module = AxialAttention(3 * E, num_dimensions=len(grid), heads=H, dim_heads=D, dim_index=-1,
                            sum_axial_out=True).double()
    for axis in module.axial_attentions:
        axis.fn.to_q.weight.data = torch.eye(3 * E).double()[:E]
        axis.fn.to_kv.weight.data = torch.eye(3 * E).double()[E:]
        axis.fn.to_out.weight.data = torch.eye(3 * E).double()[:, :E]
        axis.fn.to_out.bias.data.zero_()
    return module


def peer_of(grid, call):
    def peer(**t):
        x = torch.cat([x.transpose(1, 2).flatten(2) for x in t.values()], dim=2)
        out = call(x.unflatten(1, grid)).flatten(1, -2)
        return out[..., :E].unflatten(2, (H, D)).transpose(1, 2)

    return peer


# The sides differ, so that mixed-up axes change the result.
@pytest.mark.parametrize("grid", [(5, 7), (3, 4, 5)], ids=["5x7", "3x4x5"])
class TestGrids:
    def test_each_axis(self, grid):
        module = attention(grid)
        for axis in range(len(grid)):
            t = qkv(B=B, H=H, Nq=torch.Size(grid).numel(), D=D)
            compare("axial", {"grid": list(grid), "axis": axis}, t,
                    peer_of(grid, module.axial_attentions[axis]))

    def test_sum(self, grid):
        t = qkv(B=B, H=H, Nq=torch.Size(grid).numel(), D=D)
        compare("axial", {"grid": list(grid), "mode": "sum"}, t, peer_of(grid, attention(grid)))
