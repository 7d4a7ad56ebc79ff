"""The kernels library in process, through kernels/engine/c_api.h, for any method."""

import ctypes
import dataclasses
import functools
import json
import os
import pathlib
import time

import ml_dtypes
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
CODES = {np.dtype(t): code for code, t in enumerate(
    (np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.uint8))}
TYPES = {code: dtype for dtype, code in CODES.items()}
INTERNAL = 13  # of gRPC
# Where this process says why it ends. What pytest captures of descriptor 2 would be lost:
# conftest.py knows a better one.
last_words = 2
BUILD = "cmake -S kernels -B build/kernels -G Ninja && ninja -C build/kernels attnd_c"


class Refused(Exception):
    """The library refused. `code` is that of gRPC; `reasons` are the lines of the message."""

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.reasons = code, message, message.split("\n")


@functools.cache
def load():
    """The shared library: $ATTND_C_LIB, else the one below build/, build/kernels first."""
    named = os.environ.get("ATTND_C_LIB")
    places = [pathlib.Path(named)] if named else [ROOT / "build/kernels/libattnd_c.so",
                                                  *sorted(ROOT.glob("build/**/libattnd_c.so"))]
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise FileNotFoundError(
            f"no kernels library at {named or 'build/kernels/libattnd_c.so'}. Build it with\n"
            f"  {BUILD}\nor name it in ATTND_C_LIB.")
    lib = ctypes.CDLL(str(found))
    text, pointer, i64, real = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    integer = ctypes.c_int
    declare(lib, "attnd_error", text)
    declare(lib, "attnd_engine_new", pointer, integer, text, integer)
    declare(lib, "attnd_engine_free", None, pointer)
    declare(lib, "attnd_engine_description", text, pointer)
    declare(lib, "attnd_engine_device", text, pointer)
    declare(lib, "attnd_engine_peak_flops", real, pointer)
    declare(lib, "attnd_engine_launches", i64, pointer)
    declare(lib, "attnd_methods_json", text)
    declare(lib, "attnd_call_new", pointer, text, integer)
    declare(lib, "attnd_call_free", None, pointer)
    declare(lib, "attnd_call_bool", None, pointer, text, integer)
    declare(lib, "attnd_call_int", None, pointer, text, i64)
    declare(lib, "attnd_call_uint", None, pointer, text, ctypes.c_uint64)
    declare(lib, "attnd_call_enums", None, pointer, text, ctypes.POINTER(text), integer)
    declare(lib, "attnd_call_ints", None, pointer, text, ctypes.POINTER(i64), integer)
    declare(lib, "attnd_call_float", None, pointer, text, real)
    declare(lib, "attnd_call_enum", None, pointer, text, text)
    declare(lib, "attnd_call_tensor", None, pointer, text, integer, integer, ctypes.POINTER(i64),
            ctypes.POINTER(i64), integer, pointer)
    declare(lib, "attnd_plan", integer, pointer, pointer)
    declare(lib, "attnd_call_workspace_bytes", i64, pointer)
    declare(lib, "attnd_call_estimates_pairs", integer, pointer)
    for name in ("flops", "pairs", "seconds"):
        declare(lib, f"attnd_call_{name}", real, pointer)
    declare(lib, "attnd_call_note", text, pointer, integer)
    declare(lib, "attnd_execute", integer, pointer, ctypes.POINTER(pointer), integer)
    declare(lib, "attnd_peak_workspace_bytes", i64, pointer)
    declare(lib, "attnd_call_output", text, pointer, integer, ctypes.POINTER(integer),
            ctypes.POINTER(integer), ctypes.POINTER(i64), ctypes.POINTER(integer),
            ctypes.POINTER(pointer))
    return lib


def declare(lib, name, result, *arguments):
    function = getattr(lib, name)
    function.restype, function.argtypes = result, arguments


def methods_info():
    """The library's description of its methods: id -> description."""
    described = json.loads(load().attnd_methods_json())
    listed = described["methods"] if isinstance(described, dict) else described
    return {method["id"]: method for method in listed}


@dataclasses.dataclass
class Request:
    """Float tensors of rank 4 are [B,H,N,D] views; `bnhd` names those with memory b, n, h, d."""

    method: str
    tensors: dict
    options: dict = dataclasses.field(default_factory=dict)
    backward: bool = False
    bnhd: tuple = ()  # names of those sent as [B,N,H,D]


@dataclasses.dataclass
class Reply:
    outputs: dict  # name -> array [B,H,N,D] (a view of [B,N,H,D] memory where `bnhd` names it)
    bnhd: set
    planned_bytes: int
    peak_bytes: int  # of the whole batch
    pairs: float
    flops: float
    estimates_pairs: bool  # of the plan: its pairs and FLOPs are estimates
    planned_seconds: float
    seconds: float  # of the whole batch, planning included
    notes: list  # on what is legal and seldom meant


