"""Mixing rules that several ops share."""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.model.graph import Node
from gossamer.model.opset.images import Images


def moves_images(images: Images, node: Node) -> None:
    """The mixing rule of an op that only changes the order of axes. Values keep their order along
    each axis, so that no images are mixed."""


def keeps_images_apart(images: Images, node: Node) -> str | None:
    """The mixing rule of an op that computes each image independently of the others if the images
    of its first input lie along axis 0, and its other inputs have no images."""
    if any(name in images.axes for name in node.inputs[1:]):
        return "takes other inputs than its first from the batch"
    axis = images.axes.get(node.inputs[0], 0)
    return f"works across axis {axis}, {BATCH_AXIS}" if axis else None


def works_across_images(images: Images, node: Node) -> str | None:
    """The mixing rule of an op that works along its attribute `axis`."""
    axis = node.attributes["axis"] % max(len(images.static.shapes[node.inputs[0]]), 1)
    if any(images.axes.get(name) == axis for name in node.inputs):
        return f"works across axis {axis}, {BATCH_AXIS}"
    return None


def broadcasts_across_images(images: Images, node: Node) -> str | None:
    """The mixing rule of an op whose inputs broadcast to its output's shape."""
    return mixing_operands(images, node, node.inputs)


def mixing_operands(images: Images, node: Node, names: Sequence[str]) -> str | None:
    """Returns how inputs that broadcast to the output's shape mix images; None where they mix no
    images."""
    output = node.outputs[0]
    axis = images.growing_axis(output)
    if axis is None:
        return "lays the batch along another axis"
    for name in names:
        shape = images.static.shapes[name]
        own_axis = axis - (len(images.static.shapes[output]) - len(shape))
        if name in images.axes:
            # an image may be broadcast along its own axes, but not along the axis of the images
            same = [own_axis >= 0 and static.shapes[name][own_axis] == static.shapes[output][axis]
                    for static in (images.static, images.other)]
            if images.axes[name] != own_axis or not all(same):
                return "lays the batch along another axis"
        elif own_axis >= 0 and shape[own_axis] != 1:
            return "treats the inputs of a batch by their place in it"
    return None


BATCH_AXIS = "along which the inputs of a batch lie"
"""Text that follows the name of an axis in messages, and says why an op may not work along the
axis."""
