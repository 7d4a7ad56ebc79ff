"""Requests that must be refused, each with its code and exact text."""

import dataclasses

import numpy as np

INVALID_ARGUMENT, UNIMPLEMENTED = 3, 12
FLOAT, INT = np.float32, np.int32

# The sizes of the valid request that refusals change; Nk = Nq where a method requires it.
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
    values: bool = False  # of index tensors, which only a call looks at: its plan is taken


def zeros(*shape, dtype=FLOAT):
    return np.zeros(shape, dtype)


def qkv(N, heads=Hkv):
    """q, k and v with N keys of so many heads."""
    return {"q": zeros(B, H, Nq, D), "k": zeros(B, heads, N, D), "v": zeros(B, heads, N, Dv)}


def good_tensors(method, backward):
    t = qkv(Nq if method.square else Nk, Hkv if method.gqa else H) | method.good_tensors
    if method.shares_qk(method.batches[0]):
        del t["k"]
    if backward:
        t["grad_out"] = zeros(B, H, Nq, Dv)
    if backward and method.oracle.gives_lse(method.batches[0]):
        t["grad_lse"] = zeros(B, H, Nq)
    return t


def ints(*values):
    return np.array(values, INT)


# name -> a well-formed tensor of it, for those that some method specifies and this version refuses.
SPECIFIED = {"state_s": zeros(B, Hkv, D, Dv), "state_z": zeros(B, Hkv, D)}


