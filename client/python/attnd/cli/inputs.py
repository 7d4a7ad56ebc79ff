"""The tensors of a request from the files that the command line names."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnd import Client
from attnd._arrays import BFLOAT16, Array
from attnd.cli import files
from attnd.cli.terminal import UsageError, say

_DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
}


def client(arguments: Namespace, default_timeout: float | None = None) -> Client:
    return Client(
        arguments.server,
        timeout=default_timeout if arguments.timeout is None else arguments.timeout,
        tls=arguments.ca or arguments.tls,
        token=arguments.token,
    )


def tensors(arguments: Namespace) -> dict[str, Array]:
    """Every tensor by name, `q` or `v` among them. Gradients in INPUT (grad_*) are left out."""
    found: dict[str, Array] = {}
    if arguments.input is not None:
        found = files.read(arguments.input)
        if files.UNNAMED in found:
            raise UsageError(f"{arguments.input}: a .npy holds one array; give it as --q, --k, --v")
        for name in [name for name in found if name.startswith("grad_")]:
            del found[name]
            say(f"note: {name} of {arguments.input} is not used as an input")
    for name in ("q", "k", "v"):
        path = getattr(arguments, name)
        if path is not None:
            found[name] = files.read_one(path, name)
    found |= named_tensors(arguments)
    if not found:
        raise UsageError("no input: give INPUT, or --q, --k, --v")
    if not found.keys() & {"q", "v"}:
        raise ValueError(f"input: q or v is required, found {', '.join(found)}")
    if arguments.layout is None:
        _note_layout(found)
    return converted(found, arguments.dtype)


def layout(arguments: Namespace) -> str:
    return arguments.layout or "BHND"


def has_k_of_input(arguments: Namespace, found: Mapping[str, Any]) -> bool:
    """Whether the k among `found` is that of INPUT, which holds tensors for many methods. One that
    the command line names is meant."""
    named = {setting.partition("=")[0] for setting in arguments.tensor}
    is_named = arguments.k is not None or "k" in named
    return arguments.input is not None and "k" in found and not is_named


def named_tensors(arguments: Namespace) -> dict[str, Array]:
    """Those of --tensor."""
    found: dict[str, Array] = {}
    for setting in arguments.tensor:
        name, equals, path = setting.partition("=")
        if not (name and equals and path):
            raise UsageError(f"--tensor must be NAME=FILE, got {setting}")
        found[name] = files.read_one(path, name)
    return found


def described(arguments: Namespace) -> tuple[dict[str, Any], Any, dict[str, Array]]:
    """For an estimate: shapes of q, k, v by name, their dtype, other tensors."""
    if arguments.shape is None:
        if arguments.kv_shape is not None:
            raise UsageError("--kv-shape needs --shape")
        sent = tensors(arguments)
        dtype = sent["q" if "q" in sent else "v"].dtype
        return {n: sent.pop(n).shape for n in "qkv" if n in sent}, dtype, sent
    if any((arguments.input, arguments.q, arguments.k, arguments.v)):
        raise UsageError("give --shape, or INPUT or --q, --k, --v")
    kv_shape = arguments.kv_shape or arguments.shape
    shapes = {"q": arguments.shape, "k": kv_shape, "v": kv_shape}
    others = converted(named_tensors(arguments), arguments.dtype)
    return shapes, _DTYPES[arguments.dtype or "float32"], others


def converted(arrays: Mapping[str, Array], dtype: str | None) -> dict[str, Array]:
    """The floats among them in `dtype`. ValueError for floats that are not served without one."""
    floats = {n for n, a in arrays.items() if a.dtype.kind == "f" or a.dtype == BFLOAT16}
    if dtype is not None:
        wanted = _DTYPES[dtype]
        return {n: a.astype(wanted, copy=False) if n in floats else a for n, a in arrays.items()}
    served = set(_DTYPES.values())
    refused = [n for n in arrays if n in floats and arrays[n].dtype.newbyteorder("=") not in served]
    if refused:
        reasons = [f"{n} must be {', '.join(_DTYPES)}, got {arrays[n].dtype}" for n in refused]
        raise ValueError("; ".join(reasons) + " (--dtype float32 converts; integers: save int32)")
    return dict(arrays)


def _note_layout(found: Mapping[str, Array]) -> None:
    shapes = [found[name].shape for name in ("q", "k", "v") if name in found]
    if all(len(shape) == 4 and shape[1] > shape[2] and shape[2] < 16 for shape in shapes):
        _, H, N, _ = shapes[0]
        say(f"note: served as H {H}, N {N}; for [B,N,H,D] give --layout BNHD, else --layout BHND")
