"""compare: many methods against exact attention on the same tensors."""

import math
import statistics
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import numpy as np
from rich.markup import escape
from rich.table import Table

from attnd import BackwardResult, Client, Error, ForwardResult, MethodInfo, _spec
from attnd._arrays import BFLOAT16, Array
from attnd.cli import inputs
from attnd.cli.commands import parse_method
from attnd.cli.presets import Preset, preset
from attnd.cli.reference import Reference, of_shared_q, with_shared_q
from attnd.cli.sweep import Sweep, sweep
from attnd.cli.terminal import (
    UsageError,
    bytes_text,
    print_json,
    print_table,
    progress,
    say,
    say_notes,
    seconds_text,
)

# The options that the reference shares with the method it is compared with.
_SHARED_OPTIONS = ("causal", "scale")
_SHARED_TENSORS = ("q_lengths", "kv_lengths", "causal_offset")
_GRADIENTS = ("q", "k", "v")
# A sweep of `scale` has a reference for each value and reads it once.
_MAX_REFERENCES = 4
# The columns of numbers, and 20 for the method or the swept option.
_LEAST_WIDTH = 104


@dataclass
class Row:
    method: str
    options: dict[str, Any]
    error: dict[str, float] = field(default_factory=dict)  # out, grad_q, grad_k, grad_v
    cosine: float = math.nan
    forward_seconds: float = math.nan
    backward_seconds: float = math.nan
    peak_workspace_bytes: int = 0
    failure: str = ""
    notes: list[str] = field(default_factory=list)  # of the server


@dataclass
class _Choice:
    method: str
    options: dict[str, Any]
    tensors: dict[str, Array]  # the method needs them and the input has none
    label: str  # beside the progress bar


def compare(arguments: Namespace) -> int:
    sent = inputs.tensors(arguments)
    if "q" not in sent:
        raise ValueError(f"input: q is required for exact attention, found {', '.join(sent)}")
    with inputs.client(arguments) as client:
        known = {method.id: method for method in client.methods()}
        chosen = _chosen(arguments, list(known), sent)
        swept = sweep(arguments, known)
        if swept is not None:
            chosen = _with_values(chosen[0], swept)
        session = _Comparison(client, known, sent, arguments)
        rows = []
        with progress() as bar:
            task = bar.add_task("", total=len(chosen))
            for choice in chosen:
                bar.update(task, description=choice.label)
                rows.append(session.row(choice))
                bar.advance(task)
    if arguments.json:
        print_json(_json(arguments, sent, rows, swept))
    else:
        _print(sent, rows, swept, with_grad=not arguments.no_grad)
        for note in _notes(known, rows, swept, with_grad=not arguments.no_grad):
            print(note)
        say_notes(note for row in rows for note in row.notes)
    for failure in dict.fromkeys(row.failure for row in rows if row.failure):
        say(failure)
    failed = [row for row in rows if row.failure]
    return 1 if failed and (arguments.method or len(failed) == len(rows)) else 0


