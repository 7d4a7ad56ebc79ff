"""doctor: is the server well, and is each of its devices right?"""

from argparse import Namespace

import numpy as np
from rich.markup import escape
from rich.table import Table

from attnd import Client, DeviceInfo, Error
from attnd._arrays import Array
from attnd.cli import inputs
from attnd.cli.terminal import print_table, seconds_text

SECONDS = 30.0  # of each call: a server at work has others before this one
# Sums of 65 terms of order 1 in float32, in parts of the largest number.
TOLERANCE = 1e-5


def doctor(arguments: Namespace) -> int:
    with inputs.client(arguments, SECONDS) as client:
        found, status = client.info(), client.health()
        print(
            f"attnd {found.version} at {arguments.server}, up {found.uptime_seconds:.0f} s: {status}"
        )
        if found.note:
            print(f"  {'broken' if found.unusable_devices else 'note'}: {found.note}")
        is_well = status == "SERVING" and not found.unusable_devices
        for device in found.devices:
            is_well &= _examine(client, device)
    print("all is well" if is_well else "not all is well")
    return 0 if is_well else 1


def _examine(client: Client, device: DeviceInfo) -> bool:
    print(
        f"{device.name}: {device.description}; {device.peak_flops / 1e9:.1f} GFLOP/s, "
        f"{device.bytes_per_second / 1e9:.1f} GB/s"
    )
    answer, is_right = ask(client, device.name)
    print(f"  {answer}")
    if not device.self_tests:
        if device.name != "cpu":
            print("  not proven: the server runs with --self-test=false")
        return is_right
    compared = [test for test in device.self_tests if not test.declined]
    failed = [test for test in compared if test.failure]
    print(
        f"  self-test at start-up, {seconds_text(device.self_test_seconds)}: "
        f"{len(compared) - len(failed)} of {len(compared)} agree with the processor"
    )
    table = Table("", "primitive", "dtype", "launches", "worst error", "", box=None, pad_edge=False)
    for test in device.self_tests:
        verdict = "declined: composed of others" if test.declined else "ok"
        if test.failure:
            verdict = f"SWITCHED OFF: {test.failure}"
        error = "" if test.declined else f"{test.worst_error:.1e}"
        row = ("", test.primitive, test.dtype, str(test.launches), error, verdict)
        table.add_row(*(escape(cell) for cell in row))
    print_table(table, least_width=80)
    return is_right and not failed


def ask(client: Client, device: str) -> tuple[str, bool]:
    """One small request against attention in float64: what came back, and whether it is right."""
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 65, 16), np.float32)
    try:
        result = client.forward(q, k, v, method="softmax", device=device)
    except Error as error:
        return f"softmax of 65 tokens: {error}", False
    error = difference(result.out, q, k, v)
    says = f"softmax of 65 tokens: {error:.1e} from float64"
    if not error <= TOLERANCE:
        return f"{says}, WRONG: at most {TOLERANCE:.0e} is allowed", False
    return f"{says}, compute {seconds_text(result.stats.compute_seconds)}", True


def difference(out: Array, q: Array, k: Array, v: Array) -> float:
    """The largest difference from softmax(q k^T / sqrt(D)) v, in parts of its largest number."""
    scores = q.astype(float) @ k.astype(float).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    exact = weights / weights.sum(axis=-1, keepdims=True) @ v.astype(float)
    return float(np.abs(out - exact).max() / np.abs(exact).max())
