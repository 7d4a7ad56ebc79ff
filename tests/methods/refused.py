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
SPECIFIED = {"state_s": zeros(B, Hkv, D, Dv), "state_z": zeros(B, Hkv, D)}


def common_refusals(options, unserved_tensors, others=("q_lengths", "kv_lengths"),
                    outputs=("out", "lse")):
    """What every method refuses alike. `options` make the good request of this method good; `others`
    are the tensors it takes besides q, k, v, `outputs` those it gives, in its order."""

    def refuse(id, reasons, more=None, **how):
        reasons = [reasons] if isinstance(reasons, str) else reasons
        return Refused(id, options | (more or {}), reasons, **how)

    q, k, v = (good_tensors(False)[name] for name in "qkv")
    taken = ", ".join(("q", "k", "v", *others))
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
        refuse("no-grad", " or ".join(f"grad_{name}" for name in outputs) + " is required, got none",
               backward=True,
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
    if "causal_offset" in others:
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
    for name in sorted(unserved_tensors)[:1]:
        shape = ",".join(str(n) for n in SPECIFIED[name].shape)
        rows.append(refuse("invalid-and-unserved", [
            f"{name} is not served by this version, got [{shape}]", "causal must be a bool, got 3"],
                           {"causal": 3}, change={name: SPECIFIED[name]}))
    return rows


PATTERN_TENSORS = ("q_lengths", "kv_lengths", "causal_offset", "segment_ids_q", "segment_ids_kv",
                   "cu_seqlens_q", "cu_seqlens_k", "bias", "alibi_slopes", "sink_logits")


def pattern_refusals(options):
    """What every method of patterns.md refuses alike."""

    def refuse(id, reasons, more=None, **change):
        reasons = [reasons] if isinstance(reasons, str) else reasons
        return Refused(id, options | (more or {}), reasons, change=change)

    one = {name: x[:1] for name, x in good_tensors(False).items()}  # B = 1
    packed = one | {"cu_seqlens_q": ints(0, 2, Nq), "cu_seqlens_k": ints(0, 7, Nk)}
    ids_q, ids_k = zeros(B, Nq, dtype=INT), zeros(B, Nk, dtype=INT)
    return common_refusals(options, (), PATTERN_TENSORS) + [
        refuse("softcap", "logit_softcap must be >= 0 and <= 1e+30, got -1", {"logit_softcap": -1.0}),
        refuse("alibi", "alibi must be a bool, got 0.5", {"alibi": 0.5}),
        refuse("duplicates", 'duplicates must be one of set, multiset, got "bag"',
               {"duplicates": "bag"}),
        refuse("bias-shape",
               "bias shape must be broadcastable to [B,H,Nq,Nk] with H = 4 and Nk = 7, got [2,3,6,6]",
               bias=zeros(2, 3, 6, 6)),
        refuse("bias-last-dimensions",
               "bias shape must be broadcastable to [B,H,Nq,Nk] with Nk = 7, got [6,6]",
               bias=zeros(6, 6)),
        refuse("bias-dtype", "bias dtype must be float32, got float16",
               bias=zeros(H, Nq, Nk, dtype=np.float16)),
        refuse("bias-dtype-of-q", "bias dtype must be float32 or that of q, float16, got int32",
               **{name: x.astype(np.float16) for name, x in good_tensors(False).items()},
               bias=zeros(Nq, Nk, dtype=INT)),
        refuse("bias-stride", "bias must be dense along its last dimension, got stride 2",
               bias=zeros(Nq, 2 * Nk)[:, ::2]),
        refuse("slopes-shape", "alibi_slopes shape must be [H] or [B,H] with H = 4, got [3]",
               alibi_slopes=zeros(3)),
        refuse("slopes-batch", "alibi_slopes shape must be [H] or [B,H] with B = 2, got [1,4]",
               alibi_slopes=zeros(1, H)),
        refuse("sinks-shape", "sink_logits shape must be [H], got [2,4]", sink_logits=zeros(B, H)),
        refuse("segments-alone",
               "segment_ids_q and segment_ids_kv must be sent together, got segment_ids_kv alone",
               segment_ids_kv=ids_k),
        refuse("segments-shape", "segment_ids_kv shape must be [B,Nk] with Nk = 7, got [2,6]",
               segment_ids_q=ids_q, segment_ids_kv=ids_q),
        refuse("segments-dtype", "segment_ids_q dtype must be int32, got float32",
               segment_ids_q=zeros(B, Nq), segment_ids_kv=ids_k),
        refuse("segments-dense", "segment_ids_q must be dense along its dimensions, got stride 12",
               segment_ids_q=zeros(B, 2 * Nq, dtype=INT)[:, :Nq], segment_ids_kv=ids_k),
        refuse("packed-alone", "cu_seqlens_q and cu_seqlens_k must be sent together, got cu_seqlens_q "
               "alone", **{**packed, "cu_seqlens_k": None}),
        refuse("packed-batch", "B must be 1 with packed sequences, got 2",
               cu_seqlens_q=ints(0, Nq), cu_seqlens_k=ints(0, Nk)),
        refuse("packed-shape", "cu_seqlens_q shape must be [S+1], got [1,2]",
               **packed | {"cu_seqlens_q": ints([0, Nq])}),
        refuse("packed-none", ["cu_seqlens_q must tell of 1 sequence or more, got [1]",
                               "cu_seqlens_k must tell of 1 sequence or more, got [1]"],
               **packed | {"cu_seqlens_q": ints(0), "cu_seqlens_k": ints(0)}),
        refuse("packed-counts", "cu_seqlens_k must tell of as many sequences as cu_seqlens_q, 2, got 1",
               **packed | {"cu_seqlens_k": ints(0, Nk)}),
        refuse("packed-values", [
            "cu_seqlens_q[0] must be 0, got 1", "cu_seqlens_q[2] must be Nq = 6, got 5",
            "cu_seqlens_k[2] must be >= cu_seqlens_k[1] = 8, got 7"],
               **packed | {"cu_seqlens_q": ints(1, 2, 5), "cu_seqlens_k": ints(0, 8, Nk)}),
        refuse("packed-with-others", [
            f"{name} must not be sent with cu_seqlens_q, got {shape}" for name, shape in (
                ("causal_offset", "[1]"), ("q_lengths", "[1]"), ("kv_lengths", "[1]"),
                ("segment_ids_q", "[1,6]"), ("segment_ids_kv", "[1,7]"))],
               **packed, causal_offset=ints(0), q_lengths=ints(1), kv_lengths=ints(1),
               segment_ids_q=ids_q[:1], segment_ids_kv=ids_k[:1]),
    ]
