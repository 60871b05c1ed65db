"""Computes fusions in float64, one part after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.fused.problem import FusionProblem, Source, weights_of_part


def reference(problem: FusionProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    # imported here, because the registry imports this package
    from gossamer.ops.registry import OPS

    values: dict[Source, np.ndarray] = dict(zip(problem.entries, inputs, strict=True))
    for index, (part, sources) in enumerate(zip(problem.parts, problem.sources, strict=True)):
        results = OPS[part.op].reference(part, [values[source] for source in sources],
                                         weights_of_part(weights, index))
        values.update({(index, output): array for output, array in enumerate(results)})
    return [values[source] for source in problem.exits]
