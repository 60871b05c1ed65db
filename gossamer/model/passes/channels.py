"""Simplifies selections, shuffles and concatenations of channels.

Exporters write a channel shuffle (ShuffleNet, Zhang et al., 2018) as a reshape of the channels to
two dimensions, a transpose of these two dimensions, and a reshape back. A gather computes the same
result, and can use the memory layout of the layers around it. A gather that selects channels for
1x1 convolutions can be removed: the convolutions then read all channels, with zero weights for
channels that were not selected. On a GPU, reading the additional channels takes less time than a
kernel that copies the selected ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gossamer.expression import apply
from gossamer.facts import are_scaled_signs
from gossamer.model.graph import Graph, Node, add_constant, names_of, new_name
from gossamer.model.infer.resolve import ShapesByBatch
from gossamer.model.passes.fusion import output_rows, readers

_LARGEST_RATIO = 2
"""Maximum number of channels that a convolution may read, as a multiple of the selected channels.
At a ratio of 2, the convolution alone reads as much as the gather and the convolution together."""
_COMPUTING = ("elementwise", "conv2d", "conv_transpose2d", "gemm")
"""Ops that can be fused with an element-wise node that reads their result."""
Wholes = defaultdict[tuple[str, int], list[tuple[Sequence[str], str]]]
"""Values (wholes) that consist of other values (parts) joined along an axis. A key is a pair of the
first part and the axis. The entries of a key are pairs of the list of parts and the whole."""


def gather_shuffled_channels(graph: Graph, shapes: ShapesByBatch) -> bool:
    """Replace shuffles of the channels of images by gathers.

    Splits and slices of shuffled channels also become gathers, one for each output. Returns whether
    the graph was changed; nodes that no output needs any longer stay in the graph.
    """
    producers = {name: node for node in graph.nodes for name in node.outputs}
    names = names_of(graph)
    shuffles: dict[str, tuple[str, np.ndarray]] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        shuffle = _shuffle(node, producers, shapes)
        if shuffle is not None:
            shuffles[node.outputs[0]] = shuffle
            nodes.append(_gather(graph, names, node, node.outputs[0], *shuffle))
            continue
        source, order = shuffles.get(node.inputs[0] if node.inputs else "", ("", None))
        parts = None if order is None else _parts(node, order, shapes)
        if parts is None:
            nodes.append(node)
        else:
            nodes += [_gather(graph, names, node, output, source, part)
                      for output, part in zip(node.outputs, parts, strict=True) if output]
    graph.nodes = nodes
    return bool(shuffles)


def _gather(graph: Graph, names: set[str], node: Node, output: str, source: str,
            order: np.ndarray) -> Node:
    indices = add_constant(graph, names, f"{output} order", order)
    return Node("gather", f"{node.name} of {output}" if len(node.outputs) > 1 else node.name,
                [source, indices], [output], {"axis": 1}, node.source)


def _shuffle(node: Node, producers: dict[str, Node], shapes: ShapesByBatch
             ) -> tuple[str, np.ndarray] | None:
    """Return the input of a channel shuffle, and the order of channels.

    The order is an array with the input channel of each shuffled channel. Returns None if the node
    is not the last of the three nodes of a shuffle.
    """
    turned = producers.get(node.inputs[0]) if node.op == "reshape" else None
    parted = producers.get(turned.inputs[0]) if turned and turned.op == "transpose" else None
    if turned is None or parted is None or parted.op != "reshape":
        return None
    source = parted.inputs[0]
    if tuple(turned.attributes["permutation"] or ()) != (0, 2, 1, 3, 4) or (
            shapes.rank(source) != 4 or not shapes.equal(source, node.outputs[0])):
        return None
    found = set()
    for whole, parts in zip(shapes.shapes(source), shapes.shapes(parted.outputs[0]), strict=True):
        found.add(parts[1:3] if (parts[0], *parts[3:]) == (whole[0], *whole[2:]) else None)
    if len(found) != 1 or (sizes := found.pop()) is None:
        return None
    groups, each = sizes
    return source, np.arange(groups * each).reshape(groups, each).T.reshape(-1)


def _parts(node: Node, order: np.ndarray, shapes: ShapesByBatch) -> list[np.ndarray] | None:
    """Return the entries of `order` for each output of a split or slice of channels.

    Returns None for other nodes, and for splits and slices along other axes.

    order: for each shuffled channel, its index before the shuffle.
    """
    if node.op not in ("split", "slice") or (concrete := shapes.with_attributes(node)) is None:
        return None
    attributes = concrete.attributes
    if node.op == "slice":
        starts, ends = attributes["starts"], attributes["ends"]
        if tuple(attributes.get("axes") or range(len(starts))) not in ((1,), (-3,)):
            return None
        (step,) = attributes.get("steps") or (1,)
        return [order[starts[0]:ends[0]:step]] if step else None
    parts = [shapes.shapes(output) for output in node.outputs]
    if attributes.get("axis", 0) not in (1, -3) or not all(parts):
        return None
    return np.split(order, np.cumsum([known_shapes[0][1] for known_shapes in parts])[:-1])


def choose_channels_by_weights(graph: Graph, shapes: ShapesByBatch) -> bool:
    """Remove gathers of channels, and widen the weights of their readers instead.

    A gather is removed if it selects channels of images by constant indices, and only 1x1
    convolutions read its result. The convolutions get weights for all channels. Returns whether the
    graph was changed; nodes that no output needs any longer stay in the graph.
    """
    users, names = readers(graph), names_of(graph)
    changed = False
    for node in graph.nodes:
        order = _order(graph, node, shapes)
        if order is None:
            continue
        channels, found = order
        layers = users.get(node.outputs[0], [])
        if not layers or not all(_can_widen(graph, layer, node.outputs[0], found.size)
                                 for layer in layers):
            continue
        for layer in layers:
            weight = graph.constants[layer.inputs[1]]
            columns = np.zeros((channels, len(weight), 1, 1), weight.dtype)
            np.add.at(columns, found, weight.swapaxes(0, 1))
            layer.inputs[:2] = [node.inputs[0], add_constant(
                graph, names, f"{layer.outputs[0]}.all channels",
                np.ascontiguousarray(columns.swapaxes(0, 1)))]
        changed = True
    return changed


def _order(graph: Graph, node: Node, shapes: ShapesByBatch) -> tuple[int, np.ndarray] | None:
    """Return the number of input channels of a gather, and the selected channels.

    Returns None for other nodes, and for a gather that selects less than 1 / _LARGEST_RATIO of the
    channels.
    """
    if node.op != "gather" or node.attributes.get("axis", 0) not in (1, -3) or (
            shapes.rank(node.inputs[0]) != 4):
        return None
    indices = graph.constants.get(node.inputs[1])
    sizes = {shape[1] for shape in shapes.shapes(node.inputs[0])}
    if indices is None or indices.ndim != 1 or len(sizes) != 1:
        return None
    channels = sizes.pop()
    if channels > _LARGEST_RATIO * indices.size or (
            not ((-channels <= indices) & (indices < channels)).all()):
        return None
    return channels, indices % channels


def _can_widen(graph: Graph, layer: Node, x: str, chosen: int) -> bool:
    """Return whether a node is a 1x1 convolution of x with weights that can be widened.

    The weights must be constants for the `chosen` channels. Weights that are signs with one scale
    per channel are not widened, because algorithms on packed bits support them only without zeros.
    """
    if layer.op != "conv2d" or layer.inputs[0] != x or x in layer.inputs[1:] or (
            layer.attributes.get("groups", 1) != 1):
        return False
    rows = output_rows(graph, layer)
    return rows is not None and rows.shape[1:] == (chosen, 1, 1) and not are_scaled_signs(rows)


def nest_concatenations(graph: Graph) -> None:
    """Let concatenations read larger values that already exist.

    Suppose that an earlier concatenation joined some values, the parts, into one value, the whole;
    or that an earlier split divided the whole into the parts. If all parts are consecutive inputs
    of a concatenation, in the same order along the same axis, then the concatenation reads the
    whole instead of the parts. Each part then belongs to one whole only, and can be stored in the
    memory of the whole.
    """
    wholes: Wholes = defaultdict(list)
    for node in graph.nodes:
        if node.op == "split":
            axis = node.attributes.get("axis", 0)
            wholes[node.outputs[0], axis].append((tuple(node.outputs), node.inputs[0]))
        elif node.op == "concat":
            parts = tuple(node.inputs)
            node.inputs = _nested(node, wholes)
            wholes[parts[0], node.attributes["axis"]].append((parts, node.outputs[0]))


def _nested(node: Node, wholes: Wholes) -> list[str]:
    """Return the inputs of a concatenation.

    Consecutive inputs that are all parts of a whole in `wholes` are replaced by the whole.
    """
    inputs, result, start = node.inputs, list[str](), 0
    while start < len(inputs):
        fitting = [(parts, whole) for parts, whole in wholes[inputs[start],
                                                             node.attributes["axis"]]
                   if 1 < len(parts) < len(inputs)
                   and tuple(inputs[start:start + len(parts)]) == tuple(parts)]
        parts, name = max(fitting, key=lambda found: len(found[0]),
                          default=(inputs[start:start + 1], inputs[start]))
        result.append(name)
        start += len(parts)
    return result


def move_above_concatenations(graph: Graph, shapes: ShapesByBatch) -> bool:
    """Move element-wise nodes and batch norms from after a concatenation to before it.

    An example of such a node is a rounding to integers. The node is copied to each input of the
    concatenation, so that the layers that compute the inputs can compute the copies in their
    epilogues or weights. No other node may read the concatenation or its inputs. Returns whether
    the graph was changed.
    """
    makers = {name: node for node in graph.nodes for name in node.outputs}
    users, names = readers(graph), names_of(graph)
    gone: set[int] = set()
    before: dict[int, list[Node]] = {}
    for join in [node for node in graph.nodes if node.op == "concat"]:
        channels = _joined_channels(join, shapes)
        while (node := _follower(graph, join, users, makers, channels)) is not None:
            parts = []
            for index, part in enumerate(join.inputs):
                name = new_name(names, f"{part}.{node.outputs[0]}")
                constants = [add_constant(graph, names, f"{name}.{constant}",
                                          graph.constants[constant][channels[index]])
                             for constant in node.inputs[1:] if channels]
                moved = Node(node.op, name, [part, *constants], [name], dict(node.attributes),
                             node.source)
                before.setdefault(id(join), []).append(moved)
                makers[name], users[part], users[name] = moved, [moved], [join]
                parts.append(name)
            gone.add(id(node))
            join.inputs, join.outputs = parts, list(node.outputs)
            makers[join.outputs[0]] = join
    graph.nodes = [one for node in graph.nodes if id(node) not in gone
                   for one in (*before.get(id(node), ()), node)]
    return bool(gone)


def _follower(graph: Graph, join: Node, users: dict[str, list[Node]], makers: dict[str, Node],
              channels: Sequence[slice] | None) -> Node | None:
    """Return the only reader of a concatenation, if the reader can be moved before it; else None.

    The reader must be an element-wise node or a batch norm, and must read no other run-time value.
    Each input of the concatenation must be the result of an op in _COMPUTING or of a moved batch
    norm, and the concatenation must be its only reader.

    channels: the channels of each input of the concatenation; None if it does not join channels.
    """
    following = users.get(join.outputs[0], [])
    if len(following) != 1 or len(following[0].outputs) != 1:
        return None
    (node,) = following
    is_moved = (len(node.inputs) == 1 if node.op == "elementwise" else
                node.op == "batch_norm" and channels is not None and all(
                    name in graph.constants and len(graph.constants[name]) == channels[-1].stop
                    for name in node.inputs[1:]))
    is_own = len(set(join.inputs)) == len(join.inputs) and all(
        part in makers and makers[part].op in (*_COMPUTING, "batch_norm") and len(users[part]) == 1
        for part in join.inputs)
    return node if is_moved and is_own else None


def _joined_channels(join: Node, shapes: ShapesByBatch) -> list[slice] | None:
    """Return the channels of each input of a concatenation; None if it does not join channels."""
    known = [shapes.shapes(part) for part in join.inputs]
    if join.attributes["axis"] not in (1, -3) or not all(
            each and len(each[0]) == 4 and len({shape[1] for shape in each}) == 1
            for each in known):
        return None
    ends = np.cumsum([each[0][1] for each in known]).tolist()
    return list(map(slice, [0, *ends], ends))


def merge_joined_convolutions(graph: Graph, shapes: ShapesByBatch, *,
                              for_gpu: bool) -> bool:
    """Merge convolutions of one value whose results are concatenated.

    The merged convolution has the output channels of all merged convolutions. The convolutions of
    neighbouring inputs of a concatenation are merged if they have the same windows, and if no other
    node reads these inputs. Returns whether the graph was changed; nodes that no output needs any
    longer stay in the graph.

    for_gpu: whether 1x1 convolutions of the halves of a split value are merged, too. The merged
    convolution reads both halves. Each of its output channels has zero weights for the half that
    did not contribute to this channel before.
    """
    makers = {name: node for node in graph.nodes for name in node.outputs}
    users, names = readers(graph), names_of(graph)
    before: dict[int, list[Node]] = {}
    for join in [node for node in graph.nodes if node.op == "concat"]:
        if _joined_channels(join, shapes) is None:
            continue
        runs: list[list[_Joined]] = []
        for part in join.inputs:
            layer = _joined(graph, part, makers, users, shapes, halves=for_gpu)
            if layer and runs and runs[-1] and layer.is_like(runs[-1][-1]):
                runs[-1].append(layer)
            else:
                runs.append([layer] if layer else [])
        if all(len(run) < 2 for run in runs):
            continue
        left, inputs = list(join.inputs), []
        for run in runs:
            parts, left = left[:len(run) or 1], left[len(run) or 1:]
            if len(run) > 1:
                output = join.outputs[0] if len(runs) == 1 else new_name(names, f"{parts[0]}.all")
                before.setdefault(id(join), []).append(_merged(graph, names, run, output))
                parts = [output]
            inputs += parts
        join.inputs = inputs
    graph.nodes = [one for node in graph.nodes for one in (*before.get(id(node), ()), node)
                   if one.op != "concat" or one.inputs != one.outputs]
    return bool(before)


@dataclass(frozen=True)
class _Joined:
    """A convolution whose result is concatenated.

    source: the value that the convolution reads in full, or some of whose channels it reads.
    channels: number of channels of `source`.
    first: the first channel that the convolution reads.
    weight: (M, C, R, S); bias: (M,), or None.
    """

    node: Node
    source: str
    channels: int
    first: int
    weight: np.ndarray
    bias: np.ndarray | None

    def is_like(self, other: _Joined) -> bool:
        """Return whether two convolutions can be merged."""
        return (self.source == other.source and self.node.attributes == other.node.attributes
                and self.weight.shape[2:] == other.weight.shape[2:]
                and (self.bias is None) == (other.bias is None)
                and are_scaled_signs(self.weight) == are_scaled_signs(other.weight))

    @property
    def wide_weight(self) -> np.ndarray:
        """The weights for all channels of `source`."""
        if self.weight.shape[1] == self.channels:
            return self.weight
        wide = np.zeros((len(self.weight), self.channels, *self.weight.shape[2:]), np.float32)
        wide[:, self.first:self.first + self.weight.shape[1]] = self.weight
        return wide


def _joined(graph: Graph, part: str, makers: dict[str, Node], users: dict[str, list[Node]],
            shapes: ShapesByBatch, *, halves: bool) -> _Joined | None:
    """Return the convolution that computes an input of a concatenation, if it can be merged."""
    node = makers.get(part)
    if node is None or node.op != "conv2d" or len(users[part]) != 1 or (
            node.attributes.get("groups", 1) != 1) or any(
            name not in graph.constants for name in node.inputs[1:]):
        return None
    rows = output_rows(graph, node)
    epilogue = node.attributes["epilogue"]
    if rows is None or not (epilogue.is_identity if len(node.inputs) == 2 else
                            len(node.inputs) == 3 and epilogue == apply("add")):
        return None
    bias = graph.constants[node.inputs[2]] if len(node.inputs) > 2 else None
    if bias is not None and (bias.dtype != np.float32 or bias.shape != rows.shape[:1]):
        return None
    source = node.inputs[0]
    split = makers.get(source)
    if halves and split is not None and split.op == "split" and rows.shape[2:] == (1, 1) and (
            not are_scaled_signs(rows)):
        known = shapes.shapes(split.inputs[0])
        channels = known[0][1] if known and len(known[0]) == 4 else 0
        found = _parts(split, np.arange(channels), shapes) if channels else None
        if found is not None and channels <= _LARGEST_RATIO * rows.shape[1]:
            first = found[split.outputs.index(source)]
            if len(first) == rows.shape[1]:
                return _Joined(node, split.inputs[0], channels, int(first[0]), rows, bias)
    return _Joined(node, source, rows.shape[1], 0, rows, bias)


def _merged(graph: Graph, names: set[str], run: Sequence[_Joined], output: str) -> Node:
    """Return one convolution whose result is the concatenated results of several convolutions."""
    first = run[0].node
    arrays = {"weight": np.concatenate([layer.wide_weight for layer in run])}
    if run[0].bias is not None:
        arrays["bias"] = np.concatenate([layer.bias for layer in run if layer.bias is not None])
    inputs = [add_constant(graph, names, f"{output}.{role}", array)
              for role, array in arrays.items()]
    return Node("conv2d", first.name, [run[0].source, *inputs], [output], dict(first.attributes),
                first.source)
