"""Definition of the pooling op, and the pads and output sizes of convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gossamer.facts import REAL, ValueFacts
from gossamer.model.graph import Node, StaticGraph
from gossamer.model.opset.definition import (
    InferenceState,
    OpDef,
    keeps_images_separate,
    never,
    not_evaluated,
)

MOST_TAPS = 2**18
"""Maximum number of elements of a pool's window: the host needs one NumPy step per element."""


def image_shape(state: InferenceState, node: Node) -> tuple[int, int, int, int]:
    """Return the batch, channels, height and width of the first input."""
    shape = state.shapes[node.inputs[0]]
    if len(shape) != 4:
        raise state.error(node, f"input has shape {list(shape)}, expected 4 dimensions (batch, "
                                "channels, height, width)")
    return shape  # type: ignore[return-value]


def _pads(node: Node, size: tuple[int, int], kernel: tuple[int, int]) -> tuple[int, ...]:
    """Return the pads (top, left, bottom, right) of a node, from `pads` or `auto_pad`."""
    auto_pad = node.attributes.get("auto_pad")
    if auto_pad is None:
        return tuple(node.attributes["pads"])
    covered, strides = extent(node, kernel), node.attributes["strides"]
    (top, bottom), (left, right) = (
        same_pads(auto_pad, size[axis], covered[axis], strides[axis]) for axis in range(2))
    return (top, left, bottom, right)


def same_pads(auto_pad: str, size: int, covered: int, stride: int) -> tuple[int, int]:
    """Return the pads of "SAME_UPPER" or "SAME_LOWER" before and after one dimension.

    covered: the size that the kernel covers, dilation included.
    """
    total = max((-(-size // stride) - 1) * stride + covered - size, 0)
    small, large = total // 2, total - total // 2
    return (small, large) if auto_pad == "SAME_UPPER" else (large, small)


def window_count(size: int, before: int, after: int, covered: int, stride: int, ceil: bool) -> int:
    """Return the number of windows along one dimension; less than 1 if no window fits.

    before, after: the pads. covered: as for same_pads(). ceil: whether the last window may extend
    beyond the pads. If it may, no window begins beyond the input.
    """
    room = size + before + after - covered
    if not ceil:
        return room // stride + 1
    steps = -(-room // stride)
    return steps if steps * stride >= size + before else steps + 1


def extent(node: Node, kernel: tuple[int, int]) -> tuple[int, int]:
    """Return the height and width that a dilated kernel covers."""
    dilations = node.attributes["dilations"]
    return (dilations[0] * (kernel[0] - 1) + 1, dilations[1] * (kernel[1] - 1) + 1)


def window(state: InferenceState, node: Node, kernel: tuple[int, int],
            ceil: bool = False, least: int = 1) -> tuple[tuple[int, ...], list[int]]:
    """Return the pads and the output size of a convolution or pool.

    The output may be empty if the input has no rows or columns.

    least: the minimum number of windows along each dimension of a nonempty input.
    """
    n, c, *sides = image_shape(state, node)
    size = (sides[0], sides[1])
    pads = _pads(node, size, kernel)
    # some devices store a padded copy of the input
    state.check_size(node, (n, c, *(size[axis] + pads[axis] + pads[axis + 2] for axis in range(2))),
                     "float32")
    result = []
    for axis in range(2):
        stride, covered = node.attributes["strides"][axis], extent(node, kernel)[axis]
        count = window_count(size[axis], pads[axis], pads[axis + 2], covered, stride, ceil)
        if not size[axis]:
            count = max(count, 0)
        if count < least and size[axis]:
            raise state.error(node, f"kernel {list(kernel)} (dilations "
                                    f"{list(node.attributes['dilations'])}, pads {list(pads)}) "
                                    f"does not fit an input of {size[0]}x{size[1]}; use larger "
                                    "images")
        result.append(count)
    return pads, result


def _pool_shape(state: InferenceState, node: Node) -> None:
    n, c, _, _ = image_shape(state, node)
    attributes = dict(node.attributes)
    attributes.pop("auto_pad", None)
    if math.prod(attributes["kernel"]) > MOST_TAPS:
        raise state.error(node, f"kernel {list(attributes['kernel'])} is too large; gossamer pools "
                                f"up to {MOST_TAPS} elements")
    attributes["pads"], size = window(state, node, attributes["kernel"], attributes["ceil_mode"],
                                      least=0)
    state.emit(node, (n, c, *size), **attributes)


def _pool_facts(static: StaticGraph, node: Node, facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    """Return the value facts of a pool's output.

    The maximum of a window that holds only padding is -inf, which may contradict the facts of the
    input.
    """
    if node.attributes["kind"] != "max":
        return [facts[0].same_sign()]
    return [facts[0] if all(_reaches_input(static, node, axis) for axis in range(2)) else REAL]


def _reaches_input(static: StaticGraph, node: Node, axis: int) -> bool:
    """Return whether every window covers an element of the input along height (0) or width (1)."""
    a = node.attributes
    step = a["dilations"][axis]
    starts = (np.arange(static.shapes[node.outputs[0]][2 + axis]) * a["strides"][axis]
              - a["pads"][axis])
    # for each window, the index of the first tap that is not before the input
    taps = np.maximum(-(starts // step), 0)
    size = static.shapes[node.inputs[0]][2 + axis]
    return bool(((taps < a["kernel"][axis]) & (starts + taps * step < size)).all())


DEFINITIONS = (
    OpDef("pool",
          text='x; kind "max" or "average", kernel (2), strides (2), pads (top, left, bottom, '
               'right), dilations (2), ceil_mode, count_include_pad; before resolve() also '
               'auto_pad, "SAME_UPPER" or "SAME_LOWER", in place of pads',
          shape=_pool_shape, evaluate=not_evaluated, mixes=keeps_images_separate,
          passes_values=True, discontinuous=never, facts=_pool_facts, float_only=True,
          attribute_inputs=()),
)
