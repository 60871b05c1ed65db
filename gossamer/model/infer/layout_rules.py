"""Shape rules of the ops that move data or compute shapes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from gossamer.model.graph import Node
from gossamer.model.infer.state import Walk

Rule = Callable[[Walk, Node], None]


def _identity(walk: Walk, node: Node) -> None:
    walk.alias(node)


def _flatten(walk: Walk, node: Node) -> None:
    shape = walk.shapes[node.inputs[0]]
    axis = node.attributes["axis"]
    axis = axis if axis == len(shape) else walk.axis(node, axis, len(shape))
    walk.reshape(node, (math.prod(shape[:axis]), math.prod(shape[axis:])))


def _squeeze(walk: Walk, node: Node) -> None:
    """Without axes every dimension of 1 goes, but not a batch that happens to be 1."""
    shape = walk.shapes[node.inputs[0]]
    axes = node.attributes.get("axes")
    if axes is None:
        usual = shape
        if walk.reference is not None:
            usual = walk.reference.shapes.get(node.inputs[0], shape)
        axes = [axis for axis, size in enumerate(usual) if size == 1]
    axes = {walk.axis(node, axis, len(shape)) for axis in axes}
    for axis in axes:
        if shape[axis] != 1:
            raise walk.error(node, f"cannot squeeze dimension {axis} of shape {list(shape)}")
    walk.reshape(node, [size for axis, size in enumerate(shape) if axis not in axes])


def _unsqueeze(walk: Walk, node: Node) -> None:
    shape = list(walk.shapes[node.inputs[0]])
    rank = len(shape) + len(node.attributes["axes"])
    for axis in sorted(walk.axis(node, axis, rank) for axis in node.attributes["axes"]):
        shape.insert(axis, 1)
    walk.reshape(node, shape)


def _reshape(walk: Walk, node: Node) -> None:
    """A file written for one batch size has it as a number in its shapes: where the input's
    first dimension follows the batch, so does the output's."""
    old = walk.shapes[node.inputs[0]]
    wanted = list(node.attributes["shape"])
    mismatch = walk.error(node, f"cannot reshape {list(old)} to {wanted}")
    if wanted.count(-1) > 1 or any(size < -1 for size in wanted):
        raise mismatch
    for axis, size in enumerate(wanted):
        if size == 0 and not node.attributes.get("allowzero"):
            if axis >= len(old):
                raise mismatch
            wanted[axis] = old[axis]
    usual: tuple[int, ...] = ()
    if walk.reference is not None:
        usual = walk.reference.shapes.get(node.outputs[0], ())
    if (walk.graph.fixed_batch is not None and usual and wanted[0] == usual[0]
            and walk.follows_batch(node.inputs[0])):
        wanted[0] = usual[0] * walk.batch // walk.graph.fixed_batch
    if -1 in wanted:
        axis = wanted.index(-1)
        rest = -math.prod(wanted)
        if rest:
            wanted[axis] = math.prod(old) // rest
        elif len(usual) == len(wanted):
            wanted[axis] = usual[axis]  # nothing times anything is nothing: ask another batch
        else:
            wanted[axis] = 0
    if math.prod(wanted) != math.prod(old):
        raise mismatch
    walk.reshape(node, wanted)


def _transpose(walk: Walk, node: Node) -> None:
    shape = walk.shapes[node.inputs[0]]
    permutation = node.attributes.get("permutation") or tuple(range(len(shape)))[::-1]
    if sorted(permutation) != list(range(len(shape))):
        raise walk.error(node, f"cannot transpose shape {list(shape)} by {list(permutation)}")
    if list(permutation) == sorted(permutation):
        walk.alias(node)
    else:
        walk.emit(node, [shape[axis] for axis in permutation], permutation=tuple(permutation))


def _expand(walk: Walk, node: Node) -> None:
    old, wanted = walk.shapes[node.inputs[0]], list(node.attributes["shape"])
    if (walk.graph.fixed_batch is not None and len(wanted) == len(old)
            and walk.follows_batch(node.inputs[0]) and wanted[0] == walk.graph.fixed_batch):
        wanted[0] = old[0]
    try:
        shape = np.broadcast_shapes(old, wanted)
    except ValueError:
        raise walk.error(node, f"cannot expand {list(old)} to {wanted}") from None
    if shape == old:
        walk.alias(node)
    else:
        walk.emit(node, shape, shape=shape)