def common_refusals(options, unserved_tensors, others=("q_lengths", "kv_lengths"),
                    outputs=("out", "lse"), lacks=()):
    """The refusals of every method. `options` make the good request of this method good;
    `others` are the tensors it takes besides q, k, v, `outputs` those it gives, in its order;
    `lacks` as pattern_refusals has it, and also "scale", "gqa" (H must be Hkv), "q" (v alone is
    required), "k" (the method has no such tensor) and "sent_k" (the good request has none)."""

    def refuse(id, reasons, more=None, **how):
        reasons = [reasons] if isinstance(reasons, str) else reasons
        return Refused(id, options | (more or {}), reasons, **how)

    N = Nq if "cross" in lacks else Nk
    heads = H if "gqa" in lacks else Hkv
    q, k, v = qkv(N, heads).values()
    takes_k, sends_k = "k" not in lacks, not {"k", "sent_k"} & set(lacks)
    taken = ", ".join(name for name in ("q", "k", "v", *others) if name != "k" or takes_k)
    required = "v" if "q" in lacks else "qkv" if sends_k else "qv"
    # A tensor that must be like q, and the same where it is not.
    other = "k" if sends_k else "v"
    half = {other: (k if sends_k else v).astype(np.float16)}

    def sent(**changed):
        return {name: x for name, x in changed.items() if name != "k" or sends_k}

    bad_causal = ("causal is not an option of this method, got 3" if "causal" in lacks
                  else "causal must be a bool, got 3")
    rows = [
        refuse("unknown-option", "dropout is not an option of this method, got 0.5",
               {"dropout": 0.5}),
        refuse("option-type", bad_causal, {"causal": 3}),
        refuse("nothing", [f"{name} is required, got none" for name in required],
               change={"q": None, "k": None, "v": None}),
        refuse("rank", "q shape must be [B,H,Nq,D], got [2,6,3]", change={"q": zeros(B, Nq, D)}),
        refuse("heads", f"H must be a multiple of Hkv, got H = 3 and Hkv = {heads}",
               change={"q": zeros(B, 3, Nq, D)}),
        refuse("no-heads", "Hkv must be in 1..65536, got 0",
               change=sent(k=zeros(B, 0, N, D), v=zeros(B, 0, N, Dv))),
        refuse("no-batch", "B must be in 1..65536, got 0",
               change=sent(q=q[:0], k=k[:0], v=v[:0])),
        refuse("d-0", "D must be in 1..4096, got 0", change=sent(q=q[..., :0], k=k[..., :0])),
        refuse("d-4097", "D must be in 1..4096, got 4097",
               change=sent(q=zeros(B, H, Nq, 4097), k=zeros(B, heads, N, 4097))),
        refuse("dv-0", "Dv must be in 1..4096, got 0", change={"v": v[..., :0]}),
        refuse("dtypes-differ", f"{other} dtype must be that of q, float32, got float16",
               change=half),
        refuse("integers", "v dtype must be float32, float16 or bfloat16, got int32",
               change={"v": v.astype(INT)}),
        refuse("layouts-differ", f"{other} layout must be that of q, BHND, got BNHD",
               bnhd=(other,)),
        refuse("last-stride", "q must be dense along its last dimension, got stride 2",
               change={"q": zeros(B, H, Nq, 2 * D)[..., ::2]}),
        refuse("unknown-tensor", f'tensors must be among {taken}, got "mask"',
               change={"mask": zeros(B, H, Nq, N)}),
        refuse("kv-lengths-high", f"kv_lengths[1] must be in 0..Nk = 0..{N}, got {N + 1}",
               change={"kv_lengths": ints(N, N + 1)}),
        refuse("q-lengths-low", "q_lengths[0] must be in 0..Nq = 0..6, got -1",
               change={"q_lengths": ints(-1, 6)}),
        refuse("lengths-shape", "kv_lengths shape must be [B] with B = 2, got [3]",
               change={"kv_lengths": ints(1, 2, 3)}),
        refuse("lengths-dtype", "q_lengths dtype must be int32, got float32",
               change={"q_lengths": zeros(B)}),
        refuse("grad-in-forward", "grad_out is taken by a backward only, got [2,4,6,5]",
               change={"grad_out": zeros(B, H, Nq, Dv)}),
        refuse("no-grad",
               " or ".join(f"grad_{name}" for name in outputs) + " is required, got none",
               backward=True,
               change={"grad_out": None, "grad_lse": None}),
        refuse("grad-of-nothing", "grad_memory must name one of its outputs, got [2,4,6,5]",
               backward=True, change={"grad_memory": zeros(B, H, Nq, Dv)}),
        refuse("grad-out-shape",
               "grad_out shape must be [B,H,Nq,Dv] with Dv = 5, got [2,4,6,3]", backward=True,
               change={"grad_out": zeros(B, H, Nq, D)}),
        refuse("grad-out-dtype", "grad_out dtype must be that of q, float32, got float16",
               backward=True, change={"grad_out": zeros(B, H, Nq, Dv, dtype=np.float16)}),
        refuse("all-at-once", [
            bad_causal, "dropout is not an option of this method, got 1",
            f"H must be a multiple of Hkv, got H = 3 and Hkv = {heads}",
            f"{other} dtype must be that of q, float32, got float16",
            f"kv_lengths[0] must be in 0..Nk = 0..{N}, got 9"],
               {"causal": 3, "dropout": 1},
               change={"q": zeros(B, 3, Nq, D), **half, "kv_lengths": ints(9, 9)}),
    ]
    if sends_k:
        rows += [
            refuse("k-shape",
                   f"k shape must be [B,Hkv,Nk,D] with B = 2 and D = 3, got [1,{heads},{N},4]",
                   change={"k": zeros(1, heads, N, 4)}),
            refuse("v-shape",
                   f"v shape must be [B,Hkv,Nk,Dv] with Hkv = {heads} and Nk = {N}, got "
                   f"[2,1,{N - 1},5]", change={"v": zeros(B, 1, N - 1, Dv)}),
        ]
    else:
        rows.append(refuse("v-shape", "v shape must be [B,Hkv,Nk,Dv] with B = 2, got "
                           f"[1,{heads},{N},5]", change={"v": zeros(1, heads, N, Dv)}))
    if "scale" in lacks:
        rows.append(refuse("scale", "scale is not an option of this method, got 1", {"scale": 1.0}))
    else:
        rows += [
            refuse("scale-type", "scale must be a number, got true", {"scale": True}),
            refuse("scale-nan", "scale must be finite, got nan", {"scale": float("nan")}),
            refuse("scale-inf", "scale must be finite, got -inf", {"scale": float("-inf")}),
        ]
    if "gqa" in lacks:
        rows.append(refuse("gqa", "Hkv must be H = 4, got 2", change={
            "k": zeros(B, 2, N, D), "v": zeros(B, 2, N, Dv)}))
    if "q" not in lacks:
        rows.append(refuse("no-q", "q is required, got none", change={"q": None}))
    if "lse" in outputs:
        rows += [
            refuse("grad-lse-shape", "grad_lse shape must be [B,H,Nq] with Nq = 6, got [2,4,7]",
                   backward=True, change={"grad_lse": zeros(B, H, Nq + 1)}),
            refuse("grad-lse-dtype", "grad_lse dtype must be float32, got float16", backward=True,
                   change={"grad_lse": zeros(B, H, Nq, dtype=np.float16)}),
        ]
    else:
        rows.append(refuse("grad-lse", "grad_lse must name one of its outputs, got [2,4,6]",
                           backward=True, change={"grad_lse": zeros(B, H, Nq)}))
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
    # An invalid value takes precedence over what this version does not serve.
    for name in sorted(unserved_tensors)[:1]:
        shape = ",".join(str(n) for n in SPECIFIED[name].shape)
        rows.append(refuse("invalid-and-unserved", [
            f"{name} is not served by this version, got [{shape}]", bad_causal],
                           {"causal": 3}, change={name: SPECIFIED[name]}))
    return rows


