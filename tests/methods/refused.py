"""Requests that must be refused, each with its code and its exact words."""

import dataclasses

import numpy as np

INVALID_ARGUMENT, UNIMPLEMENTED = 3, 12
FLOAT, INT = np.float32, np.int32

# The good request that refusals spoil.
B, H, Hkv, Nq, Nk, D, Dv = 2, 4, 2, 6, 7, 3, 5


@dataclasses.dataclass(frozen=True)
class Refused:
    """The good request with these options, its tensors changed by `change`. `reasons` are all lines
    of the answer, without the method's name."""

    id: str
    options: dict
    reasons: list
    code: int = INVALID_ARGUMENT
    change: dict = dataclasses.field(default_factory=dict)  # name -> array, None: not sent
    backward: bool = False
    bnhd: tuple = ()  # names of tensors that are marked as [B,N,H,D]


def zeros(*shape, dtype=FLOAT):
    return np.zeros(shape, dtype)


def good_tensors(backward):
    t = {"q": zeros(B, H, Nq, D), "k": zeros(B, Hkv, Nk, D), "v": zeros(B, Hkv, Nk, Dv)}
    if backward:
        t |= {"grad_out": zeros(B, H, Nq, Dv), "grad_lse": zeros(B, H, Nq)}
    return t


def ints(*values):
    return np.array(values, INT)


# name -> a well-formed tensor of it, for those that some method specifies and this version refuses.
SPECIFIED = {
    "segment_ids_q": zeros(B, Nq, dtype=INT), "segment_ids_kv": zeros(B, Nk, dtype=INT),
    "cu_seqlens_q": ints(0, Nq), "cu_seqlens_k": ints(0, Nk), "bias": zeros(B, H, Nq, Nk),
    "alibi_slopes": zeros(H), "sink_logits": zeros(H), "state_s": zeros(B, Hkv, D, Dv),
    "state_z": zeros(B, Hkv, D),
}


