"""The description of a test case, and its tensors: drawn, rounded, laid out, poisoned."""

import dataclasses
import zlib

import ml_dtypes
import numpy as np

DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
ALL = tuple(DTYPES)
# The tensors that a case lays out: [B,H,N,D], in memory order b, h, n, d or b, n, h, d.
LAID_OUT = ("q", "k", "v", "grad_out", "q_global", "k_global", "v_global")
# Half of a unit in the last place, relative: the error of one rounding to nearest.
UNIT = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
TINY = {"f32": 2.0**-126, "f16": 2.0**-14, "bf16": 2.0**-126}


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One request of one method. `ints` are the int32 tensors [B]; rows of q, k and v at and beyond
    q_lengths and kv_lengths, and those whose segment id is negative, hold NaN, always."""

    id: str
    B: int = 1
    H: int = 2
    Hkv: int = 0  # 0: H
    Nq: int = 65
    Nk: int = -1  # -1: Nq
    D: int = 16
    Dv: int = 0  # 0: D
    options: dict = dataclasses.field(default_factory=dict)
    ints: dict = dataclasses.field(default_factory=dict)
    # Float tensors by name, each shape in letters of this case: {"bias": "1,H,Nq,Nk"}.
    floats: dict = dataclasses.field(default_factory=dict)
    # Other tensors by name, each a function(rng, case) -> array: integers keep their dtype, floats
    # get that of `floats`. A name that begins with "grad_" is sent with a backward only.
    made: dict = dataclasses.field(default_factory=dict)
    wide_floats: bool = False  # floats are float32 for any dtype of q
    hidden_bias: bool = False  # a third of bias is -inf
    far_floats: bool = False  # some of bias and all sinks are beyond +-2.3e38
    hidden_channels: bool = False  # every third of k is -inf in its first rows and in others
    segments: str = ""  # ids of segments and padding: "runs", "mixed" or "ends"
    packed: int = 0  # number of packed sequences, empty ones among them; B = 1
    layout: str = "BHND"
    strided: bool = False  # gaps of NaN between heads, tokens and rows; odd alignment
    spread: float = 1.0  # standard deviation of q and k
    shift: float = 0.0  # mean of q and k
    v_scale: float = 1.0  # standard deviation of v
    dtypes: tuple = ("f32",)
    backward: bool = True
    grad_lse: bool = True
    absent: tuple = ()  # of q and k: not sent
    out_dim: int = 0  # last size of out; 0: Dv
    out_rows: int = 0  # rows of out and lse, which are no queries; 0: Nq
    # False where one rounding of a score or of lse is as large as the weights, so that chance
    # decides which code is nearer; and where sums have thousands of terms, which NumPy adds in
    # pairs.
    ratio: bool = True

    @property
    def heads_kv(self):
        return self.Hkv or self.H

    @property
    def keys(self):
        return self.Nq if self.Nk < 0 else self.Nk

    def shape_of(self, letters):
        sizes = {"B": self.B, "H": self.H, "Hkv": self.heads_kv, "Nq": self.Nq, "Nk": self.keys,
                 "D": self.D, "Dv": self.Dv or self.D}
        return tuple(sizes[x] if x in sizes else int(x) for x in letters.split(","))

    def with_length(self, Nq, Nk=None, suffix=""):
        Nk = Nq if Nk is None else Nk
        return dataclasses.replace(self, Nq=Nq, Nk=Nk, id=f"{self.id}{suffix}")


def place(array, layout="BHND", strided=False):
    """The same values in the given memory order, as a [B,H,N,D] view."""
    if layout == "BNHD":
        return place(array.swapaxes(1, 2), "BHND", strided).swapaxes(1, 2)
    if not strided:
        return np.array(array, order="C", copy=True)
    outer = tuple(n + extra for n, extra in zip(array.shape, (0, 1, 2, 3)))
    flat = np.full(int(np.prod(outer)) + 1, np.nan, array.dtype)
    view = flat[1:].reshape(outer)[tuple(slice(0, n) for n in array.shape)]
    view[...] = array
    return view


def fill_padding(array, lengths):
    """NaN beyond the length of each sequence."""
    for b, n in enumerate(lengths if lengths is not None else []):
        array[b, :, n:] = np.nan
    return array


def segment_ids(rng, case, N):
    """[B,N] ids 0..3, -1 for padding: in runs, or token by token; "ends": up to those of int32."""
    ids = rng.integers(-1, 4, (case.B, N))
    if case.segments == "ends":
        return np.array([0, 1, 2**31 - 2, 2**31 - 1, -(2**31)], np.int32)[ids]
    return (np.sort(ids, axis=1) if case.segments == "runs" else ids).astype(np.int32)


def sequence_ends(rng, case, N):
    """cu_seqlens of case.packed sequences; the first is empty if there are three or more."""
    cuts = np.sort(rng.integers(0, N + 1, case.packed - 1))
    cuts[:1] = 0 if case.packed >= 3 else cuts[:1]
    return np.concatenate([[0], cuts, [N]]).astype(np.int32)


def pattern_ints(rng, case):
    """Segments and packed sequences; self-attention has them once for queries and keys."""
    made = {}
    same = case.Nq == case.keys
    if case.segments:
        made["segment_ids_q"] = segment_ids(rng, case, case.Nq)
        made["segment_ids_kv"] = (made["segment_ids_q"].copy() if same
                                  else segment_ids(rng, case, case.keys))
    if case.packed:
        made["cu_seqlens_q"] = sequence_ends(rng, case, case.Nq)
        made["cu_seqlens_k"] = (made["cu_seqlens_q"].copy() if same
                                else sequence_ends(rng, case, case.keys))
    return made


def float_tensors(rng, case, storage):
    """The tensors of case.floats: biases around 0, slopes and sinks of their usual size."""
    made = {}
    for name, letters in case.floats.items():
        x = rng.standard_normal(case.shape_of(letters))
        if name == "alibi_slopes":
            x = abs(x) / 4
        if name == "bias" and case.hidden_bias:
            x = np.where(rng.random(x.shape) < 1 / 3, -np.inf, x)
        if name == "bias" and case.far_floats:
            x[..., ::4, :] = x[..., 2::8, ::3] = np.finfo(np.float32).min
            x[..., 6::8, 5] = 3e38
        if name == "sink_logits" and case.far_floats:
            x = np.resize([2.5e38, np.finfo(np.float32).min], x.shape)
        made[name] = x.astype(np.float32 if case.wide_floats else storage)
    return made


def made_tensors(rng, case, storage):
    """The tensors of case.made. Those of the rank and layout of q are placed as q is."""
    made = {}
    for name, make in case.made.items():
        x = make(rng, case)
        if name.startswith("grad_"):
            x = x.astype(np.float32)
        elif x.dtype.kind == "f":
            x = x.astype(np.float32 if case.wide_floats and name not in LAID_OUT else storage)
        made[name] = place(x, case.layout, case.strided) if name in LAID_OUT else x
    return made


def tensors(case, dtype, gradients=False):
    """name -> array of a case; with `gradients` also grad_out and, if the case has it, grad_lse."""
    rng = np.random.default_rng(zlib.crc32(case.id.encode()))
    storage = DTYPES[dtype]
    Dv = case.Dv or case.D
    shapes = {
        "q": (case.B, case.H, case.Nq, case.D),
        "k": (case.B, case.heads_kv, case.keys, case.D),
        "v": (case.B, case.heads_kv, case.keys, Dv),
        "grad_out": (case.B, case.H, case.out_rows or case.Nq, case.out_dim or Dv),
        "grad_lse": (case.B, case.H, case.out_rows or case.Nq),
    }
    drawn = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    for name in "qk":
        drawn[name] = case.spread * drawn[name] + case.shift
    if case.hidden_channels:
        drawn["k"][:, :, :3, ::3] = drawn["k"][:, :, 4::5, ::3] = -np.inf
    drawn["v"] *= case.v_scale
    ints = {name: np.array(value, np.int32) for name, value in case.ints.items()}
    fill_padding(drawn["q"], ints.get("q_lengths"))
    for name in () if case.out_rows else ("grad_out", "grad_lse"):
        fill_padding(drawn[name], ints.get("q_lengths"))
    fill_padding(drawn["k"], ints.get("kv_lengths"))
    fill_padding(drawn["v"], ints.get("kv_lengths"))
    more = float_tensors(rng, case, storage)
    ints |= pattern_ints(rng, case)
    for names, ids in (("q", "segment_ids_q"), ("kv", "segment_ids_kv")):
        for name in names if ids in ints else "":
            drawn[name][np.broadcast_to((ints[ids] < 0)[:, None], drawn[name].shape[:3])] = np.nan
    made = {
        name: place(drawn[name].astype(storage), case.layout, case.strided)
        for name in ("q", "k", "v") + (("grad_out",) if gradients else ())
        if name not in case.absent
    }
    if gradients and case.grad_lse:
        made["grad_lse"] = drawn["grad_lse"].astype(np.float32)
    made |= more | ints | made_tensors(rng, case, storage)
    return {name: x for name, x in made.items() if gradients or not name.startswith("grad_")}


def ints(t, name, b, absent):
    """Element b of an int32 [B] tensor that may be missing."""
    return int(t[name][b]) if name in t else absent
