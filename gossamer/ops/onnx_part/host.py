"""Nodes of an ONNX file, computed by ONNX Runtime on the host.

If tensors have no elements, ONNX Runtime rejects some models, and crashes or hangs with others.
ONNX's reference implementation computes these models instead. The expected results of this op (see
`reference()`) are those of ONNX Runtime without graph optimisations, because no other dependency of
gossamer computes every operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.shape_inference import infer_shapes

from gossamer.device.base import Device
from gossamer.errors import InputError, UnsupportedError, first_line, quoted
from gossamer.onnx_model import MOST_PARAMETERS, nodes_of, parsed, with_shapes
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.host_threads import THREADS, number_of
from gossamer.ops.onnx_part.problem import MODEL, OnnxPartProblem
from gossamer.ops.onnx_part.session import RuntimeAlgorithm, Session
from gossamer.ops.strided import HostAlgorithm
from gossamer.ops.weights import Weights

_FATAL = frozenset(("Conv", "ConvTranspose", "Einsum", "GRU", "LSTM", "RNN", "Unique"))
"""Operators with which ONNX Runtime may hang, or end the process, if they read or compute a tensor
without elements. ONNX's reference implementation computes all these operators."""


class OnnxRuntimePart(RuntimeAlgorithm, HostAlgorithm):
    """The nodes of a part, run as one model by ONNX Runtime."""

    op = "onnx_part"

    def prepare(self, weights: Weights, problem: OnnxPartProblem, variant: Variant,
                device: Device) -> State:
        return State(problem, variant, device, data={"runner": runner_of(
            problem, weights.arrays, threads=number_of(variant[THREADS]))})

    def compute(self, problem: OnnxPartProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        runner = cast(Session | EmptyPart, weights["runner"])
        return checked(problem, runner.run([np.asarray(array, order="C") for array in inputs]))


def runner_of(problem: OnnxPartProblem, weights: Mapping[str, np.ndarray], *, threads: int = 1,
              optimised: bool = True) -> Session | EmptyPart:
    """Return the object that runs a part.

    The object is an EmptyPart if any tensor has no elements, else a session.

    The parameters are those of session_of().
    """
    fatal = fatal_node(parsed(weights[MODEL].tobytes()),
                       [spec.shape for spec in problem.operands], constants_of(problem, weights))
    is_empty = not all(spec.size for spec in (*problem.operands, *problem.results))
    session = None
    if not fatal and not is_result_empty(problem):
        try:
            session = session_of(problem, weights, threads=threads, optimised=optimised)
        except UnsupportedError:
            if not is_empty:
                raise
    return EmptyPart(problem, weights, session, fatal) if session is None or is_empty else session


def session_of(problem: OnnxPartProblem, weights: Mapping[str, np.ndarray], *, threads: int = 1,
               optimised: bool = True, shaped: bool = True) -> Session:
    """Return the session that runs a part.

    Raises UnsupportedError if ONNX Runtime cannot run the part.

    threads: number of threads per operator.
    optimised: whether ONNX Runtime may optimise the model.
    shaped: whether the session accepts only inputs of the problem's shapes.
    """
    return Session(weights[MODEL].tobytes(), constants_of(problem, weights),
                   shapes=[spec.shape for spec in problem.operands] if shaped else (),
                   threads=threads, optimised=optimised)


def checked(problem: OnnxPartProblem, outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of a part after checking their shapes.

    Raises InputError if the shape of an output is not the one that the problem states.
    """
    for spec, output in zip(problem.outputs, outputs, strict=True):
        if output.shape != spec.shape:
            raise InputError(f"ONNX Runtime returned an output of shape {list(output.shape)}, "
                             f"expected {list(spec.shape)}")
    return list(outputs)


class EmptyPart:
    """A part that reads or computes tensors without elements.

    session: the part's session; None if ONNX Runtime rejects the part.
    fatal: the result of fatal_node().
    """

    def __init__(self, problem: OnnxPartProblem, weights: Mapping[str, np.ndarray],
                 session: Session | None, fatal: str) -> None:
        self._problem = problem
        self._weights = weights
        self._session = session
        self._fatal = fatal

    def run(self, inputs: Sequence[np.ndarray]) -> list[Any]:
        """Return the outputs.

        Raises InputError if the outputs cannot be computed.
        """
        if is_result_empty(self._problem):
            return [np.empty(spec.shape, spec.dtype) for spec in self._problem.outputs]
        return run_empty(parsed(self._weights[MODEL].tobytes()),
                         merged(constants_of(self._problem, self._weights), inputs), inputs,
                         self._session, self._fatal)


def is_result_empty(problem: OnnxPartProblem) -> bool:
    """Return whether no output has elements."""
    return not any(spec.size for spec in problem.outputs)


def constants_of(problem: OnnxPartProblem, weights: Mapping[str, np.ndarray]
                 ) -> dict[int, np.ndarray]:
    """Return the constant operands by index."""
    return {index: weights[f"operand{index}"] for index in problem.constants}


def merged(constants: Mapping[int, np.ndarray], inputs: Sequence[Any]) -> list[Any]:
    """Return the values of all inputs of a model, in order.

    constants: values of the constant inputs by index.
    inputs: values of the other inputs, in order.
    """
    given = iter(inputs)
    return [constants[index] if index in constants else next(given)
            for index in range(len(constants) + len(inputs))]


def run_empty(proto: onnx.ModelProto, values: Sequence[Any], inputs: Sequence[Any],
              session: Session | None, fatal: str) -> list[Any]:
    """Return the outputs of a model in which some tensors have no elements.

    ONNX's reference implementation computes the outputs if ONNX Runtime rejects the inputs, or if
    ONNX Runtime might end the process. Raises InputError if the reference implementation fails.

    values: values of all inputs of the model, including constants.
    inputs: values of the inputs that are not constants; the session takes only these.
    session, fatal: as for EmptyPart.
    """
    # onnx.reference is slow to import, and few networks need it
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
        # the reference implementation raises exceptions of any class
        raise InputError("a tensor has no elements, and ONNX's reference implementation cannot "
                         f"compute {fatal or 'these nodes'}: {first_line(error)}{failure}; "
                         "pass inputs with elements") from None


def fatal_node(proto: onnx.ModelProto, shapes: Sequence[Sequence[int] | None],
               constants: Mapping[int, np.ndarray]) -> str:
    """Return the first operator with which ONNX Runtime may end the process; "" if there is none.

    An operator of _FATAL may end the process if it reads or computes a tensor without elements.

    shapes: shapes of the model's inputs; None for inputs that are not tensors.
    constants: as for Session.
    """
    if not any(node.op_type in _FATAL for node in nodes_of(proto)):
        return ""
    model = onnx.ModelProto.FromString(proto.SerializeToString())
    with_shapes(model, shapes)
    model.graph.initializer.extend(
        numpy_helper.from_array(array, model.graph.input[index].name)
        for index, array in constants.items() if array.size <= MOST_PARAMETERS)
    # a failure of the inference is ignored: ONNX Runtime will report the reason
    with suppress(Exception):
        model = infer_shapes(model, data_prop=True)
    empty = {info.name for info in (*model.graph.input, *model.graph.value_info,
                                    *model.graph.output)
             if any(dim.HasField("dim_value") and not dim.dim_value
                    for dim in info.type.tensor_type.shape.dim)}
    outer = [*model.graph.node]
    # shapes within branches and functions are unknown, so their tensors may have no elements
    return next((quoted(node.op_type)[1:-1] for node in nodes_of(model)
                 if node.op_type in _FATAL and empty and (
                     node not in outer or empty.intersection((*node.input, *node.output)))), "")


def reference(problem: OnnxPartProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    runner = runner_of(problem, weights, optimised=False)
    arrays = [np.asarray(array, spec.dtype, order="C")
              for array, spec in zip(inputs, problem.inputs, strict=True)]
    return [array.astype(np.float64) if array.dtype.kind == "f" else array
            for array in checked(problem, runner.run(arrays))]