def common_refusals(options, unserved_tensors, offset=True, own=()):
    """What every method refuses alike. `options` make the good request of this method good; `own`
    are tensors that it takes besides q, k, v, their lengths and the offset."""

    def refuse(id, reasons, more=None, **how):
        reasons = [reasons] if isinstance(reasons, str) else reasons
        return Refused(id, options | (more or {}), reasons, **how)

    q, k, v = (good_tensors(False)[name] for name in "qkv")
    taken = ", ".join(["q, k, v, q_lengths, kv_lengths", *(["causal_offset"] if offset else []),
                       *own])
    k16 = k.astype(np.float16)
    rows = [
        refuse("unknown-option", "dropout is not an option of this method, got 0.5",
               {"dropout": 0.5}),
        refuse("option-type", "causal must be a bool, got 3", {"causal": 3}),
        refuse("scale-type", "scale must be a number, got true", {"scale": True}),
        refuse("scale-nan", "scale must be finite, got nan", {"scale": float("nan")}),
        refuse("scale-inf", "scale must be finite, got -inf", {"scale": float("-inf")}),
        refuse("no-q", "q is required, got none", change={"q": None}),
        refuse("nothing", ["q is required, got none", "k is required, got none",
                           "v is required, got none"], change={"q": None, "k": None, "v": None}),
        refuse("rank", "q shape must be [B,H,Nq,D], got [2,6,3]", change={"q": zeros(B, Nq, D)}),
        refuse("k-shape", "k shape must be [B,Hkv,Nk,D] with B = 2 and D = 3, got [1,2,7,4]",
               change={"k": zeros(1, Hkv, Nk, 4)}),
        refuse("v-shape", "v shape must be [B,Hkv,Nk,Dv] with Hkv = 2 and Nk = 7, got [2,1,6,5]",
               change={"v": zeros(B, 1, 6, Dv)}),
        refuse("heads", "H must be a multiple of Hkv, got H = 3 and Hkv = 2",
               change={"q": zeros(B, 3, Nq, D)}),
        refuse("no-heads", "Hkv must be in 1..65536, got 0",
               change={"k": zeros(B, 0, Nk, D), "v": zeros(B, 0, Nk, Dv)}),
        refuse("no-batch", "B must be in 1..65536, got 0",
               change={"q": q[:0], "k": k[:0], "v": v[:0]}),
        refuse("d-0", "D must be in 1..4096, got 0", change={"q": q[..., :0], "k": k[..., :0]}),
        refuse("d-4097", "D must be in 1..4096, got 4097",
               change={"q": zeros(B, H, 1, 4097), "k": zeros(B, Hkv, Nk, 4097)}),
        refuse("dv-0", "Dv must be in 1..4096, got 0", change={"v": v[..., :0]}),
        refuse("dtypes-differ", "k dtype must be that of q, float32, got float16",
               change={"k": k16}),
        refuse("integers", "v dtype must be float32, float16 or bfloat16, got int32",
               change={"v": v.astype(INT)}),
        refuse("layouts-differ", "k layout must be that of q, BHND, got BNHD", bnhd=("k",)),
        refuse("last-stride", "q must be dense along its last dimension, got stride 2",
               change={"q": zeros(B, H, Nq, 2 * D)[..., ::2]}),
        refuse("unknown-tensor", f'tensors must be among {taken}, got "mask"',
               change={"mask": zeros(B, H, Nq, Nk)}),
        refuse("kv-lengths-high", "kv_lengths[1] must be in 0..Nk = 0..7, got 8",
               change={"kv_lengths": ints(7, 8)}),
        refuse("q-lengths-low", "q_lengths[0] must be in 0..Nq = 0..6, got -1",
               change={"q_lengths": ints(-1, 6)}),
        refuse("lengths-shape", "kv_lengths shape must be [B] with B = 2, got [3]",
               change={"kv_lengths": ints(1, 2, 3)}),
        refuse("lengths-dtype", "q_lengths dtype must be int32, got float32",
               change={"q_lengths": zeros(B)}),
        refuse("grad-in-forward", "grad_out is taken by a backward only, got [2,4,6,5]",
               change={"grad_out": zeros(B, H, Nq, Dv)}),
        refuse("no-grad", "grad_out or grad_lse is required, got none", backward=True,
               change={"grad_out": None, "grad_lse": None}),
        refuse("grad-of-nothing", "grad_memory must name one of its outputs, got [2,4,6,5]",
               backward=True, change={"grad_memory": zeros(B, H, Nq, Dv)}),
        refuse("grad-out-shape",
               "grad_out shape must be [B,H,Nq,Dv] with Dv = 5, got [2,4,6,3]", backward=True,
               change={"grad_out": zeros(B, H, Nq, D)}),
        refuse("grad-out-dtype", "grad_out dtype must be that of q, float32, got float16",
               backward=True, change={"grad_out": zeros(B, H, Nq, Dv, dtype=np.float16)}),
        refuse("grad-lse-shape", "grad_lse shape must be [B,H,Nq] with Nq = 6, got [2,4,7]",
               backward=True, change={"grad_lse": zeros(B, H, Nk)}),
        refuse("grad-lse-dtype", "grad_lse dtype must be float32, got float16", backward=True,
               change={"grad_lse": zeros(B, H, Nq, dtype=np.float16)}),
        refuse("all-at-once", [
            "causal must be a bool, got 3", "dropout is not an option of this method, got 1",
            "H must be a multiple of Hkv, got H = 3 and Hkv = 2",
            "k dtype must be that of q, float32, got float16",
            "kv_lengths[0] must be in 0..Nk = 0..7, got 9"],
               {"causal": 3, "dropout": 1},
               change={"q": zeros(B, 3, Nq, D), "k": k16, "kv_lengths": ints(9, 9)}),
    ]
    if offset:
        rows.append(refuse("offset-shape", "causal_offset shape must be [B], got [2,1]",
                           change={"causal_offset": ints([1], [2])}))
    else:
        rows.append(refuse("offset", f'tensors must be among {taken}, got "causal_offset"',
                           change={"causal_offset": ints(0, 0)}))
    for name in sorted(unserved_tensors):
        shape = ",".join(str(n) for n in SPECIFIED[name].shape)
        rows.append(refuse(f"tensor-{name}", f"{name} is not served by this version, got [{shape}]",
                           code=UNIMPLEMENTED, change={name: SPECIFIED[name]}))
    if not unserved_tensors:
        return rows
    # One reason that is the caller's error outweighs what this version lacks.
    name = sorted(unserved_tensors)[0]
    shape = ",".join(str(n) for n in SPECIFIED[name].shape)
    rows.append(refuse("invalid-and-unserved", [
        f"{name} is not served by this version, got [{shape}]", "causal must be a bool, got 3"],
                       {"causal": 3}, change={name: SPECIFIED[name]}))
    return rows
