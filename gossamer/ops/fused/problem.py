"""The problem of a fusion: its layers' problems, the sources of their inputs; the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from gossamer.facts import REAL, ValueFacts
from gossamer.ops.algorithm import PRECISIONS, Problem
from gossamer.tensor import TensorSpec

Source = tuple[int, int]
"""Where a value comes from: the number of a part and the number of one of the part's outputs, or -1
and the number of an entry."""


def entry(number: int) -> Source:
    """Return the source of an entry, a value that a fusion reads from outside.

    number: position of the entry among the fusion's inputs.
    """
    return (-1, number)


ENTRY = entry(0)
"""The source of the first entry."""


@dataclass(frozen=True)
class FusionProblem(Problem):
    """Several problems that one algorithm computes in one step.

    parts: the problems in the order of execution.
    sources: the source of each input of each part: an output of an earlier part, or an entry.
    exits: the sources of the fusion's outputs, each an output of a part.

    The constants of part i are named "i.name". Raises ValueError where the source of an input is
    neither an output of an earlier part nor an entry, or has another spec than the input.
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
        """Return the spec of the value that a source gives."""
        if source[0] >= 0:
            return self.parts[source[0]].outputs[source[1]]
        part, index = self.reader(source)
        return part.inputs[index]

    def reader(self, source: Source) -> tuple[Problem, int]:
        """Return the first part that reads an entry.

        And the number that the entry has among the inputs of this part.
        """
        return next((part, sources.index(source)) for part, sources
                    in zip(self.parts, self.sources, strict=True) if source in sources)

    @cached_property
    def entries(self) -> tuple[Source, ...]:
        """The sources of the fusion's inputs, in order."""
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

    @property
    def exact_precision(self) -> str:
        return min((part.exact_precision for part in self.parts), key=PRECISIONS.index)

    @property
    def sums_integers(self) -> bool:
        return any(part.sums_integers for part in self.parts)

    def first_images(self, count: int) -> Problem:
        try:
            few = replace(self, parts=tuple(part.first_images(count) for part in self.parts))
        except ValueError:  # some part works on all images at once
            return self
        # parts that do not depend on each other may work on different numbers of images
        sizes, few_sizes = ({spec.shape[:1] for spec in problem.outputs} for problem in (self, few))
        shortened = {whole.shape[:1] for whole, first in zip(self.inputs, few.inputs, strict=True)
                     if whole.shape != first.shape}
        return few if len(sizes) == len(few_sizes) == 1 and shortened <= sizes else self

    @cached_property
    def facts(self) -> tuple[ValueFacts, ...]:  # type: ignore[override]
        """The value facts of the entries.

        They are those of the first part that reads each entry; empty where every entry may have
        many different values.
        """
        known = tuple(part.facts[index] if index < len(part.facts) else REAL
                      for part, index in map(self.reader, self.entries))
        return known if any(facts.few_values for facts in known) else ()

    def describe(self) -> str:
        return " + ".join(part.describe() for part in self.parts)


def weights_of_part(weights: Mapping[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
    """Return a part's constants by its own names."""
    prefix = f"{index}."
    return {name.removeprefix(prefix): array for name, array in weights.items()
            if name.startswith(prefix)}


def reference(problem: FusionProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs by the references of the parts, one after another, in float64."""
    # imported here, because the registry imports this package
    from gossamer.ops.registry import OPS

    last_use = {source: index for index, sources in enumerate(problem.sources)
                for source in sources}
    values: dict[Source, np.ndarray] = dict(zip(problem.entries, inputs, strict=True))
    for index, (part, sources) in enumerate(zip(problem.parts, problem.sources, strict=True)):
        arrays = [values[source] for source in sources]
        # a reshape has no op of its own, because it does no work
        results = ([np.reshape(arrays[0], part.outputs[0].shape)] if part.op == "reshape" else
                   OPS[part.op].reference(part, arrays, weights_of_part(weights, index)))
        values.update({(index, output): array for output, array in enumerate(results)})
        for source in dict.fromkeys(sources):
            # a value that no later problem reads need not stay in memory
            if last_use[source] == index and source not in problem.exits:
                del values[source]
    return [values[source] for source in problem.exits]
