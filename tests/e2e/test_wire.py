"""The client's walker agrees with protobuf on every message, and its payloads are views."""

import random

import ml_dtypes
import numpy as np
import pytest
from attnd import _proto, _spec, _wire
from attnd._arrays import TensorList, arrays_of


def reply(payloads):
    message = _proto.ForwardReply(id="seven", raw=payloads)
    message.stats.device = "cpu"
    message.stats.flops = 1.5
    for index in range(len(payloads)):
        message.tensors.add(name=f"t{index}", raw_index=index)
    return message


@pytest.mark.parametrize("sizes", [[], [0], [1], [0, 127, 128, 0], [16383, 16384, 70000]])
def test_join_is_what_protobuf_reads(sizes):
    payloads = [random.Random(size).randbytes(size) for size in sizes]
    whole = reply(payloads)
    head = _proto.ForwardReply()
    head.CopyFrom(whole)
    head.ClearField("raw")

    message = _wire.join(head, [memoryview(payload) for payload in payloads])

    assert _proto.ForwardReply.FromString(message) == whole


@pytest.mark.parametrize("sizes", [[], [0], [1], [0, 127, 128, 0], [16383, 16384, 70000]])
def test_split_is_what_protobuf_wrote(sizes):
    payloads = [random.Random(size).randbytes(size) for size in sizes]
    whole = reply(payloads)

    head, raw = _wire.split(whole.SerializeToString(), _proto.ForwardReply)

    assert [bytes(payload) for payload in raw] == payloads
    head.raw.extend(payloads)
    assert head == whole


def test_split_takes_fields_in_any_order():
    first = _proto.ForwardReply(raw=[b"a"]).SerializeToString()
    second = _proto.ForwardReply(id="x").SerializeToString()
    third = _proto.ForwardReply(raw=[b"bc"]).SerializeToString()

    head, raw = _wire.split(first + second + third, _proto.ForwardReply)

    assert head.id == "x"
    assert [bytes(payload) for payload in raw] == [b"a", b"bc"]


def test_split_refuses_every_cut_that_protobuf_refuses():
    message = reply([b"abc", b"defgh"]).SerializeToString()
    for size in range(len(message)):
        cut = message[:size]
        try:
            expected = _proto.ForwardReply.FromString(cut)
        except Exception:
            with pytest.raises(ValueError):
                _wire.split(cut, _proto.ForwardReply)
        else:
            head, raw = _wire.split(cut, _proto.ForwardReply)
            assert [bytes(payload) for payload in raw] == list(expected.raw)
            assert head.id == expected.id


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.uint8], ids=str
)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3), (1, 2, 3, 4)], ids=str)
def test_arrays_survive_the_wire_without_copies(dtype, shape):
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape).astype(dtype)
    sent = TensorList("softmax", "BHND")
    sent.add("x", array)
    head = _proto.ForwardReply(tensors=sent.tensors)
    message = _wire.join(head, sent.payloads)

    head, raw = _wire.split(message, _proto.ForwardReply)
    found = arrays_of(head.tensors, raw)["x"]

    assert found.dtype == array.dtype and found.shape == shape
    assert np.array_equal(found, array)
    assert not found.flags.writeable
    assert np.shares_memory(found, np.frombuffer(message, np.uint8)) or found.size == 0


def test_same_array_travels_once_and_other_memory_orders_are_packed():
    base = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    turned = base.transpose(0, 1, 3, 2)
    big_endian = base.astype(">f4")
    sent = TensorList("softmax", "BHND")
    for name, array in {"k": base, "v": base, "q": turned, "w": big_endian}.items():
        sent.add(name, array)

    found = arrays_of(sent.tensors, sent.payloads)

    assert len(sent.payloads) == 3
    assert np.array_equal(found["v"], base)
    assert np.array_equal(found["q"], turned)
    assert np.array_equal(found["w"], base)


def test_integers_become_int32_and_bools_uint8():
    sent = TensorList("softmax", "BHND")
    sent.add("lengths", [3, 4])
    sent.add("small", np.array([1], np.int64))
    sent.add("mask", np.array([True, False]))

    found = arrays_of(sent.tensors, sent.payloads)

    assert {name: str(array.dtype) for name, array in found.items()} == {
        "lengths": "int32",
        "small": "int32",
        "mask": "uint8",
    }


@pytest.mark.parametrize(
    "value, reason",
    [
        (np.zeros(2), "softmax: x must be float32, float16 or ml_dtypes.bfloat16, got float64; "
         "convert it with x.astype(np.float32), integers with np.int32"),
        (np.zeros(2, complex), "got complex128"),
        (np.array(["a"]), "got <U1"),
        (np.array([2**31]), "softmax: x must fit int32, got 2147483648"),
        (np.array([-(2**31) - 1]), "softmax: x must fit int32, got -2147483649"),
    ],
)  # fmt: skip
def test_refused_arrays(value, reason):
    sent = TensorList("softmax", "BHND")
    sent.add("x", value)
    assert len(sent.reasons) == 1 and sent.reasons[0].endswith(reason)
    assert not sent.tensors


