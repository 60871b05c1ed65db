"""Nodes of every ONNX operator that gossamer computes, with attributes and inputs at and beyond
their bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.shape_inference import InferenceError, infer_shapes

from gossamer.model.readers.onnx.reader import NEWEST_OPSET

needs_onnx = pytest.mark.skipif(
    tuple(map(int, onnx.__version__.split(".")[:2])) < (1, 23),
    reason="shape inference of older versions of onnx ends the process at some malformed nodes")
Argument = tuple[int, ...] | np.ndarray | np.generic | None
"""An input: the shape of a float32 value that the data decide, a constant, or none."""

RANKS: tuple[tuple[int, ...], ...] = (
    (), (3,), (0,), (2, 3), (2, 1, 3), (1, 4, 5), (2, 4, 5, 6), (0, 4, 5, 6), (2, 0, 5, 6),
    (2, 4, 1, 1), (2, 4, 5, 6, 3))
"""Shapes that the first input of each operator is given."""
DTYPE = "dtype"
"""The key of `more` that names the dtype of the first input."""
_INTS = onnx.AttributeProto.INTS
DTYPES = ("int64", "bool", "uint8", "float64")


@dataclass(frozen=True)
class Operator:
    """How an operator is drawn.

    opsets: versions of ONNX at which its meaning changed, the one of most cases first.
    inputs, attributes: those of a node that is right.
    values: for each attribute the values that it is given in place of that of `attributes`.
    more: further pairs of inputs (None for those above) and attributes.
    outputs: the number of its outputs.
    ranks: whether its first input is given each of RANKS.
    dtype: that of its inputs.
    """

    opsets: tuple[int, ...]
    inputs: Sequence[Argument]
    attributes: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Sequence[Any]] = field(default_factory=dict)
    more: Sequence[tuple[Sequence[Argument] | None, dict[str, Any]]] = ()
    outputs: int = 1
    ranks: bool = True
    dtype: str = "float32"


def made(op: str, opset: int, inputs: Sequence[Argument], attributes: dict[str, Any], *,
         outputs: int = 1, at_run_time: int | None = None, dtype: str = "float32"
         ) -> onnx.ModelProto:
    """Returns a network of one node, whose outputs are declared with the types that ONNX infers.

    op: name of the operator, behind its domain and a point where that is not ONNX's own.
    at_run_time: number of a constant that the data decide instead.
    dtype: that of the values that the data decide. The first dimension of the first input is open;
    its name is N and the size that it has in the case.
    """
    names, infos, constants = [], [], []
    for index, argument in enumerate(inputs):
        if isinstance(argument, np.generic):
            argument = np.asarray(argument)
        names.append("" if argument is None else f"x{index}")
        if isinstance(argument, np.ndarray) and index != at_run_time:
            constants.append(numpy_helper.from_array(argument, names[-1]))
        elif argument is not None:
            kind = argument.dtype if isinstance(argument, np.ndarray) else np.dtype(dtype)
            shape: list[int | str] = list(
                argument.shape if isinstance(argument, np.ndarray) else argument)
            if not index and shape and isinstance(argument, tuple):
                shape[0] = f"N{shape[0]}"
            infos.append(helper.make_tensor_value_info(
                names[-1], helper.np_dtype_to_tensor_dtype(kind), shape))
    results = [f"y{index}" for index in range(outputs)]
    domain, _, op = op.rpartition(".")
    node = helper.make_node(op, names, results, "n", domain=domain)
    node.attribute.extend(
        helper.make_attribute(key, value, attr_type=None if value != [] else
                              _lists(op, opset).get(key, int(_INTS)))
        for key, value in attributes.items())
    declared = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None)
                for name in results]
    model = helper.make_model(helper.make_graph([node], "g", infos, declared, constants),
                              opset_imports=[helper.make_opsetid("", opset),
                                             helper.make_opsetid("com.microsoft", 1)], ir_version=8)
    with suppress(InferenceError):
        model = infer_shapes(model)
    for info in model.graph.output:
        info.type.tensor_type.ClearField("shape")
        info.type.tensor_type.elem_type = info.type.tensor_type.elem_type or TensorProto.FLOAT
    return model


def _lists(op: str, opset: int) -> dict[str, int]:
    """Returns the attributes of an operator of ONNX that are lists of numbers, with their types."""
    if not onnx.defs.has(op, opset):
        return {}
    attributes = onnx.defs.get_schema(op, opset).attributes
    return {name: int(entry.type) for name, entry in attributes.items()
            if int(entry.type) in (_INTS, onnx.AttributeProto.FLOATS)}


def cases(name: str, operator: Operator) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yields the cases of an operator: each opset, each attribute and each input changed alone,
    also to an empty list; and an old opset and the newest, which read it alike."""
    first, base, outputs = operator.opsets[0], operator.attributes, operator.outputs
    build = partial(made, name, outputs=outputs, dtype=operator.dtype)
    for opset in operator.opsets:
        yield f"{name}-{opset}", build(opset, operator.inputs, base)
        for key in base:
            without = {other: value for other, value in base.items() if other != key}
            yield f"{name}-{opset} without {key}", build(opset, operator.inputs, without)
        for key, values in operator.values.items():
            for value in values if opset == first else values[:3]:
                yield (f"{name}-{opset} {key}={_told_value(value)}",
                       build(opset, operator.inputs, {**base, key: value}))
    for index, argument in enumerate(operator.inputs):
        if isinstance(argument, np.ndarray | np.generic):
            yield f"{name} {index} at run time", build(first, operator.inputs, base,
                                                      at_run_time=index)
        constant = (np.linspace(-2, 3, int(np.prod(argument)), dtype=np.float32).reshape(argument)
                    if isinstance(argument, tuple) else None)
        yield (f"{name} {index} {'absent' if constant is None else 'constant'}",
               build(first, [*operator.inputs[:index], constant, *operator.inputs[index + 1:]],
                     base))
    for opset in (9, NEWEST_OPSET):
        if opset not in operator.opsets and onnx.defs.has(name, opset):
            yield f"{name}-{opset}", build(opset, operator.inputs, base)
    yield f"{name} one input fewer", build(first, operator.inputs[:-1], base)
    yield f"{name} one output more", build(first, operator.inputs, base, outputs=outputs + 1)
    yield f"{name} unknown attribute", build(first, operator.inputs, {**base, "zz": 1})
    if isinstance(operator.inputs[0], tuple):
        for dtype in DTYPES:
            yield f"{name} {dtype}", build(first, operator.inputs, base, dtype=dtype)
        for shape in RANKS if operator.ranks else ():
            yield f"{name} {list(shape)}", build(first, [shape, *operator.inputs[1:]], base)
    for inputs, attributes in operator.more:
        told = "".join(f" {key}={value}" for key, value in attributes.items())
        shapes = "" if inputs is None else _changes(operator.inputs, inputs)
        merged = {**base, **attributes}
        dtype = merged.pop(DTYPE, operator.dtype)
        yield (f"{name}{shapes}{told}",
               build(first, operator.inputs if inputs is None else inputs, merged, dtype=dtype))
    for opset in operator.opsets:
        for key in _lists(name, opset):
            yield f"{name}-{opset} {key}=[]", build(opset, operator.inputs, {**base, key: []})
    for index, argument in enumerate(operator.inputs):
        if isinstance(argument, np.ndarray | np.generic):
            inputs = [*operator.inputs[:index], np.zeros(0, argument.dtype),
                      *operator.inputs[index + 1:]]
            yield f"{name} {index} empty", build(first, inputs, base)


