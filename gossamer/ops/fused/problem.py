"""The problems of fusions and of parts of a network.

A fusion is computed by one algorithm in one step; a part of a network is computed by a network
library such as ONNX Runtime. This module also recognises layers that occur in several fusions.

One of these is the squeeze-and-excite layer, which is a whole fusion or belongs to a larger block.
Source: J. Hu, L. Shen, G. Sun, "Squeeze-and-excitation networks", CVPR 2018.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from gossamer.expression import Expression
from gossamer.facts import REAL, ValueFacts
from gossamer.ops.algorithm import PRECISIONS, Epilogue, Problem
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.op import Reference
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.tensor import TensorSpec, default_spec

Source = tuple[int, int]
"""The source of a value.

An output of a part has the source (index of the part, index of the output). An entry, which is a
value that a fusion reads from outside, has the source (-1, index of the entry).
"""


def entry(number: int) -> Source:
    """Return the source of an entry.

    number: index of the entry among the fusion's inputs.
    """
    return (-1, number)


ENTRY = entry(0)
"""The source of the first entry."""
PARTS = 4
"""Number of parts of a squeeze-and-excite layer: the mean, two 1x1 convolutions, and the
scaling."""


@dataclass(frozen=True)
class FusionProblem(Problem):
    """Several problems that one algorithm computes in one step.

    parts: the problems in the order of execution.
    sources: the source of each input of each part: an output of an earlier part or an entry.
    exits: the sources of the fusion's outputs, each an output of a part.

    The constants of part i are named "i.name".

    Raises ValueError if the source of an input is neither an output of an earlier part nor an
    entry, or if an input and its source have different specs.
    """

    op: ClassVar[str] = "fused"
    parts: tuple[Problem, ...]
    sources: tuple[tuple[Source, ...], ...]
    exits: tuple[Source, ...]

    def __post_init__(self) -> None:
        for index, (part, sources) in enumerate(zip(self.parts, self.sources, strict=True)):
            for spec, source in zip(part.inputs, sources, strict=True):
                if source[0] >= index:
                    raise ValueError(f"part {index} of a fusion reads {source}, which no earlier "
                                     "part writes")
                if spec != self.spec(source):
                    raise ValueError(f"part {index} of a fusion reads {spec}, but its source "
                                     f"{source} is {self.spec(source)}")

    def spec(self, source: Source) -> TensorSpec:
        """Return the spec of the value with a given source."""
        if source[0] >= 0:
            return self.parts[source[0]].outputs[source[1]]
        part, index = self.reader(source)
        return part.inputs[index]

    def reader(self, source: Source) -> tuple[Problem, int]:
        """Return the first part that reads an entry, and the entry's index among its inputs."""
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
        except ValueError:  # some part needs all images at once
            return self
        # independent parts may have different numbers of images
        sizes, few_sizes = ({spec.shape[:1] for spec in problem.outputs} for problem in (self, few))
        shortened = {whole.shape[:1] for whole, first in zip(self.inputs, few.inputs, strict=True)
                     if whole.shape != first.shape}
        return few if len(sizes) == len(few_sizes) == 1 and shortened <= sizes else self

    @cached_property
    def facts(self) -> tuple[ValueFacts, ...]:  # type: ignore[override]
        """The value facts of the entries; empty if nothing is known of any entry.

        Each entry's facts are those of the first part that reads the entry.
        """
        known = tuple(part.facts[index] if index < len(part.facts) else REAL
                      for part, index in map(self.reader, self.entries))
        return known if any(facts.few_values for facts in known) else ()

    def describe(self) -> str:
        return " + ".join(part.describe() for part in self.parts)


