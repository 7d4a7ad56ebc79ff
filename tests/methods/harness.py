"""Shared by all modes of the method harness: the methods found in this folder, the oracle's
answers (computed once per case and dtype), and one library engine per ISA and thread count."""

import dataclasses
import functools
import importlib
import pathlib
import types

import numpy as np
import pytest

from tests.methods import library, tolerance
from tests.methods.axial import SumOfSoftmaxes
from tests.methods.cases import DTYPES, LAID_OUT, Case, tensors
from tests.methods.pattern_core import PatternOracle

ISAS = ("avx512", "avx2", "sse4")
# The CPU features that Highway 1.0 requires for each target, by their names in /proc/cpuinfo.
NEEDS = {
    "sse4": {"ssse3", "sse4_1", "sse4_2", "pclmulqdq", "aes"},
    "avx2": {"avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "abm"},
    "avx512": {"avx512f", "avx512vl", "avx512dq", "avx512bw", "avx512cd"},
}


@functools.cache
def machine_lacks(isa):
    """The CPU features of `isa` that this machine does not have."""
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return sorted(NEEDS[isa] - set(flags.split()))


# Put above the other parameters, so that the ISA ends a test's id. Of an ISA that the machine lacks
# there are no cases: test_instruction_set says so, once.
on_every_isa = pytest.mark.parametrize("isa", [isa for isa in ISAS if not machine_lacks(isa)])


@functools.cache
def methods():
    """The METHOD of each module of this folder that has one, by id."""
    found = {}
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        if not path.stem.startswith(("test_", "conftest", "__")):
            module = importlib.import_module(f"tests.methods.{path.stem}")
            if hasattr(module, "METHOD"):
                assert module.METHOD.id == path.stem, f"{path.name} describes {module.METHOD.id}"
                found[path.stem] = module.METHOD
    return found


def method_params(field):
    """pytest params (method, element of a field) with the id "<method>-<element's id>"."""
    return [
        pytest.param(method, item, id=f"{name}-{item.id}")
        for name, method in methods().items()
        for item in getattr(method, field)
    ]


def case_params(keep=lambda case: True):
    """pytest params (method, case, dtype) with the id "<method>-<case>-<dtype>"."""
    return [
        pytest.param(method, case, dtype, id=f"{name}-{case.id}-{dtype}")
        for name, method in methods().items()
        for case in method.cases
        if keep(case)
        for dtype in case.dtypes
    ]


def visible_params():
    """pytest params (method, case, its visible pairs) with the id "<method>-<row's id>"."""
    return [
        pytest.param(method, Case("pairs", H=1, Nq=row.Nq, Nk=row.Nk, D=2, options=row.options,
                                  made=row.made), row.pairs, id=f"{name}-{row.id}")
        for name, method in methods().items()
        for row in method.visible
    ]


def suited(method, case):
    """`case` with as many keys as queries and as many heads as the method requires, without k where
    q serves as the keys, and without grad_lse where the method has no lse."""
    if not method.gqa and case.H != case.heads_kv:
        case = dataclasses.replace(case, H=case.heads_kv, Hkv=0)
    if method.square and case.Nq != case.keys:
        n = case.Nq
        lengths = {name: tuple(min(x, n) for x in values) for name, values in case.ints.items()}
        case = dataclasses.replace(case, Nk=n, ints=lengths)
    if method.shares_qk(case.options):
        case = dataclasses.replace(case, absent=tuple({*case.absent, "k"}))
    has_lse = method.oracle.gives_lse(case.options)
    return dataclasses.replace(case, grad_lse=case.grad_lse and has_lse)


def fit(method, case):
    """`case`, of any sizes, with options and tensors that suit them."""
    return method.fit_options(suited(method, case))


def fit_to_options(method, case):
    """`case` with sizes that suit its options, which one batch must share."""
    return (method.fit_sizes or method.fit_options)(suited(method, case))


def unpacked_batches(method):
    """A case with the options of each of `batches`, and `tensor_batches` but packed ones."""
    of_options = [Case(f"{i}", options=o) for i, o in enumerate(method.batches)]
    return of_options + [c for c in method.tensor_batches if not (c.packed or c.segments)]


@functools.cache
def engine(isa, threads=2, poison=True):
    return library.Engine(isa, threads, poison)


def request(method, case, t, backward=False, options=None):
    """The case as a request. Its q, k, v and grad_out are marked with the case's layout."""
    bnhd = tuple(name for name in t if name in LAID_OUT and case.layout == "BNHD")
    return library.Request(method.id, t, case.options if options is None else options, backward,
                           bnhd)


def run(isa, method, case, t, backward=False, threads=2):
    """One request alone, on fresh memory full of NaN."""
    return engine(isa, threads).execute([request(method, case, t, backward)])[0]


def weight_unit(isa, method, case, dtype):
    """That of tolerance.py, of methods whose scores meet values pair by pair."""
    if not isinstance(method.oracle, PatternOracle | SumOfSoftmaxes):
        return 0
    return tolerance.weight_unit(engine(isa).device, case, dtype)


def same_bits(a, b):
    """Names of outputs that are not bit for bit equal."""
    assert a.keys() == b.keys()
    return [name for name in a
            if np.ascontiguousarray(a[name]).tobytes() != np.ascontiguousarray(b[name]).tobytes()]


@functools.lru_cache(maxsize=64)  # tests of a case follow each other
def expected(method, case, dtype, backward):
    """inputs; the oracle's answer; plain float32 code's answer, rounded; sums and amplification."""
    t = tensors(suited(method, case), dtype, gradients=backward)
    storage = DTYPES[dtype]
    with np.errstate(over="ignore", under="ignore"):
        if backward:
            want = method.oracle.backward(t, case.options)
            plain = method.oracle.backward(t, case.options, np.float32,
                                    store=lambda x: x.astype(storage).astype(np.float32))
        else:
            want = method.oracle.forward(t, case.options)
            plain = method.oracle.forward(t, case.options, np.float32)
        kinds = {name: t[name].dtype for name in plain if name in t} | {"out": storage}
        plain = {name: x.astype(kinds.get(name, np.float32)) for name, x in plain.items()}
        sums, amplification = method.oracle.magnitude(t, case.options)
    # The longest sum: over keys, over features, or over the queries of a kv head's group; of a
    # parameter that all pairs share, over all of them.
    longest = max(case.keys, case.D, case.Dv,
                  case.Nq * (case.H // case.heads_kv if backward else 1))
    shared = max(longest, case.B * case.H * case.Nq * case.keys)
    terms = {name: shared if name in case.floats else longest for name in want}
    return types.SimpleNamespace(tensors=t, want=want, plain=plain, sums=sums,
                                 amplification=amplification, terms=terms)
