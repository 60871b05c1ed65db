"""ONNX Runtime on the host for parts of a network and whole networks.

The ONNX model of a part is generated from the part's problems, without their weights. The model's
inputs are the inputs of the part, followed by the constants of the problems in the order of
`constants_of`. Therefore the model is the same for all weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
from onnx import helper

from gossamer.device.base import Buffer, Device
from gossamer.device.host import address_of, host_array
from gossamer.errors import UnsupportedError
from gossamer.onnx_model import ModelWriter, type_of
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.fused.problem import PartProblem, Source, weights_of_part
from gossamer.ops.host_threads import THREADS, number_of
from gossamer.ops.onnx_part.session import RuntimeAlgorithm, Session
from gossamer.ops.part.operators import OPERATORS
from gossamer.ops.weights import Weights
from gossamer.tensor import AXES, BFLOAT16, ROW_MAJOR, TensorSpec

_OPSET, _IR_VERSION = 17, 8
_SEPARATOR = "/"
"""The name of each node begins with the index of the node's problem and this separator."""
_MOST_BYTES = 2**31 - 2**24
"""Maximum bytes of the constants of a part: 2 GiB, the limit of an ONNX model in memory, less 16
MiB for the model's nodes."""
_FEW_FLOPS, _FEW_ELEMENTS = 2**17, 2**12
"""A part runs on one thread if each of its problems has at most _FEW_FLOPS floating-point
operations, and each of its tensors has at most _FEW_ELEMENTS elements. An element is assumed to
take about 25 cycles."""
_RUNS, _FIRST = 9, 2
"""Number of runs of a profile, and number of warm-up runs among them."""


class OnnxRuntime(RuntimeAlgorithm):
    """A part, run as one model by ONNX Runtime.

    If the part is the whole network, idle threads of ONNX Runtime spin. In smaller parts they
    sleep, because other layers need the CPU cores between two runs.
    """

    op = "part"

    def supports(self, problem: PartProblem, device: Device) -> str | None:
        return super().supports(problem, device) or _refusal(problem)

    def prepare(self, weights: Weights, problem: PartProblem, variant: Variant,
                device: Device) -> State:
        def session(arrays: Mapping[str, np.ndarray]) -> Buffer:
            return SessionMemory(device, made_session(problem, arrays, variant),
                                 sum(array.nbytes for array in arrays.values()))

        memory = weights.packed(f"session {variant.config_text} {hash(problem)}", session)
        return State(problem, variant, device, data=Ready(
            cast(SessionMemory, memory).session, weights.arrays))

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: object = None) -> None:
        def arrays() -> tuple[list[np.ndarray], list[np.ndarray]]:
            return (list(map(host_array, inputs, state.variant.inputs)),
                    list(map(host_array, outputs, state.variant.outputs)))

        state.data.session.run_into(tuple(map(address_of, (*inputs, *outputs))), arrays)


@dataclass(frozen=True)
class Ready:
    """A part that is ready to run: its session, and its constants by name."""

    session: Session
    weights: Mapping[str, np.ndarray]


class SessionMemory(Buffer):
    """A session and the memory of its constants.

    A SessionMemory is cached like packed weights, so all contexts of a plan share the session.
    """

    def __init__(self, device: Device, session: Session, nbytes: int) -> None:
        self.device = device
        self.session = session
        self.nbytes = nbytes

    def view(self, offset: int, nbytes: int) -> Buffer:
        raise ValueError("the memory of a session cannot be divided")


def made_session(problem: PartProblem, weights: Mapping[str, np.ndarray], variant: Variant, *,
                 profiled: bool = False) -> Session:
    """Return the session that runs a part.

    Raises UnsupportedError if ONNX Runtime cannot run the part.

    profiled: whether to measure the times of nodes.
    """
    return Session(model_of(problem), constants_of(problem, weights),
                   threads=1 if _is_small(problem) else number_of(variant[THREADS]),
                   spinning=problem.whole, profiled=profiled)


def _is_small(problem: PartProblem) -> bool:
    """Return whether a part is too small to gain from more than one thread."""
    return all(part.flops <= _FEW_FLOPS and all(
        spec.size <= _FEW_ELEMENTS for spec in (*part.inputs, *part.outputs))
        for part in problem.parts)


