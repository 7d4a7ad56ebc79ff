"""Tensors in files: .npy (one array), .npz and .safetensors (arrays by name)."""

import os
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from attnd._arrays import BFLOAT16, Array
from attnd.cli.terminal import UsageError

SUFFIXES = (".npy", ".npz", ".safetensors")
# The name of the only array of a .npy file.
UNNAMED = ""


def read(path: str) -> dict[str, Array]:
    suffix = _suffix(path)
    try:
        if suffix == ".safetensors":
            with safe_open(path, framework="np") as file:
                return {name: file.get_tensor(name) for name in file.keys()}
        loaded = np.load(path, allow_pickle=False)
        if suffix == ".npy":
            return {UNNAMED: _bfloat16(loaded)}
        with loaded:
            return {name: _bfloat16(loaded[name]) for name in loaded.files}
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file") from None
    except (SafetensorError, ValueError, EOFError, KeyError, AttributeError) as error:
        raise ValueError(f"{path}: not a readable {suffix} file: {error}") from None


def read_one(place: str, name: str) -> Array:
    """The array called `name` in the file, or its only one. FILE:NAME names another one."""
    path, chosen = place, ""
    if Path(place).suffix.lower() not in SUFFIXES:
        path, _, chosen = place.rpartition(":")
    arrays = read(path or place)
    wanted = chosen or name
    if wanted in arrays:
        return arrays[wanted]
    if len(arrays) == 1 and not chosen:
        return next(iter(arrays.values()))
    found = ", ".join(arrays) or "nothing"
    raise ValueError(f"{path}: holds {found}, none of them is {wanted}")


def check_writable(path: str) -> None:
    """Before the work, so that it is not lost for a typing error."""
    _suffix(path)
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise FileNotFoundError(f"{path}: folder {folder} does not exist")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{path}: folder {folder} is not writable")


def write(path: str, arrays: dict[str, Array]) -> None:
    """REQUIRES: one array if path ends with .npy. An existing file is replaced as a whole."""
    suffix = _suffix(path)
    partial = Path(f"{path}.partial{suffix}")
    try:
        if suffix == ".safetensors":
            save_file({n: np.ascontiguousarray(a) for n, a in arrays.items()}, partial)
        elif suffix == ".npz":
            np.savez(partial, **arrays)  # type: ignore[arg-type]
        else:
            np.save(partial, next(iter(arrays.values())))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _suffix(path: str) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"{path}: file name must end with {', '.join(SUFFIXES)}")
    return suffix


def _bfloat16(array: Array) -> Array:
    # NumPy's formats have no name for bfloat16: it is written, and comes back, as two raw bytes.
    return array.view(BFLOAT16) if array.dtype.str == "|V2" else array
