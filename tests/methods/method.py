"""The description of a method that all tests read. tests/methods/<id>.py ends in one such object,
METHOD; the rest of the module helps to make it."""

import abc
import dataclasses
import typing

import numpy as np

from tests.methods.cases import Case
from tests.methods.golden import Golden
from tests.methods.refused import Refused


class Oracle(abc.ABC):
    """The right answers, in NumPy from the spec. `t`: tensors by name, as cases.tensors makes them;
    `o`: options by name, those at their default left out."""

    @abc.abstractmethod
    def visible(self, t, o):
        """Bools that broadcast to [B,H,Nq,Nk]: which keys a query row sees. Of tensors that are not
        packed."""

    @abc.abstractmethod
    def pairs(self, t, o):
        """How many (head, query, key) are visible, over the batch."""

    def gives_lse(self, o):
        """Whether there is an output lse under these options."""
        return True

    @abc.abstractmethod
    def forward(self, t, o, dtype=np.float64):
        """{"out": [B,H,Nq,Dv]} and, where there is one, "lse" [B,H,Nq] (natural log, -inf where a
        row sees nothing), computed in `dtype`."""

    @abc.abstractmethod
    def backward(self, t, o, dtype=np.float64, store=lambda x: x):
        """Gradients for t's grad_out and grad_lse by input, of the input's shape. `store` rounds
        the out that a backward reads, as code that keeps it in 16 bits would."""

    def constants(self, t, o):
        """Tensors that `forward` takes for values that have no gradient, such as stabilisers:
        finite differences hold them."""
        return {}

    @abc.abstractmethod
    def magnitude(self, t, o):
        """({output or gradient: (sum of absolute values behind each element, the part of it that a
        rounded `out` brings in)}, how much a score amplifies a rounding): see tolerance.py."""


@dataclasses.dataclass(frozen=True)
class Visible:
    """Visible pairs counted by hand, of one head and one sequence."""

    id: str
    Nq: int
    Nk: int
    options: dict
    pairs: int
    made: dict = dataclasses.field(default_factory=dict)  # tensors that decide, as Case.made


@dataclasses.dataclass(frozen=True)
class Growth:
    """A claim: over the length N, time grows like N^time and workspace like N^workspace. `within`:
    how far a measured exponent of time may lie from it; N log N is 1.075 within 0.075."""

    options: dict
    time: float
    workspace: float
    within: float = 0.1


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Method:
    """Right answers of one method, requests to try, and the expected description by the library.
    Methods of the pattern specification are made by pattern_method.py, which fills in what they
    share."""

    # --- the library's description of the method (attnd_methods_json) ---
    id: str
    options: dict[str, str]  # name -> bool, int, ints, float, enum
    tensors: set[str]  # every input, q, k and v among them
    required: frozenset[str] = frozenset("qkv")  # of the tensors
    differentiable: list[str]  # inputs with a gradient, in the library's order
    # Options -> those of them that are constants under these options: no gradient is answered.
    constants: typing.Callable[[dict], frozenset] = lambda options: frozenset()
    always_causal: bool = False  # it has no option for it
    # Outputs besides out and lse, in the library's order.
    outputs: list[str] = dataclasses.field(default_factory=list)
    # Described, but not served: options are refused unless at their default, tensors always.
    unserved_options: frozenset[str] = frozenset()
    unserved_tensors: frozenset[str] = frozenset()
    # Whether a plan gives the number of visible pairs of these tensors and options, segments apart.
    # Elsewhere their values or draws decide, the plan says that it estimates, and a call counts.
    plans_pairs: typing.Callable[[dict, dict], bool] = lambda t, o: True

    # --- right answers ---
    oracle: Oracle
    golden: list[Golden]  # figures that the spec prints
    visible: list[Visible]
    # Public code that computes the same, and its requirements.
    peers: list[str]

    # --- requests that are served ---
    # Each runs forward and backward on every instruction set and dtype it names.
    cases: list[Case]
    # Options under which ragged lists of requests share a batch; the first makes any request of
    # q, k and v good.
    batches: list[dict]
    # The same with more tensors: a batch has the options, floats, made, segments and packing of the
    # case, in sizes of the harness.
    tensor_batches: list[Case] = dataclasses.field(default_factory=list)
    # Whether there must be as many keys as queries.
    square: bool = False
    # Whether q serves as the keys, too, under these options, so that k must not be sent.
    shares_qk: typing.Callable[[dict], bool] = lambda options: False
    # Of q, k and v: those whose values decide which keys rows see, so that a change of one row may
    # change every row of its sequence.
    decides: tuple = ()
    # Whether several query heads may share a kv head; False: H must be Hkv.
    gqa: bool = True
    # A case of any sizes -> the same with options and tensors that suit the sizes.
    fit_options: typing.Callable[[Case], Case] = lambda case: case
    # A case of any sizes -> the same with sizes that suit the options, which one batch must share.
    # None: fit_options leaves the options alike.
    fit_sizes: typing.Callable[[Case], Case] | None = None

    # --- requests that are refused ---
    refused: list[Refused]
    # Tensors besides q, k and v that the valid request of refused.py needs, which `refused` changes.
    good_tensors: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    # --- defaults of `attn compare` ---
    # What `attn compare` sends if the user names no options: option or tensor -> expression of Nq,
    # Nk and the functions of client/python/attnd/cli/presets.py, into which support_table.py writes
    # it. Empty: the defaults of the method will do.
    preset: dict[str, str] = dataclasses.field(default_factory=dict)

    # --- speed ---
    perf: list[dict]  # options that perf.py measures
    growth: list[Growth] = dataclasses.field(default_factory=list)  # tests/bench/growth.py

    @property
    def gradients_of_qkv(self):
        """Those of q, k and v that the method reads."""
        return [name for name in "qkv" if name in self.differentiable]