@lru_cache(maxsize=1024)
def _refusal(problem: PartProblem) -> str | None:
    """Return why ONNX Runtime cannot compute a part; None if it can."""
    nbytes = sum(4 * int(np.prod(shape)) for shape in problem.weight_shapes.values())
    if nbytes > _MOST_BYTES:
        return "needs more than 2 GiB, the limit of ONNX models in memory"
    if not all(spec.size for part in problem.parts for spec in (*part.inputs, *part.outputs)):
        # ONNX Runtime may crash or hang
        return "a tensor is empty"
    try:
        Session(model_of(problem), {}, optimised=False)
    except UnsupportedError as error:
        return str(error)
    return None


def problem_times(problem: PartProblem, weights: Mapping[str, np.ndarray], variant: Variant,
                  inputs: Sequence[np.ndarray]) -> list[float]:
    """Return the time of each problem of a part in microseconds.

    The times are medians of several runs. If ONNX Runtime has fused the nodes of a problem into the
    nodes of another one, the time of the first problem is 0. The times of nodes that ONNX Runtime
    adds, such as changes of layout, are not counted.

    inputs: inputs of the part in their memory layout.
    """
    session = made_session(problem, weights, variant, profiled=True)
    for _ in range(_RUNS):
        session.run(inputs)
    runs: dict[int, list[list[float]]] = {}
    seen: dict[str, int] = {}
    for name, us in session.node_times():
        run = seen[name] = seen.get(name, -1) + 1
        number = part_of_node(name)
        if number is not None and run >= _FIRST:
            times = runs.setdefault(number, [[] for _ in range(_RUNS - _FIRST)])
            times[run - _FIRST].append(us)
    return [float(np.median([sum(times) for times in runs[number]])) if number in runs else 0.0
            for number in range(len(problem.parts))]


@lru_cache(maxsize=16)
def model_of(problem: PartProblem) -> bytes:
    """Return the ONNX model of a part, serialised.

    Raises UnsupportedError if ONNX cannot express a problem.
    """
    values: dict[Source, str] = {}
    writer = ModelWriter()
    for number, (source, spec) in enumerate(zip(problem.entries, problem.inputs, strict=True)):
        values[source] = _entry(writer, f"input{number}", spec)
    for index, (part, sources) in enumerate(zip(problem.parts, problem.sources, strict=True)):
        rule = OPERATORS.get(part.op)
        if rule is None or 0 in (spec.size for spec in (*part.inputs, *part.outputs)):
            raise UnsupportedError(f"{part.describe()} has no ONNX equivalent")
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
    """Return the constants of a part, by their indices among the model's inputs."""
    arrays = [weights_of_part(weights, index)[name] for index, part in enumerate(problem.parts)
              for name in part.weight_shapes]
    return dict(enumerate(arrays, len(problem.entries)))


def part_of_node(name: str) -> int | None:
    """Return the index of the problem to which a node belongs, from the node's name.

    Returns None if ONNX Runtime has added the node.
    """
    found = re.match(rf"(?:fused )?(\d+){_SEPARATOR}.", name)
    return int(found[1]) if found else None


def _entry(writer: ModelWriter, name: str, spec: TensorSpec) -> str:
    """Add an input in the format of a spec; return the name of a value with logical axis order.

    If the axes of the layout are in another order, a Transpose node is added, and the name of its
    output is returned. Raises UnsupportedError for a format that ONNX cannot describe.
    """
    order = AXES.get(spec.layout, tuple(range(len(spec.shape))))
    # bfloat16 is stored as uint16, which a model would interpret as integers
    if spec.format.is_packed or spec.dtype == BFLOAT16 or (
            sorted(spec.stored_shape) != sorted(spec.shape)):
        raise UnsupportedError(f"{spec} has no ONNX equivalent")
    value = writer.input(name, spec.stored_shape, spec.stored_dtype)
    if spec.layout == ROW_MAJOR or order == tuple(range(len(spec.shape))):
        return value
    return writer.node("Transpose", [value], perm=list(np.argsort(order)))


def _dtype(problem: Any, name: str) -> str:
    """Return the dtype of a problem's constant."""
    operands: Sequence[TensorSpec] = getattr(problem, "operands", ())
    number = name.removeprefix("operand")
    return operands[int(number)].dtype if operands and number.isdigit() else "float32"