class _Comparison:
    """Runs methods and their references on one set of tensors."""

    def __init__(
        self,
        client: Client,
        known: dict[str, MethodInfo],
        sent: dict[str, Array],
        arguments: Namespace,
    ):
        self._client = client
        self._known = known
        self._sent = sent
        self._layout = inputs.layout(arguments)
        self._heads = 1 if self._layout == "BHND" else 2  # the axis of heads
        self._repeat = arguments.repeat
        self._grad_out: Array | None = None
        self._with_grad = not arguments.no_grad
        self._references: dict[str, Reference] = {}

    def row(self, choice: _Choice) -> Row:
        row = Row(choice.method, choice.options)
        try:
            self._fill(row, choice.tensors | self._tensors_of(choice.method, choice.options))
        except Error as error:
            if error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                raise
            row.failure = "; ".join(error.reasons)
        return row

    def _fill(self, row: Row, tensors: dict[str, Array]) -> None:
        forward, row.forward_seconds = self._timed(
            lambda: self._forward(row.method, row.options, tensors)
        )
        row.notes += forward.notes
        shares_qk = self._known[row.method].shares_qk(row.options)
        reference = self._reference(self._shared_options(row), shares_qk)
        if forward.out.shape != reference.out.shape:
            shapes = [list(out.shape) for out in (forward.out, reference.out)]
            row.failure = f"{row.method}: out is {shapes[0]}, that of exact attention {shapes[1]}"
            return
        row.peak_workspace_bytes = forward.stats.peak_workspace_bytes
        row.error["out"] = _relative_error(forward.out, reference.out)
        row.cosine = _cosine(forward.out, reference.out)
        if not self._with_grad:
            return
        backward, row.backward_seconds = self._timed(
            lambda: self._backward(row.method, row.options, tensors)
        )
        row.notes += (note for note in backward.notes if note not in row.notes)
        peak = backward.stats.peak_workspace_bytes
        row.peak_workspace_bytes = max(row.peak_workspace_bytes, peak)
        for name in _GRADIENTS:
            ours, exact = getattr(backward, name), reference.grads.get(name)
            if ours is not None and exact is not None:
                row.error[f"grad_{name}"] = _relative_error(ours, exact)

    def _shared_options(self, row: Row) -> dict[str, Any]:
        shared = {name: row.options[name] for name in _SHARED_OPTIONS if name in row.options}
        if _is_always_causal(self._known[row.method]):
            shared["causal"] = True
        return shared

    def _reference(self, shared: dict[str, Any], shares_qk: bool) -> Reference:
        """Exact attention; with k = q where the method takes q for the keys, too."""
        key = f"{_spec.text_of('softmax', shared)} {shares_qk}"
        if key not in self._references:
            tensors = {
                name: _float32(array)
                for name, array in self._sent.items()
                if name in ("q", "k", "v", *_SHARED_TENSORS)
            }
            if shares_qk:
                tensors |= with_shared_q(tensors, self._heads)
            out = self._forward("softmax", shared, tensors).out
            if self._grad_out is None:
                noise = np.asarray(np.random.default_rng(0).standard_normal(out.shape))
                self._grad_out = noise.astype(self._sent["q"].dtype)
            grads: dict[str, Array] = {}
            if self._with_grad:
                exact = self._backward("softmax", shared, tensors)
                assert exact.q is not None and exact.k is not None and exact.v is not None
                grads = {"q": exact.q, "k": exact.k, "v": exact.v}
            if grads and shares_qk:
                grads = of_shared_q(grads, self._sent["v"].shape[self._heads], self._heads)
            if len(self._references) == _MAX_REFERENCES:
                del self._references[next(iter(self._references))]
            self._references[key] = Reference(out, grads)
        return self._references[key]

    def _tensors_of(self, method: str, options: dict[str, Any]) -> dict[str, Array]:
        known = self._known[method]
        takes = {"q", "k", "v"} | {tensor.name for tensor in known.tensors if tensor.served}
        if known.shares_qk(options):
            takes.remove("k")
        return {name: array for name, array in self._sent.items() if name in takes}

    def _timed(self, call: Callable[[], Any]) -> tuple[Any, float]:
        results = [call() for _ in range(self._repeat)]
        return results[0], statistics.median(r.stats.compute_seconds for r in results)

    def _forward(
        self, method: str, options: dict[str, Any], tensors: dict[str, Array]
    ) -> ForwardResult:
        q, k, v, others = _split(tensors)
        return self._client.forward(
            q, k, v, method=method, options=options, tensors=others, layout=self._layout
        )

    def _backward(
        self, method: str, options: dict[str, Any], tensors: dict[str, Array]
    ) -> BackwardResult:
        q, k, v, others = _split(tensors)
        assert self._grad_out is not None
        grad_out = self._grad_out.astype(q.dtype)
        return self._client.backward(
            q, k, v, grad_out, method=method, options=options, tensors=others, layout=self._layout
        )


def _is_always_causal(method: MethodInfo) -> bool:
    """A causal method without an option for it always is."""
    return method.support.causal and all(option.name != "causal" for option in method.options)


def _chosen(
    arguments: Namespace, known: list[str], sent: dict[str, Array]
) -> list[_Choice]:
    """Methods with options: presets, then the text, then every --set that the method has."""
    ids = set(_spec.method_ids())
    # The reference comes first: its error is that of the dtype.
    served = sorted((m for m in known if m in ids), key=lambda m: m != "softmax")
    texts = arguments.method or served
    used: set[str] = set()
    chosen = []
    n = 2 if inputs.layout(arguments) == "BHND" else 1
    Nq, Nk = (sent[name].shape[n] if name in sent else 0 for name in "qk")
    for text in texts:
        method, given = parse_method(text, ())
        if method not in known:
            raise UsageError(f"method must be one of {', '.join(known)}, got {method}")
        names = set(_spec.option_names(method))
        settings = [s for s in arguments.set if s.partition("=")[0].strip() in names]
        used.update(settings)
        _, options = parse_method(text, settings)
        usual = Preset() if given else preset(method, Nq, Nk or Nq)
        chosen.append(_Choice(method, {**usual.options, **options}, usual.tensors, method))
    for setting in arguments.set:
        if setting not in used:
            raise UsageError(f"--set {setting}: no method compared here has this option")
    return chosen


