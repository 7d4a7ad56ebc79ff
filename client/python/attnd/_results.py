"""The results of the client's calls."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from attnd._arrays import Array

T = TypeVar("T")


@dataclass(frozen=True)
class Stats:
    """The cost of a request. The phases do not overlap."""

    queue_seconds: float
    gather_seconds: float
    compute_seconds: float  # of the whole batch it ran in
    answer_seconds: float
    batch_requests: int
    batch_tokens: int
    peak_workspace_bytes: int  # highest memory while the batch ran; outputs counted, inputs not
    visible_pairs: float  # (b, h, i, j) that see each other
    flops: float
    device: str


@dataclass(frozen=True)
class ForwardResult:
    """out is [B,H,Nq,Dv] in q's dtype and layout, lse is [B,H,Nq] float32 (natural log) or None
    where the method has none, tensors holds the method's other outputs.

    Arrays are read-only views of the reply; np.array(r.out) makes one to write to.
    """

    out: Array
    lse: Array | None
    tensors: dict[str, Array]
    stats: Stats
    notes: tuple[str, ...] = ()  # on what is legal and seldom meant; each is warned of once, too


@dataclass(frozen=True)
class BackwardResult:
    """Gradients, each of its tensor's dtype and shape; None for a tensor that was not sent.

    tensors holds those of tensors other than q, k, v. Arrays are read-only views of the reply.
    """

    q: Array | None
    k: Array | None
    v: Array | None
    tensors: dict[str, Array]
    stats: Stats
    notes: tuple[str, ...] = ()  # as in ForwardResult


@dataclass(frozen=True)
class Estimate:
    """The cost of a request, without its data."""

    seconds: float  # predicted compute time, alone on an idle device
    flops: float
    visible_pairs: float
    workspace_bytes: int  # upper bound of Stats.peak_workspace_bytes
    input_bytes: int
    output_bytes: int
    device: str
    notes: tuple[str, ...] = ()  # of the request itself: as in ForwardResult
    refusals: tuple[str, ...] = ()  # why the server would refuse the request; empty: it would not


@dataclass(frozen=True)
class OptionInfo:
    name: str
    type: str  # "bool", "int", "float", "enum", "ints", "enums"
    default_value: str  # as text: "false", "1/sqrt(D)", "required"
    range: str
    enum_values: tuple[str, ...]
    help: str
    served: bool  # false: specified, refused by this server


@dataclass(frozen=True)
class TensorInfo:
    name: str
    shape: str  # "[B,H,Nq,D]"
    dtype: str  # "float" is the dtype of q
    help: str
    required: bool
    differentiable: bool
    served: bool


@dataclass(frozen=True)
class Support:
    causal: bool
    lengths: bool  # q_lengths, kv_lengths
    cross: bool  # Nq != Nk
    gqa: bool
    lse: bool
    backward: bool
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True)
class MethodInfo:
    id: str
    summary: str
    reference: str
    cost: str
    options: tuple[OptionInfo, ...]
    tensors: tuple[TensorInfo, ...]  # what it takes
    outputs: tuple[TensorInfo, ...]
    support: Support

    def shares_qk(self, options: Mapping[str, Any] | None = None) -> bool:
        """Whether q serves as the keys, too, under these options: k must not be sent."""
        if all(tensor.name != "k" for tensor in self.tensors):
            return True
        default = next((o.default_value for o in self.options if o.name == "shared_qk"), "false")
        sent = (options or {}).get("shared_qk")
        return default == "true" if sent is None else bool(sent)


@dataclass(frozen=True)
class SelfTest:
    """One primitive with one dtype on one device, against the processor when the server started."""

    primitive: str
    dtype: str
    launches: int  # that were compared
    worst_error: float  # largest difference, in parts of the largest number of its tensor
    failure: str  # why it is switched off; empty: it agrees
    declined: bool  # the device leaves it to other primitives


@dataclass(frozen=True)
class DeviceInfo:
    name: str
    description: str
    peak_flops: float  # of the processor in float32; of a CUDA device of its tensor cores
    bytes_per_second: float
    self_test_seconds: float = 0.0
    self_tests: tuple[SelfTest, ...] = field(default=())  # empty: nothing had to be proven


@dataclass(frozen=True)
class ServerInfo:
    version: str
    uptime_seconds: float
    max_message_bytes: int
    budget_bytes: int
    max_queue_requests: int
    devices: tuple[DeviceInfo, ...] = field(default=())
    note: str = ""  # why a device that was asked for is missing, or a part of one
    unusable_devices: tuple[str, ...] = ()  # that the driver has and that serve nothing


def from_message(kind: type[T], message: Any, **given: Any) -> T:
    """A dataclass from the fields of equal name; `given` are those that need more than a copy."""
    values = dict(given)
    for f in fields(kind):  # type: ignore[arg-type]
        if f.name not in values:
            value = getattr(message, f.name)
            scalar = isinstance(value, (bool, int, float, str))
            values[f.name] = value if scalar else tuple(value)
    return kind(**values)


def method_info(message: Any) -> MethodInfo:
    return from_message(
        MethodInfo,
        message,
        options=tuple(from_message(OptionInfo, o) for o in message.options),
        tensors=tuple(from_message(TensorInfo, t) for t in message.inputs),
        outputs=tuple(from_message(TensorInfo, t) for t in message.outputs),
        support=from_message(Support, message.support),
    )


def _device_info(message: Any) -> DeviceInfo:
    tests = tuple(from_message(SelfTest, test) for test in message.self_tests)
    return from_message(DeviceInfo, message, self_tests=tests)


def server_info(message: Any) -> ServerInfo:
    devices = tuple(_device_info(device) for device in message.devices)
    return from_message(ServerInfo, message, devices=devices)
