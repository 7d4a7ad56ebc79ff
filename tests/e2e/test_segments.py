"""Training over segments: a small model whose attention, forward and backward, is the service's,
from which it takes the memory that it sends with the next segment. It must stay, step by step, with
the same model on the float64 oracles from the same weights."""

import numpy as np
import pytest

import attnd
from helpers import noise, relative_error

from tests.methods import compressive, transformer_xl

B, N, D, H, DH = 3, 12, 16, 2, 8
SEGMENTS, RATE = 6, 0.5
# Rounding of float32, which six steps of training carry on.
BOUND = 2e-5

XL = {"mem_len": 20, "clamp_len": 24, "return_memory": True}
COMPRESSIVE = {"mem_len": 12, "cmem_len": 6, "rate": 4, "return_memory": True, "aux_loss": True}


class Service:
    def __init__(self, client, method):
        self.client, self.method = client, method

    def forward(self, t, options):
        t = {name: x.astype(np.float32) if x.dtype.kind == "f" else x for name, x in t.items()}
        q, k, v = (t.pop(name) for name in "qkv")
        reply = self.client.forward(q, k, v, method=self.method, options=options, tensors=t)
        return {"out": reply.out, **reply.tensors}

    def backward(self, t, options, grads):
        t, grads = ({name: x.astype(np.float32) if x.dtype.kind == "f" else x
                     for name, x in tensors.items()} for tensors in (t, grads))
        q, k, v = (t.pop(name) for name in "qkv")
        reply = self.client.backward(
            q, k, v, grads.pop("out"), method=self.method, options=options, tensors=t,
            grad_tensors=grads)
        return {"q": reply.q, "k": reply.k, "v": reply.v, **reply.tensors}


class Reference:
    def __init__(self, module):
        self.oracle = module.METHOD.oracle

    def forward(self, t, options):
        made = self.oracle.forward(t, options)
        return {name: x.astype(np.int32) if name.endswith("lengths") else x
                for name, x in made.items()}

    def backward(self, t, options, grads):
        return self.oracle.backward(t | {f"grad_{name}": x for name, x in grads.items()}, options)


def heads(x):
    return x.reshape(*x.shape[:2], H, DH).transpose(0, 2, 1, 3)


def flat(x):
    return x.transpose(0, 2, 1, 3).reshape(B, -1, D)


class Layer:
    """out = attention(x Wq, x Wk, x Wv) Wo, added to x. `learned`: tensors of the method."""

    def __init__(self, attention, options, weights, hidden_memory=False):
        self.attention, self.options, self.weights = attention, options, weights
        # Published layers keep hidden states: keys and values of memory are projected anew.
        self.hidden_memory = hidden_memory
        self.memory = {}

    def forward(self, x, lengths):
        w = self.weights
        self.x = x
        t = {name: heads(x @ w[f"w{name}"]) for name in "qkv"}
        t |= {name: y for name, y in w.items() if not name.startswith("w")}
        if lengths is not None:
            t["kv_lengths"] = lengths
        if self.hidden_memory and self.memory:
            h = self.memory["hidden"]
            t |= {"mem_k": heads(h @ w["wk"]), "mem_v": heads(h @ w["wv"])}
        elif not self.hidden_memory:
            t |= self.memory
        self.t = t
        self.made = self.attention.forward(t, self.options)
        return x + flat(self.made["out"]) @ w["wo"]

    def backward(self, dy):
        """The gradient of x; those of the weights are in `grads`."""
        w, out = self.weights, flat(self.made["out"])
        grads = {"out": heads(dy @ w["wo"].T)}
        if "aux" in self.made:
            grads["aux"] = np.ones(1)
        g = self.attention.backward(self.t, self.options, grads)
        self.grads = {"wo": np.einsum("bni,bno->io", out, dy)}
        dx = dy.copy()
        for name in "qkv":
            d = flat(g[name])
            self.grads[f"w{name}"] = np.einsum("bni,bno->io", self.x, d)
            dx = dx + d @ w[f"w{name}"].T
        if "mem_k" in g:
            for name in "kv":
                self.grads[f"w{name}"] += np.einsum(
                    "bni,bno->io", self.memory["hidden"], flat(g[f"mem_{name}"]))
        self.grads |= {name: g[name] for name in w if name in g}
        return dx

    def step(self):
        for name, g in self.grads.items():
            self.weights[name] = self.weights[name] - RATE * g
        if self.hidden_memory:
            before = self.memory.get("hidden", self.x[:, :0])
            keep = self.options["mem_len"]
            self.memory = {"hidden": np.concatenate([before, self.x], 1)[:, -keep:]}
        else:
            self.memory = {name: x for name, x in self.made.items()
                           if name.startswith(("mem_", "cmem_"))}


