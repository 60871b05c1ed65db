"""A stand-in for JAX, for tests of peers where JAX is not installed: its functions compute at once,
with NumPy, and nothing is compiled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import scipy.special


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


def modules() -> dict[str, ModuleType]:
    """Returns the stand-in and its modules, by the names under which they are imported."""
    return _MODULES


def _mapped(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Calls a function with the arrays that have the same place in each tree."""
    if isinstance(tree, list | tuple):
        return type(tree)(_mapped(function, *parts) for parts in zip(tree, *others, strict=True))
    return function(tree, *others)


def _device_put(tree: Any, device: Any) -> Any:
    assert device in _DEVICES
    return _mapped(np.asarray, tree)


def _jit(function: Callable[..., Any], donate_argnums: int | None = None) -> Callable[..., Any]:
    return function


def _vmap(function: Callable[..., Any], axes: Sequence[int | None]) -> Callable[..., Any]:
    """Calls a function for each part of its first argument and stacks the results."""
    assert tuple(axes) == (0, None, None)

    def each(first: Any, *others: Any) -> Any:
        count = len(first[0][0])
        results = [function(_mapped(lambda array, index=index: array[index], first), *others)
                   for index in range(count)]
        return _mapped(lambda *arrays: np.stack(arrays), *results)

    return each


def _grad(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function's slopes for its first argument, from differences in float64."""
    def slopes(first: Any, *others: Any) -> Any:
        exact = _mapped(lambda array: np.array(array, np.float64), first)

        def slope(array: np.ndarray) -> np.ndarray:
            result = np.empty_like(array)
            for place in np.ndindex(array.shape):
                value, ends = array[place], []
                for step in (1e-5, -1e-5):
                    array[place] = value + step
                    ends.append(function(exact, *others))
                array[place] = value
                result[place] = (ends[0] - ends[1]) / 2e-5
            return result.astype(np.float32)

        return _mapped(slope, exact)

    return slopes


def _scan(step: Callable[..., Any], carry: Any, inputs: Sequence[Any],
          unroll: int) -> tuple[Any, None]:
    for values in zip(*inputs, strict=True):
        carry, _ = step(carry, values)
    return carry, None


def _conv(x: np.ndarray, weight: np.ndarray, strides: Sequence[int],
          pads: Sequence[tuple[int, int]], *, rhs_dilation: Sequence[int],
          dimension_numbers: tuple[str, str, str], feature_group_count: int,
          precision: Any) -> np.ndarray:
    images, filters, results = dimension_numbers
    y = convolution(x.transpose([images.index(axis) for axis in "NCHW"]),
                    weight.transpose([filters.index(axis) for axis in "OIHW"]), strides, pads,
                    rhs_dilation, feature_group_count)
    return y.transpose(["NCHW".index(axis) for axis in results])


def _dot_general(x: np.ndarray, y: np.ndarray, axes: Any, precision: Any) -> np.ndarray:
    summed, (batch_x, batch_y) = axes
    assert not batch_x and not batch_y
    return np.tensordot(x.astype(np.float64), y.astype(np.float64), summed).astype(x.dtype)


def _reduce_window(x: np.ndarray, start: Any, function: Callable[..., Any], window: Sequence[int],
                   strides: Sequence[int], pads: Sequence[tuple[int, int]], base_dilation: None,
                   window_dilation: Sequence[int]) -> np.ndarray:
    assert base_dilation is None
    return windows(x, start, function, window, strides, pads, window_dilation)


def _pad(x: np.ndarray, value: Any, pads: Sequence[tuple[int, int, int]]) -> np.ndarray:
    x = np.pad(x, [(max(low, 0), max(high, 0)) for low, high, _ in pads], constant_values=value)
    assert not any(within for _, _, within in pads)
    return x[tuple(slice(max(-low, 0), size - max(-high, 0))
                   for (low, high, _), size in zip(pads, x.shape, strict=True))]


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    return np.exp(_log_softmax(x.astype(np.float64), axis)).astype(x.dtype)


def _log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    shifted = x.astype(np.float64) - x.max(axis, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))).astype(x.dtype)


def _sum(x: np.ndarray, axes: Any = None, keepdims: bool = False) -> np.ndarray:
    return np.asarray(np.sum(x, axes, np.float64, keepdims=keepdims)).astype(x.dtype)


def _mean(x: np.ndarray, axes: Any, keepdims: bool) -> np.ndarray:
    return np.asarray(np.mean(x, axes, np.float64, keepdims=keepdims)).astype(x.dtype)


def _devices(platform: str) -> list[Any]:
    if platform != "cpu":
        raise RuntimeError(f"Unknown backend {platform}")
    return _DEVICES


class _OnDevice:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass


_DEVICES = [SimpleNamespace(platform="cpu")]
_NAMES = ("add", "subtract", "multiply", "divide", "power", "fmod", "minimum", "maximum", "less",
          "less_equal", "greater", "greater_equal", "equal", "logical_and", "logical_or",
          "logical_not", "where", "negative", "abs", "exp", "log", "sqrt", "tanh", "sin", "cos",
          "tan", "arctan", "floor", "rint", "sign", "clip", "result_type", "take", "repeat",
          "transpose", "broadcast_to", "concatenate", "split", "asarray", "max")
_NUMPY = module(
    "jax.numpy", sum=_sum, mean=_mean,
    **{name: getattr(np, name) for name in _NAMES},
    matmul=lambda x, y, precision: np.matmul(x, y),
    dot=lambda x, y, precision: np.dot(x, y))
_LAX = module(
    "jax.lax", Precision=SimpleNamespace(HIGHEST="highest", DEFAULT="default"),
    conv_general_dilated=_conv, dot_general=_dot_general, reduce_window=_reduce_window, pad=_pad,
    max=np.maximum, add=np.add, scan=_scan)
_NN = module(
    "jax.nn", softmax=_softmax, log_softmax=_log_softmax, relu=lambda x: np.maximum(x, 0),
    sigmoid=lambda x: 1 / (1 + np.exp(-x)))
_JAX = module(
    "jax", Array=type("Array", (), {}), numpy=_NUMPY, lax=_LAX, nn=_NN, device_put=_device_put,
    jit=_jit, vmap=_vmap, grad=_grad, tree=SimpleNamespace(map=_mapped),
    block_until_ready=lambda tree: tree, clear_caches=lambda: None, devices=_devices,
    default_device=lambda device: _OnDevice(),
    scipy=SimpleNamespace(special=SimpleNamespace(
        erf=lambda x: scipy.special.erf(x).astype(x.dtype))))
_MODULES = {each.__name__: each for each in (_JAX, _NUMPY, _LAX, _NN)}
