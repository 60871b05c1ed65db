"""The reference of parts: the references of their problems, one after another, in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.fused.problem import Source, weights_of_part
from gossamer.ops.part.problem import PartProblem, ReshapeProblem


def reference(problem: PartProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    # imported here, because the registry imports this package
    from gossamer.ops.registry import OPS

    last_use = {source: index for index, sources in enumerate(problem.sources)
                for source in sources}
    values: dict[Source, np.ndarray] = dict(zip(problem.entries, inputs, strict=True))
    for index, (part, sources) in enumerate(zip(problem.parts, problem.sources, strict=True)):
        arrays = [values[source] for source in sources]
        if isinstance(part, ReshapeProblem):
            results = [np.reshape(arrays[0], part.shape)]
        else:
            results = OPS[part.op].reference(part, arrays, weights_of_part(weights, index))
        values.update({(index, output): array for output, array in enumerate(results)})
        for source in dict.fromkeys(sources):
            # a value that no later problem reads need not stay in memory
            if last_use[source] == index and source not in problem.exits:
                del values[source]
    return [values[source] for source in problem.exits]
