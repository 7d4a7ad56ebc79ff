"""Oracles that are written forward only. A Tape records NumPy operations in float64 (or float32, as
plain code would run) and plays their gradients back; with tracking it carries beside each element
the sum of absolute values behind it, which tolerance.py multiplies with the unit of rounding.

The sums follow first-order error analysis (Higham 2002, chapter 3): an operation adds the size of
its result, and what its operands carry, times the size of its derivative."""

import math

import numpy as np

from tests.methods.method import Oracle

_erf = np.vectorize(math.erf, otypes=[np.float64])


class Num:
    """An array on a tape: values x, and sums s of the same shape (None: not tracked)."""

    __slots__ = ("tape", "x", "s", "is_constant")
    __array_priority__ = 1000

    def __init__(self, tape, x, s=None, is_constant=True):
        self.tape, self.x, self.s, self.is_constant = tape, x, s, is_constant

    shape = property(lambda self: self.x.shape)
    ndim = property(lambda self: self.x.ndim)

    def __add__(self, other):
        return self.tape.add(self, other)

    __radd__ = __add__

    def __sub__(self, other):
        return self.tape.add(self, -self.tape.num(other))

    def __rsub__(self, other):
        return self.tape.add(self.tape.num(other), -self)

    def __neg__(self):
        return self.tape.multiply(self, -1.0, is_exact=True)

    def __mul__(self, other):
        return self.tape.multiply(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other):
        return self.tape.divide(self, other)

    def __rtruediv__(self, other):
        return self.tape.divide(self.tape.num(other), self)

    def __matmul__(self, other):
        return self.tape.matmul(self, other)

    def __getitem__(self, index):
        return self.tape.take(self, index)

    def sum(self, axis, keepdims=False):
        return self.tape.sum(self, axis, keepdims)

    def reshape(self, *shape):
        return self.tape.reshape(self, shape)

    def swapaxes(self, a, b):
        return self.tape.swapaxes(self, a, b)


def _unbroadcast(g, shape):
    """g summed over the dimensions in which an operand of `shape` repeats."""
    while g.ndim > len(shape):
        g = g.sum(0)
    for axis, n in enumerate(shape):
        if n == 1 and g.shape[axis] != 1:
            g = g.sum(axis, keepdims=True)
    return g