def weights_of(rng, options, method):
    w = {f"w{name}": noise(rng, (D, D)) / D**0.5 for name in "qkvo"}
    w |= {name: noise(rng, (H, DH)) / 4 for name in ("u", "v_bias")}
    w["rel_k"] = noise(rng, (H, options.get("clamp_len", 59) + 1, DH)) / 4
    if method == "compressive":
        for x in "kv":
            w[f"conv_w{x}"] = noise(rng, (H, DH, DH, options["rate"])) / 4
            w[f"conv_b{x}"] = noise(rng, (H, DH)) / 4
    return w


def train(layers, xs, ys, lengths):
    """Yields the loss and the memories of each segment, after the step."""
    for i, (x, y) in enumerate(zip(xs, ys)):
        at = None if lengths is None else lengths[i]
        valid = np.ones((B, N, 1)) if at is None else (np.arange(N) < at[:, None])[..., None]
        h = x
        for layer in layers:
            h = layer.forward(h, at)
        error = np.where(valid, h - y, 0)
        aux = sum(float(layer.made["aux"][0]) for layer in layers if "aux" in layer.made)
        dy = 2 * error / error.size
        for layer in reversed(layers):
            dy = layer.backward(dy)
        for layer in layers:
            layer.step()
        yield float((error**2).mean()) + aux


def runs():
    kept = {"transformer_xl": (transformer_xl, XL),
            "conv": (compressive, COMPRESSIVE | {"compression": "conv"}),
            "mean": (compressive, COMPRESSIVE | {"compression": "mean"})}
    for name, (module, options) in kept.items():
        for ragged in (False, True):
            yield pytest.param(module, options, False, ragged,
                               id=name + ("-ragged" if ragged else ""))
    yield pytest.param(transformer_xl, {"mem_len": 20, "clamp_len": 24, "grad_memory": True}, True,
                       False, id="hidden-states")


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("module, options, hidden, ragged", list(runs()))
def test_training_over_segments(client, rng, module, options, hidden, ragged, depth):
    method = module.METHOD.id
    xs, ys = (noise(rng, (SEGMENTS, B, N, D)).astype(np.float64) for _ in range(2))
    lengths = rng.integers(0, N + 1, (SEGMENTS, B)).astype(np.int32) if ragged else None
    start = [weights_of(rng, options, method) for _ in range(depth)]
    if options.get("compression") == "mean":
        start = [{n: x for n, x in w.items() if "conv" not in n} for w in start]
    ours, exact = (
        [Layer(attention, options, {name: x.astype(np.float64) for name, x in w.items()}, hidden)
         for w in start] for attention in (Service(client, method), Reference(module)))

    losses = []
    for got, want in zip(train(ours, xs, ys, lengths), train(exact, xs, ys, lengths)):
        assert got == pytest.approx(want, rel=BOUND)
        losses.append(got)
        for layer, true in zip(ours, exact):
            assert layer.memory.keys() == true.memory.keys()
            for name, x in layer.memory.items():
                if name.endswith("lengths"):
                    assert x.dtype == np.int32
                    np.testing.assert_array_equal(x, true.memory[name])
                else:
                    assert x.shape == true.memory[name].shape
                    assert relative_error(x, true.memory[name]) < BOUND, name
            for name, w in layer.weights.items():
                assert relative_error(w, true.weights[name]) < BOUND, name
    moved = relative_error(ours[0].weights["wv"], start[0]["wv"])
    assert moved > 1e-3, "nothing was learned"


def test_estimates_read_the_lengths_of_memories(client):
    shape, memory = (2, 1, 4, 8), ((2, 1, 5, 8), np.float32)
    sent = {"mem_k": memory, "mem_v": memory, "mem_lengths": np.array([5, 1], np.int32)}

    def pairs(**change):
        return client.estimate(
            shape, shape, shape, method="transformer_xl", tensors=sent | change).visible_pairs

    triangle = 4 * 5 // 2
    assert pairs() == 2 * triangle + 4 * (5 + 1)
    assert pairs(mem_lengths=((2,), np.int32)) == 2 * triangle + 4 * (5 + 5)


def test_gradients_of_memories_are_refused(client, rng):
    x = noise(rng, (1, 1, 4, 8))
    with pytest.raises(attnd.Error) as caught:
        client.backward(x, x, x, x, method="transformer_xl", options={"return_memory": True},
                        grad_tensors={"mem_k": x})
    assert caught.value.code.name == "INVALID_ARGUMENT"
    assert caught.value.reasons == [
        "transformer_xl: grad_mem_k must be absent: mem_k is a constant, got [1,1,4,8]"]
