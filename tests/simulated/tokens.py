"""Random networks of attention, norms and moves, in many forms of which some only look like
these."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.simulated.networks import Network

BATCH = 31
"""The size that stands for the batch in shapes. A multiple of it is a dimension that also has
others; no other size is a multiple of it."""
_FACTORS = (0.5, -0.7, 2.0)
_MOST_ROWS = 1024
"""The most rows that are compared with each other: a plan refuses values of more than 256 MiB."""
_LOWEST = float(np.finfo(np.float32).min)


class Tokens(Network):
    """A network whose shapes have all dimensions, the batch included.

    shown: values that are outputs besides the last one.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.shown: list[str] = []

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def floats(self, *shape: int) -> str:
        return self.constant(self.rng.standard_normal(shape).astype(np.float32))

    def matrix(self, rows: int, columns: int) -> str:
        """Add a constant that keeps the size of the values that are multiplied by it."""
        return self.constant((self.rng.standard_normal((rows, columns)) / np.sqrt(rows)
                              ).astype(np.float32))

    def integers(self, numbers: Sequence[int]) -> str:
        return self.constant(np.array(numbers, np.int64))

    def compute(self, op: str, *inputs: str) -> str:
        """Add an element-wise layer, whose operands broadcast."""
        shapes = [self.shapes[name] if name in self.shapes else self.constants[name].shape
                  for name in inputs]
        return str(self.add(op, list(inputs), np.broadcast_shapes(*shapes)))

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        return str(self.add("Reshape", [x, self.integers(
            [size if size % BATCH else -1 for size in shape])], tuple(shape)))

    def transpose(self, x: str, order: Sequence[int]) -> str:
        return str(self.add("Transpose", [x], tuple(self.shapes[x][dim] for dim in order),
                            perm=list(order)))

    def swapped(self, x: str) -> str:
        rank = len(self.shapes[x])
        return self.transpose(x, [*range(rank - 2), rank - 1, rank - 2])

    def slice(self, x: str, axis: int, start: int, end: int, step: int = 1) -> str:
        shape = list(self.shapes[x])
        shape[axis] = len(range(start, end, step))
        limits = [self.integers([number]) for number in (
            start, end if end >= 0 else -10**6, axis, step)]
        return str(self.add("Slice", [x, *limits], tuple(shape)))

    def product(self, a: str, b: str) -> str:
        left = self.shapes[a]
        right = self.shapes[b] if b in self.shapes else self.constants[b].shape
        return str(self.add("MatMul", [a, b], (
            *np.broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1])))

    def reduce(self, op: str, x: str, axes: Sequence[int], *, keepdims: bool = True) -> str:
        shape = tuple(1 if axis in axes else size for axis, size in enumerate(self.shapes[x])
                      if keepdims or axis not in axes)
        if op == "ReduceSum":
            return str(self.add(op, [x, self.integers(axes)], shape, keepdims=int(keepdims)))
        return str(self.add(op, [x], shape, axes=list(axes), keepdims=int(keepdims)))

    def scaled(self, x: str, chance: float = 0.4) -> str:
        """Multiply or divide by a number, or seldom by one for each index of a dimension."""
        if not self.chance(chance):
            return x
        if self.chance(0.15):
            shape = self.shapes[x]
            axis = int(self.rng.integers(len(shape)))
            sizes = [size if dim == axis and size % BATCH else 1 for dim, size in enumerate(shape)]
            return self.compute("Mul", x, self.floats(*sizes))
        number = self.constant(np.full(self.pick((), (1,), (1, 1)), self.pick(*_FACTORS),
                                       np.float32))
        return self.compute(self.pick("Mul", "Div"), x, number)

    def moved(self, x: str) -> str:
        """Add a random move."""
        shape = self.shapes[x]
        axis = int(self.rng.integers(len(shape)))
        kind = self.pick("transpose", "transpose", "merge", "split", "slice", "unit", "expand")
        if kind == "transpose":
            return self.transpose(x, self.rng.permutation(len(shape)).tolist())
        if kind == "merge" and len(shape) > 1:
            axis = min(axis, len(shape) - 2)
            return self.reshape(x, (*shape[:axis], shape[axis] * shape[axis + 1],
                                    *shape[axis + 2:]))
        divisors = [size for size in range(2, shape[axis]) if shape[axis] % size == 0
                    and size % BATCH]
        if kind == "split" and divisors and len(shape) < 6:
            size = self.pick(*divisors)
            return self.reshape(x, (*shape[:axis], *self.pick(
                (shape[axis] // size, size), (size, shape[axis] // size)), *shape[axis + 1:]))
        if kind == "slice" and shape[axis] % BATCH and shape[axis] > 1:
            start, step = self.pick(0, 1), self.pick(1, 1, 2)
            if self.chance(0.15):
                return self.slice(x, axis, shape[axis] - 1, -1, -step)
            # no slice may have a length that stands for the batch
            return self.slice(x, axis, start, shape[axis], step) if (
                len(range(start, shape[axis], step)) % BATCH) else x
        if kind == "unit" and len(shape) < 6:
            return self.reshape(x, (*shape[:axis], 1, *shape[axis:]))
        if kind == "expand" and shape[axis] == 1:
            sizes = [size if size % BATCH else 1 for size in shape]
            sizes[axis] = 3
            return str(self.add("Expand", [x, self.integers([
                1 if size == shape[dim] else size for dim, size in enumerate(sizes)])],
                tuple(3 if dim == axis else size for dim, size in enumerate(shape))))
        return x

    def model(self, name: str, outputs: list[str]) -> onnx.ModelProto:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *self.shapes["x"][1:]])
        results = [helper.make_tensor_value_info(output, TensorProto.FLOAT, [
            size if size % BATCH else "N" if size == BATCH else None
            for size in self.shapes[output]]) for output in outputs]
        graph = helper.make_graph(self.nodes, name, [x], results, [
            numpy_helper.from_array(array, constant)
            for constant, array in self.constants.items()])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def moves(net: Tokens, x: str) -> str:
    for _ in range(int(net.rng.integers(2, 7))):
        x = net.moved(x)
    return x


def rows_of(net: Tokens, x: str) -> str:
    """Returns a value as rows of features (..., rows, features), of which some are windows."""
    shape = net.shapes[x]
    if len(shape) != 4 or shape[0] != BATCH:
        return x if len(shape) > 1 and shape[-1] % BATCH and shape[-2] % BATCH else net.reshape(
            x, (BATCH, int(np.prod(shape)) // BATCH, 1))
    _, c, h, w = shape
    if h % 2 or w % 2 or net.chance(0.7):
        return net.transpose(net.reshape(x, (BATCH, c, h * w)), (0, 2, 1))
    y = net.transpose(net.reshape(x, (BATCH, c, h // 2, 2, w // 2, 2)), (0, 2, 4, 3, 5, 1))
    return net.reshape(y, (BATCH * (h // 2) * (w // 2), 4, c))


def of_one_product(net: Tokens, rows: str) -> tuple[str, str, str]:
    """Returns queries, keys and values of one product, in any order of its features."""
    batch, tokens, features = net.shapes[rows]
    sizes = {"three": 3, "heads": net.pick(1, 2, 3), "dim": net.pick(1, 3, 4, 8, 20)}
    order = net.rng.permutation(list(sizes)).tolist()
    y = net.product(rows, net.matrix(features, int(np.prod(list(sizes.values())))))
    y = net.reshape(y, (batch, tokens, *(sizes[name] for name in order)))
    at = {name: index for index, name in enumerate(("batch", "tokens", *order))}
    if net.chance(0.6):
        order = net.pick(["three", "batch", "heads", "tokens", "dim"],
                         ["batch", "heads", "three", "tokens", "dim"])
        y = net.transpose(y, [at[name] for name in order])
        at = {name: index for index, name in enumerate(order)}
    parts = []
    for index in range(3):
        part = net.slice(y, at["three"], index, index + 1)
        shape = [size for dim, size in enumerate(net.shapes[part]) if dim != at["three"]]
        part = net.reshape(part, shape)
        left = sorted((name for name in at if name != "three"), key=lambda name: at[name])
        wanted = ["batch", "heads", "tokens", "dim"]
        if left != wanted:
            part = net.transpose(part, [left.index(name) for name in wanted])
        parts.append(part)
    if net.chance(0.3):
        parts = [net.reshape(part, (batch * sizes["heads"], tokens, sizes["dim"]))
                 for part in parts]
    return parts[0], parts[1], parts[2]


def of_products(net: Tokens, rows: str) -> tuple[str, str, str]:
    """Returns queries, and keys and values of fewer rows, or of one head for all queries."""
    batch, tokens, features = net.shapes[rows]
    heads, dim, of_value = net.pick(1, 2, 3), net.pick(1, 4, 7), net.pick(1, 4, 10)
    few = net.slice(rows, 1, 0, tokens, 2) if net.chance(0.4) else rows
    of_keys = net.pick(heads, heads, 1)

    def heads_of(x: str, heads: int, dim: int) -> str:
        y = net.product(x, net.matrix(features, heads * dim))
        y = net.reshape(y, (batch, net.shapes[x][1], *net.pick((heads, dim), (heads, dim))))
        return net.transpose(y, (0, 2, 1, 3))

    return heads_of(rows, heads, dim), heads_of(few, of_keys, dim), heads_of(few, of_keys, of_value)


def of_channels(net: Tokens, rows: str) -> tuple[str, str, str]:
    """Returns queries, keys and values whose rows are channels."""
    q, k, v = of_one_product(net, rows)
    return net.swapped(q), net.swapped(k), net.swapped(v)


def masked(net: Tokens, scores: str) -> str:
    """Add a bias or a mask to scores, or compute something else of them."""
    *batch, queries, keys = shape = net.shapes[scores]
    sizes = [size if size % BATCH and net.chance(0.7) else 1 for size in shape]
    kind = net.pick("bias", "bias", "mask", "lowest", "scale", "windows", "clip", "heads", "where",
                    "given", "swap")
    if kind in ("bias", "mask", "lowest"):
        bias = net.rng.standard_normal(sizes).astype(np.float32)
        if kind == "mask":
            bias[net.rng.random(sizes) < 0.3] = -np.inf
            bias[..., 0] = 0
        elif kind == "lowest":
            bias[net.rng.random(sizes) < 0.6] = _LOWEST
        names = [scores, net.constant(bias)]
        return net.compute(net.pick("Add", "Add", "Sub") if kind == "bias" else "Add",
                           *(names if net.chance(0.7) or kind == "bias" else names[::-1]))
    if kind == "windows" and batch[0] % BATCH == 0 and batch[0] > BATCH:
        count = batch[0] // BATCH
        wide = net.reshape(scores, (BATCH, count, *shape[1:]))
        ones = [1] * (len(batch) - 1)
        wide = net.compute("Add", wide, net.floats(1, count, *ones, queries, keys))
        return net.reshape(wide, shape)
    if kind == "clip":
        return net.compute("Relu", scores)
    if kind == "heads" and len(shape) == 4:
        mixed = net.product(net.transpose(scores, (0, 2, 3, 1)), net.matrix(shape[1], shape[1]))
        return net.transpose(mixed, (0, 3, 1, 2))
    if kind == "where":
        chosen = net.constant(net.rng.random(sizes) < 0.8)
        return net.compute("Where", chosen, scores, net.constant(np.float32(-50)))
    if kind == "given":
        return net.compute("Add", scores, net.reduce("ReduceMean", scores, [len(shape) - 1]))
    if kind == "swap" and queries == keys:
        return net.swapped(scores)
    return net.scaled(scores, 1.0)


def attention(net: Tokens, x: str) -> str:
    """Attention, or something that looks like it."""
    rows = rows_of(net, x)
    if len(net.shapes[rows]) != 3 or net.shapes[rows][1] > _MOST_ROWS:
        return norm(net, x)
    q, k, v = net.pick(of_one_product, of_one_product, of_products, of_channels)(net, rows)
    q = net.scaled(q)
    k = net.scaled(net.swapped(net.scaled(k, 0.2)), 0.2)
    scores = net.scaled(net.product(q, k))
    for _ in range(net.pick(0, 0, 1, 1, 2)):
        scores = masked(net, scores)
    net.shown += [scores] * net.chance(0.05)
    rank = len(net.shapes[scores])
    axis = net.pick(*[rank - 1] * 9, rank - 2)
    weights = str(net.add("Softmax", [scores], net.shapes[scores], axis=axis - net.pick(0, rank)))
    net.shown += [weights] * net.chance(0.05)
    queries, keys = net.shapes[weights][-2:]
    if queries == keys and net.chance(0.1):
        weights = net.pick(net.swapped(weights), net.product(weights, net.swapped(weights)))
    if net.chance(0.05):
        weights = net.scaled(weights, 1.0)
    if net.chance(0.1):
        result = net.swapped(net.product(net.swapped(net.scaled(v, 0.3)), net.swapped(weights)))
    else:
        result = net.product(weights, net.scaled(v, 0.2))
    if len(net.shapes[result]) == 4 and net.chance(0.7):
        result = net.transpose(result, (0, 2, 1, 3))
        batch, rows_, heads, dim = net.shapes[result]
        return net.reshape(result, (batch, rows_, heads * dim))
    return moves(net, result) if net.chance(0.5) else result


def norm(net: Tokens, x: str) -> str:
    """A norm of some axes, or something that looks like it."""
    if net.chance(0.4):
        x = net.moved(x)
    shape = net.shapes[x]
    axes = [axis for axis, size in enumerate(shape) if size % BATCH and net.chance(0.6)]
    if not axes:
        return net.compute("Tanh", x)
    y = net.scaled(x, 0.2)
    keeps = net.chance(0.8)

    def reduced(op: str, value: str) -> str:
        total = net.reduce(op, value, axes, keepdims=keeps)
        if not keeps and (net.chance(0.8) or not _broadcasts(net.shapes[total], shape)):
            total = net.reshape(total, [1 if axis in axes else size
                                        for axis, size in enumerate(shape)])
        net.shown += [total] * net.chance(0.05)
        return total

    kind = net.pick("layer", "layer", "rms", "length", "softmax", "per row")
    if kind == "softmax":
        y = net.compute("Exp", net.compute("Sub", y, reduced("ReduceMax", y)))
        y = net.compute("Div", y, reduced("ReduceSum", y))
    elif kind == "per row":
        return net.compute("Sqrt", net.compute("Add", reduced("ReduceSum", net.compute(
            "Mul", y, y)), net.constant(np.float32(1e-3))))
    else:
        if kind == "layer":
            y = net.compute("Sub", y, reduced("ReduceMean", y))
        square = reduced("ReduceSum" if kind == "length" else "ReduceMean",
                         net.compute("Mul", y, y))
        if net.chance(0.2):
            square = net.moved(square)
            if not _broadcasts(net.shapes[square], shape):
                return square
        inside = net.chance(0.6)
        eps = net.constant(np.float32(1e-2))
        square = net.compute("Add", square, eps) if inside else square
        root = net.compute("Sqrt", square)
        y = net.compute("Div", y, root if inside else net.compute("Add", root, eps))
    if net.chance(0.5):
        sizes = [size if size % BATCH and net.chance(0.5) else 1 for size in net.shapes[y]]
        y = net.compute("Mul", y, net.floats(*sizes))
    if net.chance(0.3) and net.shapes[y] == shape:
        y = net.compute("Add", y, x)
    return net.moved(y) if net.chance(0.3) else y


def normed_product(net: Tokens, x: str) -> str:
    """A layer norm between two products of rows."""
    rows, features = rows_of(net, x), net.pick(6, 8, 24)
    rows = net.product(rows, net.matrix(net.shapes[rows][-1], features))
    rows = net.reshape(rows, (*net.shapes[rows][:-1], *net.pick((), (1,)), features))
    normed = net.add("LayerNormalization", [rows, net.floats(features), net.floats(features)],
                     net.shapes[rows], epsilon=1e-2)
    return net.product(normed, net.matrix(features, 6))


def _broadcasts(shape: Sequence[int], target: Sequence[int]) -> bool:
    return len(shape) <= len(target) and all(
        size in (1, wanted) for size, wanted in zip(
            reversed(shape), reversed(target), strict=False))


BLOCKS: tuple[Callable[[Tokens, str], str], ...] = (
    attention, attention, norm, normed_product, moves)


def token_network(seed: int) -> onnx.ModelProto:
    """Returns a random network of attention, norms and moves with the input x (N, C, H, W)."""
    net = Tokens(seed)
    net.shapes["x"] = (BATCH, net.pick(1, 2, 6, 8), net.pick(1, 2, 4, 5, 7), net.pick(1, 2, 4, 7))
    x = "x"
    for _ in range(net.pick(1, 1, 2, 3)):
        x = net.pick(*BLOCKS)(net, x)
    x = net.compute("Neg", x)
    seen = [name for name in dict.fromkeys(net.shown) if name != x]
    return net.model(f"tokens, seed {seed}", [x, *seen])
