"""Functions that append the layers and activations of Darknet's sections to a graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gossamer.expression import Composer, Value, apply
from gossamer.model.readers.darknet.cfg import Section
from gossamer.model.readers.darknet.network import DarknetNetwork, Layer

_EPSILON = 1e-5
"""The epsilon of batch norm in AlexeyAB's fork, and in the GPU kernels of recent Darknet
versions."""


def convolutional(network: DarknetNetwork, section: Section) -> Layer:
    """Append a convolution with its batch norm or bias, and its activation.

    The .weights file stores the biases first, then the scales, means and variances of the batch
    norm, then the weights.
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
        raise section.unsupported(f"dilation={dilation} with a padding of {pad}: Darknet's output "
                                  "size does not match its dilated filter; use a padding of "
                                  f"{(size - 1) // 2}", "dilation")
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
    """Append a fully connected layer.

    In the .weights file, the layer's batch norm follows its weights.
    """
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
    """Append a max pool or, for [local_avgpool], an average pool that excludes padding.

    The padding, by default size - 1, is divided between both sides of the picture. The smaller half
    is above and to the left.
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
        raise section.error(f"padding={padding} makes windows that do not overlap the picture",
                            "padding")
    kind = "max" if section.kind == "maxpool" else "average"
    value = network.build.pool(x.value, kind, (size, size), strides=strides,
                               pads=(low, low, high, high), **network.names(section))
    return Layer(value, x.channels, height, width)


def avgpool(network: DarknetNetwork, section: Section) -> Layer:
    """Append the mean over the whole picture."""
    x = network.image_before(section)
    return Layer(network.build.reduce(x.value, "mean", (2, 3), **network.names(section)),
                 x.channels)


def softmax(network: DarknetNetwork, section: Section) -> Layer:
    """Append a softmax, or one softmax per group if the section has several groups."""
    section.refuse("spatial")
    if "tree" in section.options:
        raise section.unsupported("tree=... is not computed: it groups classes as a tree", "tree")
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
        value = network.elementwise(section, "temperature",
                                    Composer().operand(value) / temperature)
    if groups == 1:
        return Layer(network.build.softmax(value, 1, **network.names(section)), x.channels,
                     flat=True)
    value = network.build.reshape(value, (0, groups, x.channels // groups),
                                  **network.names(section, "groups"))
    value = network.build.softmax(value, 2, **network.names(section, "softmax"))
    return Layer(network.build.flatten(value, **network.names(section)), x.channels, flat=True)


def crop(network: DarknetNetwork, section: Section) -> Layer:
    """Append a crop to the centre of the picture.

    Unless `noadjust` is set, the range [0, 1] is mapped to [-1, 1].
    """
    x = network.image_before(section)
    height, width = section.integer("crop_height", 1), section.integer("crop_width", 1)
    if height > x.height or width > x.width:
        raise section.error(f"crops {height}x{width} of {x.height}x{x.width}")
    top, left = (x.height - height) // 2, (x.width - width) // 2
    value = network.build.add("slice", [x.value], starts=(top, left),
                              ends=(top + height, left + width), axes=(2, 3), steps=(1, 1),
                              **network.names(section))
    if not section.flag("noadjust"):
        value = network.elementwise(section, "adjusted", Composer().operand(value) * 2 - 1)
    return Layer(value, x.channels, height, width)


def batchnorm(network: DarknetNetwork, section: Section) -> Layer:
    """Append the batch norm of a [batchnorm] section.

    AlexeyAB's fork writes the biases of the batch norm to the file; the original Darknet does not,
    and uses biases of 0.
    """
    x = network.image_before(section)
    biases = (network.weights.take(section, x.channels) if network.weights.revision
              else np.zeros(x.channels, np.float32))
    norm = [network.weights.take(section, x.channels) for _ in range(3)]
    return replace(x, value=_normalised(network, section, x.value, biases, norm))


def activation(network: DarknetNetwork, section: Section) -> Layer:
    """Append the activation of an [activation] section."""
    x = network.before(section)
    return replace(x, value=activate(network, section, x.value, "linear"))


def unchanged(network: DarknetNetwork, section: Section) -> Layer:
    """Return the layer before the section.

    Outside of training, dropout, cost and empty layers return their input unchanged.
    """
    return network.before(section)


def _strides(section: Section) -> tuple[int, int]:
    """Return the strides (vertical, horizontal)."""
    stride = section.integer("stride", 1)
    return section.integer("stride_y", stride), section.integer("stride_x", stride)


def _window(section: Section, x: Layer, axis: int, size: int, padding: int, stride: int) -> int:
    """Return the output height (axis 0) or width (axis 1) of a window that slides over the picture.

    Raises ModelError if the window does not fit.
    """
    room = x.image[axis] + padding - size
    if room < 0:
        raise section.error(f"size={size} does not fit an input of {x.height}x{x.width}", "size")
    return room // stride + 1


def _norm(network: DarknetNetwork, section: Section, channels: int) -> list[np.ndarray]:
    """Return scales, means and variances; an empty list if the section has no batch norm."""
    if not section.flag("batch_normalize"):
        return []
    return [network.weights.take(section, channels) for _ in range(3)]


def _normalised(network: DarknetNetwork, section: Section, value: str, biases: np.ndarray,
                norm: list[np.ndarray]) -> str:
    """Append a layer's batch norm, and return its result, or `value` if there is no batch norm."""
    if not norm:
        return value
    scales, means, variances = norm
    names = network.names(section, "batch_norm")
    constants = [network.build.constant(f"{section.kind}_{section.index}.{part}", array)
                 for part, array in (("scales", scales), ("biases", biases), ("means", means),
                                     ("variances", variances))]
    gamma, beta, mean, variance = constants
    return network.build.batch_norm(value, gamma, beta, mean, variance, epsilon=_EPSILON, **names)


