"""Definitions of ops that reshape or permute tensors, or compute values from shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gossamer.model.graph import Node
from gossamer.model.opset.definition import (
    RESOLVED,
    Images,
    InferenceState,
    OpDef,
    broadcasts_across_images,
    first_input,
    moves_images,
    never,
)


def _identity_shape(state: InferenceState, node: Node) -> None:
    state.alias(node)


def _branch_shape(state: InferenceState, node: Node) -> None:
    """Make the node an alias of the selected branch's result.

    Raises UnsupportedError if the condition differs from the one that selected the branch.
    """
    condition = state.known.get(node.inputs.pop())
    if condition is None or bool(condition.any()) != node.attributes["taken"]:
            raise state.unsupported(node, "selects its other branch at this shape of the inputs; "
                                      "export the network with fixed shapes")
    state.alias(node)


def _flatten_shape(state: InferenceState, node: Node) -> None:
    shape = state.shapes[node.inputs[0]]
    axis = node.attributes["axis"]
    axis = axis if axis == len(shape) else state.axis(node, axis, len(shape))
    state.reshape(node, (math.prod(shape[:axis]), math.prod(shape[axis:])))


def _squeeze_shape(state: InferenceState, node: Node) -> None:
    """Remove dimensions of size 1.

    Without axes, all dimensions of size 1 are removed, except those that are 1 only at this batch
    size.
    """
    shape = state.shapes[node.inputs[0]]
    axes = node.attributes.get("axes")
    if axes is None:
        other_shape = shape
        if state.other_batch is not None:
            other_shape = state.other_batch.shapes.get(node.inputs[0], shape)
        axes = [axis for axis, size in enumerate(other_shape) if size == 1]
    axes = {state.axis(node, axis, len(shape)) for axis in axes}
    for axis in axes:
        if shape[axis] != 1:
            raise state.error(node, f"cannot squeeze dimension {axis} of shape {list(shape)}")
    state.reshape(node, [size for axis, size in enumerate(shape) if axis not in axes])


def _unsqueeze_shape(state: InferenceState, node: Node) -> None:
    shape = list(state.shapes[node.inputs[0]])
    rank = len(shape) + len(node.attributes["axes"])
    for axis in sorted(state.axis(node, axis, rank) for axis in node.attributes["axes"]):
        shape.insert(axis, 1)
    state.reshape(node, shape)


def _reshape_shape(state: InferenceState, node: Node) -> None:
    """Compute the sizes that 0 and -1 denote in a new shape.

    In a file for a fixed batch size, the first size of a new shape may contain this batch size. If
    the first dimension of the input follows the batch, the first size is scaled to the state's
    batch size.
    """
    old = state.shapes[node.inputs[0]]
    new = list(node.attributes["shape"])
    mismatch = state.error(node, f"cannot reshape {list(old)} to {new}")
    if new.count(-1) > 1 or any(size < -1 for size in new):
        raise mismatch
    for axis, size in enumerate(new):
        if size == 0 and not node.attributes.get("allowzero"):
            if axis >= len(old):
                raise mismatch
            new[axis] = old[axis]
    other_shape: tuple[int, ...] = ()
    if state.other_batch is not None:
        other_shape = state.other_batch.shapes.get(node.outputs[0], ())
    if (state.graph.fixed_batch is not None and other_shape and new[0] == other_shape[0]
            and state.follows_batch(node.inputs[0])):
        new[0] = other_shape[0] * state.batch // state.graph.fixed_batch
    if -1 in new:
        axis = new.index(-1)
        rest = -math.prod(new)
        if rest:
            new[axis] = math.prod(old) // rest
        elif len(other_shape) == len(new):
            # Because another size is 0, the number of elements does not determine this size: use
            # the shape at another batch size.
            new[axis] = other_shape[axis]
        else:
            new[axis] = 0
    if math.prod(new) != math.prod(old):
        raise mismatch
    state.reshape(node, new)


def _transpose_shape(state: InferenceState, node: Node) -> None:
    shape = state.shapes[node.inputs[0]]
    permutation = node.attributes.get("permutation") or tuple(range(len(shape)))[::-1]
    if sorted(permutation) != list(range(len(shape))):
        raise state.error(node, f"cannot transpose shape {list(shape)} by {list(permutation)}")
    if list(permutation) == sorted(permutation):
        state.alias(node)
    else:
        state.emit(node, [shape[axis] for axis in permutation], permutation=tuple(permutation))


def swaps_matrices(node: Node) -> bool:
    """Return whether a node swaps the last two dimensions of its input and no others."""
    permutation = tuple(node.attributes.get("permutation") or ())
    rank = len(permutation)
    return node.op == "transpose" and rank > 1 and (
        permutation == (*range(rank - 2), rank - 1, rank - 2))


def _expand_shape(state: InferenceState, node: Node) -> None:
    old, new = state.shapes[node.inputs[0]], list(node.attributes["shape"])
    if (state.graph.fixed_batch is not None and len(new) == len(old)
            and state.follows_batch(node.inputs[0]) and new[0] == state.graph.fixed_batch):
        new[0] = old[0]
    try:
        shape = np.broadcast_shapes(old, new)
    except ValueError:
        raise state.error(node, f"cannot expand {list(old)} to {new}") from None
    if shape == old:
        state.alias(node)
    else:
        state.emit(node, shape, shape=shape)


def _depth_to_space_shape(state: InferenceState, node: Node) -> None:
    """Replace each pixel by block x block pixels.

    In mode "DCR", neighbouring channels of the input become neighbouring channels of one output
    pixel; in mode "CRD", they become neighbouring pixels.
    """
    n, c, h, w = _image_shape(state, node)
    block = node.attributes["block"]
    channels = c // block**2
    if channels * block**2 != c:
        raise state.error(node, f"{c} channels do not divide into blocks of {block} x {block}")
    crd = node.attributes["mode"] == "CRD"
    split = (n, channels, block, block, h, w) if crd else (n, block, block, channels, h, w)
    _reorder(state, node, split, (0, 1, 4, 2, 5, 3) if crd else (0, 3, 4, 1, 5, 2),
             (n, channels, h * block, w * block))


def _space_to_depth_shape(state: InferenceState, node: Node) -> None:
    n, c, h, w = _image_shape(state, node)
    block = node.attributes["block"]
    if h % block or w % block:
        raise state.error(node, f"{h} x {w} pixels do not divide into blocks of {block} x {block}")
    _reorder(state, node, (n, c, h // block, block, w // block, block), (0, 3, 5, 1, 2, 4),
             (n, c * block**2, h // block, w // block))


def _image_shape(state: InferenceState, node: Node) -> tuple[int, int, int, int]:
    """Return the shape of a node's input, (batch, channels, height, width).

    Raises ModelError for an input of another rank, or a block size less than 1.
    """
    shape = state.shapes[node.inputs[0]]
    if len(shape) != 4 or node.attributes["block"] < 1:
        raise state.error(node, f"has input shape {list(shape)} and block size "
                                f"{node.attributes['block']}; expected 4 dimensions and a block "
                                "size of 1 or more")
    n, c, h, w = shape
    return n, c, h, w


def _reorder(state: InferenceState, node: Node, split: Sequence[int], permutation: Sequence[int],
             result: Sequence[int]) -> None:
    """Emit a reshape to `split`, a transpose by `permutation`, and a reshape to `result`."""
    parts = state.reshape(node, split, node.inputs[0], [state.new_name(node, "split")])
    moved = state.emit(node, [split[axis] for axis in permutation], op="transpose", inputs=[parts],
                       outputs=[state.new_name(node, "moved")], permutation=tuple(permutation))
    state.reshape(node, result, moved, node.outputs)


def _reshape(attributes: dict[str, Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [arrays[0].reshape(attributes["shape"])]


def _transpose(attributes: dict[str, Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [arrays[0].transpose(attributes["permutation"])]


def _expand(attributes: dict[str, Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.broadcast_to(arrays[0], attributes["shape"])]


def _reshape_mixes(images: Images, node: Node) -> str | None:
    """Return how a reshape mixes images; None if it mixes none.

    No images are mixed if the sizes before the images' axis have the same product in the input and
    in the output.
    """
    old, new = images.axes.get(node.inputs[0]), images.growing_axis(node.outputs[0])
    if old is None or new is None:
        return "moves the batch into other axes"
    shapes = images.static.shapes
    if math.prod(shapes[node.inputs[0]][:old]) != math.prod(shapes[node.outputs[0]][:new]):
        return "joins parts of several inputs of a batch"
    return None


def _shape_shape(state: InferenceState, node: Node) -> None:
    shape = state.shapes[node.inputs[0]]
    start, end = node.attributes.get("start") or 0, node.attributes.get("end")
    state.know(node.outputs[0], np.array(shape[start:end], dtype=np.int64))


def _size_shape(state: InferenceState, node: Node) -> None:
    state.know(node.outputs[0], np.array(math.prod(state.shapes[node.inputs[0]]), dtype=np.int64))


def _known_inputs(state: InferenceState, node: Node) -> list[np.ndarray]:
    """Return the values of all inputs. Raises UnsupportedError if one depends on the data."""
    for name in node.inputs:
        if name not in state.known:
            raise state.unsupported(node, f"reads {name!r}, which depends on the data; expected "
                                          "a value that follows from the input's shape")
    return [state.known[name] for name in node.inputs]


def _constant_of_shape_shape(state: InferenceState, node: Node) -> None:
    (shape,) = _known_inputs(state, node)
    value = np.asarray(node.attributes["value"])
    state.check_constant(node, shape.tolist(), value.dtype.name)
    state.know(node.outputs[0], np.full(shape.tolist(), value))


def _range_shape(state: InferenceState, node: Node) -> None:
    start, limit, delta = (array.item() for array in _known_inputs(state, node))
    dtype = state.dtypes[node.inputs[0]]
    state.check_constant(node, [math.ceil((limit - start) / delta)], "float64")
    state.know(node.outputs[0], np.arange(start, limit, delta).astype(dtype))


DEFINITIONS = (
    *[OpDef(name, text=text, shape=shape, **RESOLVED, passes_values=True, discontinuous=never,
            float_only=False, attribute_inputs=inputs)
      for name, text, shape, inputs in (
          ("identity", "x; no attributes", _identity_shape, ()),
          ("branch", "x: a result of an If, condition: the condition of the If, known from shapes; "
                     "taken: the value of the condition that selected the branch of x",
           _branch_shape, ()),
          ("flatten", "x; axis", _flatten_shape, ()),
          ("depth_to_space", 'x; block, mode "DCR" or "CRD"', _depth_to_space_shape, ()),
          ("space_to_depth", "x; block", _space_to_depth_shape, ()),
          ("squeeze", "x; axes (None for all axes of size 1)", _squeeze_shape, ("axes",)),
          ("unsqueeze", "x; axes", _unsqueeze_shape, ("axes",)))],
    OpDef("reshape",
          text="x; shape; before resolve(), a size of 0 stands for the input's size (unless "
               "allowzero is True), and -1 for the size that keeps the number of elements",
          shape=_reshape_shape, evaluate=_reshape, mixes=_reshape_mixes, passes_values=True,
          discontinuous=never, facts=first_input, float_only=False, attribute_inputs=("shape",)),
    OpDef("transpose", text="x; permutation",
          shape=_transpose_shape, evaluate=_transpose, mixes=moves_images, passes_values=True,
          discontinuous=never, facts=first_input, float_only=False, attribute_inputs=()),
    OpDef("expand", text="x; shape",
          shape=_expand_shape, evaluate=_expand, mixes=broadcasts_across_images, passes_values=True,
          discontinuous=never, facts=first_input, float_only=False, attribute_inputs=("shape",)),
    *[OpDef(name, text=text, shape=shape, **RESOLVED, passes_values=False, discontinuous=never,
            float_only=False, attribute_inputs=())
      for name, text, shape in (
          ("shape", "x; start, end", _shape_shape), ("size", "x; no attributes", _size_shape),
          ("constant_of_shape", "shape; value", _constant_of_shape_shape),
          ("range", "start, limit, delta; no attributes", _range_shape))],
)
