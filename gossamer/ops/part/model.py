"""Parts of a network as ONNX models.

A model is written from the problems of a part, without the part's weights. Its inputs are the
inputs of the part, then the constants of the part's problems in the order of `constants_of`. The
model is therefore the same for all weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from onnx import helper

from gossamer.errors import UnsupportedError
from gossamer.onnx_model import ModelWriter, type_of
from gossamer.ops.fused.problem import Source, weights_of_part
from gossamer.ops.part.operators import OPERATORS
from gossamer.ops.part.problem import PartProblem
from gossamer.tensor import AXES, BFLOAT16, ROW_MAJOR, TensorSpec

_OPSET, _IR_VERSION = 17, 8
_SEPARATOR = "/"
"""The name of each node begins with the number of the node's problem and this separator."""


@lru_cache(maxsize=16)
def model_of(problem: PartProblem) -> bytes:
    """Return the model of a part.

    Raises UnsupportedError where ONNX cannot express a problem.
    """
    values: dict[Source, str] = {}
    writer = ModelWriter()
    for number, (source, spec) in enumerate(zip(problem.entries, problem.inputs, strict=True)):
        values[source] = _entry(writer, f"input{number}", spec)
    for index, (part, sources) in enumerate(zip(problem.parts, problem.sources, strict=True)):
        rule = OPERATORS.get(part.op)
        if rule is None or 0 in (spec.size for spec in (*part.inputs, *part.outputs)):
            raise UnsupportedError(f"{part.describe()}: has no ONNX form")
        writer.prefix = f"{index}{_SEPARATOR}"
        weights = {name: writer.input(f"{index}.{name}", shape, _dtype(part, name))
                   for name, shape in part.weight_shapes.items()}
        names = rule(writer, part, [values[source] for source in sources], weights)
        values.update({(index, output): name for output, name in enumerate(names)})
    outputs = [helper.make_tensor_value_info(
        values[source], type_of(spec.stored_dtype), spec.shape)
        for source, spec in zip(problem.exits, problem.outputs, strict=True)]
    model = helper.make_model(
        helper.make_graph(writer.nodes, "part", writer.inputs, outputs, writer.constants),
        opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    return model.SerializeToString(deterministic=True)


def constants_of(problem: PartProblem, weights: Mapping[str, np.ndarray]) -> dict[int, np.ndarray]:
    """Return the constants of a part.

    The key of a constant is the index, among the model's inputs, of the input that the constant is
    passed to.
    """
    arrays = [weights_of_part(weights, index)[name] for index, part in enumerate(problem.parts)
              for name in part.weight_shapes]
    return dict(enumerate(arrays, len(problem.entries)))


def part_of_node(name: str) -> int | None:
    """Return the number of the problem of a node, by its name.

    None for a node that ONNX Runtime has added.
    """
    number, _, rest = name.partition(_SEPARATOR)
    return int(number) if rest and number.isdigit() else None


def _entry(writer: ModelWriter, name: str, spec: TensorSpec) -> str:
    """Add an input with the format of a spec.

    A transpose to the logical order of axes follows where the layout needs one. Returns the name of
    the transposed value. Raises UnsupportedError for a format that ONNX cannot describe.
    """
    order = AXES.get(spec.layout, tuple(range(len(spec.shape))))
    # memory holds bfloat16 as bits in uint16, which a model would read as integers
    if spec.format.is_packed or spec.dtype == BFLOAT16 or (
            sorted(spec.stored_shape) != sorted(spec.shape)):
        raise UnsupportedError(f"{spec}: has no ONNX form")
    value = writer.input(name, spec.stored_shape, spec.stored_dtype)
    if spec.layout == ROW_MAJOR or order == tuple(range(len(spec.shape))):
        return value
    return writer.node("Transpose", [value], perm=list(np.argsort(order)))


def _dtype(problem: Any, name: str) -> str:
    """Return the dtype of a problem's constant."""
    operands: Sequence[TensorSpec] = getattr(problem, "operands", ())
    if not operands and problem.op in ("gather", "matmul"):
        operands = (problem.data, problem.indices) if problem.op == "gather" else (
            problem.a, problem.b)
    number = name.removeprefix("operand")
    return operands[int(number)].dtype if operands and number.isdigit() else "float32"
