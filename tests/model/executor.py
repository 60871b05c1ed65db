"""A slow interpreter of static graphs, which defines each canonical op in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.special import log_softmax, softmax

from gossamer.model.graph import StaticGraph


def execute(static: StaticGraph, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns every value of the graph, floating-point ones in float64, and checks their shapes
    against the graph's."""
    values = {**static.constants, **inputs}
    values = {name: _wide(array) for name, array in values.items()}
    for node in static.nodes:
        arrays = [values[name] for name in node.inputs]
        results = OPS[node.op](node.attributes, *arrays)
        results = results if isinstance(results, list) else [results]
        for name, result in zip(node.outputs, results, strict=True):
            assert result.shape == static.shapes[name], (node, result.shape, static.shapes[name])
            declared = np.dtype(static.dtypes[name])
            assert result.dtype.kind == declared.kind, (node, result.dtype, declared)
            values[name] = result
    return values


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _apply(expression: Any, result: np.ndarray, operands: tuple[np.ndarray, ...]) -> np.ndarray:
    aligned = [o.reshape(-1, *[1] * (result.ndim - 2)) if o.ndim == 1 else o for o in operands]
    return expression.evaluate(result, *aligned)[0]


def _taps(a: dict[str, Any], r: int, s: int, shape: tuple[int, int]) -> Any:
    """Yields each tap of a window with the slices of the padded input that it reads."""
    for i in range(r):
        for j in range(s):
            y, x = i * a["dilations"][0], j * a["dilations"][1]
            yield i, j, (slice(y, y + (shape[0] - 1) * a["strides"][0] + 1, a["strides"][0]),
                         slice(x, x + (shape[1] - 1) * a["strides"][1] + 1, a["strides"][1]))


def _padded(x: np.ndarray, pads: tuple[int, ...], value: float) -> np.ndarray:
    top, left, bottom, right = pads
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=value)


