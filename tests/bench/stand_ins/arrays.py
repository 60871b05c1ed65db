"""The stand-ins share these convolutions and windows of images in NumPy, and these modules."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np


def module(name: str, **members: Any) -> ModuleType:
    """Returns a module that can be imported while it is in sys.modules."""
    made = ModuleType(name)
    # without a spec, importlib.util.find_spec fails
    made.__spec__ = ModuleSpec(name, None)
    made.__dict__.update(members)
    return made


def convolution(x: np.ndarray, weight: np.ndarray, strides: Sequence[int],
                pads: Sequence[tuple[int, int]], dilations: Sequence[int],
                groups: int) -> np.ndarray:
    """Returns the convolution of images (N, C, H, W) with filters (M, C / groups, R, S)."""
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *pads])
    out, into, *kernel = weight.shape
    assert into * groups == x.shape[1]
    sizes = [(x.shape[2 + axis] - (kernel[axis] - 1) * dilations[axis] - 1) // strides[axis] + 1
             for axis in range(2)]
    y = np.zeros((len(x), groups, out // groups, *sizes))
    for row, column in np.ndindex(*kernel):
        firsts = row * dilations[0], column * dilations[1]
        rows, columns = (slice(first, first + (size - 1) * stride + 1, stride)
                         for first, size, stride in zip(firsts, sizes, strides, strict=True))
        taken = x[:, :, rows, columns].reshape(len(x), groups, into, -1)
        by_group = weight[:, :, row, column].reshape(groups, out // groups, into)
        y += np.matmul(by_group.astype(np.float64), taken).reshape(y.shape)
    return y.reshape(len(x), out, *sizes).astype(weight.dtype)


def windows(x: np.ndarray, start: Any, function: Callable[..., Any], window: Sequence[int],
            strides: Sequence[int], pads: Sequence[tuple[int, int]],
            dilations: Sequence[int]) -> np.ndarray:
    """Reduces each window of an array by a function of two values, from a first value."""
    x = np.pad(x, pads, constant_values=start)
    covered = [(size - 1) * step + 1 for size, step in zip(window, dilations, strict=True)]
    sizes = [(size - each) // stride + 1
             for size, each, stride in zip(x.shape, covered, strides, strict=True)]
    result: Any = start
    for place in itertools.product(*map(range, window)):
        result = function(result, x[tuple(
            slice(index * step, index * step + (size - 1) * stride + 1, stride)
            for index, step, size, stride in zip(place, dilations, sizes, strides, strict=True))])
    return np.asarray(result, x.dtype)
