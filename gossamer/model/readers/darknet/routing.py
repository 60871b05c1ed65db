"""Converters of Darknet's sections that join layers or move elements."""

from __future__ import annotations

from dataclasses import replace

from gossamer.expression import apply
from gossamer.model.compose import Composer
from gossamer.model.readers.darknet.activations import activate
from gossamer.model.readers.darknet.cfg import Section
from gossamer.model.readers.darknet.network import DarknetNetwork, Layer


def route(network: DarknetNetwork, section: Section) -> Layer:
    """Appends the concatenation of layers, or of one group of channels of each layer."""
    indices = section.integers("layers")
    if not indices:
        raise section.error("lacks layers=..., the layers that it joins")
    groups = section.integer("groups", 1)
    group = section.integer("group_id", 0, least=0)
    if group >= groups:
        raise section.error(f"group_id={group} is none of {groups} groups", "group_id")
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
    """Appends the sum of other layers and the layer before this section. The sum has the channels
    and the picture size of the layer before this section. A layer with fewer channels is added to
    the first channels only. Of a layer with more channels, only the first channels are added. Where
    another layer has a larger picture, every n-th pixel of every n-th row of this picture is
    added."""
    if section.text("weights_type", "none") != "none":
        raise section.unsupported(f"weights_type={section.text('weights_type')} is not computed, "
                                  "only none", "weights_type")
    for key in ("alpha", "beta"):
        if section.number(key, 1) != 1:
            raise section.unsupported(f"{key}={section.text(key)} is not computed, only 1", key)
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
    """Appends the product of another layer and the layer before this section. The layer before has
    one number for each channel, or with scale_wh one number for each pixel; for [sam] it has the
    other layer's shape."""
    x = network.image_before(section)
    layer = network.layer(section, section.integer("from", least=-section.index), "from")
    expected = {"sam": layer.shape_text,
                "scale_channels": f"{layer.channels}x1x1"}[section.kind]
    if section.kind == "scale_channels" and section.flag("scale_wh"):
        expected = f"1x{layer.height}x{layer.width}"
    if x.shape_text != expected:
        raise section.error(f"the layer before it has {x.shape_text}, expected {expected} for "
                            f"layer {section.text('from')} of {layer.shape_text}", "from")
    value = network.build.elementwise(apply("mul"), layer.value, x.value, **network.names(section))
    return replace(layer, value=activate(network, section, value, "linear"))


def upsample(network: DarknetNetwork, section: Section) -> Layer:
    """Appends the picture with every pixel repeated in both directions and multiplied by
    `scale`."""
    section.refuse("reverse")
    x = network.image_before(section)
    stride, scale = section.integer("stride", 2), section.number("scale", 1.0)
    value = network.build.resize(x.value, (1, 1, stride, stride), **network.names(section))
    if scale != 1:
        composer = Composer()
        product = composer.apply("mul", composer.operand(value), composer.constant(scale))
        value = network.elementwise(section, "scale", *composer.build(product))
    return Layer(value, x.channels, x.height * stride, x.width * stride)


def reorg(network: DarknetNetwork, section: Section) -> Layer:
    """Appends the input with blocks of pixels moved to channels, or back (reverse).

    [reorg] without `reverse` has an odd order: Darknet reads the memory of the input as a picture
    of fewer channels, `stride` times as high and as wide, and moves the blocks of this picture.
    [reorg3d] moves the blocks of the input itself.
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
    """Returns every n-th pixel of a layer in both directions, so that the result has the size of
    the layer `total`. Raises UnsupportedError where no n gives this size."""
    if layer.image == total.image:
        return layer
    step = layer.height // total.height
    if step < 2 or (total.height * step, total.width * step) != layer.image:
        raise section.unsupported(f"adds a layer of {layer.height}x{layer.width} to one of "
                                  f"{total.height}x{total.width}; the first must be the same or a "
                                  "multiple", "from")
    value = network.build.add("slice", [layer.value], starts=(0, 0), ends=layer.image,
                              axes=(2, 3), steps=(step, step),
                              **network.names(section, f"pixels_{position}"))
    return replace(layer, value=value, height=total.height, width=total.width)
