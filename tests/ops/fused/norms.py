"""Norms as exporters write them: means, differences, squares and square roots, one layer each."""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.expression import Composer
from gossamer.ops.fused.problem import FusionProblem, Source
from gossamer.ops.layer_norm.problem import LayerNormProblem
from gossamer.ops.softmax.problem import SoftmaxProblem
from tests.ops.fused.layers import Layers, operand


def squared(layers: Layers, x: Source) -> Source:
    value = operand("x")
    return layers.compute(value * value, x=x)


def standardised(layers: Layers, x: Source, axes: Sequence[int]) -> tuple[Source, Source]:
    """Add the mean and the variance; return the centred values and the variance."""
    mean = layers.reduce("mean", x, axes)
    centred = layers.compute(operand("x") - "mean", x=x, mean=mean)
    return centred, layers.reduce("mean", squared(layers, centred), axes)


def rms_norm(shape: Sequence[int], axes: Sequence[int]) -> FusionProblem:
    layers = Layers()
    x = layers.input(shape)
    mean = layers.reduce("mean", squared(layers, x), axes)
    root = layers.compute(1.0 / (operand("m") + 1e-6).apply("sqrt"), m=mean)
    scale = tuple(size if axis in axes else 1 for axis, size in enumerate(shape))
    return layers.fusion(layers.compute(operand("x") * "root" * "scale", x=x, root=root,
                                        scale=scale if len(scale) != 2 else (1, *scale)))


def rms_norm_2d(shape: Sequence[int]) -> FusionProblem:
    """Return an RMS norm over the channels of images, between transpositions."""
    layers = Layers()
    x = layers.transpose(layers.input(shape), 0, 2, 3, 1)
    mean = layers.reduce("mean", squared(layers, x), (3,), keepdims=False)
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
    total = layers.reduce("sum", squared(layers, x), axes, keepdims=keepdims)
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


def scores(shape: tuple[int, int, int, int], axis: int = 3, *, log: bool = False) -> FusionProblem:
    """Return the softmax of scores with a factor for each head and a constant, and a factor."""
    layers = Layers()
    x = layers.input(shape)
    x = layers.compute(operand("x") * "factor" + "bias", x=x, factor=(shape[1], 1, 1),
                       bias=(1, *shape[1:]))
    x = layers.add(SoftmaxProblem(layers.spec(x), axis, log), x)
    return layers.fusion(layers.compute(operand("x") * 0.25, x=x))


def layer_norm(shape: tuple[int, int, int, int], axes: tuple[int, ...], *,
               centred: bool = True) -> FusionProblem:
    """Return the layer norm of a sum, which is activated and transposed."""
    layers = Layers()
    x = layers.compute(operand("x") + "z", x=layers.input(shape), z=layers.input(shape))
    x = layers.add(LayerNormProblem(layers.spec(x), axes, 1e-5, centred), x)
    return layers.fusion(layers.transpose(
        layers.compute(operand("x").apply("sigmoid"), x=x), 0, 3, 1, 2))


def units_of_slices(batch: int, tokens: int, heads: int, size: int, axis: int) -> FusionProblem:
    """Return the keys of a product of queries, keys and values, divided by their lengths.

    axis: 2 for lengths along the sizes, 3 along the tokens.
    """
    layers = Layers()
    product = layers.reshape(layers.input((batch, tokens, 3 * heads * size)),
                             batch, tokens, 3, heads, size)
    keys = layers.transpose(layers.slice(product, 2, 1, 2), 0, 2, 3, 4, 1)
    keys = layers.reshape(keys, batch, heads, size, tokens)
    total = layers.reduce("sum", squared(layers, keys), (axis,))
    return layers.fusion(layers.compute(operand("x") / "length", x=keys, length=layers.compute(
        (operand("t") + 0.1).apply("sqrt"), t=total)))


def rms_norm_of_half(batch: int, channels: int, height: int, width: int) -> FusionProblem:
    """Return the RMS norm over the second half of an image's channels, times the first half."""
    layers = Layers()
    x = layers.input((batch, 2 * channels, height, width))
    first, second = (layers.slice(x, 1, start, start + channels) for start in (0, channels))
    total = layers.reduce("mean", squared(layers, second), (1,))
    length = layers.compute((operand("t") + 0.1).apply("sqrt"), t=total)
    return layers.fusion(layers.compute(operand("x") * "y" / "length", x=second, y=first,
                                        length=length))


def norm_of_windows(batch: int, windows: int, size: int, channels: int) -> FusionProblem:
    """Return the layer norm of an image's pixels, which are stored window after window."""
    layers = Layers()
    x = layers.input((batch, windows, windows, size, size, channels))
    x = layers.reshape(layers.transpose(x, 0, 1, 3, 2, 4, 5), batch, windows * size,
                       windows * size, channels)
    residual = layers.input((batch, windows * size, windows * size, channels))
    centred, variance = standardised(layers, x, (3,))
    deviation = layers.compute((operand("v") + 0.1).apply("sqrt"), v=variance)
    return layers.fusion(layers.compute(operand("x") / "deviation" + "residual", x=centred,
                                        deviation=deviation, residual=residual))
