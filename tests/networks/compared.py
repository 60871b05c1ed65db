"""Functions for comparisons of whole networks with ONNX Runtime: they make sessions, inputs,
results in float64 and errors, and list the nodes that a plan leaves to ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime

from gossamer.errors import InputError, ModelError
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.opset.onnx_nodes import nodes_of
from gossamer.plan.plan import Plan
from gossamer.plan.report.report import Report
from tests.model.executor import execute
from tests.tolerances import WHOLE_NETWORK, WORSE_THAN_OTHERS, normalised_error

_WORDS = 98
_DTYPES = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(double)": "float64",
           "tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(uint8)": "uint8"}


def session_of(model: onnx.ModelProto, *, threads: int = 0, is_optimised: bool = True
               ) -> onnxruntime.InferenceSession:
    """Returns ONNX Runtime's session of a model on the processor. threads: 0 takes all."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = (levels.ORT_ENABLE_ALL if is_optimised
                                        else levels.ORT_DISABLE_ALL)
    return onnxruntime.InferenceSession(model.SerializeToString(), options,
                                        providers=["CPUExecutionProvider"])


def fixed_batch(session: onnxruntime.InferenceSession) -> int | None:
    """Returns the only batch size that a session takes; None where it takes any."""
    batch = session.get_inputs()[0].shape[0]
    return None if isinstance(batch, str) else batch


def drawn_inputs(session: onnxruntime.InferenceSession, batch: int) -> dict[str, np.ndarray]:
    """Returns drawn inputs: integers are numbers of words, and floats are normally distributed
    numbers of float16, which plans of every precision take as they are."""
    rng = np.random.default_rng(batch)
    given = {}
    for info in session.get_inputs():
        if info.type not in _DTYPES:
            raise ValueError(f"input {info.name!r} is a {info.type}; inputs are drawn for "
                             f"{', '.join(_DTYPES)}")
        shape = [batch if isinstance(size, str) else size for size in info.shape]
        dtype = np.dtype(_DTYPES[info.type])
        given[info.name] = (rng.standard_normal(shape, np.float32).astype(np.float16)
                            if dtype.kind == "f" else rng.integers(1, _WORDS, shape)).astype(dtype)
    return given


def results_of(plan: Plan, given: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
    """Returns the results of a plan's call."""
    return several(plan(*[given[info.name] for info in plan.inputs]))


def several(results: Any) -> tuple[Any, ...]:
    """Returns the results of a call as a tuple, also where there is one."""
    return results if isinstance(results, tuple) else (results,)


def judged(plan: Plan, given: Mapping[str, np.ndarray], results: Sequence[np.ndarray],
           expected: Sequence[np.ndarray], precision: str = "fp32") -> tuple[float, float]:
    """Returns the largest error of a call, and how large it may be.

    The error is the distance from ONNX Runtime's results or, where that is too large, from results
    in float64. It is infinite where integers differ. In float16 it may be twice that of an
    evaluation which rounds the weights and the result of every layer to float16.
    """
    error, allowed = _farthest(results, expected), WHOLE_NETWORK[precision]
    if error <= allowed or plan.graph.tail is not None:
        return error, allowed
    right = _evaluated(plan.graph, given, "float64")
    error = _farthest(results, right)
    if error > allowed and precision == "fp16":
        rounded = _farthest(_evaluated(plan.graph, given, "float16"), right)
        allowed = max(allowed, WORSE_THAN_OTHERS * rounded if math.isfinite(rounded) else 0)
    return error, allowed


def _evaluated(graph: Graph, given: Mapping[str, np.ndarray], stored: str) -> list[np.ndarray]:
    values = execute(resolve(graph, len(next(iter(given.values())))), given, stored)
    return [values[info.name] for info in graph.outputs]


def _farthest(results: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    return max(_distance(*pair) for pair in zip(results, expected, strict=True))


def _distance(result: np.ndarray, expected: np.ndarray) -> float:
    if expected.dtype.kind != "f":
        return 0.0 if np.array_equal(result, expected) else float("inf")
    return normalised_error(result, expected)


def left_nodes(graph: Graph) -> list[str]:
    """Returns the operators of the nodes that ONNX Runtime computes."""
    named = [name for node in graph.nodes if node.op == "onnx_part"
             for name, _ in nodes_of(node.attributes["model"])]
    if graph.tail is not None:
        named += [name for name, _ in nodes_of(graph.tail.model)]
    return [name.split(" ")[0] for name in named]


def outside(report: Report, device: str) -> dict[str, Any]:
    """Returns how many layers a plan has, how many of them are computed outside of its device, and
    their share of the layers' time. What ONNX Runtime computes after the last layer is no layer.

    device: the name of the plan's device.
    """
    away = [row for row in report.rows if row["device"] != device]
    total = sum(row["median_us"] or 0.0 for row in report.rows)
    return {"layers": len(report.rows), "layers_outside": len(away),
            "share_outside": sum(row["median_us"] or 0.0 for row in away) / (total or 1.0)}


def line_of(error: Exception) -> str:
    """Returns the beginning of an error's first line."""
    text = str(error).strip()
    return text.splitlines()[0][:160] if text else type(error).__name__


def outcome_of(error: Exception) -> str:
    """Returns "refused: ..." where gossamer says that it does not take a network or an input, and
    "crashed: ..." for every other error, such as that of a device."""
    if isinstance(error, ModelError | InputError):
        return f"refused: {line_of(error)}"
    return f"crashed: {type(error).__name__}: {line_of(error)}"