def conv2d(a: dict[str, Any], x: np.ndarray, w: np.ndarray, *operands: np.ndarray) -> np.ndarray:
    n, c, _, _ = x.shape
    m, per_group, r, s = w.shape
    groups = a["groups"]
    x = _padded(x, a["pads"], 0)
    size = tuple((x.shape[2 + i] - a["dilations"][i] * (w.shape[2 + i] - 1) - 1)
                 // a["strides"][i] + 1 for i in range(2))
    x = x.reshape(n, groups, c // groups, *x.shape[2:])
    w = w.reshape(groups, m // groups, per_group, r, s)
    y = np.zeros((n, groups, m // groups, *size))
    for i, j, (rows, columns) in _taps(a, r, s, size):
        y += np.einsum("ngchw,gmc->ngmhw", x[..., rows, columns], w[..., i, j], optimize=True)
    return _apply(a["epilogue"], y.reshape(n, m, *size), operands)


def conv_transpose2d(a: dict[str, Any], x: np.ndarray, w: np.ndarray,
                     bias: np.ndarray | None = None) -> np.ndarray:
    n, c, *size = x.shape
    _, per_group, r, s = w.shape
    groups = a["groups"]
    full = [a["strides"][i] * (size[i] - 1) + a["output_padding"][i]
            + a["dilations"][i] * (w.shape[2 + i] - 1) + 1 for i in range(2)]
    y = np.zeros((n, groups, per_group, *full))
    x = x.reshape(n, groups, c // groups, *size)
    w = w.reshape(groups, c // groups, per_group, r, s)
    for i, j, (rows, columns) in _taps(a, r, s, tuple(size)):
        y[..., rows, columns] += np.einsum("ngchw,gcm->ngmhw", x, w[..., i, j])
    top, left, bottom, right = a["pads"]
    y = y.reshape(n, groups * per_group, *full)[:, :, top:full[0] - bottom, left:full[1] - right]
    return y if bias is None else y + bias[:, None, None]


def gemm(a: dict[str, Any], x: np.ndarray, b: np.ndarray, *operands: np.ndarray) -> np.ndarray:
    y = (x.T if a["trans_a"] else x) @ (b.T if a["trans_b"] else b)
    aligned = [o[None] if o.ndim == 1 else o for o in operands]
    return a["epilogue"].evaluate(y, *aligned)[0]


def elementwise(a: dict[str, Any], *arrays: np.ndarray) -> list[np.ndarray]:
    shape = np.broadcast_shapes(*[array.shape for array in arrays])
    return [np.broadcast_to(y, shape) for y in a["expression"].evaluate(*arrays)]


def pool(a: dict[str, Any], x: np.ndarray) -> np.ndarray:
    (r, s), pads, inside = a["kernel"], a["pads"], x.shape[2:]
    size = []
    for i in range(2):
        room = inside[i] + pads[i] + pads[i + 2] - a["dilations"][i] * (a["kernel"][i] - 1) - 1
        steps = -(-room // a["strides"][i]) if a["ceil_mode"] else room // a["strides"][i]
        if a["ceil_mode"] and steps * a["strides"][i] >= inside[i] + pads[i]:
            steps -= 1
        size.append(steps + 1)
    counted = np.ones((1, 1, *inside))
    counted = _padded(counted, pads, float(a["count_include_pad"]))
    # windows may reach beyond the padded input by less than a stride and an extent
    over = (0, 0, *[a["strides"][i] + a["dilations"][i] * a["kernel"][i] for i in range(2)])
    padding = -np.inf if a["kind"] == "max" else 0.0
    x = _padded(_padded(x, pads, padding), over, padding)
    counted = _padded(counted, over, 0)
    best = np.full((*x.shape[:2], *size), padding)
    count = np.zeros((1, 1, *size))
    for _, _, (rows, columns) in _taps(a, r, s, tuple(size)):
        window = x[..., rows, columns]
        best = np.maximum(best, window) if a["kind"] == "max" else best + window
        count += counted[..., rows, columns]
    return best if a["kind"] == "max" else best / count


def reduce(a: dict[str, Any], x: np.ndarray) -> np.ndarray:
    function = {"mean": np.mean, "max": np.max, "sum": np.sum}[a["kind"]]
    return function(x, axis=a["axes"], keepdims=a["keepdims"])


def split(a: dict[str, Any], x: np.ndarray) -> list[np.ndarray]:
    return np.split(x, np.cumsum(a["sizes"])[:-1], axis=a["axis"])


def slice_(a: dict[str, Any], x: np.ndarray) -> np.ndarray:
    for start, end, axis, step in zip(a["starts"], a["ends"], a["axes"], a["steps"], strict=True):
        x = np.take(x, np.arange(start, end, step), axis=axis)
    return x


def pad(a: dict[str, Any], x: np.ndarray) -> np.ndarray:
    low, high = a["pads"][:x.ndim], a["pads"][x.ndim:]
    extra = {"constant_values": a["value"]} if a["mode"] == "constant" else {}
    return np.pad(x, list(zip(low, high, strict=True)), mode=a["mode"], **extra)


def resize(a: dict[str, Any], x: np.ndarray) -> np.ndarray:
    for i in range(2):
        into, out, scale = x.shape[2 + i], a["sizes"][i], a["scales"][i]
        at = np.arange(out, dtype=np.float64)
        at = {
            "asymmetric": at / scale,
            "half_pixel": (at + 0.5) / scale - 0.5,
            "pytorch_half_pixel": (at + 0.5) / scale - 0.5 if out > 1 else at * 0,
            "align_corners": at * (into - 1) / (out - 1) if out > 1 else at * 0,
        }[a["coordinates"]]
        if a["mode"] == "nearest":
            rounding: dict[str, Callable[[np.ndarray], np.ndarray]] = {
                "floor": np.floor, "ceil": np.ceil,
                "round_prefer_floor": lambda v: np.ceil(v - 0.5),
                "round_prefer_ceil": lambda v: np.floor(v + 0.5),
            }
            index = rounding[a["nearest_mode"]](at).clip(0, into - 1).astype(int)
            x = np.take(x, index, axis=2 + i)
        else:
            at = at.clip(0, into - 1)
            low = np.floor(at).astype(int)
            high = np.minimum(low + 1, into - 1)
            share = (at - low).reshape(-1, *[1] * (1 - i))
            x = np.take(x, low, 2 + i) * (1 - share) + np.take(x, high, 2 + i) * share
    return x


OPS: dict[str, Callable[..., Any]] = {
    "conv2d": conv2d, "conv_transpose2d": conv_transpose2d, "gemm": gemm,
    "elementwise": elementwise, "pool": pool, "reduce": reduce, "split": split, "slice": slice_,
    "pad": pad, "resize": resize,
    "matmul": lambda a, x, y: np.matmul(x, y),
    "concat": lambda a, *xs: np.concatenate(xs, axis=a["axis"]),
    "reshape": lambda a, x: x.reshape(a["shape"]),
    "transpose": lambda a, x: x.transpose(a["permutation"]),
    "expand": lambda a, x: np.broadcast_to(x, a["shape"]),
    "softmax": lambda a, x: (log_softmax if a["log"] else softmax)(x, axis=a["axis"]),
    "gather": lambda a, x, i: np.take(x, i, axis=a["axis"]),
    "cast": lambda a, x: _wide(x.astype(a["dtype"])),
}


