"""The reference of padding, which is exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.pad.problem import PadProblem


def reference(problem: PadProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    x = inputs[0]
    shape = problem.outputs[0].shape
    if 0 in shape:
        return [np.empty(shape, x.dtype)]
    added = [(max(low, 0), max(high, 0))
             for low, high in zip(problem.low, problem.high, strict=True)]
    if problem.mode == "constant":
        padded = np.pad(x, added, constant_values=np.array(problem.value).astype(x.dtype))
    else:
        padded = np.pad(x, added, mode="reflect" if problem.mode == "reflect" else "edge")
    uncropped = tuple(slice(max(-low, 0), size - max(-high, 0)) for size, low, high
                      in zip(padded.shape, problem.low, problem.high, strict=True))
    return [padded[uncropped]]
