"""Shape rules of the ops that move data or compute shapes.

A rule checks a node, makes its attributes concrete and emits what remains of it into the state."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from gossamer.model.graph import Node
from gossamer.model.infer.state import InferenceState

Rule = Callable[[InferenceState, Node], None]


def _identity(state: InferenceState, node: Node) -> None:
    state.alias(node)


def _flatten(state: InferenceState, node: Node) -> None:
    shape = state.shapes[node.inputs[0]]
    axis = node.attributes["axis"]
    axis = axis if axis == len(shape) else state.axis(node, axis, len(shape))
    state.reshape(node, (math.prod(shape[:axis]), math.prod(shape[axis:])))


def _squeeze(state: InferenceState, node: Node) -> None:
    """Removes dimensions of size 1; where no axes are given all of them, except a batch that
    happens to be 1."""
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


def _unsqueeze(state: InferenceState, node: Node) -> None:
    shape = list(state.shapes[node.inputs[0]])
    rank = len(shape) + len(node.attributes["axes"])
    for axis in sorted(state.axis(node, axis, rank) for axis in node.attributes["axes"]):
        shape.insert(axis, 1)
    state.reshape(node, shape)


def _reshape(state: InferenceState, node: Node) -> None:
    """Works out the sizes 0 and -1 of a new shape. A file written for one batch size has that size
    as a number in its shapes: where the input's first dimension follows the batch, the output's
    first dimension does too."""
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
            # the product is 0 whatever this size is: only another batch size tells it
            new[axis] = other_shape[axis]
        else:
            new[axis] = 0
    if math.prod(new) != math.prod(old):
        raise mismatch
    state.reshape(node, new)


def _transpose(state: InferenceState, node: Node) -> None:
    shape = state.shapes[node.inputs[0]]
    permutation = node.attributes.get("permutation") or tuple(range(len(shape)))[::-1]
    if sorted(permutation) != list(range(len(shape))):
        raise state.error(node, f"cannot transpose shape {list(shape)} by {list(permutation)}")
    if list(permutation) == sorted(permutation):
        state.alias(node)
    else:
        state.emit(node, [shape[axis] for axis in permutation], permutation=tuple(permutation))


def _expand(state: InferenceState, node: Node) -> None:
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


def _concat(state: InferenceState, node: Node) -> None:
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
        state.emit(node, result, axis=axis)


def _split(state: InferenceState, node: Node) -> None:
    """Splits a value along an axis: into equal parts where no sizes are given, of which the last
    is smaller where the length cannot be divided."""
    shape = state.shapes[node.inputs[0]]
    axis = state.axis(node, node.attributes.get("axis", 0), len(shape))
    count, length = len(node.outputs), shape[axis]
    sizes = node.attributes.get("sizes")
    if sizes is None:
        part = -(-length // count)
        sizes = [*[part] * (count - 1), length - part * (count - 1)]
    if len(sizes) != count or sum(sizes) != length or min(sizes) < 0:
        raise state.error(node, f"cannot split {length} into {count} parts of {list(sizes)}")
    shapes = [(*shape[:axis], size, *shape[axis + 1:]) for size in sizes]
    state.emit(node, shape, several=shapes, axis=axis, sizes=tuple(sizes))


def _slice(state: InferenceState, node: Node) -> None:
    """Makes starts, ends (exclusive; -1 where a backward slice goes past 0), axes and steps
    concrete."""
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
        indices = range(*slice(start, end, step).indices(shape[axis]))
        result[axis] = len(indices)
        if indices != range(shape[axis]):
            cuts.append((axis, indices))
    _cut(state, node, node.inputs[0], dict(cuts), node.outputs)


def _cut(state: InferenceState, node: Node, x: str, indices: dict[int, range],
         outputs: list[str]) -> str:
    """Emits a slice of x that takes the indices of each axis in `indices`, and returns its
    output."""
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


def _pad(state: InferenceState, node: Node) -> None:
    """Turns negative pads into a slice, and pads what is left with the others."""
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


def _resize(state: InferenceState, node: Node) -> None:
    shape = state.shapes[node.inputs[0]]
    rank = len(shape)
    if rank not in (3, 4):
        raise state.unsupported(node, f"input has shape {list(shape)}; gossamer resizes 3 or 4 "
                                      "dimensions (batch, channels, height, width)")
    axes = [state.axis(node, axis, rank) for axis in node.attributes.get("axes") or range(rank)]
    scales, sizes = node.attributes.get("scales"), node.attributes.get("sizes")
    factors = sizes or scales
    if not factors or len(factors) != len(axes):
        raise state.error(node, f"has {'sizes' if sizes else 'scales'} {list(factors or ())}, "
                                f"expected {len(axes)} numbers")
    factor, result = [1.0] * rank, list(shape)
    for axis, value in zip(axes, factors, strict=True):
        if axis == 0 and sizes and value == state.graph.fixed_batch:
            continue
        factor[axis] = value / shape[axis] if sizes and shape[axis] else float(value)
        if axis < 2 and (value != shape[axis] if sizes else value != 1):
            raise state.error(node, f"resizes {list(shape)} along dimension {axis}; gossamer "
                                    "resizes height and width")
        if axis >= 2:
            result[axis] = int(value) if sizes else math.floor(shape[axis] * value)
    nearest = node.attributes["nearest_mode"]
    if nearest == "simple":
        if min(factor[2:]) < 1 < max(factor[2:]):
            raise state.error(node, "shrinks one dimension and enlarges the other; export with "
                                    "opset 11 or newer")
        nearest = "ceil" if min(factor[2:]) < 1 else "floor"
    state.emit(node, result, sizes=tuple(result[2:]), scales=tuple(factor[2:]),
               mode=node.attributes["mode"], coordinates=node.attributes["coordinates"],
               nearest_mode=nearest)


def _shape(state: InferenceState, node: Node) -> None:
    shape = state.shapes[node.inputs[0]]
    start, end = node.attributes.get("start") or 0, node.attributes.get("end")
    state.know(node.outputs[0], np.array(shape[start:end], dtype=np.int64))


def _known_inputs(state: InferenceState, node: Node) -> list[np.ndarray]:
    """Returns the values of all inputs. Raises ModelError where the data decide one."""
    for name in node.inputs:
        if name not in state.known:
            raise state.error(node, f"depends on {name!r}, which the data decides; expected a "
                                    "value that follows from the input's shape")
    return [state.known[name] for name in node.inputs]


def _constant_of_shape(state: InferenceState, node: Node) -> None:
    (shape,) = _known_inputs(state, node)
    state.check_size(node, shape.tolist())
    state.know(node.outputs[0], np.full(shape.tolist(), node.attributes["value"]))


def _range(state: InferenceState, node: Node) -> None:
    start, limit, delta = (array.item() for array in _known_inputs(state, node))
    dtype = state.dtypes[node.inputs[0]]
    state.check_size(node, [math.ceil((limit - start) / delta)])
    state.know(node.outputs[0], np.arange(start, limit, delta).astype(dtype))


def _gather(state: InferenceState, node: Node) -> None:
    """Makes the indices positive; a gather with one constant index becomes a slice."""
    shape, indices = (state.shapes[name] for name in node.inputs)
    axis = state.axis(node, node.attributes["axis"], len(shape))
    known = state.known.get(node.inputs[1])
    if known is not None and known.size:
        if known.min() < -shape[axis] or known.max() >= shape[axis]:
            raise state.error(node, f"index {known.max()} is outside dimension {axis} of shape "
                                    f"{list(shape)}")
        if known.min() < 0:
            known = np.where(known < 0, known + shape[axis], known)
            node.inputs[1] = state.know(state.new_name(node, "indices"), known)
    result = (*shape[:axis], *indices, *shape[axis + 1:])
    if known is not None and known.shape == () and node.inputs[0] not in state.known:
        index = known.item()
        sliced = _cut(state, node, node.inputs[0], {axis: range(index, index + 1)},
                      [state.new_name(node, "slice")])
        state.reshape(node, result, sliced, node.outputs)
    else:
        state.emit(node, result, axis=axis)


def _cast(state: InferenceState, node: Node) -> None:
    x, dtype = node.inputs[0], node.attributes["dtype"]
    if state.dtypes[x] == dtype and x not in state.known:
        state.alias(node)
    else:
        state.cast(node, x, node.outputs, dtype)


LAYOUT_RULES: dict[str, Rule] = {
    "identity": _identity, "flatten": _flatten, "squeeze": _squeeze, "unsqueeze": _unsqueeze,
    "reshape": _reshape, "transpose": _transpose, "expand": _expand, "concat": _concat,
    "split": _split, "slice": _slice, "pad": _pad, "resize": _resize, "shape": _shape,
    "constant_of_shape": _constant_of_shape, "range": _range, "gather": _gather, "cast": _cast,
}
