"""Evaluates with NumPy the ops that occur in shape arithmetic and between constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Arrays = Sequence[np.ndarray]
Evaluator = Callable[[dict[str, Any], Arrays], list[np.ndarray]]


def _elementwise(attributes: dict[str, Any], arrays: Arrays) -> list[np.ndarray]:
    numbers = [a.astype(np.int64) if a.dtype == bool else a for a in arrays]
    results = attributes["expression"].evaluate(*numbers)
    shape = np.broadcast_shapes(*[a.shape for a in arrays])
    results = [np.broadcast_to(result, shape) for result in results]
    return [r.astype(np.float32) if r.dtype.kind == "f" else r for r in results]


def _slice(attributes: dict[str, Any], arrays: Arrays) -> list[np.ndarray]:
    (x,) = arrays
    for start, end, axis, step in zip(*[attributes[name] for name in
                                        ("starts", "ends", "axes", "steps")], strict=True):
        x = np.take(x, range(start, end, step), axis=axis)
    return [x]


def _split(attributes: dict[str, Any], arrays: Arrays) -> list[np.ndarray]:
    bounds = np.cumsum(attributes["sizes"])[:-1]
    return list(np.split(arrays[0], bounds, axis=attributes["axis"]))


def _reduce(attributes: dict[str, Any], arrays: Arrays) -> list[np.ndarray]:
    (x,) = arrays
    reductions: dict[str, Callable[..., Any]] = {"mean": np.mean, "max": np.max, "sum": np.sum}
    accurate = x.astype(np.float64) if x.dtype.kind == "f" else x
    reduction = reductions[attributes["kind"]]
    result = reduction(accurate, axis=attributes["axes"], keepdims=attributes["keepdims"])
    return [np.asarray(result, dtype=x.dtype)]


EVALUATORS: dict[str, Evaluator] = {
    "elementwise": _elementwise,
    "slice": _slice,
    "split": _split,
    "reduce": _reduce,
    "concat": lambda a, xs: [np.concatenate(xs, axis=a["axis"])],
    "reshape": lambda a, xs: [xs[0].reshape(a["shape"])],
    "transpose": lambda a, xs: [xs[0].transpose(a["permutation"])],
    "expand": lambda a, xs: [np.broadcast_to(xs[0], a["shape"])],
    "gather": lambda a, xs: [np.take(xs[0], xs[1], axis=a["axis"])],
    "matmul": lambda a, xs: [np.matmul(xs[0], xs[1])],
}