def _with_values(choice: _Choice, swept: Sweep) -> list[_Choice]:
    name = swept.option
    return [
        replace(choice, options={**choice.options, name: value}, label=f"{name}={value}")
        for value in swept.values
    ]


def _split(tensors: dict[str, Array]) -> tuple[Array, Array | None, Array | None, dict[str, Array]]:
    others = dict(tensors)
    q = others.pop("q")
    return q, others.pop("k", None), others.pop("v", None), others


def _float32(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype in (np.float16, BFLOAT16) else array


def _relative_error(ours: Array, exact: Array) -> float:
    a, b = ours.astype(np.float64), exact.astype(np.float64)
    size = float(np.linalg.norm(b))
    with np.errstate(invalid="ignore"):  # an output of float16 may be infinite
        distance = float(np.linalg.norm(a - b))
    return distance / size if size else distance


def _cosine(ours: Array, exact: Array) -> float:
    a, b = ours.astype(np.float64).ravel(), exact.astype(np.float64).ravel()
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    with np.errstate(invalid="ignore"):
        return float(a @ b) / size if size else math.nan


def _json(
    arguments: Namespace, sent: dict[str, Array], rows: list[Row], swept: Sweep | None
) -> dict[str, Any]:
    described = {n: {"shape": list(a.shape), "dtype": str(a.dtype)} for n, a in sent.items()}
    methods = []
    for row in rows:
        item: dict[str, Any] = {"method": row.method, "options": row.options}
        if row.failure:
            item["failure"] = row.failure
        else:
            item |= {
                "relative_error": row.error,
                "cosine_similarity": row.cosine,
                "forward_seconds": row.forward_seconds,
                "backward_seconds": None if arguments.no_grad else row.backward_seconds,
                "peak_workspace_bytes": row.peak_workspace_bytes,
                "notes": row.notes,
            }
        methods.append(item)
    found = {"server": arguments.server, "input": described, "methods": methods}
    return found if swept is None else {**found, "sweep": swept.option}


def _print(sent: dict[str, Array], rows: list[Row], swept: Sweep | None, with_grad: bool) -> None:
    q = sent["q"]
    print(f"q {list(q.shape)} {q.dtype}; against exact softmax attention in float32")
    table = Table(box=None, pad_edge=False)
    if swept is None:
        table.add_column("method")
    else:
        fixed = {n: value for n, value in rows[0].options.items() if n != swept.option}
        print(_spec.text_of(rows[0].method, fixed))
        table.add_column(swept.option, justify="right", no_wrap=True)
    columns = ["error out", "cosine"]
    columns += ["error dq", "error dk", "error dv"] if with_grad else []
    columns += ["forward"] + (["backward"] if with_grad else []) + ["workspace"]
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        described = _spec.text_of(row.method, row.options)
        name = escape(described) if swept is None else str(row.options[swept.option])
        if row.failure:
            table.add_row(name, "failed")
            continue
        names = ["grad_q", "grad_k", "grad_v"] if with_grad else []
        cells = [f"{row.error['out']:.2e}", f"{row.cosine:.6f}"]
        cells += [f"{row.error[n]:.2e}" if n in row.error else "-" for n in names]
        cells.append(seconds_text(row.forward_seconds))
        cells += [seconds_text(row.backward_seconds)] if with_grad else []
        table.add_row(name, *cells, bytes_text(row.peak_workspace_bytes))
    print_table(table, least_width=_LEAST_WIDTH)


def _notes(
    known: dict[str, MethodInfo], rows: list[Row], swept: Sweep | None, with_grad: bool
) -> list[str]:
    """What the table leaves open: a line for each other reference, and one for "-"."""
    shared, causal, lacks = [], [], False
    for row in (row for row in rows if not row.failure):
        name = row.method if swept is not None else _spec.text_of(row.method, row.options)
        if known[row.method].shares_qk(row.options):
            shared.append(name)
        if _is_always_causal(known[row.method]):
            causal.append(name)
        lacks = lacks or (with_grad and any(f"grad_{x}" not in row.error for x in _GRADIENTS))
    notes = []
    if shared:
        names = ", ".join(dict.fromkeys(shared))
        notes.append(f"against exact attention with k = q, as q serves as the keys: {names}")
    if causal:
        names = ", ".join(dict.fromkeys(causal))
        notes.append(f"against causal attention, as the method is always causal: {names}")
    if lacks:
        notes.append("-: no gradient, as the method does not read that tensor")
    return notes