def route(network: DarknetNetwork, section: Section) -> Layer:
    """Append the concatenation of layers, or of one group of channels of each layer."""
    indices = section.integers("layers")
    if not indices:
        raise section.error("lacks layers=..., the layers that it joins")
    groups = section.integer("groups", 1)
    group = section.integer("group_id", 0, least=0)
    if group >= groups:
        raise section.error(f"group_id={group} is out of range for {groups} groups", "group_id")
    parts = []
    for position, index in enumerate(indices):
        layer = network.layer(section, index, "layers")
        if layer.channels % groups:
            raise section.error(f"the {layer.channels} channels of layer {index} do not divide "
                                f"into {groups} groups", "groups")
        count = layer.channels // groups
        parts.append(network.channels(section, layer, group * count, (group + 1) * count,
                                      f"group_{position}"))
    if any(part.image != parts[0].image for part in parts):
        sizes = ", ".join(f"{index}: {part.height}x{part.width}"
                          for index, part in zip(indices, parts, strict=True))
        raise section.error(f"joins layers of different sizes ({sizes})", "layers")
    if len(parts) == 1:
        return parts[0]
    value = network.build.concat([part.value for part in parts], **network.names(section))
    return replace(parts[0], value=value, channels=sum(part.channels for part in parts))


def shortcut(network: DarknetNetwork, section: Section) -> Layer:
    """Append the sum of other layers and the layer before this section.

    The sum has the channels, height and width of the layer before this section. If another layer
    has fewer channels, it is added only to the first channels of the sum. If it has more channels,
    only its first channels are added. If its height and width are n times larger, it is subsampled
    to every n-th pixel of every n-th row.
    """
    if section.text("weights_type", "none") != "none":
        raise section.unsupported(f"weights_type={section.text('weights_type')} is not supported; "
                                  "expected weights_type=none", "weights_type")
    for key in ("alpha", "beta"):
        if section.number(key, 1) != 1:
            raise section.unsupported(f"{key}={section.text(key)} is not supported; expected "
                                      f"{key}=1", key)
    indices = section.integers("from")
    if not indices:
        raise section.error("lacks from=..., the layers that it adds")
    total = network.image_before(section)
    value = total.value
    for position, index in enumerate(indices):
        layer = network.layer(section, index, "from")
        layer = _of_size(network, section, layer, total, position)
        layer = network.channels(section, layer, 0, min(layer.channels, total.channels),
                                 f"channels_{position}")
        other = layer.value
        if layer.channels < total.channels:
            pads = (0, 0, 0, 0, 0, total.channels - layer.channels, 0, 0)
            other = network.build.add("pad", [other], pads=pads, mode="constant", value=0.0,
                                      **network.names(section, f"padded_{position}"))
        value = network.build.apply("add", value, other, **network.names(section, f"{position}"))
    return replace(total, value=activate(network, section, value, "linear"))


def scaled(network: DarknetNetwork, section: Section) -> Layer:
    """Append the product of another layer and the layer before this section.

    The layer before a [scale_channels] section has one number per channel or, with the option
    scale_wh, one number per pixel. The layer before a [sam] section has the other layer's shape.
    """
    x = network.image_before(section)
    layer = network.layer(section, section.integer("from", least=-section.index), "from")
    expected = {"sam": layer.shape_text,
                "scale_channels": f"{layer.channels}x1x1"}[section.kind]
    if section.kind == "scale_channels" and section.flag("scale_wh"):
        expected = f"1x{layer.height}x{layer.width}"
    if x.shape_text != expected:
        raise section.error(f"the layer before this section has the shape {x.shape_text}; expected "
                            f"{expected}, because layer {section.text('from')} has the shape "
                            f"{layer.shape_text}", "from")
    value = network.build.elementwise(apply("mul"), layer.value, x.value, **network.names(section))
    return replace(layer, value=activate(network, section, value, "linear"))


def upsample(network: DarknetNetwork, section: Section) -> Layer:
    """Append nearest-neighbour upsampling, multiplied by the option `scale`."""
    section.refuse("reverse")
    x = network.image_before(section)
    stride, scale = section.integer("stride", 2), section.number("scale", 1.0)
    value = network.build.resize(x.value, (1, 1, stride, stride), **network.names(section))
    if scale != 1:
        value = network.elementwise(section, "scale", Composer().operand(value) * scale)
    return Layer(value, x.channels, x.height * stride, x.width * stride)


