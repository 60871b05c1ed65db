"""Norms as exporters write them: means, differences, squares and square roots, one layer each."""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.expression import Composer, Value
from gossamer.ops.algorithm import Problem
from gossamer.ops.copy.problem import expand, transpose
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.problem import FusionProblem, ReshapeProblem, Source, entry
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.tensor import TensorSpec, default_spec


class Layers:
    """The layers of a fusion under construction.

    Values are named by their sources; constants are given by their shapes.
    """

    def __init__(self) -> None:
        self.parts: list[Problem] = []
        self.sources: list[tuple[Source, ...]] = []
        self._entries: list[TensorSpec] = []

    def input(self, shape: Sequence[int]) -> Source:
        self._entries.append(default_spec(tuple(shape)))
        return entry(len(self._entries) - 1)

    def spec(self, source: Source) -> TensorSpec:
        part, output = source
        return self._entries[output] if part < 0 else self.parts[part].outputs[output]

    def add(self, part: Problem, *sources: Source) -> Source:
        self.parts.append(part)
        self.sources.append(sources)
        return len(self.parts) - 1, 0

    def reduce(self, kind: str, x: Source, axes: Sequence[int], *, keepdims: bool = True) -> Source:
        return self.add(ReduceProblem(self.spec(x), kind, tuple(axes), keepdims), x)

    def reshape(self, x: Source, *shape: int) -> Source:
        return self.add(ReshapeProblem(self.spec(x), shape), x)

    def expand(self, x: Source, shape: Sequence[int]) -> Source:
        return self.add(expand(self.spec(x), shape), x)

    def transpose(self, x: Source, *permutation: int) -> Source:
        return self.add(transpose(self.spec(x), permutation), x)

    def compute(self, value: Value, **operands: Source | tuple[int, ...]) -> Source:
        """Add an element-wise layer.

        operands: the source of each operand that the value reads, or the shape of a constant;
        sources are pairs, and shapes have another number of sizes.
        """
        names, expression = value.composer.build(value)
        given = [operands[name] for name in names]
        constants = tuple(index for index, operand in enumerate(given) if len(operand) != 2)
        specs = tuple(default_spec(operand) if index in constants else self.spec(operand)
                      for index, operand in enumerate(given))
        return self.add(ElementwiseProblem(specs, expression, constants=constants),
                        *(operand for index, operand in enumerate(given)
                          if index not in constants))

    def fusion(self, *exits: Source) -> FusionProblem:
        return FusionProblem(tuple(self.parts), tuple(self.sources), exits)


def operand(name: str) -> Value:
    return Composer().operand(name)


def standardised(layers: Layers, x: Source, axes: Sequence[int]) -> tuple[Source, Source]:
    """Add the mean and the variance; return the centred values and the variance."""
    mean = layers.reduce("mean", x, axes)
    centred = layers.compute(operand("x") - "mean", x=x, mean=mean)
    value = operand("x")
    squares = layers.compute(value * value, x=centred)
    return centred, layers.reduce("mean", squares, axes)


def rms_norm(shape: Sequence[int], axes: Sequence[int]) -> FusionProblem:
    layers = Layers()
    x = layers.input(shape)
    value = operand("x")
    mean = layers.reduce("mean", layers.compute(value * value, x=x), axes)
    root = layers.compute(1.0 / (operand("m") + 1e-6).apply("sqrt"), m=mean)
    scale = tuple(size if axis in axes else 1 for axis, size in enumerate(shape))
    return layers.fusion(layers.compute(operand("x") * "root" * "scale", x=x, root=root,
                                        scale=scale if len(scale) != 2 else (1, *scale)))


