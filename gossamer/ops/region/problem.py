"""The problem of a region: the problems of its layers, and which reads what the others write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gossamer.ops.algorithm import Problem
from gossamer.tensor import TensorSpec

Source = tuple[int, int]
"""The number of a part and of one of its outputs; or ENTRY."""

ENTRY: Source = (-1, 0)
"""The source of the one value that a region reads from outside."""


@dataclass(frozen=True)
class RegionProblem(Problem):
    """Several problems that one algorithm computes in one step.

    parts: the problems in the order of execution. sources: for each part, where each of its inputs
    comes from: an output of an earlier part, or ENTRY. exits: the outputs of parts that are the
    region's outputs. The constants of part i are named "i.name".
    Raises ValueError for sources that do not fit.
    """

    op: ClassVar[str] = "region"
    parts: tuple[Problem, ...]
    sources: tuple[tuple[Source, ...], ...]
    exits: tuple[Source, ...]

    def __post_init__(self) -> None:
        for index, (part, sources) in enumerate(zip(self.parts, self.sources, strict=True)):
            for spec, source in zip(part.inputs, sources, strict=True):
                if source != ENTRY and not 0 <= source[0] < index:
                    raise ValueError(f"part {index} reads {source}, which no earlier part writes")
                if spec != self.spec(source):
                    raise ValueError(f"part {index} reads {spec}, its source {source} is "
                                     f"{self.spec(source)}")

    def spec(self, source: Source) -> TensorSpec:
        """Returns the spec of the value that a source gives."""
        if source != ENTRY:
            return self.parts[source[0]].outputs[source[1]]
        return next(spec for part, sources in zip(self.parts, self.sources, strict=True)
                    for spec, other in zip(part.inputs, sources, strict=True) if other == ENTRY)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return (self.spec(ENTRY),)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return tuple(self.spec(source) for source in self.exits)

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {f"{index}.{name}": shape for index, part in enumerate(self.parts)
                for name, shape in part.weight_shapes.items()}

    @property
    def flops(self) -> int:
        return sum(part.flops for part in self.parts)

    def first_images(self, count: int) -> Problem:
        try:
            return replace(self, parts=tuple(part.first_images(count) for part in self.parts))
        except ValueError:  # some part works on all images at once
            return self

    def example_inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        part, sources = next((part, sources) for part, sources
                             in zip(self.parts, self.sources, strict=True) if ENTRY in sources)
        return [part.example_inputs(rng)[sources.index(ENTRY)]]

    def describe(self) -> str:
        return " + ".join(part.describe() for part in self.parts)


def weights_of_part(weights: Mapping[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
    """Returns the constants of one part by the names that its own problem gives them."""
    prefix = f"{index}."
    return {name.removeprefix(prefix): array for name, array in weights.items()
            if name.startswith(prefix)}