PATTERN_TENSORS = ("q_lengths", "kv_lengths", "causal_offset", "segment_ids_q", "segment_ids_kv",
                   "cu_seqlens_q", "cu_seqlens_k", "bias", "alibi_slopes", "sink_logits")
# What a method may do without, and the tensors that go with it. "causal" and "alibi" are options,
# "lse" is an output, "cross" is Nq != Nk.
LACKED = {"causal": (), "alibi": ("alibi_slopes",), "sinks": ("sink_logits",), "lse": (),
          "cross": ("causal_offset",), "packed": ("cu_seqlens_q", "cu_seqlens_k")}


def pattern_refusals(options, own=(), lacks=(), pairs="Nq,Nk"):
    """What every method of the pattern specification refuses alike. `own`: its own tensors, in its
    order; `lacks`: keys of LACKED; `pairs`: the last letters of its bias."""

    def refuse(id, reasons, more=None, **change):
        reasons = [reasons] if isinstance(reasons, str) else reasons
        return Refused(id, options | (more or {}), reasons, change=change)

    N = Nq if "cross" in lacks else Nk
    lacked = [name for what in lacks for name in LACKED[what]]
    taken = (*(name for name in PATTERN_TENSORS if name not in lacked), *own)
    half = {name: x.astype(np.float16) for name, x in qkv(N).items()}
    ids_q, ids_k = zeros(B, Nq, dtype=INT), zeros(B, N, dtype=INT)
    bias = f"bias shape must be broadcastable to [B,H,{pairs}]"
    bad_alibi = ("alibi is not an option of this method, got 0.5" if "alibi" in lacks
                 else "alibi must be a bool, got 0.5")
    outputs = ("out",) if "lse" in lacks else ("out", "lse")
    rows = common_refusals(options, (), taken, outputs, lacks)
    rows += [
        refuse("softcap", "logit_softcap must be >= 0 and <= 1e+30, got -1",
               {"logit_softcap": -1.0}),
        refuse("alibi", bad_alibi, {"alibi": 0.5}),
        refuse("duplicates", 'duplicates must be one of set, multiset, got "bag"',
               {"duplicates": "bag"}),
        refuse("bias-heads", f"{bias} with H = 4, got [2,3,6,{N}]", bias=zeros(2, 3, Nq, N)),
        refuse("bias-last-dimensions", f"{bias} with {pairs.split(',')[1]} = {N}, got [6,{N - 1}]",
               bias=zeros(Nq, N - 1)),
        refuse("bias-dtype", "bias dtype must be float32, got float16",
               bias=zeros(H, Nq, N, dtype=np.float16)),
        refuse("bias-dtype-of-q", "bias dtype must be float32 or that of q, float16, got int32",
               **half, bias=zeros(Nq, N, dtype=INT)),
        refuse("bias-stride", "bias must be dense along its last dimension, got stride 2",
               bias=zeros(Nq, 2 * N)[:, ::2]),
        refuse("segments-alone",
               "segment_ids_q and segment_ids_kv must be sent together, got segment_ids_kv alone",
               segment_ids_kv=ids_k),
        refuse("segments-shape", f"segment_ids_kv shape must be [B,Nk] with Nk = {N}, got [2,5]",
               segment_ids_q=ids_q, segment_ids_kv=zeros(B, 5, dtype=INT)),
        refuse("segments-dtype", "segment_ids_q dtype must be int32, got float32",
               segment_ids_q=zeros(B, Nq), segment_ids_kv=ids_k),
        refuse("segments-dense", "segment_ids_q must be dense along its dimensions, got stride 12",
               segment_ids_q=zeros(B, 2 * Nq, dtype=INT)[:, :Nq], segment_ids_kv=ids_k),
    ]
    sent = {"alibi_slopes": zeros(H), "sink_logits": zeros(H), "cu_seqlens_q": ints(0, Nq),
            "cu_seqlens_k": ints(0, N)}
    known = ", ".join(("q", "k", "v", *taken))
    rows += [
        refuse(f"no-{name}", f'tensors must be among {known}, got "{name}"', **{name: sent[name]})
        for name in lacked if name in sent]
    if pairs == "Nq,Nk":
        rows.append(refuse("bias-shape", f"{bias} with H = 4 and Nk = {N}, got [2,3,6,{N - 1}]",
                           bias=zeros(2, 3, Nq, N - 1)))
    if "alibi" not in lacks:
        rows += [
            refuse("slopes-shape", "alibi_slopes shape must be [H] or [B,H] with H = 4, got [3]",
                   alibi_slopes=zeros(3)),
            refuse("slopes-batch", "alibi_slopes shape must be [H] or [B,H] with B = 2, got [1,4]",
                   alibi_slopes=zeros(1, H)),
        ]
    if "sinks" not in lacks:
        rows.append(refuse("sinks-shape", "sink_logits shape must be [H], got [2,4]",
                           sink_logits=zeros(B, H)))
    if "cross" in lacks:
        rows.append(refuse("cross", "Nk must be Nq = 6, got 7", **{
            name: x for name, x in qkv(Nq + 1).items() if name != "q"}))
    return rows + ([] if "packed" in lacks else packed_refusals(refuse, N, "cross" in lacks))


