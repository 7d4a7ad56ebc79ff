"""methods, run, estimate, info, health."""

from argparse import Namespace
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import grpc
from rich.markup import escape
from rich.table import Table

from attnd import Client, Error, ForwardResult, MethodInfo, Stats, _spec
from attnd._arrays import Array
from attnd.cli import files, inputs
from attnd.cli.terminal import (
    UsageError,
    bytes_text,
    flops_text,
    print_json,
    print_table,
    progress,
    say,
    say_notes,
    seconds_text,
)

# How long `estimate`, `info` and `health` wait: the server answers them beside its work.
QUICK_SECONDS = 5.0
_PIPED_WIDTH = 100


def parse_method(text: str, settings: Iterable[str]) -> tuple[str, dict[str, Any]]:
    try:
        return _spec.parse(text, settings)
    except ValueError as error:
        raise UsageError(str(error)) from None


def methods(arguments: Namespace) -> int:
    with inputs.client(arguments) as client:
        found = client.methods()
    if arguments.id is not None:
        names = [method.id for method in found]
        if arguments.id not in names:
            raise UsageError(f"method must be one of {', '.join(names)}, got {arguments.id}")
        found = [method for method in found if method.id == arguments.id]
    if arguments.json:
        print_json([asdict(method) for method in found])
    elif arguments.id is not None:
        _explain(found[0])
    else:
        _list(found)
    return 0


def run(arguments: Namespace) -> int:
    method, options = parse_method(arguments.method, arguments.set)
    sent = inputs.tensors(arguments)
    grad_out = None
    if arguments.grad_out is not None:
        grad_out = files.read_one(arguments.grad_out, "grad_out")
        grad_out = inputs.converted({"grad_out": grad_out}, arguments.dtype)["grad_out"]
    if arguments.output is not None:
        files.check_writable(arguments.output)
        if arguments.output.lower().endswith(".npy") and grad_out is not None:
            raise UsageError("a .npy holds one array: with --grad-out write .npz or .safetensors")
    lines = []
    notes: list[str] = []
    with inputs.client(arguments) as client, progress() as bar:
        if inputs.has_k_of_input(arguments, sent) and _shares_qk(client, method, options):
            del sent["k"]
            _say_without_k(method, f"k of {arguments.input}")
        q, k, v = (sent.pop(name, None) for name in ("q", "k", "v"))
        request: dict[str, Any] = {
            "method": method,
            "options": options,
            "tensors": sent,
            "device": arguments.device,
            "layout": inputs.layout(arguments),
        }
        bar.add_task(f"{method} forward", total=None)
        forward = client.forward(q, k, v, **request)
        results = _outputs_of(forward)
        lines.append(_cost_text("forward", forward.stats))
        notes += forward.notes
        if grad_out is not None:
            bar.add_task(f"{method} backward", total=None)
            backward = client.backward(
                q, k, v, grad_out, deterministic=not arguments.any_order, **request
            )
            grads = {"q": backward.q, "k": backward.k, "v": backward.v, **backward.tensors}
            results |= {f"grad_{name}": g for name, g in grads.items() if g is not None}
            lines.append(_cost_text("backward", backward.stats))
            notes += backward.notes
    if arguments.output is not None:
        if arguments.output.lower().endswith(".npy"):
            if left_out := [name for name in results if name != "out"]:
                say(f"note: {', '.join(left_out)} not in {arguments.output}: a .npy holds one array")
            results = {"out": results["out"]}
        files.write(arguments.output, results)
    place = f" -> {arguments.output}" if arguments.output is not None else ""
    print(f"{_spec.text_of(method, options)} on {forward.stats.device}{place}")
    for name, array in results.items():
        print(f"  {name} {list(array.shape)} {array.dtype}")
    print("\n".join(lines))
    say_notes(notes)
    return 0