def _changes(inputs: Sequence[Argument], others: Sequence[Argument]) -> str:
    """Returns the words for other inputs: those of other places where only some are others."""
    told = [_told(argument) for argument in others]
    if len(inputs) != len(others):
        return f" of {' '.join(told)}"
    return "".join(f" {index}={new}" for index, (old, new) in enumerate(
        zip(map(_told, inputs), told, strict=True)) if new != old)


def _told_value(value: Any) -> str:
    return str(numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value)


def _told(argument: Argument) -> str:
    if isinstance(argument, np.ndarray | np.generic):
        return f"{argument.dtype}{list(argument.shape)}{argument.reshape(-1)[:8].tolist()}".replace(
            " ", "")
    return "-" if argument is None else str(list(argument)).replace(" ", "")


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _counted(*shape: int) -> np.ndarray:
    return (np.arange(np.prod(shape), dtype=np.float32) % 7 - 3).reshape(shape)


_IMAGE = (2, 4, 5, 6)
_PAIRS = ([], [1], [2, 1], [1, 3], [0, 1], [3, 3], [1, 1, 1])
"""Values of strides and dilations."""
_PADS = ([0, 0, 0, 0], [1, 0, 2, 1], [0, 1], [1, 1, 1], [-1, 0, 0, 0], [0, 0, 0, -1], [4, 4, 4, 4])
_WINDOW: dict[str, Sequence[Any]] = {
    "strides": _PAIRS, "dilations": _PAIRS, "pads": _PADS,
    "auto_pad": ["VALID", "SAME_UPPER", "SAME_LOWER", "NOTSET", "SAME"]}
_LINE = (2, 4, 7)
_AUTO = [(None, {"auto_pad": auto, "strides": strides, "dilations": dilations})
         for auto in ("SAME_UPPER", "SAME_LOWER", "VALID")
         for strides in ([1, 2], [3, 1]) for dilations in ([1, 2], [2, 1])]
_FLATTENED = [((2, 4, 1, 1), {}), ((2, 4, 3), {}), ((2, 4, 3), {"axis": 2}),
              ((2, 4, 1, 1), {"axis": 1})]

_BROADCAST = (((2, 3), (3,)), ((2, 1), (2, 3)), ((2, 3), (2,)), ((2, 3), ()), ((2, 0), (2, 1)))
FUNCTIONS: dict[str, Operator] = {
    op: Operator((22 if op in ("HardSwish", "Mish") else 17,), [(2, 3)] * count,
                 more=[(shapes, {DTYPE: dtype}) for shapes in _BROADCAST
                       for dtype in ("float32", "int64", "bool")] if count == 2 else (),
                 ranks=count == 1)
    for count, ops in (
        (1, "Abs Atan Ceil Cos Erf Exp Floor HardSwish IsNaN Log Mish Neg Not Reciprocal Relu "
            "Round Sigmoid Sign Sin Softplus Softsign Sqrt Tan Tanh"),
        (2, "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mul Or Sub Sum "
            "Xor"))
    for op in ops.split()}
"""Operators without attributes."""

ELEMENTWISE: dict[str, Operator] = {
    "Elu": Operator((17,), [(2, 3)], {}, {"alpha": [0.5, 1.0, 0.0, 1]}, ranks=False),
    "Celu": Operator((17,), [(2, 3)], {}, {"alpha": [0.5, 1.0, 1, -0.5]}, ranks=False),
    "Selu": Operator((17,), [(2, 3)], {}, {"alpha": [0.5], "gamma": [2.0]}, ranks=False),
    "Gelu": Operator((20,), [(2, 3)], {}, {"approximate": ["none", "tanh", "other"]}, ranks=False),
    "IsInf": Operator((17,), [(2, 3)], {}, {}, [
        (None, {"detect_positive": a, "detect_negative": b}) for a in (0, 1) for b in (0, 1)],
        ranks=False),
    "LeakyRelu": Operator((17, 9), [(2, 3)], {}, {"alpha": [0.5, 0.01, 2, -1.0]}, ranks=False),
    "HardSigmoid": Operator((17,), [(2, 3)], {}, {"alpha": [0.5], "beta": [0.25]}, ranks=False),
    "PRelu": Operator((17, 7), [(2, 3), _counted(3)], more=[
        ([(2, 4, 5, 6), _counted(4, 1, 1)], {}), ([(2, 3), _counted(1)], {}),
        ([(2, 3), _counted(4)], {}), ([(2, 3), (2, 3)], {})]),
    "Clip": Operator((13, 11, 10, 7), [(2, 3), np.float32(-1), np.float32(2)], {}, {
        "min": [-1.0, -3.5e38, 0.0], "max": [2.0, 3.5e38, 0.0]}, [
        ([(2, 3), None, np.float32(2)], {}), ([(2, 3), np.float32(-1), None], {}),
        ([(2, 3), (), np.float32(2)], {}), ([(2, 3), np.float32(1), ()], {}),
        ([(2, 3), (), ()], {}), ([(2, 3), None, None], {}),
        ([(2, 3), np.float32([1]), np.float32(2)], {}),
        ([(2, 3), np.float32([1, 2]), None], {})], ranks=False),
    "Pow": Operator((17, 7), [(2, 3), np.float32(3)], more=[
        ([(2, 3), value], {}) for value in (
            np.float32(2), np.float32(0.5), np.float32(1), np.array(2), np.float32([2]),
            np.float32([0.5, 2, 1]), np.array(3), (2, 3), (3,))], ranks=False),
    "Mod": Operator((17,), [(2, 3), np.float32(3)], {}, {"fmod": [0, 1]}, [
        ([np.array([5, -5, 7]), np.array([3, 3, -3])], {"fmod": flag}) for flag in (0, 1)] + [
        ([(2, 3), (3,)], {"fmod": 1}), ([(2, 3), np.array([2, 3, 4])], {})], ranks=False),
    "Cast": Operator((17, 9), [(2, 3)], {"to": TensorProto.INT64}, {
        "to": [*range(25)]}, [
        (None, {"to": to, DTYPE: dtype}) for to in (1, 2, 6, 7, 9) for dtype in ("int64", "uint8")],
        ranks=False),
    "CastLike": Operator((17,), [(2, 3), np.array(1)], more=[
        ([(2, 3), np.zeros(1, kind)], {}) for kind in (
            "bool", "uint8", "int8", "float32", "float64", "int32", "uint64")], ranks=False),
    "Sum": Operator((17, 8), [(2, 3)], more=[
        ([(2, 3)] * count, {}) for count in (2, 3, 4)] + [([(2, 3), (3,), _counted(2, 1)], {})]),
    "Mean": Operator((17,), [(2, 3)], more=[([(2, 3)] * count, {}) for count in (2, 3)],
                     ranks=False),
    "Min": Operator((17,), [(2, 3)], more=[([(2, 3)] * count, {}) for count in (2, 3)],
                    ranks=False),
    "Max": Operator((17,), [(2, 3)], more=[([(2, 3)] * count, {}) for count in (2, 3)],
                    ranks=False),
    "Where": Operator((17,), [np.array([True, False, True]), (2, 3), (2, 3)], more=[
        ([(2, 3), (2, 3), (2, 3)], {}), ([np.array([True, False]), (2, 3), (3,)], {}),
        ([np.array([[1], [0]]), (2, 3), np.array([1, 2, 3])], {})]),
}

