"""What the help of options and tensors promises of rows: a row of a padded batch equals the row
alone unless a help names the padded sizes, and under `causal` later tokens change nothing unless its
help says so. Traps otherwise: both look right for the longest row of a batch, and for the last."""

import dataclasses
import re

import numpy as np
import pytest

from tests.methods import harness, library
from tests.methods.cases import tensors
from tests.methods.harness import engine, fit_to_options, methods
from tests.methods.test_check import unpacked_batches

N = 200
PADDED = ("q", "k", "v", "grad_out", "grad_lse")
# Other numbers of a float32 sum of the same terms in another order; what differs, differs more.
ROUNDING = 1e-5


def described(id):
    """(name, help) of its options and inputs."""
    info = library.methods_info()[id]
    return [(x["name"], x["help"]) for x in info["options"] + info["inputs"]]


def shape_of(id, name, rank):
    """The letters of a tensor's declared shape of that rank; none where it has none."""
    info = library.methods_info()[id]
    declared = {x["name"]: x["shape"] for x in info["inputs"]}
    declared |= {"grad_" + x["name"]: x["shape"] for x in info["outputs"]}
    shapes = [listed.split(",") for listed in re.findall(r"\[([^\]]*)\]", declared[name])]
    return next((letters for letters in shapes if len(letters) == rank), [])


def sizes_of(case, n):
    """The sizes of a sequence of n tokens by letters of declared shapes."""
    blocks = {f"nb{x}": -(-n // case.options.get(f"block_{x}", 64)) for x in "qk"}
    return {"Nq": n, "Nk": n, "nl": n - case.options.get("num_global", 0)} | blocks


def row_alone(method, case, t, n):
    """The tensors of `case` without what stands beyond its first n tokens."""
    sizes = sizes_of(case, n)
    alone = {}
    for name, x in t.items():
        if not name.endswith("_lengths"):
            ends = (sizes.get(letter) for letter in shape_of(method.id, name, x.ndim))
            alone[name] = np.ascontiguousarray(x[tuple(slice(end) for end in ends)])
    return alone


def padded(method, case, t, n):
    """The same tensors with lengths of n, and NaN beyond."""
    lengths = {name: np.full(case.B, n, np.int32) for name in ("q_lengths", "kv_lengths")
               if name in method.tensors}
    made = t | lengths
    for name in PADDED:
        if name in made and made[name].shape[2] == case.Nq:
            made[name] = made[name].copy()
            made[name][:, :, n:] = np.nan
    return made


def compared(method):
    """(case, whether optional tensors are left out) for each batch of the harness. Those that are
    left out are drawn."""
    for like in unpacked_batches(method):
        case = fit_to_options(method, dataclasses.replace(
            like, id=f"promise-{like.id}", B=1, H=4, Hkv=2, Nq=N, Nk=N, D=16))
        yield case
        if case.floats or case.made:
            yield dataclasses.replace(case, id=case.id + "-drawn", floats={}, made={})


def outputs(method, t, options, backward=False):
    return engine("").execute([library.Request(method.id, t, options, backward)])[0].outputs


def difference(a, b):
    """The largest of two lists of numbers, as a part of the largest number; of a, as many rows as b
    has are compared."""
    a = np.float64(a[tuple(slice(size) for size in b.shape)])
    b = np.float64(b)
    unlike = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if not unlike.any():
        return 0
    if not np.isfinite(a[unlike]).all() or not np.isfinite(b[unlike]).all():
        return np.inf
    return np.abs(a[unlike] - b[unlike]).max() / np.abs(b[np.isfinite(b)]).max()


def longest_difference(method, case, backward):
    """Between the outputs of a row alone and in a padded batch; None if the case has no such row."""
    t = tensors(case, "f32", gradients=backward)
    n = case.Nq * 13 // 20
    alone = row_alone(method, case, t, n)
    try:
        a = outputs(method, padded(method, case, t, n), case.options, backward)
        b = outputs(method, alone, case.options, backward)
    except library.Refused:
        return None  # its tensors or options suit one number of tokens
    return max(difference(a[name], b[name]) for name in b)


# A grid has the shape of the padded sequence: a short row alone has none.
@pytest.mark.parametrize("id", [id for id, m in methods().items() if "grid" not in m.options])
def test_a_short_row_of_a_padded_batch_is_as_alone_unless_help_names_the_padding(id):
    """Symptom: `bigbird` and drawn tables of `linformer` answered for a short row what they do not
    answer for it alone, and no help said so."""
    method = methods()[id]
    found = [longest_difference(method, case, backward)
             for case in compared(method) for backward in (False, True)]
    found = [x for x in found if x is not None]
    assert found
    names = [name for name, text in described(id) if "padded" in text]
    assert (max(found) > ROUNDING) == bool(names), (names, max(found))


def causal_cases(method):
    for like in unpacked_batches(method):
        options = like.options | ({} if method.always_causal else {"causal": True})
        yield fit_to_options(method, dataclasses.replace(
            like, id=f"later-{like.id}", B=1, H=4, Hkv=2, Nq=N, Nk=N, D=16, options=options))


def first_rows(method, case):
    """How many rows no later token may change. Blocks of images come one after the other."""
    if method.id == "image_local_2d":
        return case.options["query_shape"][0] * case.options["grid"][1]
    return case.Nq * 5 // 8


@pytest.mark.parametrize("id", [id for id, m in methods().items()
                                if m.always_causal or "causal" in m.options])
def test_later_tokens_change_no_row_unless_the_help_of_causal_says_so(id):
    """Symptom: with `causal`, `routing` answers other numbers once more tokens are there."""
    method = methods()[id]
    rng = np.random.default_rng(1)
    changed = []
    for case in causal_cases(method):
        t = tensors(case, "f32")
        n = first_rows(method, case)
        moved = dict(t)
        for name in set("qkv") & t.keys():
            moved[name] = t[name].copy()
            moved[name][:, :, n:] = 3 * rng.standard_normal(moved[name][:, :, n:].shape)
        try:
            a, b = (outputs(method, x, case.options)["out"] for x in (t, moved))
        except library.Refused:
            continue  # not with causal
        changed.append(bool(harness.same_bits({"out": a[:, :, :n]}, {"out": b[:, :, :n]})))
    says_so = "later tokens" in dict(described(id)).get("causal", "")
    assert changed
    assert any(changed) == says_so
