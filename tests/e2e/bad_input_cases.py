"""Requests that the server must refuse, and the exact texts. Built from stock protobuf messages and
raw bytes, because the Python client refuses to send most of them."""

import dataclasses
import math
import struct

from google.protobuf import text_format
from grpc import StatusCode

import stubs
from server_process import DEVICE

attention, _, methods, tensor = stubs.load()

INVALID = StatusCode.INVALID_ARGUMENT
UNSERVED = StatusCode.UNIMPLEMENTED
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "uint8": 1}


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    message: bytes
    lines: list[str]  # the whole text
    code: StatusCode = INVALID
    rpc: str = "Forward"


@dataclasses.dataclass(frozen=True)
class T:
    """One tensor of a request. Without a payload: zeros, as many as its shape has elements."""

    shape: tuple
    dtype: str | int = "float32"
    payload: bytes | None = None
    layout: int = 0

    def bytes(self):
        if self.payload is not None:
            return self.payload
        return bytes(math.prod(self.shape) * ITEM_BYTES[self.dtype])


def ints(*values):
    return T((len(values),), "int32", struct.pack(f"<{len(values)}i", *values))


QKV = {"q": T((1, 2, 8, 4)), "k": T((1, 1, 8, 4)), "v": T((1, 1, 8, 4))}


def fill(request, tensors):
    for name, t in tensors.items():
        dtype = tensor.DType.Value.Value(t.dtype) if isinstance(t.dtype, str) else t.dtype
        request.tensors.add(name=name, dtype=dtype, shape=t.shape, layout=t.layout)


def build(kind, spec, tensors, edit, fields):
    """A good request of that kind with some tensors replaced (None: left out), then `edit`ed."""
    request = kind(**fields)
    if spec is not None:
        text_format.Parse(spec, request.method)
    sent = {name: t for name, t in (QKV | tensors).items() if t is not None}
    fill(request, sent)
    if kind is not attention.EstimateRequest:
        for index, t in enumerate(sent.values()):
            request.tensors[index].raw_index = index
            request.raw.append(t.bytes())
    if edit is not None:
        edit(request)
    return request.SerializeToString()


def forward(spec="softmax {}", tensors=None, edit=None, **fields):
    return build(attention.ForwardRequest, spec, tensors or {}, edit, fields)


def backward(tensors=None, edit=None, **fields):
    grads = {"grad_out": QKV["q"]} | (tensors or {})
    return build(attention.BackwardRequest, "softmax {}", grads, edit, fields)