_CONV_MORE: list[tuple[Sequence[Argument] | None, dict[str, Any]]] = [
    *[([_IMAGE, _counted(filters, channels, 3, 3)], {"group": group})
      for filters, channels, group in (
          (6, 2, 2), (6, 4, 1), (4, 1, 4), (8, 1, 4), (6, 1, 4), (6, 2, 1), (6, 2, 3), (6, 4, 0))],
    *[([_LINE, _counted(3, 4, 3)], attributes) for attributes in (
        {}, {"pads": [1, 2]}, {"strides": [2]}, {"dilations": [2]}, {"kernel_shape": [3]},
        {"kernel_shape": [2]}, {"pads": [1, 0, 0, 1]}, {"strides": [1, 1]}, {"group": 1},
        {"auto_pad": "SAME_UPPER"}, {"dilations": [3]}, {"dilations": [4]})],
    ([_LINE, _counted(3, 4, 3), _counted(3)], {}), ([_LINE, _counted(3, 4, 8)], {}),
    ([_LINE, _counted(3, 4)], {}), ([(2, 4, 3, 3, 3), _counted(3, 4, 1, 1, 1)], {}),
    ([_IMAGE, _counted(3, 4, 3, 3), _counted(4)], {}),
    ([_IMAGE, _counted(3, 4, 3, 3), _counted(3, 1)], {}),
    ([_IMAGE, _counted(3, 4, 5, 6)], {}), ([_IMAGE, _counted(3, 4, 6, 6)], {}),
    ([_IMAGE, _counted(3, 4, 5, 7)], {}), ([_IMAGE, _counted(3, 4, 6, 6)], {"pads": [1, 0, 0, 0]}),
    ([_IMAGE, _counted(3, 4, 1, 1), _counted(3)], {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    ([_IMAGE, _counted(4, 1, 3, 3)], {"group": 4, "auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    ([_IMAGE, _counted(6, 2, 3, 2)], {"group": 2, "pads": [1, 0, 2, 1], "dilations": [2, 1]}),
    ([_LINE, _counted(6, 2, 3)], {"group": 2, "strides": [2], "pads": [1, 2], "dilations": [2]}),
    *(([(2, 4, 5, 6, 3), _counted(6, 2, 3, 2, 1)], {"group": 2, "pads": [1, 1, 0, 2, 0, 0], **form})
      for form in ({"strides": [2, 1, 1]}, {"strides": [1, 2, 1]}, {"pads": [1, 1, 1, 0, 0, 0]}))]

LAYERS: dict[str, Operator] = {
    "Conv": Operator((17, 7), [_IMAGE, _counted(3, 4, 3, 2), _counted(3)], {}, {
        **_WINDOW, "group": [0, 1, 2, 3], "kernel_shape": [[3, 2], [2, 3], [3], [3, 3]]},
        [*_CONV_MORE, *_AUTO]),
    "ConvTranspose": Operator((17, 7), [_IMAGE, _counted(4, 3, 3, 2), _counted(3)], {}, {
        **_WINDOW, "group": [0, 1, 2, 3], "kernel_shape": [[3, 2], [3]],
        "output_padding": [[], [1, 0], [0, 1], [2, 2], [1]],
        "output_shape": [[], [10, 12], [2, 3, 9, 7], [7, 7], [3, 3], [20, 20]]},
        [*[([_IMAGE, _counted(4, channels, 3, 3), _counted(bias)], {"group": group})
           for channels, group, bias in ((3, 2, 6), (3, 2, 3), (1, 4, 4), (2, 1, 2), (2, 3, 6))],
         *[([_LINE, _counted(4, 3, 3)], attributes) for attributes in (
             {}, {"strides": [2]}, {"pads": [1, 1]}, {"output_padding": [1], "strides": [2]},
             {"output_shape": [9]}, {"output_shape": [2, 3, 12]}, {"auto_pad": "SAME_LOWER"},
             {"pads": [4, 4]}, {"pads": [4, 5]}, {"dilations": [2]})],
         *[(None, {"auto_pad": auto, "strides": strides, "output_shape": shape})
           for auto in ("SAME_UPPER", "SAME_LOWER", "NOTSET") for strides in ([2, 3], [1, 1])
           for shape in ([11, 19], [4, 5], [12, 20], [])],
         ([_IMAGE, _counted(4, 3, 3, 2)], {"group": 2, "strides": [2, 3], "pads": [1, 0, 0, 1]}),
         (None, {"strides": [2, 2], "output_padding": [1, 0], "pads": [1, 1, 1, 1],
                 "dilations": [1, 2]}),
         ([_IMAGE, _counted(3, 3, 3, 2)], {}), ([_IMAGE, _counted(4, 3)], {})]),
    "Gemm": Operator((17, 9), [(2, 3), _counted(3, 4), _counted(4)], {}, {
        "alpha": [0.5, 1.0, 0.0, 2], "beta": [0.5, 1.0, 0.0], "transA": [0, 1],
        "transB": [0, 1]},
        [*[([(2, 3) if not trans_a else (3, 2), b, c],
            {"transA": trans_a, "transB": trans_b, "alpha": alpha, "beta": beta})
           for trans_a in (0, 1) for trans_b, b in ((0, _counted(3, 4)), (1, _counted(4, 3)))
           for c in (_counted(4), _counted(2, 4), _counted(2, 1), (4,), None)
           for alpha, beta in ((1.0, 1.0), (2.0, 0.5))],
         ([(2, 3), (3, 4), _counted(4)], {"alpha": 0.5}), ([(2, 3), (3, 4), None], {}),
         ([(2, 3), (3, 4), _counted(4)], {"beta": 2.0}), ([(2, 3), (3, 4), (4,)], {"beta": 0.0}),
         ([(2, 3), _counted(3, 1), _counted(1)], {}), ([(2, 3), _counted(3, 4), _counted(1)], {}),
         ([(2, 3), _counted(3, 4), np.float32(1)], {}), ([(2, 3), _counted(4, 3), None], {}),
         ([(2, 2, 3), _counted(3, 4), _counted(4)], {}), ([(2, 2, 3), (3, 4)], {}),
         ([(2, 3), _counted(3), None], {}), ([(2, 3), _counted(1, 3, 4), None], {}),
         ([(3,), _counted(3, 4), None], {})]),
    "MatMul": Operator((17,), [(2, 3), _counted(3, 4)], more=[
        ([a, b], {}) for a in ((3,), (2, 3), (2, 5, 3), (2, 1, 5, 3), (1, 3), ())
        for b in (_counted(3), _counted(3, 4), _counted(5, 3, 4), _counted(2, 3, 4), (3,), (2, 3),
                  (2, 3, 4), (3, 4), (4, 3))]),
    "BatchNormalization": Operator(
        (15, 9, 7), [_IMAGE, *[np.float32([1, 2, 3, 4])] * 4], {}, {
            "epsilon": [0.5, 0.0, 1e-5], "momentum": [0.5, 0.9], "spatial": [0, 1],
            "training_mode": [0, 1, 2]},
        [([shape, *[np.float32([1, 2, 3, 4])] * 4], {"training_mode": flag})
         for shape in ((2, 4), (2, 4, 3), (2, 3), (4,), (2, 4, 0)) for flag in (0, 1)] + [
        ([_IMAGE, np.float32([1, 2, 3, 4]), *[np.float32([1, 2, 3])] * 3], {}),
        ([_IMAGE, *[np.float32([[1, 2, 3, 4]])] * 4], {}),
        ([_IMAGE, *[np.float32([1, 2, 3, 4])] * 3, np.float32([1, 2, 3])], {})]),
    **{op: Operator((19, 10, 7), [_IMAGE], {"kernel_shape": [3, 2]}, {
        **_WINDOW, "kernel_shape": [[], [2], [2, 2, 2], [1, 1], [5, 6], [6, 6], [5, 7], [2, 1],
                                    [512, 512], [512, 513]],
        "ceil_mode": [0, 1], flag: [0, 1]},
        [*[(None, {"ceil_mode": 1, "strides": strides, "pads": pads, "kernel_shape": kernel})
           for strides in ([1, 2], [2, 3], [3, 4]) for pads in ([0, 0, 0, 0], [1, 1, 1, 0],
                                                               [0, 0, 1, 1])
           for kernel in ([3, 2], [1, 1], [2, 3])],
         *[([_LINE], attributes) for attributes in (
             {"kernel_shape": [2]}, {"kernel_shape": [2], "strides": [2]},
             {"kernel_shape": [3], "pads": [1, 0]}, {"kernel_shape": [8]},
             {"kernel_shape": [2], "ceil_mode": 1, "strides": [3]})],
         (None, {flag: 1, "pads": [1, 1, 0, 0], "strides": [2, 1]}), *_AUTO])
       for op, flag in (("MaxPool", "storage_order"), ("AveragePool", "count_include_pad"))},
    "GlobalMaxPool": Operator((17,), [_IMAGE]), "GlobalAveragePool": Operator((17,), [_IMAGE]),
    **{op: Operator((18, 13, 11), [(2, 3, 4)], {}, {
        "axes": [[1], [0], [-1], [0, 2], [], [3], [-3], [-4], [1, 1], 1],
        "keepdims": [0, 1, 2], "noop_with_empty_axes": [0, 1]},
        [([(2, 3, 4), axes], {"keepdims": keepdims, "noop_with_empty_axes": noop})
         for axes in (_ints(), _ints(1), _ints(2, 0), None) for keepdims in (0, 1)
         for noop in (0, 1)]) for op in ("ReduceSum", "ReduceMean")},
    **{op: Operator((18, 13), [(2, 3, 4), _ints(1)], {}, {
        "axes": [[1], [0, 2], [3]], "keepdims": [0, 1], "noop_with_empty_axes": [0, 1]},
        [([(2, 3, 4), axes], {"keepdims": 0, "noop_with_empty_axes": noop})
         for axes in (_ints(), _ints(-1), _ints(-4), None) for noop in (0, 1)], ranks=False)
       for op in ("ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare",
                  "ReduceLogSum", "ReduceLogSumExp", "ReduceProd")},
    **{op: Operator((17, 13, 12, 7), [(2, 3, 4)], {}, {"axis": [0, 1, 2, -1, -3, 3, -4]}, [
        ([shape], attributes) for shape, attributes in _FLATTENED])
       for op in ("Softmax", "LogSoftmax")},
}

_ROWS = (2, 3, 4)
_SQUARE = (2, 4, 4, 6)

LAYOUT: dict[str, Operator] = {
    "Concat": Operator((17,), [_ROWS, (2, 3, 5)], {"axis": 2}, {
        "axis": [0, 1, 2, -1, -3, 3, -4, 1.0]}, [
        ([_ROWS, _counted(2, 3, 1)], {"axis": 2}), ([_ROWS, _counted(3, 3, 4)], {"axis": 0}),
        ([_ROWS], {"axis": 1}), ([_ROWS, (3, 4)], {"axis": 1}),
        ([_ROWS, _ROWS, _ROWS], {"axis": 0}), ([_ROWS, _ROWS], {"axis": 1})]),
    "Split": Operator((18, 13, 11), [(2, 6, 4)], {}, {
        "axis": [1, 0, 2, -1, 3, -4], "split": [[3, 3], [2, 4], [6, 1], [6]],
        "num_outputs": [2, 3]}, [
        ([(2, 6, 4), sizes], {"axis": 1}) for sizes in (
            _ints(3, 3), _ints(2, 4), _ints(6, 0), _ints(7, -1), _ints(2, 3), _ints(2, 5),
            _ints(2, 2, 2), _ints(6))] + [([(2, 5, 4)], {"axis": 1}), ([(2, 1, 4)], {"axis": 1}),
                                          ([(2, 0, 4)], {"axis": 1})], outputs=2),
    "Slice": Operator((13, 10, 9), [(2, 6, 4), _ints(1), _ints(4), _ints(1), _ints(1)], {}, {
        "starts": [[1], [0, 1]], "ends": [[3], [2, 3]], "axes": [[1], [1, 2], [3]]}, [
        *[([(2, 6, 4), _ints(start), _ints(end), _ints(axis), _ints(step)], {})
          for axis in (1, -1) for start in (0, 1, -2, 5, 9, -9) for end in (0, 3, -1, 6, 99, -99)
          for step in (1, 2, -1)],
        *[([(2, 6, 4), _ints(0, 1), _ints(5, 2), axes, steps], {})
          for axes in (_ints(1, 2), _ints(2, 1), _ints(1), None, _ints(1, 3))
          for steps in (None, _ints(1, 1), _ints(2, 1), _ints(0, 1), _ints(1))],
        ([(2, 6, 4), _ints(1), _ints(4)], {}), ([(2, 6, 4), _ints(0), _ints(2), _ints(0)], {}),
        ([(2, 6, 4), _ints(0), _ints(2**62), _ints(1), _ints(2**62)], {})]),
    "Reshape": Operator((17, 5), [_ROWS, _ints(2, 12)], {}, {"allowzero": [0, 1]}, [
        ([shape, _ints(*sizes)], {"allowzero": allowed})
        for shape in (_ROWS, (2, 0, 4), (2, 1, 1))
        for sizes in ((0, -1), (-1, 4), (0, 0, -1), (0, 4, 3), (-1, -1), (2, -2, 3), (24,), (0, 12),
                      (2, 3, 4), (0, 0, 0, -1), (0, 0, 0, 0), (2, 5), (-1, 5), (), (0, -1, 0),
                      (1, -1), (2, 1, 1), (-1, 0), (0, 2)) for allowed in (0, 1)]),
    "Transpose": Operator((17,), [_ROWS], {}, {"perm": [
        [0, 1, 2], [0, 2, 1], [2, 1, 0], [1, 0, 2], [0, 1], [0, 0, 1], [1, 2, 3], [0, 1, 2, 3],
        []]}),
    "DepthToSpace": Operator((17, 1), [(2, 8, 3, 5)], {"blocksize": 2}, {
        "blocksize": [0, 1, 2, 3, -1], "mode": ["DCR", "CRD", "X"]}, [
        ([(2, channels, 3, 5)], {"blocksize": block, "mode": mode})
        for channels, block in ((9, 3), (18, 3), (4, 2), (7, 2)) for mode in ("DCR", "CRD")]),
    "SpaceToDepth": Operator((17, 1), [_SQUARE], {"blocksize": 2}, {
        "blocksize": [0, 1, 2, 3, 4, -1], "mode": ["DCR", "CRD"]}, [
        ([(2, 3, 6, 9)], {"blocksize": 3}), ([(2, 3, 6, 8)], {"blocksize": 3}),
        ([(2, 3, 8, 9)], {"blocksize": 3})]),
    "Flatten": Operator((17, 9), [_ROWS], {}, {"axis": [0, 1, 2, 3, 4, -1, -3, -4]}),
    "Squeeze": Operator((17, 11), [(2, 1, 3, 1)], {}, {"axes": [[1], [1, 3], [0], [-1], [4]]}, [
        ([(2, 1, 3, 1), axes], {}) for axes in (
            _ints(1), _ints(3, 1), _ints(-1), _ints(0), _ints(4), _ints(-5), _ints(), None,
            _ints(1, 1))] + [([(1, 1, 3, 1)], {})]),
    "Unsqueeze": Operator((17, 11), [_ROWS, _ints(1)], {}, {"axes": [[1], [0, 2], [-1], [4]]}, [
        ([_ROWS, axes], {}) for axes in (_ints(0), _ints(3), _ints(4), _ints(-1), _ints(-4),
                                         _ints(-5), _ints(0, 4), _ints(4, 0), _ints(1, 1),
                                         _ints())]),
    "Expand": Operator((17,), [(2, 1, 4), _ints(2, 3, 4)], more=[
        ([(2, 1, 4), _ints(*sizes)], {}) for sizes in (
            (1,), (3, 1), (3, 4), (1, 1, 1), (2, 5, 1, 1), (5, 2, 1, 4), (2, 2, 3), (0, 1),
            (2, 0, 4), (4, 1, 4), ())] + [([_counted(2, 1), _ints(2, 3)], {})]),
    "Pad": Operator((19, 11, 10), [_ROWS, _ints(0, 1, 2, 0, 0, 1), np.float32(2), None], {}, {
        "mode": ["constant", "reflect", "edge", "wrap"], "pads": [[0, 1, 2, 0, 0, 1], [1, 1]],
        "value": [0.0, 2.0]}, [
        *[([_ROWS, _ints(*pads)], {"mode": mode}) for mode in ("constant", "reflect", "edge")
          for pads in ((0,) * 6, (0, 2, 0, 0, 0, 0), (0, 3, 0, 0, 0, 0), (0, 0, 0, 0, 0, 3),
                       (0, 0, 0, 0, 0, 4), (0, -1, 0, 0, 0, 0), (0, 0, 0, 0, -1, 0),
                       (0, -1, 2, 0, 1, -1), (0, -1, -2, 0, -2, 3), (0, -2, 0, 0, -2, 0),
                       (1, 0, 0, 0, 0, 0), (0, 0, 0, 1, 0, 0), (-1, 0, 0, 0, 0, 0),
                       (0, 0, 0, 0, 0), (0,) * 7)],
        *[([_ROWS, _ints(1, 2), np.float32(0), axes], {}) for axes in (
            _ints(1), _ints(2), _ints(-1), _ints(3), _ints(-4), _ints(1, 2))],
        ([_ROWS, _ints(1, 2, 0, 1), None, _ints(2, 1)], {}),
        ([(2, 3, 0), _ints(0, 0, 1, 0, 0, 1)], {"mode": "reflect"}),
        ([(2, 3, 1), _ints(0, 0, 1, 0, 0, 0)], {"mode": "reflect"})]),
    "Identity": Operator((17,), [_ROWS]),
    "Dropout": Operator((17, 10), [_ROWS, np.float32(0.5), np.array(False)], {}, {
        "ratio": [0.5], "seed": [1]}, [([_ROWS, np.float32(0), np.array(True)], {}),
                                       ([_ROWS, None, None], {}), ([_ROWS, None, ()], {})]),
    "Shape": Operator((17, 9), [_IMAGE], {}, {
        "start": [0, 1, -1, 4, 5, -5], "end": [0, 3, -1, 4, 9, -9]}, [
        (None, {"start": 1, "end": end}) for end in (1, 2, -1)]),
    "Size": Operator((17,), [_IMAGE]),
    "Gather": Operator((17,), [_ROWS, np.array([1, 0])], {}, {"axis": [0, 1, 2, -1, 3, -4]}, [
        ([_ROWS, indices], {"axis": 1}) for indices in (
            np.array(0), np.array(1), np.array(-1), np.array(2), np.array(3), np.array(-3),
            np.array(-4), np.array([[0, -1], [2, 1]]), np.array([-3, 2]), np.array([3]),
            np.array([-4]), np.zeros(0, np.int64))] + [
        ([_ROWS, np.array(0)], {}), ([_counted(3, 2), np.array(-1)], {"axis": 1})]),
    "ConstantOfShape": Operator((17,), [_ints(2, 3)], {}, {
        "value": [numpy_helper.from_array(np.array([value], kind), "v") for value, kind in (
            (2, np.float32), (3, np.int64), (1, bool), (1.5, np.float64))] + [
            numpy_helper.from_array(np.float32([1, 2]), "v")]}, [
        ([_ints(*sizes)], {}) for sizes in ((), (0,), (2, 0), (-1,), (1,))]),
    "Range": Operator((11,), [np.array(1), np.array(7), np.array(2)], {}, {"stash_type": [1]}, [
        ([np.array(start), np.array(limit), np.array(step)], {}) for start, limit, step in (
            (0, 6, 2), (0, 7, 2), (0, 5, 2), (5, 0, -2), (0, 5, -1), (0, 0, 1), (0, 5, 0),
            (0.0, 1.0, 0.3))]),
    **{op: Operator(opsets, [_IMAGE, *([None] if op == "Resize" else []),
                             np.float32([1, 1, 2, 1.5])], {}, {
        "mode": ["nearest", "linear", "bilinear", "cubic", "area"]}, [
        ([_IMAGE, *([None] if op == "Resize" else []), np.float32(scales)], {"mode": mode})
        for mode in ("nearest", "linear")
        for scales in ([1, 1, 0.5, 2], [1, 1, 0.5, 1], [1, 1, 2, 1], [1, 1, 1, 1], [1, 2, 1, 1],
                       [2, 1, 1, 1], [1, 1, 0.5, 0.7], [2, 2], [1, 1, 0.1, 0.1])])
       for op, opsets in (("Resize", (18, 11)), ("Upsample", (9,)))},
}

_SIZED: list[tuple[Sequence[Argument] | None, dict[str, Any]]] = [
    *[([_IMAGE, None, None, _ints(2, 4, h, w)],
       {"mode": mode, "coordinate_transformation_mode": coordinates, **more})
      for h, w in ((10, 3), (1, 1), (5, 6)) for mode in ("nearest", "linear", "cubic")
      for coordinates, more in (
          ("half_pixel", {}), ("pytorch_half_pixel", {}), ("align_corners", {}), ("asymmetric", {}),
          ("half_pixel", {"antialias": 1}), ("half_pixel", {"exclude_outside": 1}),
          ("half_pixel", {"cubic_coeff_a": -0.5}), ("half_pixel_symmetric", {}))],
    *[([_IMAGE, None, None, sizes], {"mode": mode, **more})
      for mode in ("nearest", "cubic") for sizes, more in (
          (_ints(2, 4, 0, 6), {}), (_ints(2, 4, 10), {}), (_ints(3, 4, 5, 6), {}),
          (_ints(2, 5, 5, 6), {}), (_ints(7, 9), {"axes": [2, 3]}), (_ints(7, 9), {"axes": [3, 2]}),
          (_ints(7), {"axes": [-1]}), (_ints(7, 9), {"axes": [2]}), (_ints(7), {"axes": [4]}),
          (_ints(2, 4, 5, 6), {}), (_ints(2, 8, 5, 3), {}))],
    *[([shape, None, np.float32(scales)], {"mode": mode})
      for mode in ("nearest", "linear", "cubic") for shape, scales in (
          ((2, 4, 5), [1, 1, 2]), ((2, 4, 5), [1, 1, 0.5]), ((2, 4), [1, 2]),
          ((2, 4, 5, 6, 7), [1, 1, 1, 1, 2]), (_IMAGE, [1, 1, -1, 1]), (_IMAGE, [1, 1, 0, 1]),
          (_IMAGE, [1, 1, 1, 1.2]), (_IMAGE, [1, 1, 1.9, 1]))],
    *[(None, {"nearest_mode": rounding}) for rounding in (
        "round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "other")],
    ([_IMAGE, None, None, None], {}), ([_IMAGE, None, np.float32([]), None], {}),
    (None, {"mode": "linear", DTYPE: "int32"}), (None, {"extrapolation_value": 1.0}),
    (None, {"keep_aspect_ratio_policy": "not_larger"})]
RESIZES_10 = {"Resize": Operator((10,), [_IMAGE, np.float32([1, 1, 2, 1.5])], {}, {
    "mode": ["nearest", "linear", "cubic"]}, [
    ([_IMAGE, np.float32([1, 1, *scales])], {"mode": mode}) for mode in ("nearest", "linear")
    for scales in (
        (0.5, 2), (2, 0.5), (0.5, 1), (1, 0.5), (2, 1), (1, 1), (0.5, 0.7), (1.5, 1.2), (2, 3))])}
RESIZES = {"Resize": Operator((18,), [_IMAGE, None, np.float32([1, 1, 2, 1.5])], {}, {}, _SIZED,
                              ranks=False)}

INDEXING: dict[str, Operator] = {
    "Tile": Operator((17,), [_ROWS, _ints(1, 2, 1)], more=[
        ([_ROWS, _ints(*repeats)], {}) for repeats in (
            (1, 1, 1), (2, 1, 1), (1, 0, 1), (1, 3, 2), (1, -1, 1), (1, 2), (1, 1, 1, 1), ())] + [
        ([_counted(2, 3), _ints(2, 1)], {})]),
    "Trilu": Operator((17,), [(2, 3, 4), np.array(1)], {}, {"upper": [0, 1]}, [
        ([(2, 3, 4), np.array(k)], {"upper": upper})
        for k in (-4, -3, -2, -1, 0, 3, 4, 2**40) for upper in (0, 1)]),
    "GatherND": Operator((17,), [_ROWS, np.array([[0, 1], [1, -1]])], {}, {
        "batch_dims": [0, 1, 2, 3]}, [
        ([_ROWS, indices], {"batch_dims": dims}) for dims in (0, 1) for indices in (
            np.array([[0], [1]]), np.array([[2], [-3]]), np.array([[3], [0]]),
            np.array([[-4], [0]]), np.array([[[0, 3]], [[2, -4]]]), np.array([[0, 0, 0, 0]]),
            np.array([[1, 2, 3]]), np.array([1]), np.array(1), np.zeros((2, 0), np.int64),
            np.zeros((0, 1), np.int64))] + [([_counted(3, 2), np.array([[1], [-1]])], {})]),
    **{op: Operator((17, 11), [_ROWS, np.zeros((2, 3, 2), np.int64), *rest], {}, {
        "axis": [0, 1, 2, -1, 3, -4]}, [
        ([_ROWS, indices, *([_counted(*indices.shape)] if rest else [])], {"axis": 1})
        for indices in (
            np.array([[[0, 1, 2, 0]]]), np.array([[[-1, -3, 2, 0]]]), np.array([[[3]]]),
            np.array([[[-4]]]), np.zeros((2, 5, 4), np.int64), np.zeros((3, 1, 1), np.int64),
            np.zeros((2, 3, 5), np.int64), np.zeros((2, 3), np.int64),
            np.arange(24).reshape(2, 3, 4) // 4 % 3, np.zeros((2, 0, 4), np.int64))])
       for op, rest in (("GatherElements", ()), ("ScatterElements", (_counted(2, 3, 2),)))},
    "ScatterND": Operator((17, 11), [(3, 4), np.array([[1]]), _counted(1, 4)], {}, {
        "reduction": ["none", "add"]}, [
        ([shape, indices, updates], {}) for shape, indices, updates in (
            ((3, 4), np.array([[0], [0]]), _counted(2, 4)), ((3, 4), np.array([[-1]]), (1, 4)),
            ((3, 4), np.array([[2], [1], [0]]), (3, 4)),
            ((3, 4), np.array([[0], [1], [2]]), (3, 4)),
            ((3, 4), np.array([[3]]), (1, 4)), ((3, 4), np.array([[-4]]), (1, 4)),
            ((3, 4), np.array([[0, 1], [2, 3]]), _counted(2)),
            ((3, 4), np.array([[1]]), _counted(4)),
            ((3, 4), np.array([[1]]), _counted(1, 3)), ((3, 4), np.array([[0, 0, 0]]), _counted(1)),
            (_counted(3, 4), np.array([[1], [1]]), _counted(2, 4)),
            (_counted(3, 4), np.array([[0, 1]]), _counted(1)),
            ((3, 4), np.array([[0], [1], [2], [1]]), _counted(4, 4)))]),
    "Scatter": Operator((9,), [_ROWS, np.zeros((2, 3, 2), np.int64), _counted(2, 3, 2)], {}, {
        "axis": [0, 1]}, ranks=False),
    **{op: Operator((13, 11), [_ROWS], {}, {
        "axis": [0, 1, 2, -1, 3, -4], "keepdims": [0, 1], "select_last_index": [0, 1]}, [
        (None, {"axis": 1, "keepdims": 0}), ([(2, 1, 3)], {"axis": 1}),
        ([(2, 0, 3)], {"axis": 1})]) for op in ("ArgMax", "ArgMin")},
    "TopK": Operator((11, 10, 9), [_ROWS, _ints(2)], {}, {
        "axis": [-1, 0, 1, 2, 3, -4], "largest": [0, 1], "sorted": [0, 1], "k": [0, 2]}, [
        ([_ROWS, _ints(count)], {"axis": 1}) for count in (0, 1, 3, 4, -1)] + [
        ([_ROWS, _ints(1, 2)], {}),
        *[([np.array([[3, 1, 3], [2, 5, 2]]), _ints(2)], {"largest": flag}) for flag in (0, 1)]],
        outputs=2),
    "CumSum": Operator((17,), [_ROWS, np.array(1)], {}, {
        "exclusive": [0, 1], "reverse": [0, 1]}, [
        ([shape, np.array(axis)], {"exclusive": exclusive, "reverse": reverse})
        for shape in (_ROWS, (2, 1, 3)) for axis in (0, 2, -2, 3, -4)
        for exclusive, reverse in ((0, 0), (1, 1))] + [
        ([(1, length), np.array(1)], {"dtype": dtype})
        for dtype in ("int64", "int32", "int8") for length in (1, 2, 512, 513)] + [
        ([(1, 4097), np.array(1)], {}),
        ([np.array([[1, 2, 3], [4, 5, 6]]), np.array(1)], {"exclusive": 1})]),
    "Einsum": Operator((17,), [(2, 3), _counted(3, 4)], {"equation": "ij,jk->ik"}, {
        "equation": ["ij,jk", "ij,jk->ki", "ij,jk->", "ij,jk->ijk", "ij,ik->j", "ij",
                     "i j , jk -> ik", "ii,jk->ik", "ij,jk->iz", "ij,jk->ii", "...j,jk->...k", "",
                     "ij,jk,kl->il",
                     "ij,kl->ijkl", "ij,kl->lkji", "ij,jk->k", "ij,jk->j"]}, [
        ([(2, 3, 4), _counted(*b)], {"equation": equation}) for b, equation in (
            ((4, 5), "abc,cd->abd"), ((2, 4, 5), "abc,acd->abd"), ((3, 4, 5), "abc,bcd->ad"),
            ((3, 4, 5), "abc,bcd->da"), ((2, 3, 4), "abc,abc->abc"), ((2, 3, 4), "abc,abc->"),
            ((5, 4), "abc,dc->dab"), ((2, 3, 5), "abc,abd->abcd"), ((3, 2), "abc,ba->c"),
            ((4,), "abc,c->ab"), ((4,), "abc,c->ba"), ((5,), "abc,d->abcd"), ((2, 5), "abc,ad->cb"),
            ((2, 4, 3), "abc,acb->ab"), ((2, 3, 4, 5), "abc,abcd->ad"),
            ((4, 4), "abc,cd->abd"), ((1, 4, 5), "abc,acd->abd"), ((3, 1), "abc,bc->ab"),
            ((1, 1), "abc,bc->a"), ((1, 1, 5), "abc,acd->abd"), ((1, 3, 1), "abc,abc->b"),
            ((4, 5), "...c,cd->...d"), ((1, 4, 5), "...bc,...cd->...bd"), ((4, 5), "...bc,...cd"),
            ((5, 2, 7, 4), "...qc,...kc->...qk"), ((5, 3, 4), "...qhd,...khd->...hqk"),
            ((5, 2, 3, 1), "...hd,...hd->h..."), ((4,), "...c,c->"), ((3, 4), "ab...,b...->a..."))
    ] + [
        ([(2, 3)], {"equation": "ij->ji"}), ([(2, 3)], {"equation": "ij->ij"}),
        ([(2, 3)], {"equation": "ij->i"}), ([(2, 3)], {"equation": "ji"}),
        ([(2, 3), (3, 4), (4, 2)], {"equation": "ij,jk,kl->il"}),
        ([(2, 3), (3, 4), (3, 2)], {"equation": "ij,jk,jl->ikl"})], ranks=False),
}

_REDUCED: dict[str, Sequence[Any]] = {"axes": [[1], [0, 2], [-1], [3], []], "keepdims": [0, 1]}
OLD: dict[str, Operator] = {
    "Clip": Operator((10, 7), [_ROWS], {}, {}, [
        (None, {key: value for key, value in (("min", low), ("max", high)) if value is not None})
        for low in (None, -1.0, 0.0, -3.5e38, 3.4e38) for high in (None, 2.0, 3.5e38, -3.5e38)],
        ranks=False),
    "TopK": Operator((9, 1), [_ROWS], {"k": 2}, {"k": [0, 1, 2, 4, 5], "axis": [-1, 0, 1, 3]},
                     outputs=2, ranks=False),
    "Slice": Operator((9, 1), [_ROWS], {"starts": [0, 1], "ends": [2, 3], "axes": [0, 2]}, {
        "starts": [[1, 1], [0], []], "ends": [[9, 9], [1]], "axes": [[1, 2], [2, 1], [1], [3, 1]]}),
    "Pad": Operator((10, 2), [_ROWS], {"pads": [0, 1, 0, 0, 0, 2]}, {
        "pads": [[0] * 6, [0, -1, 0, 0, 0, 0], [1, 1]], "mode": ["reflect", "edge", "constant"],
        "value": [0.0, 1.5]}),
    "Upsample": Operator((8, 7), [_IMAGE], {"scales": [1.0, 1.0, 2.0, 3.0]}, {
        "scales": [[1.0, 1.0, 1.0, 1.0], [2.0, 1.0, 1.0, 1.0], [2.0, 2.0], [1.0, 1.0, 0.5, 2.0]],
        "mode": ["nearest", "linear", "cubic"]}),
    "Squeeze": Operator((11, 1), [(2, 1, 3, 1)], {"axes": [1]}, {
        "axes": [[1, 3], [-1], [0], [4]]}),
    "Unsqueeze": Operator((11, 1), [_ROWS], {"axes": [1]}, {"axes": [[0, 2], [-1], [4], [5], []]}),
    "Split": Operator((11, 2), [(2, 6, 4)], {"axis": 1}, {
        "split": [[3, 3], [2, 4], [6, 1], [6]]}, outputs=2),
    "Dropout": Operator((10, 7), [_ROWS], {}, {"ratio": [0.5]}),
    "Reshape": Operator((5, 1), [_ROWS, _ints(0, -1)], ranks=False),
    **{op: Operator((11, 13, 17), [_ROWS], {}, _REDUCED, ranks=False)
       for op in ("ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare",
                  "ReduceLogSum", "ReduceLogSumExp")},
    **{op: Operator((6, 1), [_ROWS, _ROWS], {}, {"axis": [1], "broadcast": [1]}, ranks=False)
       for op in ("Add", "Mul")},
    "BatchNormalization": Operator((6,), [_IMAGE, *[np.float32([1, 2, 3, 4])] * 4], {
        "is_test": 1}, ranks=False),
}
"""Operators of old opsets, whose parameters are attributes."""

_SCALE = np.float32([1, 2, 3, 4])
NORMALISATIONS: dict[str, Operator] = {
    "LayerNormalization": Operator((17,), [_ROWS, _SCALE, _SCALE], {}, {
        "axis": [-1, 2, 1, 0, 3, -3, -4], "epsilon": [0.5, 1e-5], "stash_type": [0, 1]}, [
        ([_ROWS, scale, bias], {"axis": axis}) for axis in (1, -1, 0)
        for scale, bias in ((_counted(3, 4), None), (_SCALE, None), (_counted(1, 4), _SCALE),
                            (_counted(1), _counted(1)), (_counted(3), None), ((4,), None),
                            (_counted(1, 1, 4), None), (_counted(2, 3, 4), _SCALE),
                            (_SCALE, (4,)), (_counted(3, 1, 4), None))]),
    "RMSNormalization": Operator((23,), [_ROWS, _SCALE], {}, {
        "axis": [-1, 1, 0, 3], "epsilon": [0.5], "stash_type": [0, 1]}, [
        ([_ROWS, (4,)], {"axis": axis}) for axis in (-1, 1, 0)]),
    "InstanceNormalization": Operator((17, 6), [_IMAGE, _SCALE, _SCALE], {}, {"epsilon": [0.5]}, [
        ([_IMAGE, _counted(3), _counted(3)], {}), ([_IMAGE, _SCALE, _counted(3)], {}),
        ([_IMAGE, _counted(1, 4), _counted(1, 4)], {}), ([(2, 4, 5), _SCALE, _SCALE], {})]),
    "GroupNormalization": Operator((18, 20, 21), [_IMAGE, _counted(2), _counted(2)], {
        "num_groups": 2}, {"num_groups": [0, -1, 3, 1, 2, 4], "epsilon": [0.5], "stash_type": [0,
                                                                                               1]}),
}
NORMALISATIONS_21 = {"GroupNormalization": Operator((21,), [_IMAGE, _SCALE, _SCALE], {
    "num_groups": 2}, {"num_groups": [0, -1, 1, 2, 3, 4], "epsilon": [0.5]}, [
    ([_IMAGE, _counted(2), _counted(2)], {}), ([(2, 4, 5), _SCALE, _SCALE], {}),
    ([_IMAGE, (4,), _SCALE], {})])}
_S, _Z, _OUT = np.float32(0.5), np.uint8(3), np.float32(2.03)  # no result is between two
_SCALES: tuple[Argument, ...] = (
    np.float32([0.5, 0.25]), np.float32([[0.5], [0.25]]), np.float32(0), np.float32(np.nan),
    np.array(2), None)
_ZEROS: tuple[Argument, ...] = (
    np.int8(3), np.uint16(3), np.int32(1), np.uint8([1, 2]), np.float32(1), np.int64(0), None)


def _quantised(inputs: Sequence[Argument], scales: str, zeros: str, dtype: str = "uint8",
               more: Sequence[tuple[Sequence[Argument] | None, dict[str, Any]]] = (),
               **attributes: Any) -> Operator:
    """Returns an operator on quantised values. scales, zeros: the numbers of its inputs that are
    scales and zero points, which are given other values."""
    changed = [([*inputs[:int(index)], other, *inputs[int(index) + 1:]], {})
               for indices, others in ((scales, _SCALES), (zeros, _ZEROS)) for index in indices
               for other in others]
    return Operator((21,), inputs, attributes, more=[*changed, *more], ranks=False, dtype=dtype)


def _small(*shape: int, dtype: str = "int8") -> np.ndarray:
    return (np.arange(np.prod(shape)) * 7 % 11 - 5).reshape(shape).astype(dtype)


_KERNEL, _MATRIX, _PIXELS = _small(3, 4, 3, 2), _small(4, 3), (2, 4, 5, 6)
_PAIR = [(2, 4), _S, _Z, (2, 4), _S, _Z, _OUT, _Z]
_MICROSOFT = {
    "QLinearAdd": _quantised(_PAIR, "146", "257"), "QLinearMul": _quantised(_PAIR, "16", "27"),
    **{op: _quantised([_PIXELS, _S, _Z, _OUT, _Z], "13", "24", **attributes, more=[
        (None, {key: value}) for key, value in (("channels_last", 1), ("alpha", 2))])
       for op, attributes in (
           ("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.5}),
           ("QLinearAveragePool", {"kernel_shape": [2, 2]}), ("QLinearGlobalAveragePool", {}))},
    "QLinearConcat": _quantised([_OUT, _Z, (2, 4), _S, _Z, (2, 4), _OUT, _Z],
                                "06", "17", axis=1),
    "QGemm": _quantised([(2, 4), _S, _Z, _MATRIX, _S, np.int8(1), _small(3, dtype="int32"),
                         _OUT, _Z], "147", "258", more=[(None, {"transA": 1})]),
}
QUANTISED: dict[str, Operator] = {
    "QuantizeLinear": _quantised([(2, 3), _S, _Z], "1", "2", "float32", more=[
        *(([(2, 3), np.float32([1, 2, 3]), None], {"axis": axis}) for axis in (1, 2)),
        *((None, {key: 2}) for key in ("block_size", "output_dtype", "precision"))]),
    "DequantizeLinear": _quantised([(2, 3), _S, _Z], "1", "2", more=[
        *((None, {DTYPE: dtype}) for dtype in ("int8", "int32")), (None, {"block_size": 2})]),
    "QLinearConv": _quantised([_PIXELS, _S, _Z, _KERNEL, _S, np.int8(0), _OUT, _Z,
                               _small(3, dtype="int32")], "146", "257", more=[
        (None, {"group": 2}), *(([_PIXELS, _S, _Z, weight, _S, np.int8(0), _OUT, _Z, bias], {})
                                for weight, bias in (
            (_KERNEL, _small(4, dtype="int32")), (_KERNEL, np.int32([1, 2, 2**24 + 1])),
            (_small(3, 4), None), (_small(3, 4, 1, 1, 1), None),
            (np.full((3, 4, 40, 40), 127, np.int8), None)))]),
    "QLinearMatMul": _quantised([(2, 4), _S, _Z, _MATRIX, _S, np.int8(1), _OUT, _Z],
                                "146", "257", more=[
        ([(2, depth), _S, _Z, (depth, 3), _S, _Z, _OUT, _Z], {}) for depth in (258, 259)]),
    "MatMulInteger": _quantised([(2, 4), _MATRIX, _Z, np.int8(1)], "", "23", more=[
        ([(2, depth), (depth, 3), None, None], {}) for depth in (258, 259)]),
    "ConvInteger": _quantised([_PIXELS, _KERNEL, _Z, np.int8(1)], "", "23",
                              more=[(None, {"group": 3})]),
    "DynamicQuantizeLinear": Operator((17,), [(2, 3)], outputs=3),
    **{f"com.microsoft.{op}": operator for op, operator in _MICROSOFT.items()},
}

TABLES: dict[str, dict[str, Operator]] = {
    "functions": FUNCTIONS, "element-wise": ELEMENTWISE, "layers": LAYERS, "layout": LAYOUT,
    "resizes": RESIZES, "resizes of opset 10": RESIZES_10, "indexing": INDEXING,
    "normalisations": NORMALISATIONS, "normalisations of opset 21": NORMALISATIONS_21, "old": OLD,
    "quantised": QUANTISED}
