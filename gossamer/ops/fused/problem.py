"""The problem of a fusion: the problems of its layers, and which reads what the others write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from gossamer.facts import REAL, ValueFacts
from gossamer.ops.algorithm import Problem
from gossamer.tensor import TensorSpec

Source = tuple[int, int]
"""The number of a part and of one of its outputs; or the source of an entry."""


def entry(number: int) -> Source:
    """Returns the source of the entry of a number: of a value that a fusion reads from outside."""
    return (-1, number)


ENTRY = entry(0)
"""The source of the first entry."""


@dataclass(frozen=True)
class FusionProblem(Problem):
    """Several problems that one algorithm computes in one step.

    parts: the problems in the order of execution.
    sources: for each part, where each of its inputs comes from: an output of an earlier part, or an
    entry.
    exits: the outputs of parts that are the fusion's outputs. The constants of part i are named
    "i.name".
    Raises ValueError for sources that do not fit.
    """

    op: ClassVar[str] = "fused"
    parts: tuple[Problem, ...]
    sources: tuple[tuple[Source, ...], ...]
    exits: tuple[Source, ...]

    def __post_init__(self) -> None:
        for index, (part, sources) in enumerate(zip(self.parts, self.sources, strict=True)):
            for spec, source in zip(part.inputs, sources, strict=True):
                if source[0] >= index:
                    raise ValueError(f"part {index} reads {source}, which no earlier part writes")
                if spec != self.spec(source):
                    raise ValueError(f"part {index} reads {spec}, its source {source} is "
                                     f"{self.spec(source)}")

    def spec(self, source: Source) -> TensorSpec:
        """Returns the spec of the value that a source gives."""
        if source[0] >= 0:
            return self.parts[source[0]].outputs[source[1]]
        part, index = self.reader(source)
        return part.inputs[index]

    def reader(self, source: Source) -> tuple[Problem, int]:
        """Returns the first part that reads an entry, and the number of its input."""
        return next((part, sources.index(source)) for part, sources
                    in zip(self.parts, self.sources, strict=True) if source in sources)

    @cached_property
    def entries(self) -> tuple[Source, ...]:
        """The sources of the values that the fusion reads from outside, in the order of its
        inputs."""
        return tuple(sorted({source for sources in self.sources for source in sources
                             if source[0] < 0}, key=lambda source: source[1]))

    @cached_property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return tuple(map(self.spec, self.entries))

    @cached_property
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

    @cached_property
    def facts(self) -> tuple[ValueFacts, ...]:  # type: ignore[override]
        """The facts that the parts state of the entries that they read; empty where no entry has
        few values."""
        known = tuple(part.facts[index] if index < len(part.facts) else REAL
                      for part, index in map(self.reader, self.entries))
        return known if any(facts.few_values for facts in known) else ()

    def describe(self) -> str:
        return " + ".join(part.describe() for part in self.parts)


def weights_of_part(weights: Mapping[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
    """Returns the constants of one part by the names that its own problem gives them."""
    prefix = f"{index}."
    return {name.removeprefix(prefix): array for name, array in weights.items()
            if name.startswith(prefix)}
