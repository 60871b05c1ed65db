"""The reference of nodes of an ONNX file: ONNX Runtime without rewrites of the model, because no
other library that gossamer needs computes every ONNX operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.onnx_part.host import checked, runner_of
from gossamer.ops.onnx_part.problem import OnnxPartProblem


def reference(problem: OnnxPartProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    runner = runner_of(problem, weights, optimised=False)
    arrays = [np.asarray(array, spec.dtype, order="C")
              for array, spec in zip(inputs, problem.inputs, strict=True)]
    return [array.astype(np.float64) if array.dtype.kind == "f" else array
            for array in checked(problem, runner.run(arrays))]
