"""Parts whose tensors have no elements. ONNX Runtime refuses some of them; at others it ends the
process, or does not return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.shape_inference import infer_shapes

from gossamer.errors import InputError, first_line, quoted
from gossamer.ops.onnx_part.problem import MODEL, OnnxPartProblem
from gossamer.ops.onnx_part.session import Session, nodes_of, parsed, with_shapes

_FATAL = frozenset(("Conv", "ConvTranspose", "Einsum", "GRU", "LSTM", "RNN", "Unique"))
"""Operators at which ONNX Runtime may end the process, or never return, where a tensor has no
elements. ONNX's reference computes them all."""
_MOST_PARAMETERS = 1024
"""The most elements of a constant that is given to ONNX's shape inference. Constants that decide
shapes, such as axes and repeats, have fewer elements."""


class EmptyPart:
    """A part that reads or makes tensors without elements.

    session: None where ONNX Runtime does not take the part.
    fatal: the result of fatal_node().
    """

    def __init__(self, problem: OnnxPartProblem, weights: Mapping[str, np.ndarray],
                 session: Session | None, fatal: str) -> None:
        self._problem = problem
        self._weights = weights
        self._session = session
        self._fatal = fatal

    def run(self, inputs: Sequence[np.ndarray]) -> list[Any]:
        """Returns the outputs. Raises InputError where they cannot be computed."""
        if is_result_empty(self._problem):
            return [np.empty(spec.shape, spec.dtype) for spec in self._problem.outputs]
        return run_empty(parsed(self._weights[MODEL].tobytes()),
                         merged(constants_of(self._problem, self._weights), inputs), inputs,
                         self._session, self._fatal)


def is_result_empty(problem: OnnxPartProblem) -> bool:
    """Returns whether no output has elements, so that there is nothing to compute."""
    return not any(spec.size for spec in problem.outputs)


def constants_of(problem: OnnxPartProblem, weights: Mapping[str, np.ndarray]
                 ) -> dict[int, np.ndarray]:
    """Returns the operands that are constants, by their indices."""
    return {index: weights[f"operand{index}"] for index in problem.constants}


def merged(constants: Mapping[int, np.ndarray], inputs: Sequence[Any]) -> list[Any]:
    """Returns the values of all inputs of a model, in order.

    constants: those that are the same in each run, by their indices. inputs: the others, in order.
    """
    given = iter(inputs)
    return [constants[index] if index in constants else next(given)
            for index in range(len(constants) + len(inputs))]


def run_empty(proto: onnx.ModelProto, values: Sequence[Any], inputs: Sequence[Any],
              session: Session | None, fatal: str) -> list[Any]:
    """Returns the outputs of a model by ONNX Runtime; by ONNX's reference in NumPy where ONNX
    Runtime refuses the inputs, or might end the process. Raises InputError where the reference
    cannot compute them.

    values: those of all inputs of the model. inputs: those that the session takes.
    session, fatal: as for EmptyPart.
    """
    # onnx.reference takes long to import, and few networks need it
    from onnx.reference import ReferenceEvaluator

    failure = ""
    if session is not None and not fatal:
        try:
            return session.run(inputs)
        except InputError as error:
            failure = f"; {error}"
    names = [info.name for info in proto.graph.input]
    try:
        with np.errstate(all="ignore"):
            return [*ReferenceEvaluator(proto).run(None, dict(zip(names, values, strict=True)))]
    except Exception as error:
        # the reference raises exceptions of any class
        raise InputError("a tensor has no elements, for which ONNX's reference does not compute "
                         f"{fatal or 'these nodes'}: {first_line(error)}{failure}; give inputs "
                         "with elements") from None


def fatal_node(proto: onnx.ModelProto, shapes: Sequence[Sequence[int] | None],
               constants: Mapping[int, np.ndarray]) -> str:
    """Returns the operator of a node that reads or makes a tensor without elements, and at which
    ONNX Runtime may end the process; "" where there is none.

    shapes: the shapes of the model's inputs; None for inputs that are no tensors.
    constants: as for Session.
    """
    if not any(node.op_type in _FATAL for node in nodes_of(proto)):
        return ""
    model = onnx.ModelProto.FromString(proto.SerializeToString())
    with_shapes(model, shapes)
    model.graph.initializer.extend(
        numpy_helper.from_array(array, model.graph.input[index].name)
        for index, array in constants.items() if array.size <= _MOST_PARAMETERS)
    # onnx raises exceptions of its own classes; ONNX Runtime will describe the fault
    with suppress(Exception):
        model = infer_shapes(model, data_prop=True)
    empty = {info.name for info in (*model.graph.input, *model.graph.value_info,
                                    *model.graph.output)
             if any(dim.HasField("dim_value") and not dim.dim_value
                    for dim in info.type.tensor_type.shape.dim)}
    outer = [*model.graph.node]
    # of the shapes within branches and functions nothing is known
    return next((quoted(node.op_type)[1:-1] for node in nodes_of(model)
                 if node.op_type in _FATAL and empty and (
                     node not in outer or empty.intersection((*node.input, *node.output)))), "")