def estimate(tensors=None, edit=None, **fields):
    return build(attention.EstimateRequest, "softmax {}", tensors or {}, edit, fields)


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, value):
    """A field that holds bytes."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def number_field(number, value):
    return varint(number << 3) + varint(value)


def same_dims(n, d):
    return {"q": T((1, 2, n, d)), "k": T((1, 1, n, d)), "v": T((1, 1, n, d))}


def twice(request):
    request.tensors.add(name="k", dtype=1, shape=[1, 1, 8, 4], raw_index=1)


def drop_last_payload(request):
    del request.raw[2]


def spec_of(method, *fields):
    """Options that the message types do not declare."""
    return lambda request: getattr(request.method, method).MergeFromString(b"".join(fields))


METHODS = ", ".join(f.name for f in methods.MethodSpec.DESCRIPTOR.oneofs_by_name["method"].fields)
MALFORMED = "message: bytes must be a valid attn.v1.ForwardRequest, got "
MALFORMED_SMALL = (
    "message: bytes must be a valid attn.v1.{}, got a malformed field, or text that is not UTF-8"
)
DTYPES = "float32, float16, bfloat16, int32 or uint8"

SHAPES = [
    Case("rank 3", forward(tensors={"q": T((1, 2, 8))}),
         ["softmax: q shape must be [B,H,Nq,D], got [1,2,8]"]),
    Case("rank 5", forward(tensors={"k": T((1, 1, 1, 8, 4))}),
         ['request: tensor "k" shape must have at most 4 dimensions, got 5']),
    Case("rank 0", forward(tensors={"v": T(())}),
         ["softmax: v shape must be [B,Hkv,Nk,Dv], got []"]),
    Case("batch", forward(tensors={"k": T((2, 1, 8, 4)), "v": T((2, 1, 8, 4))}),
         ["softmax: k shape must be [B,Hkv,Nk,D] with B = 1, got [2,1,8,4]",
          "softmax: v shape must be [B,Hkv,Nk,Dv] with B = 1, got [2,1,8,4]"]),
    Case("head dim", forward("local { window_left: 1 }", {"k": T((1, 1, 8, 5))}),
         ["local: k shape must be [B,Hkv,Nk,D] with D = 4, got [1,1,8,5]"]),
    Case("keys and values", forward("linear_attention {}", {"v": T((1, 2, 9, 4))}),
         ["linear_attention: v shape must be [B,Hkv,Nk,Dv] with Hkv = 1 and Nk = 8, got "
          "[1,2,9,4]"]),
    Case("head counts", forward(tensors={"q": T((1, 3, 8, 4)), "k": T((1, 2, 8, 4)),
                                         "v": T((1, 2, 8, 4))}),
         ["softmax: H must be a multiple of Hkv, got H = 3 and Hkv = 2"]),
    Case("no sequences", forward(tensors={n: T((0, 1, 8, 4)) for n in "qkv"}),
         ["softmax: B must be in 1..65536, got 0"]),
    Case("no heads", forward(tensors={"q": T((1, 0, 8, 4))}),
         ["softmax: H must be in 1..65536, got 0"]),
    Case("no key heads", forward(tensors={"k": T((1, 0, 8, 4)), "v": T((1, 0, 8, 4))}),
         ["softmax: Hkv must be in 1..65536, got 0"]),
    Case("head dim 0", forward(tensors=same_dims(8, 0)),
         ["softmax: D must be in 1..4096, got 0", "softmax: Dv must be in 1..4096, got 0"]),
    Case("head dim 4097", forward(tensors=same_dims(1, 4097)),
         ["softmax: D must be in 1..4096, got 4097", "softmax: Dv must be in 1..4096, got 4097"]),
    Case("negative", forward(tensors={"q": T((1, 2, -8, 4), payload=b"")}),
         ['request: tensor "q" shape must not be negative, got [1,2,-8,4]']),
    Case("overflow", forward(tensors={"q": T((2**62, 2, 2, 2), payload=b"")}),
         ['request: tensor "q" shape must hold at most 1099511627776 bytes, got float32 '
          "[4611686018427387904,2,2,2]"]),
    Case("overflow to 0", forward(tensors={"q": T((2**32, 2**32, 1, 4), payload=b"")}),
         ['request: tensor "q" shape must hold at most 1099511627776 bytes, got float32 '
          "[4294967296,4294967296,1,4]"]),
    Case("overflow beside 0", forward(tensors={"q": T((0, 2**62, 2**62, 4), payload=b"")}),
         ['request: tensor "q" shape must hold at most 1099511627776 bytes, got float32 '
          "[0,4611686018427387904,4611686018427387904,4]"]),
    Case("output overflow",
         estimate({"q": T((1, 1, 2**28, 1), "float32"), "k": T((1, 1, 1, 1)),
                   "v": T((1, 1, 1, 4096))}),
         ["softmax: out size must be at most 1099511627776 bytes, got [1,1,268435456,4096] of "
          "float32"], rpc="Estimate"),
]

DTYPES_AND_LAYOUTS = [
    Case("integer queries", forward(tensors={"q": T((1, 2, 8, 4), "int32")}),
         ["softmax: q dtype must be float32, float16 or bfloat16, got int32"]),
    Case("byte values", forward(tensors={"v": T((1, 1, 8, 4), "uint8")}),
         ["softmax: v dtype must be float32, float16 or bfloat16, got uint8"]),
    Case("mixed dtypes", forward(tensors={"k": T((1, 1, 8, 4), "bfloat16")}),
         ["softmax: k dtype must be that of q, float32, got bfloat16"]),
    Case("no dtype", forward(tensors={"q": T((1, 2, 8, 4), 0, b"")}),
         [f'request: tensor "q" dtype must be {DTYPES}, got unspecified']),
    Case("unknown dtype", forward(tensors={"q": T((1, 2, 8, 4), 64, b"")}),
         [f'request: tensor "q" dtype must be {DTYPES}, got number 64']),
    Case("mixed layouts", forward(tensors={"k": T((1, 8, 1, 4), layout=1)}),
         ["softmax: k layout must be that of q, BHND, got BNHD"]),
    Case("unknown layout", forward(tensors={"q": T((1, 2, 8, 4), layout=2)}),
         ['request: tensor "q" layout must be BHND or BNHD, got number 2']),
]

LENGTHS = [
    Case("too many keys", forward(tensors={"kv_lengths": ints(9)}),
         ["softmax: kv_lengths[0] must be in 0..Nk = 0..8, got 9"]),
    Case("negative length", forward("linear_attention {}", {"kv_lengths": ints(-1)}),
         ["linear_attention: kv_lengths[0] must be in 0..Nk = 0..8, got -1"]),
    Case("segments of other rows",
         forward(tensors={"segment_ids_q": ints(*range(8)), "segment_ids_kv": T((2, 8), "int32")}),
         ["softmax: segment_ids_q shape must be [B,Nq], got [8]",
          "softmax: segment_ids_kv shape must be [B,Nk] with B = 1, got [2,8]"]),
    Case("packed beyond the rows",
         forward(tensors={"cu_seqlens_q": ints(0, 9), "cu_seqlens_k": ints(1, 8)}),
         ["softmax: cu_seqlens_q[1] must be Nq = 8, got 9",
          "softmax: cu_seqlens_k[0] must be 0, got 1"]),
    Case("packed and lengths",
         forward(tensors={"cu_seqlens_q": ints(0, 8), "cu_seqlens_k": ints(0, 8),
                          "kv_lengths": ints(8)}),
         ["softmax: kv_lengths must not be sent with cu_seqlens_q, got [1]"]),
    Case("too many queries", forward("local { window_left: 1 }", {"q_lengths": ints(2**31 - 1)}),
         ["local: q_lengths[0] must be in 0..Nq = 0..8, got 2147483647"]),
    Case("lengths as floats", forward(tensors={"kv_lengths": T((1,))}),
         ["softmax: kv_lengths dtype must be int32, got float32"]),
    Case("two lengths for one row", forward(tensors={"kv_lengths": ints(8, 8)}),
         ["softmax: kv_lengths shape must be [B] with B = 1, got [2]"]),
    Case("lengths of rank 2", forward(tensors={"q_lengths": T((1, 1), "int32")}),
         ["softmax: q_lengths shape must be [B], got [1,1]"]),
    Case("offsets of the wrong size", forward(tensors={"causal_offset": ints(1, 2, 3)}),
         ["softmax: causal_offset shape must be [B] with B = 1, got [3]"]),
    Case("a length cut off", forward(tensors={"kv_lengths": T((1,), "int32", b"abc")}),
         ['request: tensor "kv_lengths" payload must be 4 bytes for int32 [1], got 3']),
]

OPTIONS = [
    Case("unknown option",
         forward("local { window_left: 1 }", edit=spec_of("local", number_field(42, 1))),
         ["local: options must be those of attn.v1.Local, got field 42"]),
    Case("window below -1", forward("local { window_left: -2 }"),
         ["local: window_left must be >= -1, got -2"]),
    Case("two windows", forward("local { window_left: -9223372036854775808 window_right: -3 }"),
         ["local: window_left must be >= -1, got -9223372036854775808",
          "local: window_right must be >= -1, got -3"]),
    Case("no window", forward("local { causal: true }"),
         ["local: window_left is required when granularity is token, got none"]),
    Case("no block", forward("local { granularity: block window_left: 3 }"),
         ["local: block is required when granularity is block, got none"]),
    Case("block 0", forward("local { granularity: block block: 0 look_backward: -1 }"),
         ["local: block must be >= 1, got 0", "local: look_backward must be >= 0, got -1"]),
    Case("chunk size", forward("linear_attention { chunk_size: 1025 }"),
         ["linear_attention: chunk_size must be in 1..1024, got 1025"]),
    Case("negative eps", forward("linear_attention { eps: -1e-6 }"),
         ["linear_attention: eps must be >= 0 and <= 1e+30, got -1e-06"]),
    Case("scale 0", forward("linear_attention { normalize: false scale: 0 }"),
         ["linear_attention: scale must be > 0 and <= 1e+30, got 0"]),
    Case("scale NaN", forward("softmax { scale: nan }"),
         ["softmax: scale must be finite, got nan"]),
    Case("scale inf", forward("local { window_left: 1 scale: inf }"),
         ["local: scale must be finite, got inf"]),
    Case("scale -inf", forward("softmax { scale: -inf }"),
         ["softmax: scale must be finite, got -inf"]),
    Case("negative soft cap", forward("softmax { logit_softcap: -30 }"),
         ["softmax: logit_softcap must be >= 0 and <= 1e+30, got -30"]),
    Case("a state of all keys", forward("linear_attention { return_state: true }"),
         ["linear_attention: return_state needs causal, got causal = false"]),
    Case("dpfp without nu", forward("linear_attention { feature_map: dpfp nu: 0 }"),
         ["linear_attention: nu must be in 1..64, got 0"]),
    Case("dpfp with more than D", forward("linear_attention { feature_map: dpfp nu: 5 }"),
         ["linear_attention: nu must be in 1..D = 1..4, got 5"]),
    Case("unknown enum number", forward("local { window_left: 1 }",
                                        edit=spec_of("local", number_field(1, 7))),
         ['local: granularity must be one of token, block, got "7"']),
]

UNSERVED_FEATURES = [
    Case("a method to come",
         forward(None, edit=lambda r: r.method.MergeFromString(field(1000, b""))),
         [f"request: method must be one of {METHODS}, got number 1000"], UNSERVED),
    Case("an unknown RPC", b"",
         ['request: rpc must be one of this server, got "/attn.v1.AttentionService/Walk"'], UNSERVED,
         rpc="Walk"),
    # With both kinds of reason the caller's error determines the code.
]

TENSORS = [
    Case("no values", forward(tensors={"v": None}), ["softmax: v is required, got none"]),
    Case("no tensors", forward(tensors=dict.fromkeys("qkv")),
         [f"softmax: {name} is required, got none" for name in "qkv"]),
    Case("a tensor of another method", forward("linear_attention {}", {"bias": T((1,))}),
         ['linear_attention: tensors must be among q, k, v, q_lengths, kv_lengths, state_s, state_z, '
          'got "bias"']),
    Case("bias of other keys", forward(tensors={"bias": T((1, 2, 8, 9))}),
         ["softmax: bias shape must be broadcastable to [B,H,Nq,Nk] with Nk = 8, got [1,2,8,9]"]),
    Case("slopes of other heads", forward(tensors={"alibi_slopes": T((3,))}),
         ["softmax: alibi_slopes shape must be [H] or [B,H] with H = 2, got [3]"]),
    Case("sinks of other heads", forward(tensors={"sink_logits": T((3,))}),
         ["softmax: sink_logits shape must be [H] with H = 2, got [3]"]),
    Case("a state of another size",
         forward("linear_attention { causal: true }",
                 {"state_s": T((1, 2, 4, 5)), "state_z": T((1, 1, 5))}),
         ["linear_attention: state_s shape must be [B,Hkv,F,Dv] with Hkv = 1 and Dv = 4, got "
          "[1,2,4,5]",
          "linear_attention: state_z shape must have F = 4, got [1,1,5]"]),
    Case("a name in capitals", forward(tensors={"q": None, "Q": QKV["q"]}),
         ['softmax: tensors must be among q, k, v, q_lengths, kv_lengths, causal_offset, '
          'segment_ids_q, segment_ids_kv, cu_seqlens_q, cu_seqlens_k, bias, alibi_slopes, '
          'sink_logits, got "Q"',
          "softmax: q is required, got none"]),
    Case("a gradient in a forward", forward(tensors={"grad_out": T((1, 2, 8, 4))}),
         ["softmax: grad_out is taken by a backward only, got [1,2,8,4]"]),
    Case("no gradient", backward({"grad_out": None}),
         ["softmax: grad_out or grad_lse is required, got none"], rpc="Backward"),
    Case("a gradient of nothing", backward({"grad_memory": T((1,))}),
         ["softmax: grad_memory must name one of its outputs, got [1]"], rpc="Backward"),
    Case("gradient shapes", backward({"grad_out": T((1, 2, 8, 5)), "grad_lse": T((1, 2, 9))}),
         ["softmax: grad_lse shape must be [B,H,Nq] with Nq = 8, got [1,2,9]",
          "softmax: grad_out shape must be [B,H,Nq,Dv] with Dv = 4, got [1,2,8,5]"],
         rpc="Backward"),
    Case("gradient dtypes", backward({"grad_out": T((1, 2, 8, 4), "float16"),
                                      "grad_lse": T((1, 2, 8), "float16")}),
         ["softmax: grad_lse dtype must be float32, got float16",
          "softmax: grad_out dtype must be that of q, float32, got float16"], rpc="Backward"),
    Case("a tensor sent twice", forward(edit=twice),
         ['request: tensor "k" must be sent at most once, got 2']),
    Case("a tensor without name", forward(tensors={"": T((1,))}),
         ['request: tensors[3] name must be 1 to 64 letters, digits or _, got ""']),
    Case("a long name", forward(tensors={"x" * 65: T((1,))}),
         ["request: tensors[3] name must be 1 to 64 letters, digits or _, got "
          f'"{"x" * 64}..."']),
    Case("a name that is no name", forward(tensors={"q\n\u00e9": T((1,))}),
         ["request: tensors[3] name must be 1 to 64 letters, digits or _, got "
          r'"q\n\303\251"']),
    Case("300 tensors", forward(tensors={f"t{i}": T((0,)) for i in range(297)}),
         ["request: tensors must be at most 256, got 300"]),
]

PAYLOADS = [
    Case("short", forward(tensors={"q": T((1, 2, 8, 4), payload=bytes(255))}),
         ['request: tensor "q" payload must be 256 bytes for float32 [1,2,8,4], got 255']),
    Case("long", forward(tensors={"k": T((1, 1, 8, 4), "float16", bytes(65)),
                                  "q": T((1, 2, 8, 4), "float16"),
                                  "v": T((1, 1, 8, 4), "float16")}),
         ['request: tensor "k" payload must be 64 bytes for float16 [1,1,8,4], got 65']),
    Case("none", forward(tensors={"v": T((1, 1, 8, 4), payload=b"")}),
         ['request: tensor "v" payload must be 128 bytes for float32 [1,1,8,4], got 0']),
    Case("index beyond the end", forward(edit=drop_last_payload),
         ['request: tensor "v" raw_index must be below the number of payloads 2, got 2']),
    Case("no index", forward(edit=lambda r: r.tensors[2].ClearField("raw_index")),
         ['request: tensor "v" raw_index must be set, got none',
          "request: raw[2] must belong to a tensor, got 128 bytes that none refers to"]),
    Case("payload without a tensor", forward(edit=lambda r: r.raw.append(b"12345")),
         ["request: raw[3] must belong to a tensor, got 5 bytes that none refers to"]),
    Case("payload of an estimate", estimate(edit=lambda r: setattr(r.tensors[0], "raw_index", 0)),
         ['request: tensor "q" raw_index must not be set in an estimate but of lengths, offsets and '
          'cu_seqlens, got 0'], rpc="Estimate"),
]

ENVELOPE = [
    Case("empty message", b"", [f"request: method must be one of {METHODS}, got none"]),
    Case("no method", forward(None), [f"request: method must be one of {METHODS}, got none"]),
    Case("empty method", forward(None, edit=lambda r: r.method.SetInParent()),
         [f"request: method must be one of {METHODS}, got none"]),
    Case("long id", forward(id="x" * 257), ["request: id must be at most 256 bytes, got 257"]),
    Case("priority", forward(priority=101), ["request: priority must be -100..100, got 101"]),
    Case("lowest priority", forward(priority=-(2**31)),
         ["request: priority must be -100..100, got -2147483648"]),
    Case("device", forward(device="cuda:9"),
         [f'request: device must be {DEVICE} or empty, got "cuda:9"']),
    Case("unknown field", forward() + field(99, b"x"),
         ["request: fields must be those of attn.v1.ForwardRequest, got field 99"]),
    Case("field 15 as a number", forward() + number_field(15, 1),
         ["request: fields must be those of attn.v1.ForwardRequest, got field 15"]),
    Case("unknown tensor field",
         forward(edit=lambda r: r.tensors[1].MergeFromString(number_field(6, 1))),
         ['request: tensor "k" fields must be those of attn.v1.Tensor, got field 6']),
    Case("two methods", forward(edit=lambda r: r.method.MergeFromString(field(35, b""))),
         ["request: method fields must be those of attn.v1.MethodSpec, got field 35"]),
    Case("everything at once",
         forward("local { window_left: -5 }",
                 {"q": T((1, 2, 8, 4), payload=b"xy"), "kv_lengths": ints(77)},
                 priority=-101) + number_field(50, 3),
         ["request: fields must be those of attn.v1.ForwardRequest, got field 50",
          "request: priority must be -100..100, got -101",
          'request: tensor "q" payload must be 256 bytes for float32 [1,2,8,4], got 2',
          "local: window_left must be >= -1, got -5",
          "local: kv_lengths[0] must be in 0..Nk = 0..8, got 77"]),
]

MESSAGES = [
    Case("noise", b"\xff\xfe\xfd\xfc\xfb\xfa",
         [MALFORMED + "a tag that is cut off or too long in the field at byte 0"]),
    Case("cut in a payload", forward()[:-1],
         [MALFORMED + f"a field that is cut off in the field at byte {len(forward()) - 131}"]),
    Case("cut in a tag", forward() + b"\x80",
         [MALFORMED + f"a tag that is cut off or too long in the field at byte {len(forward())}"]),
    Case("longer than itself", field(15, b"")[:1] + varint(2**40),
         [MALFORMED + "a length that is cut off or too large in the field at byte 0"]),
    Case("field number 0", forward() + b"\x00",
         [MALFORMED + f"field number 0 in the field at byte {len(forward())}"]),
    Case("a group without end", forward() + varint(20 << 3 | 3),
         [MALFORMED + f"a group without end in the field at byte {len(forward())}"]),
    Case("malformed inside", field(3, b"\xff"),
         [MALFORMED + "a malformed field inside a field, or text that is not UTF-8"]),
    Case("not UTF-8", field(1, b"\xff\xff"),
         [MALFORMED + "a malformed field inside a field, or text that is not UTF-8"]),
    Case("a head of 300 KB", forward() + field(99, bytes(300_000)),
         ["message: everything but raw must fit in 262144 bytes, got more"]),
    Case("2000 payloads", forward() + 2000 * field(15, b""),
         ["message: raw must have at most 1024 entries, got more"]),
    Case("malformed backward", b"\x07",
         ["message: bytes must be a valid attn.v1.BackwardRequest, got field number 0 in the field "
          "at byte 0"], rpc="Backward"),
    Case("malformed estimate", b"\xff", [MALFORMED_SMALL.format("EstimateRequest")],
         rpc="Estimate"),
    Case("malformed question", b"\xff", [MALFORMED_SMALL.format("ServerInfoRequest")],
         rpc="ServerInfo"),
]

CASES = [*SHAPES, *DTYPES_AND_LAYOUTS, *LENGTHS, *OPTIONS, *UNSERVED_FEATURES, *TENSORS, *PAYLOADS,
         *ENVELOPE, *MESSAGES]
