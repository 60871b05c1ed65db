"""The algorithm that computes nodes of an ONNX file by ONNX Runtime on the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np

from gossamer import host_library
from gossamer.device.base import Device
from gossamer.errors import InputError, UnsupportedError
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.host_threads import THREADS, number_of, thread_configs
from gossamer.ops.onnx_part.empty import EmptyPart, constants_of, fatal_node, is_result_empty
from gossamer.ops.onnx_part.problem import MODEL, OnnxPartProblem
from gossamer.ops.onnx_part.session import Session, parsed, version_on
from gossamer.ops.strided import HostAlgorithm
from gossamer.ops.weights import Weights


class OnnxRuntimePart(HostAlgorithm):
    """Runs the nodes of a part as one model of ONNX Runtime."""

    op = "onnx_part"
    name = "onnxruntime"
    vendor = "ONNX Runtime"

    def version(self, device: Device) -> str:
        return version_on(device)

    def supports(self, problem: OnnxPartProblem, device: Device) -> str | None:
        if device.compiles:
            return "ONNX Runtime computes it on the host"
        if not host_library.is_installed():
            return "needs ONNX Runtime; pip install onnxruntime"
        return None

    def variants(self, problem: OnnxPartProblem, device: Device) -> Iterable[Variant]:
        return [Variant(config, problem.inputs, problem.outputs) for config in thread_configs()]

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
    """Returns what runs a part: a session, as session_of() returns it, or an EmptyPart where
    tensors have no elements."""
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
    """Returns the session that runs a part. Raises UnsupportedError where ONNX Runtime cannot run
    the part.

    threads: number of threads of an operator.
    optimised: whether ONNX Runtime may rewrite the model.
    shaped: whether the session takes inputs of the problem's shapes only, else of any shapes.
    """
    return Session(weights[MODEL].tobytes(), constants_of(problem, weights),
                   shapes=[spec.shape for spec in problem.operands] if shaped else (),
                   threads=threads, optimised=optimised)


def checked(problem: OnnxPartProblem, outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the outputs of a part as a list. Raises InputError where an output does not have the
    shape that the problem states."""
    for spec, output in zip(problem.outputs, outputs, strict=True):
        if output.shape != spec.shape:
            raise InputError(f"ONNX Runtime makes a result of shape {list(output.shape)}, expected "
                             f"{list(spec.shape)}")
    return list(outputs)