class Tape:
    """`rounding`: what an operation adds to the sums, times its result; None: no sums. `storing`:
    what `stored` adds. `store`: how a forward rounds what its backward reads again. `exact_logits`:
    float32 holds those of a softmax exactly, so that they carry nothing into the sums."""

    def __init__(self, dtype=np.float64, rounding=None, storing=0.0, store=lambda x: x,
                 exact_logits=False):
        self.dtype, self.rounding, self.storing, self.store = dtype, rounding, storing, store
        self.exact_logits = exact_logits
        self._nodes, self._recording = [], True

    # --- leaves

    def num(self, x):
        """A constant, unless it is on the tape. Its sum is what float32 loses of it."""
        if isinstance(x, Num):
            return x
        x = np.asarray(x, self.dtype)
        if self.rounding is None:
            return Num(self, x)
        finite = np.where(np.isfinite(x), x, 0)
        lost = finite - finite.astype(np.float32)
        return Num(self, x, self.rounding * abs(lost) * 2.0**24)

    def variable(self, x):
        made = self.num(np.array(x, self.dtype))
        made.is_constant = False
        return made

    def stop(self, a):
        """The same value without a gradient."""
        return Num(self, a.x, a.s)

    # --- recording

    def _made(self, x, s, operands, back):
        """`back`: gradient of the result -> list of those of the operands, None for constants."""
        x = np.asarray(x, self.dtype)
        if s is not None:
            s = np.broadcast_to(np.asarray(s, np.float64), x.shape)
        made = Num(self, x, s, all(a.is_constant for a in operands))
        if self._recording and not made.is_constant:
            self._nodes.append((made, operands, back))
        return made

    def gradients(self, ends, variables):
        """d sum(end . grad) / d variable, for (end, grad) of ends; zeros where nothing flows."""
        flows = {}

        def add(a, g):
            flows[id(a)] = g if id(a) not in flows else flows[id(a)] + g

        self._recording = False
        for end, grad in ends:
            add(end, self.num(grad))
        for made, operands, back in reversed(self._nodes):
            if id(made) in flows:
                for a, g in zip(operands, back(flows[id(made)])):
                    if not a.is_constant:
                        add(a, _unbroadcast(g, a.shape))
        self._recording = True
        return [flows.get(id(a), self.num(np.zeros(a.shape))) for a in variables]

    def _sums(self, x, *parts):
        """Of a result x: parts are what the operands carry into it."""
        if self.rounding is None:
            return None
        return self.rounding * abs(x) + sum(parts)

    # --- elementwise, broadcasting

    def add(self, a, b):
        a, b = self.num(a), self.num(b)
        x = a.x + b.x
        s = None if self.rounding is None else self._sums(x, a.s, b.s)
        return self._made(x, s, [a, b], lambda g: [g, g])

    def multiply(self, a, b, is_exact=False):
        a, b = self.num(a), self.num(b)
        x, s = a.x * b.x, None
        if self.rounding is not None:
            s = abs(a.x) * b.s + a.s * abs(b.x) + (0 if is_exact else self.rounding * abs(x))
        return self._made(x, s, [a, b], lambda g: [self.multiply(g, b, is_exact),
                                                   self.multiply(g, a, is_exact)])

    def divide(self, a, b):
        a, b = self.num(a), self.num(b)
        x, s = a.x / b.x, None
        if self.rounding is not None:
            s = self._sums(x, a.s / abs(b.x), abs(x) * b.s / abs(b.x))
        made = self._made(x, s, [a, b], None)
        self._rule(made, lambda g: [g / b, -(g * self.stop(made) / b)])
        return made

    def _rule(self, made, back):
        if self._nodes and self._nodes[-1][0] is made:
            self._nodes[-1] = (made, self._nodes[-1][1], back)

    def where(self, mask, a, b=0.0):
        """a where mask holds, else b; what is not chosen may be NaN."""
        a, b = self.num(a), self.num(b)
        s = None if self.rounding is None else np.where(mask, a.s, b.s)
        return self._made(np.where(mask, a.x, b.x), s, [a, b],
                          lambda g: [self.where(mask, g), self.where(~np.asarray(mask), g)])

    def apply(self, a, f, slope, size=None):
        """f elementwise, with its derivative `slope`: Num -> Num, of any tape. `size` bounds what f
        adds up inside; absent: |f|."""
        x, s = f(a.x), None
        if self.rounding is not None:
            inside = abs(x) if size is None else size(a.x)
            plain = Tape(self.dtype)
            s = self.rounding * inside + a.s * abs(slope(plain.num(a.x)).x)
        return self._made(x, s, [a], lambda g: [g * slope(self.stop(a))])

    def exp(self, a):
        return self.apply(a, np.exp, lambda b: b.tape.exp(b))

    def log(self, a):
        return self.apply(a, np.log, lambda b: 1.0 / b)

    def sqrt(self, a):
        return self.apply(a, np.sqrt, lambda b: 0.5 / b.tape.sqrt(b))

    def sin(self, a):
        return self.apply(a, np.sin, lambda b: b.tape.cos(b), np.ones_like)

    def cos(self, a):
        return self.apply(a, np.cos, lambda b: -b.tape.sin(b), np.ones_like)

    def tanh(self, a):
        return self.apply(a, np.tanh, lambda b: 1.0 - b.tape.tanh(b) * b.tape.tanh(b))

    def sigmoid(self, a):
        return self.apply(a, lambda x: 1 / (1 + np.exp(-x)),
                          lambda b: b.tape.sigmoid(b) * (1.0 - b.tape.sigmoid(b)))

    def relu(self, a):
        """max(a, 0); the derivative at 0 is 0."""
        return self.where(a.x > 0, a)

    def abs(self, a):
        return self.multiply(a, np.sign(a.x), is_exact=True)

    def erf(self, a):
        return self.apply(a, lambda x: _erf(x).astype(x.dtype),
                          lambda b: b.tape.exp(-(b * b)) * (2 / math.sqrt(math.pi)))

    def gelu_erf(self, a):
        return 0.5 * a * (1.0 + self.erf(a * math.sqrt(0.5)))

    def gelu_tanh(self, a):
        inner = math.sqrt(2 / math.pi) * (a + 0.044715 * (a * a * a))
        return 0.5 * a * (1.0 + self.tanh(inner))

    # --- along axes

    def sum(self, a, axis, keepdims=False):
        shape, x = a.shape, a.x.sum(axis=axis, keepdims=keepdims)
        s = None
        if self.rounding is not None:
            s = (a.s + self.rounding * abs(a.x)).sum(axis=axis, keepdims=keepdims)

        def back(g):
            if not keepdims:
                g = self.reshape(g, np.expand_dims(np.empty(x.shape), axis).shape)
            return [self.expand(g, shape)]

        return self._made(x, s, [a], back)

    def mean(self, a, axis, keepdims=False):
        return self.sum(a, axis, keepdims) * (1 / max(a.shape[axis], 1))

    def max(self, a, axis, keepdims=True):
        """The gradient flows to the lowest index of the largest. NaN-free operands."""
        at = np.expand_dims(a.x.argmax(axis=axis), axis)
        mask = np.arange(a.shape[axis]).reshape([-1] + [1] * (a.ndim - axis % a.ndim - 1)) == at
        return self.sum(self.where(mask, a), axis, keepdims)

    def cumsum(self, a, axis, reverse=False):
        def run(x):
            return np.flip(np.flip(x, axis).cumsum(axis), axis) if reverse else x.cumsum(axis)

        s = None if self.rounding is None else run(a.s + self.rounding * abs(a.x))
        return self._made(run(a.x), s, [a], lambda g: [self.cumsum(g, axis, not reverse)])

    def layer_norm(self, a, axes, weight, bias, eps):
        """R4: population variance over `axes`, a tuple of negative numbers."""
        n = math.prod(a.shape[axis] for axis in axes)

        def mean(b):
            for axis in axes:
                b = b.sum(axis, keepdims=True)
            return b * (1 / max(n, 1))

        centred = a - mean(a)
        normed = centred / self.sqrt(mean(centred * centred) + eps)
        return normed * weight + bias

    def norm(self, a, floor):
        """max(|a|, floor) along the last axis, without a gradient below the floor."""
        squares = (a * a).sum(-1, keepdims=True)
        is_low = squares.x < floor**2
        return self.where(is_low, floor, self.sqrt(self.where(is_low, 1.0, squares)))

    # --- products and shapes

    def einsum(self, spec, a, b):
        """Of two operands, no index repeated in one, each in the result or in both."""
        a, b = self.num(a), self.num(b)
        (of_a, of_b), of_x = spec.split("->")[0].split(","), spec.split("->")[1]
        x, s = np.einsum(spec, a.x, b.x, optimize=True), None
        if self.rounding is not None:
            s = np.einsum(spec, abs(a.x), b.s + self.rounding * abs(b.x), optimize=True)
            s = s + np.einsum(spec, a.s, abs(b.x), optimize=True)
        return self._made(x, s, [a, b], lambda g: [
            self._of_letters(f"{of_x},{of_b}", of_a, g, b, a.shape),
            self._of_letters(f"{of_x},{of_a}", of_b, g, a, b.shape)])

    def _of_letters(self, inputs, wanted, g, other, shape):
        """The gradient of an operand; indices that only it has are those of ones."""
        lost = [i for i in wanted if i not in inputs]
        if lost:
            raise ValueError(f"einsum: {lost} are in one operand only")
        return self.einsum(f"{inputs}->{wanted}", g, other)

    def matmul(self, a, b):
        """Leading dimensions broadcast."""
        a, b = self.num(a), self.num(b)
        x, s = a.x @ b.x, None
        if self.rounding is not None:
            s = abs(a.x).astype(np.float64) @ (b.s + self.rounding * abs(b.x)) + a.s @ abs(b.x)
        return self._made(x, s, [a, b], lambda g: [g @ b.swapaxes(-1, -2), a.swapaxes(-1, -2) @ g])

    def reshape(self, a, shape):
        before = a.shape
        s = None if a.s is None else a.s.reshape(shape)
        return self._made(a.x.reshape(shape), s, [a], lambda g: [self.reshape(g, before)])

    def expand(self, a, shape):
        s = None if a.s is None else np.broadcast_to(a.s, shape)
        return self._made(np.broadcast_to(a.x, shape), s, [a], lambda g: [g])

    def swapaxes(self, a, i, j):
        s = None if a.s is None else a.s.swapaxes(i, j)
        return self._made(a.x.swapaxes(i, j), s, [a], lambda g: [self.swapaxes(g, i, j)])

    def take(self, a, index):
        """a[index], of basic or advanced indexing; the gradient adds up what is taken twice."""
        shape = a.shape
        s = None if a.s is None else a.s[index]
        return self._made(a.x[index], s, [a], lambda g: [self._put(g, index, shape)])

    def _put(self, g, index, shape):
        def spread(x):
            full = np.zeros(shape, x.dtype)
            np.add.at(full, index, x)
            return full

        return Num(self, spread(g.x), None if g.s is None else spread(g.s))

    def repeat_heads(self, a, group):
        """[B,Hkv,..] -> [B,Hkv group,..]: the kv head of each query head."""
        return self.take(a, (slice(None), np.repeat(np.arange(a.shape[1]), group)))

    def concat(self, parts, axis):
        parts = [self.num(a) for a in parts]
        s = None if self.rounding is None else np.concatenate([a.s for a in parts], axis)
        ends = np.cumsum([a.shape[axis] for a in parts])

        def back(g):
            return [self.take(g, (slice(None),) * (axis % g.ndim) + (slice(end - n, end),))
                    for end, n in zip(ends, (a.shape[axis] for a in parts))]

        return self._made(np.concatenate([a.x for a in parts], axis), s, parts, back)

    # --- attention

    def softmax(self, logits, mask=True, axis=-1):
        """Over visible logits; none visible: zeros."""
        e, den, _ = self._weights(logits, mask, axis)
        return e / den

    def _weights(self, logits, mask, axis):
        mask = np.broadcast_to(mask, logits.shape)
        if self.exact_logits and logits.s is not None:
            logits.s = np.zeros(logits.shape)
        most = np.where(mask, logits.x, -np.inf).max(axis=axis, keepdims=True, initial=-np.inf)
        most = np.where(np.isfinite(most), most, 0).astype(self.dtype)
        e = self.where(mask, self.exp(self.where(mask, logits) - most))
        den = e.sum(axis, keepdims=True)
        return e, self.where(mask.any(axis=axis, keepdims=True), den, 1.0), most

    def attention(self, logits, v, mask=True):
        """(out, lse) of softmax attention, as fused kernels compute it: see `normalised`. logits
        [..,Nq,Nk], of which -inf hides a key, v [..,Nk,Dv]; a row without visible keys has out 0
        and lse -inf."""
        mask = np.broadcast_to(mask, logits.shape) & ~np.isneginf(logits.x)
        e, den, most = self._weights(logits, mask, -1)
        seen = mask.any(axis=-1)
        lse = self.where(seen, (self.log(den) + most)[..., 0], -np.inf)
        return self.normalised(e @ v, den), lse

    def normalised(self, num, den):
        """num / den, den [..,1]. The gradient of den reads the result as the forward stored it."""
        x, s = num.x / den.x, None
        if self.rounding is not None:
            s = self._sums(x, num.s / abs(den.x), abs(x) * den.s / abs(den.x))
        made = self._made(x, s, [num, den], None)

        def back(g):
            out = Num(self, self.store(made.x).astype(self.dtype), made.s)
            if self.rounding is not None:
                out.s = out.s + self.storing * abs(made.x)
            return [g / den, -((g * out).sum(-1, keepdims=True) / den)]

        self._rule(made, back)
        return made