def weights_of_part(weights: Mapping[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
    """Return a part's constants, without the prefix "index." of their names."""
    prefix = f"{index}."
    return {name.removeprefix(prefix): array for name, array in weights.items()
            if name.startswith(prefix)}


def reference(problem: FusionProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray],
              of_part: Reference | None = None) -> list[np.ndarray]:
    """Compute the parts one after another, each by the reference of its op, in float64.

    of_part: function that replaces the references of all parts except reshapes.
    """
    # imported here because the registry imports this package
    from gossamer.ops.registry import OPS

    last_use = {source: index for index, sources in enumerate(problem.sources)
                for source in sources}
    values: dict[Source, np.ndarray] = dict(zip(problem.entries, inputs, strict=True))
    for index, (part, sources) in enumerate(zip(problem.parts, problem.sources, strict=True)):
        arrays = [values[source] for source in sources]
        # a reshape has no op of its own, because it does no work
        results = ([np.reshape(arrays[0], part.outputs[0].shape)] if part.op == "reshape" else
                   (of_part or OPS[part.op].reference)(
                       part, arrays, weights_of_part(weights, index)))
        values.update({(index, output): array for output, array in enumerate(results)})
        for source in dict.fromkeys(sources):
            # drop a value after its last use
            if last_use[source] == index and source not in problem.exits:
                del values[source]
    return [values[source] for source in problem.exits]


@dataclass(frozen=True)
class PartProblem(FusionProblem):
    """A part of a network, computed by a network library such as ONNX Runtime.

    whole: whether the part is the whole network, so that no other layer needs the CPU cores.
    """

    op: ClassVar[str] = "part"
    whole: bool = False

    def example_inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Draw inputs of the part.

        If the first problem that reads an input overrides `example_inputs`, the problem's own
        method draws this input.
        """
        arrays = super().example_inputs(rng)
        drawn = {part: part.example_inputs(rng) for part, _ in map(self.reader, self.entries)
                 if type(part).example_inputs is not Problem.example_inputs}
        for index, (part, number) in enumerate(map(self.reader, self.entries)):
            if part in drawn:
                arrays[index] = drawn[part][number]
        return arrays

    def describe(self) -> str:
        of = "whole network" if self.whole else "part of the network"
        return f"{of}, {len(self.parts)} layer{'s' * (len(self.parts) != 1)}"


@dataclass(frozen=True)
class ReshapeProblem(Problem):
    """A reshape within a part.

    Outside of a part, a reshape has no Problem, because its output shares the input's memory.
    """

    op: ClassVar[str] = "reshape"
    input: TensorSpec
    shape: tuple[int, ...]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return (self.input,)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (default_spec(self.shape, self.input.dtype),)

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {}

    @property
    def flops(self) -> int:
        return 0

    def first_images(self, count: int) -> Problem:
        if self.input.shape[:1] != self.shape[:1]:
            return self
        return ReshapeProblem(self.input.first(count),
                              (min(count, self.shape[0]), *self.shape[1:]))

    def describe(self) -> str:
        return f"{self.input} -> {self.outputs[0]}"


def is_product(part: Problem) -> bool:
    """Return whether a problem is a 1x1 convolution with one group."""
    return isinstance(part, Conv2dProblem) and part.kernel == (1, 1) and part.groups == 1


def is_image_mean(part: Problem) -> bool:
    """Return whether a problem is the mean of each channel over the whole image."""
    if isinstance(part, ReduceProblem):
        return part.kind == "mean" and sorted(part.axes) == [2, 3] and (
            len(part.input.shape) == 4 and part.input.dtype == "float32")
    return isinstance(part, PoolProblem) and part.kind == "average" and (
        part.kernel == part.input.shape[2:] and not any(part.pads)
        and (part.out_height, part.out_width) == (1, 1))


@dataclass(frozen=True)
class SqueezeExciteLayer:
    """A squeeze-and-excite layer.

    The layer multiplies each channel of an image by a number, the channel's gate. Two small 1x1
    convolutions compute the gates from the means of all channels.

    squeeze: the convolution that computes the squeezed channels from the means.
    excite: the convolution that computes the gates from the squeezed channels.
    scale: the expression that scales an element of the image. Its first operand is the gate of the
    element's channel. Its further operands are elements of other tensors, at the same index as the
    image's element.
    tensors: the sources of the other tensors.
    """

    squeeze: Conv2dProblem
    excite: Conv2dProblem
    scale: Epilogue
    tensors: tuple[Source, ...] = ()

    @property
    def channels(self) -> int:
        """Number of channels of the image."""
        return self.squeeze.channels

    @property
    def squeezed(self) -> int:
        """Number of squeezed channels: output channels of `squeeze`."""
        return self.squeeze.out_channels


def layer_within(problem: FusionProblem, first: int, x: Source) -> SqueezeExciteLayer | None:
    """Return the squeeze-and-excite layer formed by consecutive parts of a fusion.

    Returns None if the PARTS parts from `first` on do not form such a layer.

    first: index of the first part.
    x: source of the image.
    """
    mean, squeeze, excite, scale = problem.parts[first:first + PARTS]
    if not is_image_mean(mean) or not isinstance(scale, ElementwiseProblem):
        return None
    if not isinstance(squeeze, Conv2dProblem) or not isinstance(excite, Conv2dProblem):
        return None
    chain = ((x,), ((first, 0),), ((first + 1, 0),))
    if problem.sources[first:first + 3] != chain or excite.out_channels != squeeze.channels:
        return None
    if not is_product(squeeze) or not is_product(excite):
        return None
    scaled = _scale_of(scale, problem.sources[first + 3], x, (first + 2, 0))
    return None if scaled is None else SqueezeExciteLayer(squeeze, excite, *scaled)


def _scale_of(scale: ElementwiseProblem, sources: tuple[Source, ...], x: Source, gates: Source
              ) -> tuple[Epilogue, tuple[Source, ...]] | None:
    """Return the scaling of an element as an epilogue, and the sources of the other tensors.

    Returns None if the layer `scale` is not such a scaling, for example because it has constants or
    reads a tensor twice.
    """
    if scale.constants or scale.dtypes != ("float32",) or len(set(sources)) != len(sources):
        return None
    if x not in sources or gates not in sources:
        return None
    others = tuple(source for source in sources if source not in (x, gates))
    image = scale.operands[sources.index(x)]
    if scale.outputs[0].shape != image.shape or any(
            scale.operands[sources.index(source)] != image for source in others):
        return None
    order = [sources.index(source) for source in (x, gates, *others)]
    kinds = ("channel", *("tensor" for _ in others))
    return Epilogue(scale.expression.with_inputs(order), kinds), others


def without_bias(epilogue: Epilogue) -> tuple[int | None, Epilogue]:
    """Split an epilogue into its bias and the other steps.

    Returns the index of the channel operand that the first step adds, and the epilogue without this
    step. Returns None and the whole epilogue if the first step does not add a channel operand, or
    if the value before the addition is an output or is read again.
    """
    expression, operands = epilogue.expression, epilogue.operands
    steps = expression.steps
    if not steps or steps[0].function != "add" or 0 not in steps[0].arguments:
        return None, epilogue
    bias, first = sum(steps[0].arguments), expression.inputs
    is_read_again = 0 in expression.outputs or any(0 in step.arguments for step in steps[1:])
    if is_read_again or not 0 < bias < first or operands[bias - 1] != "channel":
        return None, epilogue

    def renumbered(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(0 if value == first else value - (value > first) for value in values)

    rest = Expression(first, tuple(replace(step, arguments=renumbered(step.arguments))
                                   for step in steps[1:]), renumbered(expression.outputs))
    return bias - 1, Epilogue(rest, operands)
