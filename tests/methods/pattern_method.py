"""Describes a method of the pattern specification to the tests by what it adds to the common
options, tensors and refusals, and by what of them it lacks."""

from tests.methods.method import Method
from tests.methods.refused import LACKED, PATTERN_TENSORS, pattern_refusals

OPTIONS = {
    "scale": "float", "causal": "bool", "logit_softcap": "float", "alibi": "bool",
    "duplicates": "enum",
}
DIFFERENTIABLE = ("q", "k", "v", "bias", "alibi_slopes", "sink_logits")


def pattern_method(*, options=None, own=(), own_differentiable=(), lacks=(), good_options,
                   bias="Nq,Nk", refused=(), **fields):
    """A Method. `options`, `own` (tensors) and `refused`: its own, besides the common ones; `own`
    and `own_differentiable` in the library's order. `lacks`: what of the common it does without,
    keys of refused.LACKED. `good_options`: those of the valid request that refusals change. `bias`:
    the last letters of its shape. `fields` are Method's."""
    lacked = [name for what in lacks for name in LACKED[what]]
    common = [name for name in ("q", "k", "v", *PATTERN_TENSORS) if name not in lacked]
    return Method(
        options=(options or {}) | {n: type for n, type in OPTIONS.items() if n not in lacks},
        tensors={*common, *own},
        differentiable=[*(n for n in DIFFERENTIABLE if n in common), *own_differentiable],
        square="cross" in lacks,
        refused=pattern_refusals(good_options, own, lacks, bias) + list(refused),
        **fields)
