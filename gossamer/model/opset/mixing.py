"""Images: records, for each value, the axis along which the images of a batch lie one after
another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gossamer.model.graph import Node, StaticGraph
from gossamer.model.opset.state import Shape


@dataclass
class Images:
    """The axis along which the images of a batch lie in each value of a graph, found by a
    comparison of the graph's static graphs at two batch sizes.

    The images of a value can only lie along the one axis whose size grows with the batch. The
    mixing rules of the ops show whether the images do lie along this axis, and are not mixed.

    static, other: the graph at two batch sizes.
    axes: the axis along which the images of a value lie, by the name of the value. The mapping has
    only values for which this axis was shown.
    """

    static: StaticGraph
    other: StaticGraph
    axes: dict[str, int] = field(default_factory=dict)

    def growing_axis(self, name: str) -> int | None:
        """Return the only axis of a value that grows with the batch; None where no axis grows with
        the batch, or where another axis changes too."""
        return self._growing_axis(self.static.shapes[name], self.other.shapes.get(name, ()))

    def is_fixed(self, name: str) -> bool:
        """Return whether a value has the same shape at both batch sizes."""
        return self.static.shapes[name] == self.other.shapes.get(name)

    def add_constant(self, name: str) -> bool:
        """Return whether a constant is the same at both batch sizes, or has the same numbers for
        each image. In the second case the axis of its images is recorded."""
        now, before = self.static.constants[name], self.other.constants.get(name)
        if before is None or now.dtype != before.dtype:
            return False
        if now is before or (now.shape == before.shape and now.tobytes() == before.tobytes()):
            return True
        axis = self._growing_axis(now.shape, before.shape)
        if axis is None:
            return False
        images = [row for array, batch in ((now, self.static.batch), (before, self.other.batch))
                  if batch for row in np.split(array, batch, axis)]
        if any(row.tobytes() != images[0].tobytes() for row in images):
            return False
        self.axes[name] = axis
        return True

    def _growing_axis(self, now: Shape, before: Shape) -> int | None:
        if len(now) != len(before):
            return None
        axes = [axis for axis, sizes in enumerate(zip(now, before, strict=True))
                if sizes[0] != sizes[1]]
        if len(axes) != 1:
            return None
        (axis,) = axes
        sizes = (now[axis], self.static.batch), (before[axis], self.other.batch)
        if any(size % batch if batch else size for size, batch in sizes):
            return None
        return axis if now[axis] * self.other.batch == before[axis] * self.static.batch else None


def moves_images(images: Images, node: Node) -> None:
    """The mixing rule of an op that only changes the order of axes. Values keep their order along
    each axis, so that no images are mixed."""


def keeps_images_separate(images: Images, node: Node) -> str | None:
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
    """Return how inputs that broadcast to the output's shape mix images; None where they mix no
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
