"""routing against routing-transformer. Its scores are those of unit rows, keys are normalised where
q serves as the keys, and a mean over clusters has 1e-5 more in its divisor. With causal and keys of
their own every cluster has a learned key before the first. Its masks of padding come after the
selection: no peers."""

import numpy as np
import pytest
import torch

from tests.torch import public
from tests.torch.compared import close, compare, normal, ours, qkv

pytest.importorskip("routing_transformer")

B, H, D = 2, 3, 16
COMMON = {"route_norm": "l2", "mean_eps": 1e-5}
SHARED = COMMON | {"attend_norm": "l2_key", "self_mask": True}
SEPARATE = COMMON | {"attend_norm": "none", "shared_qk": False}


def tensors(N, C, shared, slots=0, Nk=None):
    """(differentiated, fixed). Centroids are unit rows, as its own are."""
    memory = {"mem_k": (H, C, slots, D), "mem_v": (H, C, slots, D)} if slots else {}
    t = qkv(B=B, H=H, Nq=N, Nk=Nk, D=D, means=(H, C, D), **memory)
    means = t.pop("means")
    if shared:
        del t["k"]
    return t, {"means": means / np.linalg.norm(means, axis=2, keepdims=True)}


def check(N, C, window, options, slots=0, Nk=None, **peer_options):
    floats, fixed = tensors(N, C, options.get("shared_qk", True), slots, Nk)
    module = public.routing(H, D, C, window, num_mem_kv=slots, **peer_options)
    means = torch.tensor(fixed["means"], dtype=torch.float64)
    compare("routing", options | {"window": window}, floats,
            lambda **leaves: module(means=means, **leaves), fixed)


@pytest.mark.parametrize("N, C, window", [(64, 8, 8), (61, 5, 20), (40, 4, 100), (90, 3, 7)])
@pytest.mark.parametrize("causal", [False, True])
def test_shared(causal, N, C, window):
    check(N, C, window, SHARED | {"causal": causal}, causal=causal, shared_qk=True)


@pytest.mark.parametrize("causal", [False, True])
def test_shared_with_memory(causal):
    check(64, 8, 8, SHARED | {"causal": causal}, slots=3, causal=causal, shared_qk=True)


@pytest.mark.parametrize("slots", [0, 2])
@pytest.mark.parametrize("N, C, window", [(64, 8, 8), (61, 5, 20)])
def test_separate(N, C, window, slots):
    check(N, C, window, SEPARATE, slots)


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("N, C, window", [(64, 8, 8), (61, 5, 20)])
def test_separate_causal(N, C, window, slots):
    check(N, C, window, SEPARATE | {"causal": True}, slots, causal=True)


@pytest.mark.parametrize("Nk, kv_window", [(37, 9), (120, 30)])
def test_cross(Nk, kv_window):
    check(61, 6, 10, SEPARATE | {"kv_window": kv_window}, Nk=Nk, receives_context=True,
          context_window_size=kv_window)


@pytest.mark.parametrize("shared", [True, False])
def test_auxiliary_loss(shared):
    """The loss, and its gradient alone: other tensors have one of zero."""
    options = (SHARED if shared else SEPARATE) | {
        "window": 8, "aux_loss": True, "commitment": 0.5}
    floats, fixed = tensors(64, 8, shared)
    module = public.routing(H, D, 8, 8, shared_qk=shared, commitment=0.5, with_aux=True)
    leaves = {name: torch.tensor(x, dtype=torch.float64, requires_grad=True)
              for name, x in floats.items()}
    loss = module(means=torch.tensor(fixed["means"], dtype=torch.float64), **leaves)
    close("aux", ours("routing", options, floats | fixed).outputs["aux"], loss.reshape(1))

    incoming = normal(7, grad_aux=(1,))
    grads = ours("routing", options, floats | fixed | incoming, backward=True).outputs
    names = [name for name in floats if name != "v"]
    want = torch.autograd.grad(loss * float(incoming["grad_aux"][0]),
                               [leaves[name] for name in names])
    for name, gradient in zip(names, want):
        # Of a mean over thousands of elements: compared by its own size.
        size = float(abs(gradient).max())
        close(f"gradient of {name}", grads[name] / size, gradient / size)
    assert not grads["v"].any()


def online_kmeans(x, means, count, sums, decay):
    """The original's update of one head, in float64: rows x [N,D]."""
    chosen = torch.nn.functional.one_hot((x @ means.T).argmax(1), len(means)).to(x)
    count = decay * count + (1 - decay) * chosen.sum(0)
    sums = decay * sums + (1 - decay) * chosen.T @ x
    n = count.sum()
    smooth = (count + 1e-5) / (n + len(means) * 1e-5) * n
    return sums / smooth[:, None], count, sums


def test_centroids_over_segments():
    """Each request sends what the one before has answered."""
    C, decay = 6, 0.7
    options = {"return_centroids": True, "ema_decay": decay, "window": 8}
    means = normal(1, means=(1, C, D))["means"]
    sent, want = {"means": means}, [torch.tensor(means[0], dtype=torch.float64)]
    want += [torch.zeros(C, dtype=torch.float64), want[0]]
    for segment in range(5):
        t = normal(segment + 2, q=(B, 1, 40, D), v=(B, 1, 40, D))
        reply = ours("routing", options, t | sent).outputs
        rows = torch.tensor(t["q"], dtype=torch.float64).reshape(-1, D)
        want = online_kmeans(torch.nn.functional.layer_norm(rows, (D,), eps=1e-6), *want, decay)
        for name, w in zip(("centroids", "ema_count", "ema_means"), want):
            close(name, reply[name][0], w)
        sent = {"means": reply["centroids"], "ema_count": reply["ema_count"],
                "ema_means": reply["ema_means"]}
