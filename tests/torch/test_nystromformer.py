"""nystromformer against nystrom-attention, transformers' Nystromformer and xformers' component.
nystrom-attention and transformers cut n into equal segments: n is a multiple of the landmarks.
xformers cuts any n as ours does. Masks differ everywhere, and causal forms leak: no peers."""

import pytest

from tests.torch import public
from tests.torch.compared import TOLERANCE, compare, qkv

B, H, D, M = 2, 3, 16, 8
# The iterates of the inverse reach some tens and multiply what was rounded before them.
AMPLIFIED = 20 * TOLERANCE


def tensors(n, kernel=0, Nq=None):
    t = qkv(B=B, H=H, Nq=Nq or n, Nk=n, D=D, **({"conv_weight": (H, kernel)} if kernel else {}))
    # Landmarks are means: scores of normal numbers are too much alike to tell one from another.
    return t | {name: 2 * t[name] for name in "qk"}


def check(peer, n, options, kernel=0, Nq=None):
    more = {"conv_kernel_size": kernel} if kernel else {}
    compare("nystromformer", {"num_landmarks": M} | options | more, tensors(n, kernel, Nq), peer,
            tolerance=AMPLIFIED)


@pytest.mark.parametrize("kernel", [0, 5])
@pytest.mark.parametrize("iterations", [1, 6])
def test_nystrom_attention(iterations, kernel):
    """It starts from the largest row and column sums of all heads and sequences."""
    pytest.importorskip("nystrom_attention")
    check(public.nystrom(H, D, M, iterations, kernel), 48,
          {"pinv_init": "original", "pinv_iterations": iterations}, kernel)


@pytest.mark.parametrize("kernel", [0, 5])
@pytest.mark.parametrize("init", ["exact", "original"])
def test_transformers(init, kernel):
    pytest.importorskip("transformers.models.nystromformer")
    check(public.nystrom_transformers(H, D, 48, M, init, kernel), 48, {"pinv_init": init}, kernel)


@pytest.mark.parametrize("n, kernel", [(48, 0), (48, 5), (61, 0), (61, 5)])
@pytest.mark.parametrize("init", ["exact", "original"])
def test_xformers(init, n, kernel):
    pytest.importorskip("xformers.components.attention.nystrom")
    check(public.nystrom_xformers(H, M, 6, init, kernel), n, {"pinv_init": init}, kernel)


@pytest.mark.parametrize("Nq", [13, 100])
def test_cross_lengths(Nq):
    pytest.importorskip("xformers.components.attention.nystrom")
    check(public.nystrom_xformers(H, M, 6, "exact"), 61, {}, Nq=Nq)


def test_as_many_landmarks_as_keys():
    """Exact attention on both sides."""
    pytest.importorskip("xformers.components.attention.nystrom")
    check(public.nystrom_xformers(H, M, 6, "exact"), 8, {})
