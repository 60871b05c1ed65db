"""Nodes of every ONNX operator that gossamer computes, with attributes and inputs at and beyond
their bounds, for records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

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
    """

    opsets: tuple[int, ...]
    inputs: Sequence[Argument]
    attributes: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Sequence[Any]] = field(default_factory=dict)
    more: Sequence[tuple[Sequence[Argument] | None, dict[str, Any]]] = ()
    outputs: int = 1
    ranks: bool = True


def made(op: str, opset: int, inputs: Sequence[Argument], attributes: dict[str, Any], *,
         outputs: int = 1, at_run_time: int | None = None, dtype: str = "float32",
         domain: str = "", free: bool = True) -> onnx.ModelProto:
    """Returns a network of one node.

    at_run_time: number of a constant that the data decide instead.
    dtype: that of the first input, where the data decide it.
    free: whether the first dimension of the first input is open.
    """
    names, infos, constants = [], [], []
    for index, argument in enumerate(inputs):
        if isinstance(argument, np.generic):
            argument = np.asarray(argument)
        names.append("" if argument is None else f"x{index}")
        if isinstance(argument, np.ndarray) and index != at_run_time:
            constants.append(numpy_helper.from_array(argument, names[-1]))
        elif argument is not None:
            kind = argument.dtype if isinstance(argument, np.ndarray) else np.dtype(
                "float32" if index else dtype)
            shape: list[int | str] = list(
                argument.shape if isinstance(argument, np.ndarray) else argument)
            if free and not index and shape and isinstance(argument, tuple):
                shape[0] = "N"
            infos.append(helper.make_tensor_value_info(
                names[-1], helper.np_dtype_to_tensor_dtype(kind), shape))
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op, names, results, "n", domain=domain)
    node.attribute.extend(
        helper.make_attribute(key, value, attr_type=_INTS if value == [] else None)
        for key, value in attributes.items())
    declared = [onnx.ValueInfoProto(name=name) for name in results]
    for info in declared:
        info.type.tensor_type.elem_type = TensorProto.FLOAT
    graph = helper.make_graph([node], "g", infos, declared, constants)
    imports = [helper.make_opsetid("", opset)]
    if domain:
        imports.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def cases(name: str, operator: Operator) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yields the cases of an operator: each opset, each attribute and each input changed alone."""
    first = operator.opsets[0]
    base, outputs = operator.attributes, operator.outputs
    for opset in operator.opsets:
        yield f"{name}-{opset}", made(name, opset, operator.inputs, base, outputs=outputs)
        for key in base:
            without = {other: value for other, value in base.items() if other != key}
            yield (f"{name}-{opset} without {key}",
                   made(name, opset, operator.inputs, without, outputs=outputs))
        for key, values in operator.values.items():
            for value in values if opset == first else values[:3]:
                yield (f"{name}-{opset} {key}={_told_value(value)}",
                       made(name, opset, operator.inputs, {**base, key: value}, outputs=outputs))
    for index, argument in enumerate(operator.inputs):
        if isinstance(argument, np.ndarray | np.generic):
            yield f"{name} {index} at run time", made(name, first, operator.inputs, base,
                                                      at_run_time=index, outputs=outputs)
        constant = (np.linspace(-2, 3, int(np.prod(argument)), dtype=np.float32).reshape(argument)
                    if isinstance(argument, tuple) else None)
        yield (f"{name} {index} {'absent' if constant is None else 'constant'}",
               made(name, first, [*operator.inputs[:index], constant, *operator.inputs[index + 1:]],
                    base, outputs=outputs))
    yield f"{name} one input fewer", made(name, first, operator.inputs[:-1], base, outputs=outputs)
    yield f"{name} one output more", made(name, first, operator.inputs, base, outputs=outputs + 1)
    yield f"{name} unknown attribute", made(name, first, operator.inputs, {**base, "zz": 1},
                                            outputs=outputs)
    if isinstance(operator.inputs[0], tuple):
        for dtype in DTYPES:
            yield f"{name} {dtype}", made(name, first, operator.inputs, base, dtype=dtype,
                                          outputs=outputs)
        for shape in RANKS if operator.ranks else ():
            yield f"{name} {list(shape)}", made(name, first, [shape, *operator.inputs[1:]], base,
                                                outputs=outputs)
    for inputs, attributes in operator.more:
        told = "".join(f" {key}={value}" for key, value in attributes.items())
        shapes = "" if inputs is None else " ".join(_told(argument) for argument in inputs)
        merged = {**base, **attributes}
        dtype = merged.pop(DTYPE, "float32")
        yield (f"{name} {shapes}{told}",
               made(name, first, operator.inputs if inputs is None else inputs, merged,
                    outputs=outputs, dtype=dtype))


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

FUNCTIONS = {
    "Abs": 1, "Add": 2, "And": 2, "Atan": 1, "Ceil": 1, "Cos": 1, "Div": 2, "Equal": 2, "Erf": 1,
    "Exp": 1, "Floor": 1, "Greater": 2, "GreaterOrEqual": 2, "HardSwish": 1, "Identity": 1,
    "IsNaN": 1, "Less": 2, "LessOrEqual": 2, "Log": 1, "Max": 2, "Mean": 2, "Min": 2, "Mish": 1,
    "Mul": 2, "Neg": 1, "Not": 1, "Or": 2, "Reciprocal": 1, "Relu": 1, "Round": 1, "Sigmoid": 1,
    "Sign": 1, "Sin": 1, "Softplus": 1, "Softsign": 1, "Sqrt": 1, "Sub": 2, "Sum": 2, "Tan": 1,
    "Tanh": 1, "Where": 3, "Xor": 2}
"""Operators without attributes, with the number of their inputs."""

ELEMENTWISE: dict[str, Operator] = {
    "Elu": Operator((17,), [(2, 3)], {}, {"alpha": [0.5, 1.0, 0.0, 1]}, ranks=False),
    "Celu": Operator((17,), [(2, 3)], {}, {"alpha": [0.5, 1.0, 1]}, ranks=False),
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
        "to": [*range(25)]}, ranks=False),
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
    ([_IMAGE, _counted(3, 4, 1, 1), _counted(3)], {"auto_pad": "SAME_UPPER", "strides": [2, 3]})]

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
         ([_IMAGE, _counted(3, 3, 3, 2)], {}), ([_IMAGE, _counted(4, 3)], {})]),
    "Gemm": Operator((17, 9), [(2, 3), _counted(3, 4), _counted(4)], {}, {
        "alpha": [0.5, 1.0, 0.0, 2], "beta": [0.5, 1.0, 0.0], "transA": [0, 1],
        "transB": [0, 1]},
        [*[([(2, 3) if not trans_a else (3, 2), b, c],
            {"transA": trans_a, "transB": trans_b, "alpha": alpha, "beta": beta})
           for trans_a in (0, 1) for trans_b, b in ((0, _counted(3, 4)), (1, _counted(4, 3)))
           for c in (_counted(4), _counted(1, 4), _counted(2, 1), (4,), None)
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
             {"kernel_shape": [2], "ceil_mode": 1, "strides": [3]})], *_AUTO])
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
         for axes in (_ints(), _ints(-1), _ints(-4)) for noop in (0, 1)], ranks=False)
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
    (None, {"keep_aspect_ratio_policy": "not_larger"}), (None, {"extrapolation_value": 1.0})]
RESIZES_10 = {"Resize": Operator((10,), [_IMAGE, np.float32([1, 1, 2, 1.5])], {}, {
    "mode": ["nearest", "linear", "cubic"]}, [
    ([_IMAGE, np.float32([1, 1, *scales])], {}) for scales in (
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
        for k in (-4, -3, -2, -1, 0, 3, 4, 5) for upper in (0, 1)]),
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
            ((4, 4), "abc,cd->abd"))] + [
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