@pytest.mark.parametrize(
    "reply_bytes, reason",
    [
        (_proto.ForwardReply(tensors=[_proto.Tensor(name="out", dtype=1)]), "out has no payload"),
        (_proto.ForwardReply(tensors=[_proto.Tensor(name="out", dtype=1, raw_index=3)]),
         "out has no payload"),
        (_proto.ForwardReply(tensors=[_proto.Tensor(name="out", dtype=9, raw_index=0)],
                             raw=[b""]), "out has dtype 9"),
        (_proto.ForwardReply(tensors=[_proto.Tensor(name="out", dtype=1, raw_index=0, shape=[2])],
                             raw=[b"abcd"]), "reshape"),
        (_proto.ForwardReply(tensors=[_proto.Tensor(name="out", dtype=1, raw_index=0, shape=[1])],
                             raw=[b"abc"]), "out has 3 bytes"),
    ],
)  # fmt: skip
def test_malformed_replies(reply_bytes, reason):
    head, raw = _wire.split(reply_bytes.SerializeToString(), _proto.ForwardReply)
    with pytest.raises(ValueError, match=reason):
        arrays_of(head.tensors, raw)


@pytest.mark.parametrize(
    "text, settings, method, options",
    [
        ("softmax", [], "softmax", {}),
        (" local { window_left: 64 causal: true } ", [], "local",
         {"window_left": 64, "causal": True}),
        ("local:{granularity: block, block: 8}", [], "local",
         {"granularity": "block", "block": 8}),
        ("local{window_left:64}", ["window_left=3", "scale = 0.5"], "local",
         {"window_left": 3, "scale": 0.5}),
        ("longformer{dilation:2}", [], "longformer", {"dilation": [2]}),
        ("longformer{dilation:[1,2]}", ["dilation=3"], "longformer", {"dilation": [3]}),
        ("longformer", ["dilation=1,2"], "longformer", {"dilation": [1, 2]}),
    ],
)  # fmt: skip
def test_method_text(text, settings, method, options):
    assert _spec.parse(text, settings) == (method, options)
    assert _spec.parse(_spec.text_of(method, options)) == (method, options)


@pytest.mark.parametrize(
    "text, settings, reason",
    [
        ("softmx", [], "method must be one of softmax, .*, got softmx"),
        ("local{windw_left:3}", [],
         "local: windw_left is not an option of this method, got 3; did you mean window_left"),
        ("local", ["windw_left=3"], "did you mean window_left"),
        ("local{granularity:tokn}", [],
         "local: granularity must be one of token, block, got tokn"),
        ("local{window_left:1.5}", [], "local: options .* cannot be read"),
        ("local{window_left:", [], "method must look like"),
        ("local", ["window_left"], "--set must be NAME=VALUE"),
    ],
)  # fmt: skip
def test_refused_method_text(text, settings, reason):
    with pytest.raises(ValueError, match=reason):
        _spec.parse(text, settings)


@pytest.mark.parametrize(
    "method, options, reasons",
    [
        ("local", {"window_left": np.int64(3), "causal": np.bool_(True), "scale": 1}, []),
        ("local", {"window_left": None}, []),
        ("local", {"causal": 3}, ["local: causal must be a bool, got 3"]),
        ("local", {"window_left": True}, ["local: window_left must be an int, got True"]),
        ("local", {"window_left": 2.0}, ["local: window_left must be an int, got 2.0"]),
        ("local", {"window_left": 2**63}, ["local: window_left must fit 64 bits, got 9"]),
        ("local", {"scale": "x"}, ["local: scale must be a number, got 'x'"]),
        ("local", {"granularity": 1},
         ["local: granularity must be one of token, block, got 1"]),
        ("local", {"widow": 1, "causal": "yes"},
         ["local: widow is not an option of this method, got 1;", "local: causal must be a bool"]),
        ("attention", {}, ["request: method must be one of softmax, "]),
        ("longformer", {"dilation": 2.0},
         ["longformer: dilation must be an int or a list of ints, got 2.0"]),
        ("longformer", {"dilation": True},
         ["longformer: dilation must be an int or a list of ints, got True"]),
        ("longformer", {"dilation": "12"},
         ["longformer: dilation must be an int or a list of ints, got '12'"]),
        ("longformer", {"dilation": [1, 2.5]},
         ["longformer: dilation must be an int or a list of ints, got [1, 2.5]"]),
        ("longformer", {"dilation": 2**63}, ["longformer: dilation must fit 64 bits, got 9"]),
        ("synthesizer", {"components": "dots"},
         ["synthesizer: components must be a list of dense, random, factorized_random, "
          "factorized_dense, dot, got 'dots'"]),
        ("synthesizer", {"components": ["dot", 1]}, ["synthesizer: components must be a list of "]),
    ],
)  # fmt: skip
def test_options(method, options, reasons):
    found = []
    _spec.build(method, options, found)
    assert len(found) == len(reasons)
    for reason, start in zip(found, reasons, strict=True):
        assert reason.startswith(start)


@pytest.mark.parametrize("value", ["dot", ["dot"], ["random", "dot"]], ids=repr)
def test_a_list_of_names_survives_text(value):
    reasons = []
    spec = _spec.build("synthesizer", {"components": value}, reasons)
    assert not reasons
    names = [value] if isinstance(value, str) else value
    assert len(spec.synthesizer.components) == len(names)
    text = _spec.text_of("synthesizer", {"components": names})
    assert _spec.parse(text) == ("synthesizer", {"components": names})
    assert _spec.parse("synthesizer", ["components=" + ",".join(names)])[1] == {"components": names}


@pytest.mark.parametrize("value", [2, np.int64(2), np.array(2), [2], (2,), np.array([2])], ids=repr)
def test_a_list_option_takes_one_int(value):
    reasons = []
    spec = _spec.build("longformer", {"dilation": value}, reasons)
    assert not reasons and list(spec.longformer.dilation) == [2]