def _concat(walk: Walk, node: Node) -> None:
    shapes = [walk.shapes[name] for name in node.inputs]
    axis = walk.axis(node, node.attributes["axis"], len(shapes[0]))
    around = {(*shape[:axis], *shape[axis + 1:]) for shape in shapes}
    if len(around) > 1 or len({len(shape) for shape in shapes}) > 1:
        text = " and ".join(str(list(shape)) for shape in shapes)
        raise walk.error(node, f"cannot concatenate {text} along dimension {axis}")
    result = list(shapes[0])
    result[axis] = sum(shape[axis] for shape in shapes)
    if len(shapes) == 1:
        walk.alias(node)
    else:
        walk.emit(node, result, axis=axis)


def _split(walk: Walk, node: Node) -> None:
    """Without sizes the parts are equal, and the last is smaller where they cannot be."""
    shape = walk.shapes[node.inputs[0]]
    axis = walk.axis(node, node.attributes.get("axis", 0), len(shape))
    count, whole = len(node.outputs), shape[axis]
    sizes = node.attributes.get("sizes")
    if sizes is None:
        part = -(-whole // count)
        sizes = [*[part] * (count - 1), whole - part * (count - 1)]
    if len(sizes) != count or sum(sizes) != whole or min(sizes) < 0:
        raise walk.error(node, f"cannot split {whole} into {count} parts of {list(sizes)}")
    shapes = [(*shape[:axis], size, *shape[axis + 1:]) for size in sizes]
    walk.emit(node, shape, several=shapes, axis=axis, sizes=tuple(sizes))


def _slice(walk: Walk, node: Node) -> None:
    """Concrete starts, ends (exclusive; -1 where a backward slice passes 0), axes and steps."""
    shape = walk.shapes[node.inputs[0]]
    starts, ends = node.attributes["starts"], node.attributes["ends"]
    axes = node.attributes.get("axes") or range(len(starts))
    steps = node.attributes.get("steps") or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise walk.error(node, f"cannot slice by starts {list(starts)}, ends {list(ends)}, axes "
                               f"{list(axes)}, steps {list(steps)}")
    result, cuts = list(shape), []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = walk.axis(node, axis, len(shape))
        indices = range(*slice(start, end, step).indices(shape[axis]))
        result[axis] = len(indices)
        if indices != range(shape[axis]):
            cuts.append((axis, indices))
    cut(walk, node, node.inputs[0], dict(cuts), node.outputs)


def cut(walk: Walk, node: Node, x: str, indices: dict[int, range], outputs: list[str]) -> str:
    """Emits a slice of x that takes these indices along these axes."""
    shape = list(walk.shapes[x])
    if not indices and x == node.inputs[0] and outputs == node.outputs:
        walk.alias(node)
        return x
    for axis, taken in indices.items():
        shape[axis] = len(taken)
    return walk.emit(node, shape, op="slice", inputs=[x], outputs=outputs,
                     starts=tuple(taken.start for taken in indices.values()),
                     ends=tuple(taken.start + len(taken) * taken.step
                                for taken in indices.values()),
                     axes=tuple(indices), steps=tuple(taken.step for taken in indices.values()))


def _pad(walk: Walk, node: Node) -> None:
    """Negative pads cut."""
    shape = walk.shapes[node.inputs[0]]
    rank, given = len(shape), node.attributes["pads"]
    axes = [walk.axis(node, axis, rank) for axis in node.attributes.get("axes") or range(rank)]
    if len(given) != 2 * len(axes):
        raise walk.error(node, f"has pads {list(given)}, expected {2 * len(axes)} numbers")
    pads = [0] * (2 * rank)
    for index, axis in enumerate(axes):
        pads[axis], pads[rank + axis] = given[index], given[len(axes) + index]
    x = node.inputs[0]
    if min(pads) < 0:
        indices = {axis: range(max(-pads[axis], 0), shape[axis] - max(-pads[rank + axis], 0))
                   for axis in range(rank) if min(pads[axis], pads[rank + axis]) < 0}
        pads = [max(pad, 0) for pad in pads]
        outputs = [walk.new_name(node, "cut")] if any(pads) else node.outputs
        x = cut(walk, node, x, indices, outputs)
        shape = walk.shapes[x]
        if not any(pads):
            return
    mode = node.attributes["mode"]
    for axis in range(rank):
        longest = max(pads[axis], pads[rank + axis])
        if mode == "reflect" and longest >= shape[axis] and longest:
            raise walk.error(node, f"cannot reflect {longest} values of a dimension of "
                                   f"{shape[axis]}")
    if not any(pads):
        walk.alias(node)
        return
    value = float(node.attributes.get("value") or 0)
    result = [size + pads[axis] + pads[rank + axis] for axis, size in enumerate(shape)]
    walk.emit(node, result, inputs=[x], pads=tuple(pads), mode=mode, value=value)


def _resize(walk: Walk, node: Node) -> None:
    shape = walk.shapes[node.inputs[0]]
    rank = len(shape)
    if rank not in (3, 4):
        raise walk.unsupported(node, f"input has shape {list(shape)}; gossamer resizes 3 or 4 "
                                     "dimensions (batch, channels, height, width)")
    axes = [walk.axis(node, axis, rank) for axis in node.attributes.get("axes") or range(rank)]
    scales, sizes = node.attributes.get("scales"), node.attributes.get("sizes")
    given = sizes or scales
    if not given or len(given) != len(axes):
        raise walk.error(node, f"has {'sizes' if sizes else 'scales'} {list(given or ())}, "
                               f"expected {len(axes)} numbers")
    factor, result = [1.0] * rank, list(shape)
    for axis, value in zip(axes, given, strict=True):
        if axis == 0 and sizes and value == walk.graph.fixed_batch:
            continue
        factor[axis] = value / shape[axis] if sizes and shape[axis] else float(value)
        if axis < 2 and (value != shape[axis] if sizes else value != 1):
            raise walk.error(node, f"resizes {list(shape)} along dimension {axis}; gossamer "
                                   "resizes height and width")
        if axis >= 2:
            result[axis] = int(value) if sizes else math.floor(shape[axis] * value)
    nearest = node.attributes["nearest_mode"]
    if nearest == "simple":
        if min(factor[2:]) < 1 < max(factor[2:]):
            raise walk.error(node, "shrinks one dimension and enlarges the other; export with "
                                   "opset 11 or newer")
        nearest = "ceil" if min(factor[2:]) < 1 else "floor"
    walk.emit(node, result, sizes=tuple(result[2:]), scales=tuple(factor[2:]),
              mode=node.attributes["mode"], coordinates=node.attributes["coordinates"],
              nearest_mode=nearest)


def _shape(walk: Walk, node: Node) -> None:
    shape = walk.shapes[node.inputs[0]]
    start, end = node.attributes.get("start") or 0, node.attributes.get("end")
    walk.know(node.outputs[0], np.array(shape[start:end], dtype=np.int64))


def _known_inputs(walk: Walk, node: Node) -> list[np.ndarray]:
    for name in node.inputs:
        if name not in walk.known:
            raise walk.error(node, f"depends on {name!r}, which the data decides; expected a value "
                                   "that follows from the input's shape")
    return [walk.known[name] for name in node.inputs]


def _constant_of_shape(walk: Walk, node: Node) -> None:
    (shape,) = _known_inputs(walk, node)
    walk.check_size(node, shape.tolist())
    walk.know(node.outputs[0], np.full(shape.tolist(), node.attributes["value"]))


def _range(walk: Walk, node: Node) -> None:
    start, limit, delta = (array.item() for array in _known_inputs(walk, node))
    dtype = walk.dtypes[node.inputs[0]]
    walk.check_size(node, [math.ceil((limit - start) / delta)])
    walk.know(node.outputs[0], np.arange(start, limit, delta).astype(dtype))


def _gather(walk: Walk, node: Node) -> None:
    """One constant index is a slice."""
    shape, indices = (walk.shapes[name] for name in node.inputs)
    axis = walk.axis(node, node.attributes["axis"], len(shape))
    known = walk.known.get(node.inputs[1])
    if known is not None and known.size:
        if known.min() < -shape[axis] or known.max() >= shape[axis]:
            raise walk.error(node, f"index {known.max()} is outside dimension {axis} of shape "
                                   f"{list(shape)}")
        if known.min() < 0:
            known = np.where(known < 0, known + shape[axis], known)
            node.inputs[1] = walk.know(walk.new_name(node, "indices"), known)
    result = (*shape[:axis], *indices, *shape[axis + 1:])
    if known is not None and known.shape == () and node.inputs[0] not in walk.known:
        index = known.item()
        one = cut(walk, node, node.inputs[0], {axis: range(index, index + 1)},
                  [walk.new_name(node, "slice")])
        walk.reshape(node, result, one, node.outputs)
    else:
        walk.emit(node, result, axis=axis)


def _cast(walk: Walk, node: Node) -> None:
    x, dtype = node.inputs[0], node.attributes["dtype"]
    if walk.dtypes[x] == dtype and x not in walk.known:
        walk.alias(node)
    else:
        walk.cast(node, x, node.outputs, dtype)


LAYOUT_RULES: dict[str, Rule] = {
    "identity": _identity, "flatten": _flatten, "squeeze": _squeeze, "unsqueeze": _unsqueeze,
    "reshape": _reshape, "transpose": _transpose, "expand": _expand, "concat": _concat,
    "split": _split, "slice": _slice, "pad": _pad, "resize": _resize, "shape": _shape,
    "constant_of_shape": _constant_of_shape, "range": _range, "gather": _gather, "cast": _cast,
}
