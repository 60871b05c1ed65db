"""Definitions of the ops that join, split, pad or resize tensors."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gossamer.facts import ValueFacts, point
from gossamer.model.graph import Node, StaticGraph
from gossamer.model.opset.definition import (
    BATCH_AXIS,
    Images,
    InferenceState,
    OpDef,
    first_input,
    keeps_images_separate,
    never,
    not_evaluated,
    works_across_images,
)
from gossamer.model.opset.indexing import positive
from gossamer.resampling import nearest as nearest_elements


def _concat_shape(state: InferenceState, node: Node) -> None:
    shapes = [state.shapes[name] for name in node.inputs]
    axis = state.axis(node, node.attributes["axis"], len(shapes[0]))
    other_sizes = {(*shape[:axis], *shape[axis + 1:]) for shape in shapes}
    if len(other_sizes) > 1 or len({len(shape) for shape in shapes}) > 1:
        text = " and ".join(str(list(shape)) for shape in shapes)
        raise state.error(node, f"cannot concatenate {text} along dimension {axis}")
    result = list(shapes[0])
    result[axis] = sum(shape[axis] for shape in shapes)
    if len(shapes) == 1:
        state.alias(node)
    else:
        state.emit(node, result, inputs=state.in_one_dtype(node, node.inputs), axis=axis)


def _split_shape(state: InferenceState, node: Node) -> None:
    """Split a value along an axis, by default into equal parts.

    The last part is smaller if the number of parts does not divide the length.
    """
    shape = state.shapes[node.inputs[0]]
    axis = state.axis(node, node.attributes.get("axis", 0), len(shape))
    count, length = len(node.outputs), shape[axis]
    sizes = node.attributes.get("sizes")
    if sizes is None:
        part = -(-length // count)
        sizes = [*[part] * (count - 1), length - part * (count - 1)]
    if len(sizes) != count or sum(sizes) != length or min(sizes) < 0:
        raise state.error(node, f"cannot split {length} elements into {count} parts of "
                                f"{list(sizes)}")
    shapes = [(*shape[:axis], size, *shape[axis + 1:]) for size in sizes]
    state.emit(node, shape, several=shapes, axis=axis, sizes=tuple(sizes))


def _slice_shape(state: InferenceState, node: Node) -> None:
    """Make starts, ends, axes and steps concrete.

    Ends are exclusive. For a negative step, an end of -1 means that the slice includes index 0.
    """
    shape = state.shapes[node.inputs[0]]
    starts, ends = node.attributes["starts"], node.attributes["ends"]
    axes = node.attributes.get("axes") or range(len(starts))
    steps = node.attributes.get("steps") or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise state.error(node, f"cannot slice by starts {list(starts)}, ends {list(ends)}, axes "
                                f"{list(axes)}, steps {list(steps)}")
    result, cuts = list(shape), []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = state.axis(node, axis, len(shape))
        if step < 0:
            # ONNX clamps a start before the first element to the first element, unlike Python
            start = max(start, -shape[axis])
        indices = range(*slice(start, end, step).indices(shape[axis]))
        if len(indices) < 2:
            # a single element needs no step; the file's step may exceed the range of a device's
            # integers
            indices = range(indices.start, indices.start + 1) if indices else range(0)
        result[axis] = len(indices)
        if indices != range(shape[axis]):
            cuts.append((axis, indices))
    _cut(state, node, node.inputs[0], dict(cuts), node.outputs)


def _cut(state: InferenceState, node: Node, x: str, indices: dict[int, range],
         outputs: list[str]) -> str:
    """Emit a slice of x with the given indices along each axis; return its output."""
    shape = list(state.shapes[x])
    if not indices and x == node.inputs[0] and outputs == node.outputs:
        state.alias(node)
        return x
    for axis, range_ in indices.items():
        shape[axis] = len(range_)
    return state.emit(node, shape, op="slice", inputs=[x], outputs=outputs,
                      starts=tuple(range_.start for range_ in indices.values()),
                      ends=tuple(range_.start + len(range_) * range_.step
                                 for range_ in indices.values()),
                      axes=tuple(indices),
                      steps=tuple(range_.step for range_ in indices.values()))


def _gather_shape(state: InferenceState, node: Node) -> None:
    """Make the indices nonnegative; a gather with one constant index becomes a slice."""
    shape, indices = (state.shapes[name] for name in node.inputs)
    axis = state.axis(node, node.attributes["axis"], len(shape))
    known = state.known.get(node.inputs[1])
    if known is not None:
        has_negative = known.min(initial=0) < 0
        known = positive(state, node, known, shape[axis], axis)
        if has_negative:
            node.inputs[1] = state.know(state.new_name(node, "indices"), known)
    result = (*shape[:axis], *indices, *shape[axis + 1:])
    if known is not None and known.shape == () and node.inputs[0] not in state.known:
        index = known.item()
        sliced = _cut(state, node, node.inputs[0], {axis: range(index, index + 1)},
                      [state.new_name(node, "slice")])
        state.reshape(node, result, sliced, node.outputs)
    else:
        state.emit(node, result, axis=axis)


def _pad_shape(state: InferenceState, node: Node) -> None:
    """Turn negative pads into a slice, and apply the other pads to the slice."""
    shape = state.shapes[node.inputs[0]]
    rank, numbers = len(shape), node.attributes["pads"]
    axes = [state.axis(node, axis, rank) for axis in node.attributes.get("axes") or range(rank)]
    if len(numbers) != 2 * len(axes):
        raise state.error(node, f"has pads {list(numbers)}, expected {2 * len(axes)} numbers")
    pads = [0] * (2 * rank)
    for index, axis in enumerate(axes):
        pads[axis], pads[rank + axis] = numbers[index], numbers[len(axes) + index]
    x = node.inputs[0]
    if min(pads) < 0:
        indices = {axis: range(max(-pads[axis], 0), shape[axis] - max(-pads[rank + axis], 0))
                   for axis in range(rank) if min(pads[axis], pads[rank + axis]) < 0}
        pads = [max(pad, 0) for pad in pads]
        outputs = [state.new_name(node, "cut")] if any(pads) else node.outputs
        x = _cut(state, node, x, indices, outputs)
        shape = state.shapes[x]
        if not any(pads):
            return
    mode = node.attributes["mode"]
    for axis in range(rank):
        longest = max(pads[axis], pads[rank + axis])
        if mode == "reflect" and longest >= shape[axis] and longest:
            raise state.error(node, f"cannot reflect {longest} values of a dimension of "
                                    f"{shape[axis]}")
    if not any(pads):
        state.alias(node)
        return
    value = float(node.attributes.get("value") or 0)
    result = [size + pads[axis] + pads[rank + axis] for axis, size in enumerate(shape)]
    state.emit(node, result, inputs=[x], pads=tuple(pads), mode=mode, value=value)


def _resize_shape(state: InferenceState, node: Node) -> None:
    """Emit a resize, or several ops that compute it.

    One resize suffices if the input is float32 of rank 3 or 4 and its first two dimensions keep
    their sizes. If not, the dimensions are resized one by one: in mode "nearest" by gathers, in
    mode "linear" by resizes between reshapes.
    """
    x = node.inputs[0]
    shape, a = state.shapes[x], node.attributes
    rank = len(shape)
    axes = [state.axis(node, axis, rank) for axis in a.get("axes") or range(rank)]
    scales, sizes = a.get("scales"), a.get("sizes")
    factors = sizes or scales
    if not factors or len(factors) != len(axes) or (
            sizes and scales and len(scales) != len(sizes)):
        raise state.error(node, f"has {'sizes' if sizes else 'scales'} {list(factors or ())}, "
                                f"expected {len(axes)} numbers")
    factor, result = [1.0] * rank, list(shape)
    for index, axis in enumerate(axes):
        value = factors[index]
        if axis == 0 and sizes and value == state.graph.fixed_batch and state.follows_batch(x):
            continue
        result[axis] = int(value) if sizes else math.floor(shape[axis] * value)
        if scales:
            factor[axis] = float(scales[index])
        elif shape[axis]:
            factor[axis] = value / shape[axis]
        if factor[axis] <= 0 or (not shape[axis] and result[axis]):
            raise state.error(node, f"cannot resize {list(shape)} by {list(factors)}")
    nearest = a["nearest_mode"]
    if nearest == "simple":
        if min(factor) < 1 < max(factor):
            raise state.unsupported(node, "shrinks one dimension and enlarges the other; export "
                                          "with opset 11 or newer")
        nearest = "ceil" if min(factor) < 1 else "floor"
    rule = {"mode": a["mode"], "coordinates": a["coordinates"], "nearest_mode": nearest}
    changed = [axis for axis in range(rank) if factor[axis] != 1]
    is_float = state.dtypes[x] == "float32"
    if not changed:
        state.alias(node)
    elif is_float and (not all(result[1:]) or (changed[0] == 0 and not result[0])):
        state.know(node.outputs[0], np.zeros(result, np.float32))
    elif rank in (3, 4) and changed[0] >= 2 and is_float:
        state.emit(node, result, sizes=tuple(result[2:]), scales=tuple(factor[2:]), **rule)
    elif a["mode"] == "nearest":
        for axis in changed:
            state.check_constant(node, (result[axis],), "int32")
            rows = nearest_elements(shape[axis], result[axis], factor[axis], a["coordinates"],
                                    nearest)
            indices = state.know(state.new_name(node, f"rows{axis}"), rows)
            outputs = node.outputs if axis == changed[-1] else [state.new_name(node, f"by{axis}")]
            x = state.emit(node, [*state.shapes[x][:axis], len(rows), *state.shapes[x][axis + 1:]],
                           op="gather", inputs=[x, indices], outputs=outputs, axis=axis)
    elif not is_float or not all(shape[1:]):
        raise state.unsupported(node, f"interpolates {state.dtypes[x]} of shape {list(shape)}; "
                                      "gossamer interpolates float32")
    else:
        for axis in changed:
            # dimensions between the batch and the axis become channels, those after it columns
            n, c, h, w = (shape[0] if axis else 1, math.prod(shape[1:axis]), shape[axis],
                          math.prod(shape[axis + 1:]))
            x = state.reshape(node, (n, c, h, w), x, [state.new_name(node, f"split{axis}")])
            x = state.emit(node, (n, c, result[axis], w), inputs=[x],
                           outputs=[state.new_name(node, f"by{axis}")], sizes=(result[axis], w),
                           scales=(factor[axis], 1.0), **rule)
            shape = (*shape[:axis], result[axis], *shape[axis + 1:])
        state.reshape(node, result, x, node.outputs)


def _concat(attributes: dict[str, Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.concatenate(arrays, axis=attributes["axis"])]


def _split(attributes: dict[str, Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    bounds = np.cumsum(attributes["sizes"])[:-1]
    return list(np.split(arrays[0], bounds, axis=attributes["axis"]))


def _slice(attributes: dict[str, Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    (x,) = arrays
    for start, end, axis, step in zip(*[attributes[name] for name in
                                        ("starts", "ends", "axes", "steps")], strict=True):
        taken = range(start, end, step)
        cut = slice(start, None if end < 0 else end, step) if taken else slice(0, 0)
        x = np.ascontiguousarray(x[(slice(None),) * axis + (cut,)])
    return [x]


def _gather(attributes: dict[str, Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.take(arrays[0], arrays[1], axis=attributes["axis"])]


def _slice_mixes(images: Images, node: Node) -> str | None:
    axis = images.axes[node.inputs[0]]
    return f"slices along axis {axis}, {BATCH_AXIS}" if axis in node.attributes["axes"] else None


def _gather_mixes(images: Images, node: Node) -> str | None:
    x, indices = (images.axes.get(name) for name in node.inputs)
    if x is not None and (x == node.attributes["axis"] or indices is not None):
        return f"gathers along axis {node.attributes['axis']} of inputs batched along axis {x}"
    return None


def _pad_mixes(images: Images, node: Node) -> str | None:
    axis, pads = images.axes[node.inputs[0]], node.attributes["pads"]
    if pads[axis] or pads[axis + len(pads) // 2]:
        return f"pads axis {axis}, {BATCH_AXIS}"
    return None


def _concat_facts(static: StaticGraph, node: Node,
                  facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    return [functools.reduce(ValueFacts.join, facts)]


def _pad_facts(static: StaticGraph, node: Node, facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    if node.attributes["mode"] != "constant":
        return [facts[0]]
    return [facts[0].join(point(node.attributes["value"]))]


def _resize_facts(static: StaticGraph, node: Node,
                  facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    return [facts[0] if node.attributes["mode"] == "nearest" else facts[0].same_sign()]


DEFINITIONS = (
    OpDef("concat", text="xs; axis",
          shape=_concat_shape, evaluate=_concat, mixes=works_across_images, passes_values=True,
          discontinuous=never, facts=_concat_facts, float_only=False, attribute_inputs=()),
    OpDef("split", text="x; axis, sizes (before resolve() also None, for equal parts)",
          shape=_split_shape, evaluate=_split, mixes=works_across_images, passes_values=True,
          discontinuous=never, facts=first_input, float_only=False, attribute_inputs=("sizes",)),
    OpDef("slice",
          text="x; starts, ends (exclusive; -1 if the step is negative and index 0 is included), "
               "axes, steps",
          shape=_slice_shape, evaluate=_slice, mixes=_slice_mixes, passes_values=True,
          discontinuous=never, facts=first_input, float_only=False,
          attribute_inputs=("starts", "ends", "axes", "steps")),
    OpDef("gather", text="x, indices; axis",
          shape=_gather_shape, evaluate=_gather, mixes=_gather_mixes, passes_values=True,
          discontinuous=never, facts=first_input, float_only=False, attribute_inputs=()),
    OpDef("pad",
          text='x; pads (before each axis..., after each axis...), mode "constant", "reflect" or '
               '"edge", value; before resolve() also axes: the axes to which the pads belong',
          shape=_pad_shape, evaluate=not_evaluated, mixes=_pad_mixes, passes_values=True,
          discontinuous=never, facts=_pad_facts, float_only=False,
          attribute_inputs=("pads", "value", "axes")),
    OpDef("resize",
          text='x; sizes and scales of the spatial dimensions, mode "nearest" or "linear", '
               'coordinates, nearest_mode; before resolve() sizes or scales may be None, and axes '
               'lists the dimensions to which sizes and scales belong',
          shape=_resize_shape, evaluate=not_evaluated, mixes=keeps_images_separate,
          passes_values=True, discontinuous=never, facts=_resize_facts, float_only=False,
          attribute_inputs=("scales", "sizes")),
)
