"""NumPy arrays as tensors of a message, and back."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from attnd import _proto

Array = np.ndarray[Any, np.dtype[Any]]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_DTYPES: dict[int, np.dtype[Any]] = {
    _proto.DType.float32: np.dtype("<f4"),
    _proto.DType.float16: np.dtype("<f2"),
    _proto.DType.bfloat16: BFLOAT16,
    _proto.DType.int32: np.dtype("<i4"),
    _proto.DType.uint8: np.dtype("u1"),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_FLOATS = "float32, float16 or ml_dtypes.bfloat16"
# Tensors in the memory order of the request. All others, named outputs and their gradients among
# them, have the one shape that they are declared with.
_IN_LAYOUT = ("q", "k", "v", "grad_out")
# Tensors that are declared as uint8: integers of any width that are 0 or 1 are taken for them.
MASKS = ("global_mask", "layout")


class TensorList:
    """Tensors of one message under construction: descriptions, payloads, reasons of refusal."""

    def __init__(self, method: str, layout: str):
        self.tensors: list[Any] = []
        self.payloads: list[memoryview] = []
        self.reasons: list[str] = []
        self._method = method
        self._layout = _proto.Layout.BHND
        self._index_of: dict[tuple[int, np.dtype[Any]], tuple[int, Any]] = {}
        if layout in ("BHND", "BNHD"):
            self._layout = getattr(_proto.Layout, layout)
        else:
            self.reasons.append(f"{method}: layout must be BHND or BNHD, got {layout!r}")

    def add(self, name: str, value: Any) -> None:
        """Takes `value` with its data. The same object sent twice travels once."""
        if value is None:
            return
        array = self._checked(name, value)
        if array is None:
            return
        tensor = self._described(name, array.dtype, array.shape)
        key = (id(value), array.dtype)
        if key not in self._index_of:
            # The second element keeps `value` alive, so that its id stays its own.
            self._index_of[key] = (len(self.payloads), value)
            # Through uint8: the buffer protocol does not know bfloat16.
            self.payloads.append(array.reshape(-1).view(np.uint8).data)
        tensor.raw_index = self._index_of[key][0]

    def describe(self, name: str, shape: Sequence[int] | None, dtype: Any) -> None:
        """Takes shape and dtype only, for an estimate. `shape` None: nothing is taken."""
        if shape is None:
            return
        kind = _wire_dtype(name, np.dtype(dtype))
        if kind is None:
            self._refuse(name, np.dtype(dtype))
        elif not all(hasattr(n, "__index__") for n in shape):
            self.reasons.append(f"{self._method}: {name} shape must be integers, got {list(shape)}")
        elif any(int(n) < 0 for n in shape):
            self.reasons.append(f"{self._method}: {name} shape must be >= 0, got {list(shape)}")
        else:
            self._described(name, kind, shape)

    def _described(self, name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> Any:
        tensor = _proto.Tensor(name=name, dtype=_CODES[dtype], shape=[int(n) for n in shape])
        if name in _IN_LAYOUT and len(shape) == 4:
            tensor.layout = self._layout
        self.tensors.append(tensor)
        return tensor

    def _checked(self, name: str, value: Any) -> Array | None:
        array = np.asarray(value)
        kind = _wire_dtype(name, array.dtype)
        if kind is None:
            self._refuse(name, array.dtype)
            return None
        if kind.kind in "iu" and kind != array.dtype and array.size:
            is_mask = kind == np.uint8
            least, most = (0, 1) if is_mask else (-(2**31), 2**31 - 1)
            low, high = int(array.min()), int(array.max())
            if low < least or high > most:
                rule = "be 0 or 1" if is_mask else "fit int32"
                worst = low if low < least else high
                self.reasons.append(f"{self._method}: {name} must {rule}, got {worst}")
                return None
        return np.asarray(array, dtype=kind, order="C")

    def _refuse(self, name: str, dtype: np.dtype[Any]) -> None:
        hint = ""
        if dtype == np.float64:
            hint = f"; convert it with {name}.astype(np.float32), integers with np.int32"
        self.reasons.append(f"{self._method}: {name} must be {_FLOATS}, got {dtype}{hint}")


def _wire_dtype(name: str, dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """What an array of `dtype` travels as: integers as int32, bool and masks as uint8; None: not
    at all.
    """
    if name in MASKS and dtype.kind in "iu":
        return np.dtype(np.uint8)
    little = dtype.newbyteorder("<") if dtype.byteorder == ">" else dtype
    if little in _CODES:
        return little
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    if dtype.kind in "iu":
        return np.dtype("<i4")
    return None


def arrays_of(tensors: Sequence[Any], raw: Sequence[memoryview]) -> dict[str, Array]:
    """Tensors of a reply by name: read-only views of the reply's bytes. ValueError when malformed.

    A view may lie at any address; NumPy allows for that.
    """
    arrays = {}
    for tensor in tensors:
        dtype = _DTYPES.get(tensor.dtype)
        if dtype is None:
            raise ValueError(f"{tensor.name} has dtype {tensor.dtype}")
        if not tensor.HasField("raw_index") or tensor.raw_index >= len(raw):
            raise ValueError(f"{tensor.name} has no payload")
        payload = raw[tensor.raw_index]
        if payload.nbytes % dtype.itemsize:
            raise ValueError(f"{tensor.name} has {payload.nbytes} bytes")
        arrays[tensor.name] = np.frombuffer(payload, dtype).reshape(tuple(tensor.shape))
    return arrays