def packed_refusals(refuse, N, square):
    """Refusals of packed sequences. `square`: each has as many queries as keys."""
    one = {name: x[:1] for name, x in qkv(N).items()}  # B = 1
    packed = one | {"cu_seqlens_q": ints(0, 2, Nq), "cu_seqlens_k": ints(0, 2, N)}
    rows = [
        refuse("packed-alone",
               "cu_seqlens_q and cu_seqlens_k must be sent together, got cu_seqlens_q alone",
               **{**packed, "cu_seqlens_k": None}),
        refuse("packed-batch", "B must be 1 with packed sequences, got 2",
               cu_seqlens_q=ints(0, Nq), cu_seqlens_k=ints(0, N)),
        refuse("packed-shape", "cu_seqlens_q shape must be [S+1], got [1,2]",
               **packed | {"cu_seqlens_q": ints([0, Nq])}),
        refuse("packed-none", ["cu_seqlens_q must tell of 1 sequence or more, got [1]",
                               "cu_seqlens_k must tell of 1 sequence or more, got [1]"],
               **packed | {"cu_seqlens_q": ints(0), "cu_seqlens_k": ints(0)}),
        refuse("packed-counts",
               "cu_seqlens_k must tell of as many sequences as cu_seqlens_q, 2, got 1",
               **packed | {"cu_seqlens_k": ints(0, N)}),
        refuse("packed-values", [
            "cu_seqlens_q[0] must be 0, got 1", "cu_seqlens_q[2] must be Nq = 6, got 5",
            f"cu_seqlens_k[2] must be >= cu_seqlens_k[1] = 8, got {N}",
            *(["cu_seqlens_k[0] must be cu_seqlens_q[0] = 1, got 0"] if square else [])],
               **packed | {"cu_seqlens_q": ints(1, 2, 5), "cu_seqlens_k": ints(0, 8, N)}),
    ]
    others = {"causal_offset": ints(0), "q_lengths": ints(1), "kv_lengths": ints(1),
              "segment_ids_q": zeros(1, Nq, dtype=INT), "segment_ids_kv": zeros(1, N, dtype=INT)}
    if square:
        del others["causal_offset"]
        rows.append(refuse("packed-cross", "cu_seqlens_k[1] must be cu_seqlens_q[1] = 2, got 3",
                           **packed | {"cu_seqlens_k": ints(0, 3, N)}))
    shapes = {name: ",".join(str(n) for n in x.shape) for name, x in others.items()}
    return rows + [refuse("packed-with-others", [
        f"{name} must not be sent with cu_seqlens_q, got [{shape}]"
        for name, shape in shapes.items()], **packed, **others)]