class Engine:
    def __init__(self, isa="", threads=1, poison=True):
        self.lib = load()
        # On a machine with a GPU all tests run there (tests/gpu/run).
        isa = os.environ.get("ATTND_C_DEVICE", isa)
        self.handle = self.lib.attnd_engine_new(threads, isa.encode(), int(poison))
        if not self.handle:
            raise RuntimeError(f"engine {isa}: {self.lib.attnd_error().decode()}")
        self.description = self.lib.attnd_engine_description(self.handle).decode()
        self.device = self.lib.attnd_engine_device(self.handle).decode()
        self.peak_flops = self.lib.attnd_engine_peak_flops(self.handle)

    def launches(self):
        return self.lib.attnd_engine_launches(self.handle)

    def plan(self, request):
        """A Reply without outputs; raises Refused."""
        with Calls(self.lib, [request]) as calls:
            self.check(self.lib.attnd_plan(self.handle, calls.handles[0]))
            return self.reply(calls.handles[0], {}, set(), 0)

    def execute(self, requests):
        """Runs all as one batch; raises Refused. Asserts that no byte of an input has changed."""
        with Calls(self.lib, requests) as calls:
            before = calls.snapshot()
            array = (ctypes.c_void_p * len(requests))(*calls.handles)
            start = time.perf_counter()
            code = self.lib.attnd_execute(self.handle, array, len(requests))
            seconds = time.perf_counter() - start
            assert calls.snapshot() == before, "the call wrote to its inputs"
            self.check(code)
            peak = self.lib.attnd_peak_workspace_bytes(self.handle)
            return [self.reply(h, *self.outputs(h), peak, seconds) for h in calls.handles]

    def check(self, code):
        if code == 0:
            return
        why = self.lib.attnd_error().decode()
        if code == INTERNAL and self.device.startswith("cuda") and "PYTEST_XDIST_WORKER" in os.environ:
            # A device that is lost is lost to this process alone: another one goes on.
            test = os.environ.get("PYTEST_CURRENT_TEST")
            os.write(last_words, f"{test}: the process ends: {why}\n".encode())
            os._exit(1)
        raise Refused(code, why)

    def reply(self, handle, outputs, bnhd, peak, seconds=0.0):
        lib = self.lib
        notes = []
        while note := lib.attnd_call_note(handle, len(notes)):
            notes.append(note.decode())
        return Reply(outputs, bnhd, lib.attnd_call_workspace_bytes(handle), peak,
                     lib.attnd_call_pairs(handle), lib.attnd_call_flops(handle),
                     bool(lib.attnd_call_estimates_pairs(handle)),
                     lib.attnd_call_seconds(handle), seconds, notes)

    def outputs(self, handle):
        """Copies, because the memory is freed with the call."""
        arrays, in_bnhd = {}, set()
        code, rank, bnhd = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        shape, data = (ctypes.c_int64 * 4)(), ctypes.c_void_p()
        while name := self.lib.attnd_call_output(handle, len(arrays), code, rank, shape, bnhd,
                                                 data):
            name, dims = name.decode(), list(shape[: rank.value])
            if bnhd.value and rank.value == 4:
                in_bnhd.add(name)
                dims[1], dims[2] = dims[2], dims[1]
            array = np.zeros(dims, TYPES[code.value])
            if array.nbytes:
                ctypes.memmove(array.ctypes.data, data.value, array.nbytes)
            arrays[name] = array.swapaxes(1, 2) if name in in_bnhd else array
        return arrays, in_bnhd


class Calls:
    """attnd_call objects for the length of a `with`."""

    def __init__(self, lib, requests):
        self.lib, self.requests, self.handles = lib, requests, []

    def __enter__(self):
        self.handles = [self.new(request) for request in self.requests]
        return self

    def __exit__(self, *_):
        for handle in self.handles:
            self.lib.attnd_call_free(handle)

    def new(self, request):
        handle = self.lib.attnd_call_new(request.method.encode(), int(request.backward))
        for name, value in request.options.items():
            self.set_option(handle, name.encode(), value)
        for name, x in request.tensors.items():
            # NumPy gives an array without elements strides of 0.
            strides = x.strides if x.size else np.zeros([max(n, 1) for n in x.shape],
                                                        x.dtype).strides
            steps = [step // x.itemsize for step in strides]
            dims = ctypes.c_int64 * x.ndim
            self.lib.attnd_call_tensor(handle, name.encode(), CODES[x.dtype], x.ndim,
                                       dims(*x.shape), dims(*steps), int(name in request.bnhd),
                                       x.ctypes.data)
        return handle

    def set_option(self, handle, name, value):
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], str):
            names = (ctypes.c_char_p * len(value))(*(x.encode() for x in value))
            return self.lib.attnd_call_enums(handle, name, names, len(value))
        if isinstance(value, (list, tuple)):
            values = (ctypes.c_int64 * len(value))(*value)
            return self.lib.attnd_call_ints(handle, name, values, len(value))
        setter = {bool: "bool", int: "int", float: "float", str: "enum"}[type(value)]
        if setter == "int" and value >= 2**63:
            setter = "uint"
        value = value.encode() if isinstance(value, str) else value
        return getattr(self.lib, f"attnd_call_{setter}")(handle, name, value)

    def snapshot(self):
        """Every byte of the arrays behind the inputs, gaps of strided views included."""
        roots = []
        for request in self.requests:
            for x in request.tensors.values():
                while isinstance(x.base, np.ndarray):
                    x = x.base
                roots.append(x.tobytes())
        return roots