class TracedOracle(Oracle):
    """An oracle by the rule R1 of the low-rank specification: each sequence is computed alone, on
    tensors cut to its lengths."""

    differentiable = ("q", "k", "v")
    exact_logits = False  # as of Tape
    # The axes of tensors that belong to sequences or have rows; all others are handed on whole.
    axes = {}
    _AXES = {"q": "B,H,Nq,D", "k": "B,Hkv,Nk,D", "v": "B,Hkv,Nk,Dv", "grad_out": "B,H,Nq,Dv",
             "grad_lse": "B,H,Nq", "out": "B,H,Nq,Dv", "lse": "B,H,Nq"}

    def compute(self, f, t, o, offset):
        """{output: Num}. f: the Tape; t: Nums (integers as arrays) of one sequence, B = 1; offset:
        Nk - Nq before any cut."""
        raise NotImplementedError

    def visible(self, t, o):
        """Every valid query sees every valid key."""
        seen = np.ones((t["q"].shape[0], 1, t["q"].shape[2], t["k"].shape[2]), bool)
        for b in range(len(seen)):
            nq, nk = self._lengths(t, b)
            seen[b, :, nq:] = seen[b, :, :, nk:] = False
        return seen

    def pairs(self, t, o):
        return int(self.visible(t, o).sum()) * t["q"].shape[1]

    # --- one sequence after the other

    def _lengths(self, t, b):
        v = t["v"].shape[2]
        nq = t["q"].shape[2] if "q" in t else v
        nk = t["k"].shape[2] if "k" in t else v
        return (int(t["q_lengths"][b]) if "q_lengths" in t else nq,
                int(t["kv_lengths"][b]) if "kv_lengths" in t else nk)

    def _index(self, name, shape, b, lengths):
        """Where sequence b lies in a tensor; None: it belongs to all."""
        letters = {**self._AXES, **self.axes}.get(name)
        if letters is None:
            return None
        rows = dict(zip(("Nq", "Nk"), lengths))
        letters = letters.split(",")[-len(shape):] if shape else []
        return tuple(slice(b, b + 1) if x == "B" and n > 1 else
                     slice(0, rows[x]) if x in rows else slice(None)
                     for x, n in zip(letters, shape))

    def _cut(self, t, b):
        lengths = self._lengths(t, b)
        cut = {}
        for name, x in t.items():
            at = self._index(name, x.shape, b, lengths)
            cut[name] = x if at is None else x[at]
        return cut

    def _sequence(self, tape, t, o, b):
        """(outputs, variables, incoming gradients) of sequence b."""
        cut = self._cut(t, b)
        named = {name: tape.variable(x) if name in self.differentiable else
                 tape.num(x) if x.dtype.kind not in "iub" else x
                 for name, x in cut.items() if not name.startswith("grad_")}
        whole = (t["q"] if "q" in t else t["v"]).shape[2], (t["k"] if "k" in t else t["v"]).shape[2]
        outputs = self.compute(tape, named, o, whole[1] - whole[0])
        grads = {name[5:]: x for name, x in cut.items() if name.startswith("grad_")}
        return outputs, {n: x for n, x in named.items() if n in self.differentiable}, grads

    def _whole(self, name, t, made, b, pick, whole):
        """Places sequence b's part of an output into `whole`, made on first use."""
        x = pick(made)
        if name not in whole:
            B = t["v"].shape[0]
            shape = list((B, *x.shape[1:]))
            if name in ("out", "lse"):
                shape[2] = (t["q"] if "q" in t else t["v"]).shape[2]
            fill = -np.inf if name == "lse" and pick(made) is made.x else 0
            whole[name] = np.full(shape, fill, x.dtype)
        whole[name][(slice(b, b + 1), *(slice(0, n) for n in x.shape[1:]))] = x

    def _run(self, t, o, tape_of, pick):
        whole = {}
        for b in range(t["v"].shape[0]):
            for name, made in self._sequence(tape_of(), t, o, b)[0].items():
                self._whole(name, t, made, b, pick, whole)
        return whole

    def forward(self, t, o, dtype=np.float64):
        with np.errstate(all="ignore"):
            return self._run(t, o, lambda: Tape(dtype), lambda made: made.x)

    def _grads(self, t, o, tape_of, pick):
        sums = {}
        for b in range(t["v"].shape[0]):
            tape = tape_of()
            outputs, variables, grads = self._sequence(tape, t, o, b)
            ends = []
            for name, g in grads.items():
                alive = np.isfinite(outputs[name].x)
                ends.append((outputs[name], np.where(alive, g, 0)))
            found = tape.gradients(ends, list(variables.values()))
            for name, g in zip(variables, found):
                x = pick(g)
                whole = sums.setdefault(name, np.zeros(t[name].shape, x.dtype))
                at = self._index(name, whole.shape, b, self._lengths(t, b))
                whole[... if at is None else at] += x
        return sums

    def backward(self, t, o, dtype=np.float64, store=lambda x: x):
        with np.errstate(all="ignore"):
            return self._grads(t, o, lambda: Tape(dtype, store=store), lambda g: g.x)

    def magnitude(self, t, o):
        with np.errstate(all="ignore"):
            forward = {name: x for name, x in t.items() if not name.startswith("grad_")}
            how = {"exact_logits": self.exact_logits}
            sums = {name: (np.nan_to_num(s, posinf=0), 0) for name, s in self._run(
                forward, o, lambda: Tape(rounding=1.0, **how), lambda made: made.s).items()}
            if len(forward) < len(t):
                inside = self._grads(t, o, lambda: Tape(rounding=1.0, **how), lambda g: g.s)
                stored = self._grads(t, o, lambda: Tape(rounding=0.0, storing=1.0, **how),
                                     lambda g: g.s)
                sums |= {name: (inside[name], stored[name]) for name in inside}
        return sums, 0.0


class DrawnOracle(TracedOracle):
    """Of a method that draws the tensors of `drawn` where they are absent: these are constants."""

    def drawn(self, t, o):
        """Tensors by name; those that were sent may be among them."""
        raise NotImplementedError

    def forward(self, t, o, dtype=np.float64):
        return super().forward(self.drawn(t, o) | t, o, dtype)

    def backward(self, t, o, dtype=np.float64, store=lambda x: x):
        grads = super().backward(self.drawn(t, o) | t, o, dtype, store)
        return {name: g for name, g in grads.items() if name in t}

    def magnitude(self, t, o):
        sums, amplification = super().magnitude(self.drawn(t, o) | t, o)
        return {name: s for name, s in sums.items() if name in t or name in ("out", "lse")}, \
            amplification
