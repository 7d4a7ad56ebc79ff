"""How far an answer may be from the oracle, and why.

An answer of the library is compared with the oracle run on the same, already rounded inputs. It may
differ by (1) one rounding to the output's dtype, u |x|; (2) what float32 arithmetic does inside:
every result is a sum of products, so its error is a multiple of 2^-24 times the same sum taken over
absolute values (the method's `magnitude`); the multiple grows like the square root of the number of
terms, and with the size of the scores, because exp turns an absolute error of a score into a
relative one of the weight; (3) in a backward of 16-bit tensors, delta = dout . out with the `out`
that the forward rounded; (4) factors below the smallest normal float32, which threads flush to
zero: what such a weight is multiplied with (values, gradients, scales) is below 2^10 here;
(5) weights and gradients of scores that meet 16-bit tensors in the tensor cores of a GPU, which
are rounded to 16 bits themselves (`of_weights`): that unit times the sum over absolute values, and
float16 has nothing below 2^-35 of the largest, which is scaled to 2^10.

The bound is wide where sums cancel. The error ratio is the narrow test: root mean square error
against float64 at most twice that of plain NumPy float32 code that rounds its answer alike.
"""

import numpy as np

from tests.methods.cases import TINY, UNIT

FLOAT32 = UNIT["f32"]
PRODUCTS = ("out", "q", "k", "v")  # of weights with tensors, and gradients


def weight_unit(device, case, dtype):
    """The relative error of a weight in a product of tensor cores. `KeepsWeights` of kernels/cuda
    states when a weight has two parts: both are rounded, the second one in units of the first."""
    if dtype == "f32" or not device.startswith("cuda"):
        return 0
    many_rows = min(case.Nq, case.keys) > 256
    return UNIT[dtype] if many_rows and max(case.D, case.Dv) > 32 else UNIT[dtype] ** 2


def check_bound(name, got, want, sums, amplification, terms, dtype, of_weights=0):
    """Elementwise; infinities and NaN must be where the oracle has them."""
    assert got.shape == want.shape, f"{name}: shape {got.shape}, want {want.shape}"
    unit = UNIT["f32"] if got.dtype == np.float32 else UNIT[dtype]
    got = got.astype(np.float64)
    finite = np.isfinite(want)
    special = np.where(finite, 0, want)
    got_special = np.where(np.isfinite(got), 0, got)
    wrong = ~((special == got_special) | (np.isnan(special) & np.isnan(got_special)))
    assert not wrong.any(), describe(name, got, want, wrong)

    bound = bound_of(name, want, sums, amplification, terms, dtype, unit, of_weights)
    with np.errstate(invalid="ignore"):
        wrong = finite & (abs(got - want) > bound)
    assert not wrong.any(), describe(name, got, want, wrong, bound)


def bound_of(name, want, sums, amplification, terms, dtype, unit, of_weights=0):
    """How far each element may be from `want`. `unit`: of one rounding to the output's dtype."""
    summed, stored = sums
    inside = FLOAT32 * (8 + np.sqrt(terms) + 4 * amplification) * summed
    if name in PRODUCTS:
        inside = inside + of_weights * summed
        if of_weights and dtype == "f16":
            inside = inside + 2.0**-35 * np.max(summed, where=np.isfinite(summed), initial=0)
    if dtype != "f32":
        inside = inside + 1.01 * UNIT[dtype] * stored
    size = np.where(np.isfinite(want), abs(want), 0)
    return unit * np.maximum(size, TINY[dtype]) + 1.01 * inside + 2**10 * TINY["f32"]


def describe(name, got, want, wrong, bound=None):
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    text = f"{name}{list(at)} = {got[at]!r}, want {want[at]!r}; {int(wrong.sum())} of {wrong.size}"
    if bound is None:
        return text + " differ in what is not finite"
    worst = np.where(wrong, abs(got - want) / bound, 0).max()
    return text + f" beyond the bound {bound[at]:.3g}; worst {worst:.3g} times the bound"


def check_ratio(name, got, want, plain, sums, of_lse=0):
    """`plain` is the answer of plain code in the same dtype. `of_lse`: 1 if weights of a backward
    carry a rounding of the stored lse even where plain code is exact, as rows that see one key."""
    finite = np.isfinite(want) & np.isfinite(plain.astype(np.float64))
    if not finite.any():
        return
    ours = rms(got.astype(np.float64)[finite] - want[finite])
    theirs = rms(plain.astype(np.float64)[finite] - want[finite])
    # Half a rounding of a typical sum, and more where a few elements can come out exact by luck.
    roundings = 0.5 + 4 / np.sqrt(finite.sum()) + of_lse * (theirs == 0)
    floor = roundings * FLOAT32 * rms(np.broadcast_to(sums[0], want.shape)[finite])
    assert ours <= 2 * theirs + floor, (
        f"{name}: root mean square error {ours:.3g}, of plain code {theirs:.3g}, floor {floor:.3g}"
    )


def rms(x):
    return float(np.sqrt(np.mean(np.square(x))))
