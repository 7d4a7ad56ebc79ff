"""Both sides of a comparison with PyTorch, in turns: shared by patterns.py and methods.py."""

import ctypes
import statistics
import time

import numpy as np
import torch

from tests.methods import library

BUDGET = 1.0  # seconds a case, and at least ROUNDS rounds
ROUNDS = 3


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def leaves(**shapes):
    return {name: torch.randn(shape, requires_grad=True) for name, shape in shapes.items()}


class Ours:
    """A forward and a backward call of the library, planned once and run again and again."""

    def __init__(self, threads, method, options, tensors, fixed, out_shape):
        self.engine = library.Engine("", threads, poison=False)
        self.lib = self.engine.lib
        sent = {name: x.detach().numpy() for name, x in tensors.items()} | fixed
        incoming = {"grad_out": np.random.default_rng(2).standard_normal(out_shape, np.float32)}
        self.calls = library.Calls(self.lib, [
            library.Request(method, sent, options),
            library.Request(method, sent | incoming, options, backward=True)])
        self.calls.__enter__()
        self.grad_out = torch.tensor(incoming["grad_out"])

    def run(self, index):
        handle = (ctypes.c_void_p * 1)(self.calls.handles[index])
        self.engine.check(self.lib.attnd_execute(self.engine.handle, handle, 1))

    def forward(self):
        self.run(0)

    def both(self):
        self.run(0)
        self.run(1)

    def bound(self, calls):
        """Seconds that the planned products alone would take at the peak of the threads."""
        planned = self.calls.handles[: 1 if calls == "forward" else 2]
        return sum(map(self.lib.attnd_call_flops, planned)) / self.engine.peak_flops

    def outputs(self, index):
        return self.engine.outputs(self.calls.handles[index])[0]

    def close(self):
        self.calls.__exit__()
        self.lib.attnd_engine_free(self.engine.handle)


def same(what, got, want, tolerance=1e-4):
    error = float(abs(torch.tensor(got) - want).max())
    assert error <= tolerance * max(1, float(abs(want).max())), f"{what} differs by {error:.3g}"


def in_turns(mine, peer):
    """Medians of both. A pause before each turn: the threads of the other side spin a little when
    they have nothing to do."""
    times, peers, start = [], [], time.perf_counter()
    while len(times) < ROUNDS or time.perf_counter() - start < BUDGET:
        time.sleep(0.01)
        times.append(seconds(mine))
        time.sleep(0.01)
        peers.append(seconds(peer))
    return statistics.median(times), statistics.median(peers)


def measure(threads, calls, method, options, tensors, fixed, out_shape, attend, tolerance=1e-4,
            tied=None):
    """Medians of the seconds of both sides, and our bound, between equal answers only: the first
    calls, which build and compile, are compared and not counted. `calls`: "forward" or "both";
    `attend` makes out of `tensors`, given by name; `fixed` are sent to us alone. `tied`: a
    name under which we are sent a tensor again -> its name."""
    tied = tied or {}
    fixed = fixed | {again: tensors[name].detach().numpy() for again, name in tied.items()}
    ours = Ours(threads, method, options, tensors, fixed, out_shape)
    try:
        ours.run(0)
        if calls == "forward":
            tensors = {name: x.detach() for name, x in tensors.items()}

            def peer():
                with torch.no_grad():
                    return attend(**tensors)

            same("out", ours.outputs(0)["out"], peer(), tolerance)
            return *in_turns(ours.forward, peer), ours.bound(calls)
        ours.run(1)
        inputs = list(tensors.values())

        def peer():
            return torch.autograd.grad(attend(**tensors), inputs, ours.grad_out)

        grads = ours.outputs(1)
        for again, name in tied.items():
            grads[name] = grads[name] + grads[again]
        for name, gradient in zip(tensors, peer()):
            same(f"gradient of {name}", grads[name], gradient, tolerance)
        return *in_turns(ours.both, peer), ours.bound(calls)
    finally:
        ours.close()
