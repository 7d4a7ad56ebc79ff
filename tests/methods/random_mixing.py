"""Random mixing: linear mixing with constant matrices, LeCun normals where they are not sent."""

import dataclasses

from tests.methods import linear_mixing
from tests.methods.linear_mixing import DenseOracle
from tests.methods.mixing_core import lecun_normals

METHOD = dataclasses.replace(
    linear_mixing.METHOD,
    id="random_mixing",
    oracle=DenseOracle(lecun_normals, ("v",)),
    differentiable=["v"],
    peers=["f_net RandomTransform (needs Flax): its mat_seq and mat_hidden, sent"],
)