def reorg(network: DarknetNetwork, section: Section) -> Layer:
    """Append a space-to-depth of the input, or a depth-to-space if `reverse` is set.

    [reorg] without `reverse` has an unusual order: Darknet reads the memory of the input as a
    picture with fewer channels, `stride` times as high and as wide, and moves blocks of pixels of
    that picture to channels. [reorg3d] moves blocks of pixels of the input itself.
    """
    section.refuse("extra", "flatten")
    x = network.image_before(section)
    stride = section.integer("stride", 1)
    c, h, w = x.channels, x.height, x.width
    area = stride * stride
    if section.flag("reverse") and section.kind == "reorg3d":
        raise section.unsupported("reverse=1 is not computed", "reverse")
    if section.flag("reverse"):
        if c % area:
            raise section.error(f"{c} channels are no multiple of {stride}x{stride}", "stride")
        split = (0, stride, stride, c // area, h, w)
        order = (0, 3, 4, 1, 5, 2)
        result = (c // area, h * stride, w * stride)
    else:
        if h % stride or w % stride:
            raise section.error(f"an input of {h}x{w} is no multiple of stride={stride}", "stride")
        if section.kind == "reorg3d":
            split = (0, c, h // stride, stride, w // stride, stride)
        elif c % area:
            raise section.error(f"{c} channels are no multiple of {stride}x{stride}", "stride")
        else:
            split = (0, c // area, h, stride, w, stride)
        order = (0, 3, 5, 1, 2, 4)
        result = (c * area, h // stride, w // stride)
    value = network.build.reshape(x.value, split, **network.names(section, "blocks"))
    value = network.build.add("transpose", [value], permutation=order,
                              **network.names(section, "moved"))
    return Layer(network.build.reshape(value, (0, *result), **network.names(section)), *result)


def _of_size(network: DarknetNetwork, section: Section, layer: Layer, total: Layer,
             position: int) -> Layer:
    """Subsample a layer to the height and width of `total` by taking every n-th pixel.

    Raises UnsupportedError if the layer is not n times as high and as wide as `total`.
    """
    if layer.image == total.image:
        return layer
    step = layer.height // total.height
    if step < 2 or (total.height * step, total.width * step) != layer.image:
        raise section.unsupported(f"adds a layer of {layer.height}x{layer.width} to one of "
                                  f"{total.height}x{total.width}; expected the same size or a "
                                  "multiple of it", "from")
    value = network.build.add("slice", [layer.value], starts=(0, 0), ends=layer.image,
                              axes=(2, 3), steps=(step, step),
                              **network.names(section, f"pixels_{position}"))
    return replace(layer, value=value, height=total.height, width=total.width)


def activate(network: DarknetNetwork, section: Section, value: str, default: str) -> str:
    """Append a section's activation, and return its result.

    default: the activation if the section names none. Raises UnsupportedError for an activation
    that is not in the table.
    """
    name = section.text("activation", default)
    if name == "linear":
        return value
    if name not in _FORMULAS:
        raise section.unsupported(f"activation={name} is not computed; gossamer computes "
                                  f"{', '.join(('linear', *_FORMULAS))}", "activation")
    return network.elementwise(section, name, _FORMULAS[name](Composer().operand(value)))


def _mish(x: Value) -> Value:
    """Return x * tanh(log(1 + exp(x))), computed with an exp that cannot overflow."""
    small = (-x.apply("abs")).apply("exp")
    softplus = x.apply("relu") + (small + 1).apply("log")
    return x * softplus.apply("tanh")


def _elu(x: Value) -> Value:
    below = x.apply("min", 0).apply("exp") - 1
    return x.apply("relu") + below


def _selu(x: Value) -> Value:
    below = x.apply("min", 0).apply("exp") - 1
    return x.apply("relu") * 1.0507 + below * (1.0507 * 1.6732)


def _gelu(x: Value) -> Value:
    """Return GELU by Darknet's approximation with tanh."""
    cube = x * x * x
    inner = x * 0.797885 + cube * 0.035677
    gate = inner.apply("tanh") + 1
    return x * gate * 0.5


_FORMULAS: dict[str, Callable[[Value], Value]] = {
    "leaky": lambda x: x.apply("leaky_relu", constants=(0.1,)),
    "mish": _mish,
    "swish": lambda x: x * x.apply("sigmoid"),
    "relu": lambda x: x.apply("relu"),
    "logistic": lambda x: x.apply("sigmoid"),
    "relu6": lambda x: x.apply("clip", constants=(0, 6)),
    "tanh": lambda x: x.apply("tanh"),
    "hard_mish": lambda x: x * (x + 2).apply("clip", constants=(0, 2)) * 0.5,
    "elu": _elu,
    "selu": _selu,
    "gelu": _gelu,
    "ramp": lambda x: x.apply("relu") + x * 0.1,
    "loggy": lambda x: x.apply("sigmoid") * 2 - 1,
}
"""The formula of each activation; "linear" has none."""