def rms_norm_2d(shape: Sequence[int]) -> FusionProblem:
    """Return an RMS norm over the channels of images, between transpositions."""
    layers = Layers()
    x = layers.transpose(layers.input(shape), 0, 2, 3, 1)
    value = operand("x")
    mean = layers.reduce("mean", layers.compute(value * value, x=x), (3,), keepdims=False)
    mean = layers.reshape(mean, *layers.spec(mean).shape, 1)
    root = layers.compute(1.0 / (operand("m") + 1e-6).apply("sqrt"), m=mean)
    y = layers.compute(operand("x") * "root" * "scale", x=x, root=root, scale=(shape[1],))
    return layers.fusion(layers.transpose(y, 0, 3, 1, 2))


def group_norm(shape: Sequence[int], groups: int, *, residual: bool = False) -> FusionProblem:
    layers = Layers()
    x = layers.input(shape)
    channels = (shape[1], *(1 for _ in shape[2:]))
    channels = channels if len(channels) != 2 else (1, *channels)
    grouped = layers.reshape(x, shape[0], groups, -(-layers.spec(x).size // (shape[0] * groups)))
    centred, variance = standardised(layers, grouped, (2,))
    composer = Composer()
    deviation = (composer.operand("v") + 1e-5).apply("sqrt")
    y = layers.compute(composer.operand("x") / deviation, x=centred, v=variance)
    y = layers.reshape(y, *shape)
    value = (operand("y") * "scale" + "bias").apply("sigmoid")
    others: dict[str, Source] = {}
    if residual:
        others["z"] = layers.input(shape)
        value = value + "z"
    return layers.fusion(layers.compute(value, y=y, scale=channels, bias=channels, **others))


def evo_norm(shape: Sequence[int], groups: int, *, rounded: bool = False) -> FusionProblem:
    """Return EvoNorm-S0: x * sigmoid(v * x) / deviation of the group * scale + bias.

    rounded: whether the deviation is rounded to float16, as modules in float16 do.
    """
    layers = Layers()
    x = layers.input(shape)
    n, channels, height, width = shape
    _, variance = standardised(
        layers, layers.reshape(x, n, groups, channels // groups, height, width), (2, 3, 4))
    root = (operand("v") + 1e-5).apply("sqrt")
    deviation = layers.compute(root.apply("to_float16") if rounded else root, v=variance)
    spread = layers.expand(deviation, (n, groups, channels // groups, height, width))
    composer = Composer()
    value = composer.operand("x")
    gate = (value * "v").apply("sigmoid")
    return layers.fusion(layers.compute(
        value * gate / "d" * "scale" + "bias", x=x, d=layers.reshape(spread, *shape),
        v=(channels, 1, 1), scale=(channels, 1, 1), bias=(channels, 1, 1)))


def softmax(shape: Sequence[int], axis: int) -> FusionProblem:
    layers = Layers()
    x = layers.input(shape)
    most = layers.reduce("max", x, (axis,))
    power = layers.compute((operand("x") - "most").apply("exp"), x=x, most=most)
    total = layers.reduce("sum", power, (axis,))
    return layers.fusion(layers.compute(operand("e") / "total", e=power, total=total))


def length(shape: Sequence[int], axes: Sequence[int], *, keepdims: bool = True) -> FusionProblem:
    """Return the square root of a sum of squares: one result per row."""
    layers = Layers()
    x = layers.input(shape)
    value = operand("x")
    total = layers.reduce("sum", layers.compute(value * value, x=x), axes, keepdims=keepdims)
    return layers.fusion(layers.compute(operand("t").apply("sqrt"), t=total))


def sums_of_two(shape: Sequence[int], axes: Sequence[int]) -> FusionProblem:
    """Return x * (the sum of z * x) + (the maximum of z) + a constant with the size of axis -1."""
    layers = Layers()
    x, z = layers.input(shape), layers.input(shape)
    composer = Composer()
    total = layers.reduce("sum", layers.compute(
        composer.operand("x") * composer.operand("z"), x=x, z=z), axes)
    most = layers.reduce("max", z, axes)
    return layers.fusion(layers.compute(operand("x") * "t" + "m" + "c", x=x, t=total, m=most,
                                        c=(shape[-1],)))