def estimate(arguments: Namespace) -> int:
    method, options = parse_method(arguments.method, arguments.set)
    shapes, dtype, sent = inputs.described(arguments)
    can_leave_out_k = arguments.shape is not None or inputs.has_k_of_input(arguments, shapes)
    with inputs.client(arguments, QUICK_SECONDS) as client:
        if can_leave_out_k and _shares_qk(client, method, options):
            del shapes["k"]
            _say_without_k(method, f"k of {arguments.input or '--shape'}")
        found = client.estimate(
            **{f"{name}_shape": shape for name, shape in shapes.items()},
            method=method,
            options=options,
            tensors=sent,
            dtype=dtype,
            backward=arguments.backward,
            deterministic=not arguments.any_order,
            layout=inputs.layout(arguments),
            device=arguments.device,
        )
    if arguments.json:
        print_json(asdict(found))
        return 0
    print(f"{_spec.text_of(method, options)} on {found.device}")
    print(
        f"  {'backward' if arguments.backward else 'forward'}: "
        f"compute {seconds_text(found.seconds)}, workspace {bytes_text(found.workspace_bytes)}, "
        f"{flops_text(found.flops)}, {found.visible_pairs:.4g} visible pairs"
    )
    print(f"  sends {bytes_text(found.input_bytes)}, gets {bytes_text(found.output_bytes)}")
    for refusal in found.refusals:
        print(f"  would be refused: {refusal}")
    say_notes(found.notes)
    return 0


def _shares_qk(client: Client, method: str, options: dict[str, Any]) -> bool:
    found = next((known for known in client.methods() if known.id == method), None)
    return found is not None and found.shares_qk(options)


def _say_without_k(method: str, what: str) -> None:
    say(f"note: {what} is left out: {method} takes q for the keys, too")


def info(arguments: Namespace) -> int:
    with inputs.client(arguments, QUICK_SECONDS) as client:
        found = client.info()
    if arguments.json:
        print_json(asdict(found))
        return 0
    print(f"attnd {found.version} at {arguments.server}, up {found.uptime_seconds:.0f} s")
    print(
        f"limits: message {bytes_text(found.max_message_bytes)}, "
        f"in memory {bytes_text(found.budget_bytes)}, queue {found.max_queue_requests} requests"
    )
    for device in found.devices:
        print(
            f"{device.name}: {device.description}; {device.peak_flops / 1e9:.1f} GFLOP/s, "
            f"{device.bytes_per_second / 1e9:.1f} GB/s"
        )
    return 0


def health(arguments: Namespace) -> int:
    with inputs.client(arguments, QUICK_SECONDS) as client:
        try:
            status = client.health()
        except Error as error:
            if error.code != grpc.StatusCode.NOT_FOUND:
                raise
            status = "SERVICE_UNKNOWN"
    print(status)
    return 0 if status == "SERVING" else 1


def _outputs_of(result: ForwardResult) -> dict[str, Array]:
    found = {"out": result.out}
    if result.lse is not None:
        found["lse"] = result.lse
    return found | result.tensors


def _cost_text(direction: str, stats: Stats) -> str:
    return (
        f"  {direction}: compute {seconds_text(stats.compute_seconds)}, "
        f"queue {seconds_text(stats.queue_seconds)}, "
        f"workspace {bytes_text(stats.peak_workspace_bytes)}, {flops_text(stats.flops)}"
    )


def _list(found: list[MethodInfo]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("method", "summary", "causal", "lengths", "Nq!=Nk", "GQA", "lse", "grad"):
        table.add_column(column, no_wrap=column != "summary")
    for method in found:
        s = method.support
        flags = (s.causal, s.lengths, s.cross, s.gqa, s.lse, s.backward)
        marks = ("yes" if flag else "-" for flag in flags)
        table.add_row(escape(method.id), escape(method.summary), *marks)
    print_table(table)


def _explain(method: MethodInfo) -> None:
    print(f"{method.id}: {method.summary}")
    print(f"  {method.reference}")
    print(f"  cost: {method.cost}")
    support = method.support
    print(f"  dtypes: {', '.join(support.dtypes)}; devices: {', '.join(support.devices)}")
    if method.options:
        table = Table("option", "type", "default", "range", "", box=None, pad_edge=False)
        for option in method.options:
            allowed = " | ".join(option.enum_values) or option.range
            help_text = option.help if option.served else f"{option.help} (not served)"
            row = (option.name, option.type, option.default_value, allowed, help_text)
            table.add_row(*(escape(cell) for cell in row))
        print()
        print_table(table, _PIPED_WIDTH)
    for title, tensors in (("takes", method.tensors), ("answers", method.outputs)):
        table = Table(title, "shape", "dtype", "", box=None, pad_edge=False)
        for tensor in tensors:
            notes = [tensor.help] if tensor.help else []
            notes += ["required"] if tensor.required else []
            notes += ["has a gradient"] if tensor.differentiable else []
            notes += [] if tensor.served else ["not served"]
            cells = (tensor.name, tensor.shape, tensor.dtype, "; ".join(notes))
            table.add_row(*(escape(cell) for cell in cells))
        if tensors:
            print()
            print_table(table, _PIPED_WIDTH)
