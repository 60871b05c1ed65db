"""The reference of the greatest or smallest elements, which is exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.top_k.problem import TopKProblem
from gossamer.ordering import first_places


def reference(problem: TopKProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    x, axis = inputs[0], problem.axis
    places = first_places(x, axis, problem.count, largest=problem.largest,
                          nan_first=problem.nan_first, last=problem.last)
    return [places] if problem.places_only else [np.take_along_axis(x, places, axis), places]
