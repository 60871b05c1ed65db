"""Converters of Darknet's sections with weights, and of sections that pool or normalise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from gossamer.model.compose import Composer
from gossamer.model.readers.darknet.activations import activate
from gossamer.model.readers.darknet.cfg import Section
from gossamer.model.readers.darknet.network import DarknetNetwork, Layer

_EPSILON = 1e-5
"""The epsilon of batch norm in AlexeyAB's fork, and in the GPU kernels of recent Darknet
versions."""


def convolutional(network: DarknetNetwork, section: Section) -> Layer:
    """Appends a convolution with its batch norm or bias, and its activation.

    The .weights file has the biases first, then scales, means and variances of the batch norm, then
    the weights.
    """
    section.refuse("antialiasing", "binary", "xnor", "bin_output", "share_index",
                   "assisted_excitation", "coordconv", "cbn", "dontload", "dontloadscales",
                   "numload")
    x = network.image_before(section)
    filters, size = section.integer("filters", 1), section.integer("size", 1)
    groups = section.integer("groups", 1)
    strides = _strides(section)
    dilation = section.integer("dilation", 1) if size > 1 else 1
    pad = size // 2 if section.flag("pad") else section.integer("padding", 0, least=0)
    if x.channels % groups or filters % groups:
        raise section.error(f"{x.channels} input channels and {filters} filters do not divide into "
                            f"{groups} groups", "groups")
    height, width = (_window(section, x, axis, size, 2 * pad, strides[axis]) for axis in (0, 1))
    if dilation > 1 and 2 * pad != size - 1:
        raise section.unsupported(f"dilation={dilation} with a padding of {pad}: Darknet's own "
                                  f"size of the output does not fit; pad by {(size - 1) // 2}",
                                  "dilation")
    shape = (filters, x.channels // groups, size, size)
    biases = network.weights.take(section, filters)
    norm = _norm(network, section, filters)
    weight = network.weights.take(section, *shape)
    if section.flag("flipped"):
        weight = weight.reshape(math.prod(shape[1:]), filters).T.reshape(shape)
    build, names = network.build, network.names(section)
    value = build.conv2d(
        x.value, build.constant(f"{names['name']}.weights", weight),
        "" if norm else build.constant(f"{names['name']}.biases", biases),
        strides=strides, pads=(pad * dilation,) * 4, dilations=(dilation, dilation),
        groups=groups, **names)
    value = _normalised(network, section, value, biases, norm)
    return Layer(activate(network, section, value, "logistic"), filters, height, width)


def connected(network: DarknetNetwork, section: Section) -> Layer:
    """Appends a fully connected layer. In the .weights file its batch norm comes after the
    weights."""
    section.refuse("dontload", "dontloadscales", "numload")
    x = network.as_matrix(section, network.before(section))
    outputs = section.integer("output", 1)
    biases = network.weights.take(section, outputs)
    if network.weights.transposed:
        weight = network.weights.take(section, x.channels, outputs).T
    else:
        weight = network.weights.take(section, outputs, x.channels)
    norm = _norm(network, section, outputs)
    build, names = network.build, network.names(section)
    value = build.gemm(
        x.value, build.constant(f"{names['name']}.weights", np.ascontiguousarray(weight)),
        "" if norm else build.constant(f"{names['name']}.biases", biases),
        trans_b=True, **names)
    value = _normalised(network, section, value, biases, norm)
    return Layer(activate(network, section, value, "logistic"), outputs, flat=True)


def maxpool(network: DarknetNetwork, section: Section) -> Layer:
    """Appends a max pool or, for [local_avgpool], an average pool, whose means leave padding out.

    The padding of both sides together is size - 1 by default. The smaller half of it lies above
    and to the left of the picture.
    """
    section.refuse("antialiasing", "maxpool_depth")
    x = network.image_before(section)
    strides = _strides(section)
    size = section.integer("size", section.integer("stride", 1))
    padding = section.integer("padding", size - 1, least=0)
    height, width = (_window(section, x, axis, size, padding, strides[axis]) for axis in (0, 1))
    low, high = padding // 2, padding - padding // 2
    if low >= size or any(
            (count - 1) * stride - low >= length
            for count, stride, length in zip((height, width), strides, x.image, strict=True)):
        raise section.error(f"padding={padding} makes windows that lie beside the picture",
                            "padding")
    kind = "max" if section.kind == "maxpool" else "average"
    value = network.build.pool(x.value, kind, (size, size), strides=strides,
                               pads=(low, low, high, high), **network.names(section))
    return Layer(value, x.channels, height, width)


def avgpool(network: DarknetNetwork, section: Section) -> Layer:
    """Appends the mean over the whole picture."""
    x = network.image_before(section)
    return Layer(network.build.reduce(x.value, "mean", (2, 3), **network.names(section)),
                 x.channels)


def softmax(network: DarknetNetwork, section: Section) -> Layer:
    """Appends a softmax; where the section asks for several groups, a softmax for each group of
    numbers."""
    section.refuse("spatial")
    if "tree" in section.options:
        raise section.unsupported("tree=... is not computed: the classes form one group", "tree")
    x = network.as_matrix(section, network.before(section))
    groups = section.integer("groups", 1)
    temperature = section.number("temperature", 1.0)
    if x.channels % groups:
        raise section.error(f"{x.channels} numbers do not divide into {groups} groups", "groups")
    if temperature <= 0:
        raise section.error(f"temperature is {temperature:g}, expected a number above 0",
                            "temperature")
    value = x.value
    if temperature != 1:
        composer = Composer()
        scaled = composer.apply("div", composer.operand(value), composer.constant(temperature))
        value = network.elementwise(section, "temperature", *composer.build(scaled))
    if groups == 1:
        return Layer(network.build.softmax(value, 1, **network.names(section)), x.channels,
                     flat=True)
    value = network.build.reshape(value, (0, groups, x.channels // groups),
                                  **network.names(section, "groups"))
    value = network.build.softmax(value, 2, **network.names(section, "softmax"))
    return Layer(network.build.flatten(value, **network.names(section)), x.channels, flat=True)


def crop(network: DarknetNetwork, section: Section) -> Layer:
    """Appends the centre of the picture. Unless noadjust is set, numbers from 0 to 1 are scaled to
    -1 to 1."""
    x = network.image_before(section)
    height, width = section.integer("crop_height", 1), section.integer("crop_width", 1)
    if height > x.height or width > x.width:
        raise section.error(f"crops {height}x{width} of {x.height}x{x.width}")
    top, left = (x.height - height) // 2, (x.width - width) // 2
    value = network.build.add("slice", [x.value], starts=(top, left),
                              ends=(top + height, left + width), axes=(2, 3), steps=(1, 1),
                              **network.names(section))
    if not section.flag("noadjust"):
        composer = Composer()
        doubled = composer.apply("mul", composer.operand(value), composer.constant(2))
        adjusted = composer.apply("sub", doubled, composer.constant(1))
        value = network.elementwise(section, "adjusted", *composer.build(adjusted))
    return Layer(value, x.channels, height, width)


def batchnorm(network: DarknetNetwork, section: Section) -> Layer:
    """Appends the batch norm of a [batchnorm] section. AlexeyAB's fork writes the biases of the
    batch norm to the file; the original Darknet does not, and computes with biases of 0."""
    x = network.image_before(section)
    biases = (network.weights.take(section, x.channels) if network.weights.revision
              else np.zeros(x.channels, np.float32))
    norm = [network.weights.take(section, x.channels) for _ in range(3)]
    return replace(x, value=_normalised(network, section, x.value, biases, norm))


def activation(network: DarknetNetwork, section: Section) -> Layer:
    """Appends the activation of an [activation] section."""
    x = network.before(section)
    return replace(x, value=activate(network, section, x.value, "linear"))


def unchanged(network: DarknetNetwork, section: Section) -> Layer:
    """Returns the layer before the section: without training, dropout, cost and empty layers return
    their input unchanged."""
    return network.before(section)


def _strides(section: Section) -> tuple[int, int]:
    """Returns the strides (vertical, horizontal)."""
    stride = section.integer("stride", 1)
    return section.integer("stride_y", stride), section.integer("stride_x", stride)


def _window(section: Section, x: Layer, axis: int, size: int, padding: int, stride: int) -> int:
    """Returns the height (axis 0) or width (axis 1) of the result of a window that moves over the
    picture. Raises ModelError where the window does not fit."""
    room = x.image[axis] + padding - size
    if room < 0:
        raise section.error(f"size={size} does not fit an input of {x.height}x{x.width}", "size")
    return room // stride + 1


def _norm(network: DarknetNetwork, section: Section, channels: int) -> list[np.ndarray]:
    """Returns scales, means and variances; an empty list where the section has no batch norm."""
    if not section.flag("batch_normalize"):
        return []
    return [network.weights.take(section, channels) for _ in range(3)]


def _normalised(network: DarknetNetwork, section: Section, value: str, biases: np.ndarray,
                norm: list[np.ndarray]) -> str:
    """Appends a layer's batch norm, and returns its result; returns `value` where the layer has no
    batch norm."""
    if not norm:
        return value
    scales, means, variances = norm
    names = network.names(section, "batch_norm")
    constants = [network.build.constant(f"{section.kind}_{section.index}.{part}", array)
                 for part, array in (("scales", scales), ("biases", biases), ("means", means),
                                     ("variances", variances))]
    gamma, beta, mean, variance = constants
    return network.build.batch_norm(value, gamma, beta, mean, variance, epsilon=_EPSILON, **names)
