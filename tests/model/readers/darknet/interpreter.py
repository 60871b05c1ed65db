"""An interpreter of .cfg files in float64 NumPy that shares nothing with the reader.

It follows Darknet's C code, with its loops where an order of numbers matters.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

Section = tuple[str, dict[str, str]]
Numbers = Callable[[str, tuple[int, ...]], np.ndarray]
"""Function of the role of numbers ("weights", "variances", ...) and their shape."""


def parse(text: str) -> list[Section]:
    sections: list[Section] = []
    for line in text.splitlines():
        line = line.split("#")[0].split(";")[0].replace(" ", "").replace("\t", "")
        if line.startswith("["):
            name = line[1:-1]
            sections.append((_LONG_NAMES.get(name, name), {}))
        elif line:
            key, value = line.split("=")
            sections[-1][1].setdefault(key, value)
    return sections


def interpret(text: str, numbers: Numbers, images: np.ndarray) -> list[np.ndarray]:
    """Returns the raw heads of a network, or its last layer's output where it has none."""
    sections = parse(text)[1:]
    layers: list[np.ndarray] = []
    heads = []
    x = images.astype(np.float64)
    for kind, options in sections:
        if kind in ("yolo", "region"):
            heads.append(x)
        else:
            x = _LAYERS[kind](x, options, layers, numbers)
        layers.append(x)
    return heads or [x]


def random_weights(path: Path, text: str, images: np.ndarray, seed: int = 0,
                   version: tuple[int, int, int] = (0, 2, 5)) -> list[np.ndarray]:
    """Writes a .weights file with random numbers for a .cfg, and returns what the interpreter
    gives with them."""
    random = np.random.default_rng(seed)
    taken: list[np.ndarray] = []

    def draw(role: str, shape: tuple[int, ...]) -> np.ndarray:
        if role == "biases of the fork" and not version[2]:
            return np.zeros(shape)
        if role == "weights":
            array = random.standard_normal(shape) / np.sqrt(np.prod(shape) / shape[0])
        elif role in ("variances", "scales"):
            array = random.uniform(0.5, 1.5, shape)
        else:
            array = random.uniform(-0.3, 0.3, shape)
        taken.append(array.astype("<f4"))
        return taken[-1].astype(np.float64)

    outputs = interpret(text, draw, images)
    large = version[0] * 10 + version[1] >= 2 and max(version) < 1000
    header = np.array(version, "<i4").tobytes() + np.array(64000, "<i8" if large else "<i4"
                                                           ).tobytes()
    path.write_bytes(header + b"".join(array.tobytes() for array in taken))
    return outputs


def _number(options: dict[str, str], key: str, default: float) -> float:
    return float(options.get(key, default))


def _int(options: dict[str, str], key: str, default: int) -> int:
    return int(options.get(key, default))


def _activated(x: np.ndarray, name: str) -> np.ndarray:
    softplus = np.logaddexp(0, x)
    logistic = 1 / (1 + np.exp(-x))
    exp = np.expm1(np.minimum(x, 0))
    return {"linear": x, "leaky": np.where(x > 0, x, 0.1 * x), "mish": x * np.tanh(softplus),
            "swish": x * logistic, "relu": np.maximum(x, 0), "logistic": logistic,
            "relu6": np.clip(x, 0, 6), "tanh": np.tanh(x),
            "hard_mish": np.where(x > 0, x, np.where(x > -2, x * x / 2 + x, 0)),
            "elu": np.where(x >= 0, x, exp),
            "selu": np.where(x >= 0, 1.0507 * x, 1.0507 * 1.6732 * exp),
            "gelu": 0.5 * x * (1 + np.tanh(0.797885 * x + 0.035677 * x**3)),
            "ramp": x * (x > 0) + 0.1 * x, "loggy": 2 * logistic - 1}[name]


def _convolutional(x, options, layers, numbers):
    filters, size = _int(options, "filters", 1), _int(options, "size", 1)
    stride, groups = _int(options, "stride", 1), _int(options, "groups", 1)
    stride_y, stride_x = _int(options, "stride_y", stride), _int(options, "stride_x", stride)
    dilation = _int(options, "dilation", 1) if size > 1 else 1
    pad = size // 2 if _int(options, "pad", 0) else _int(options, "padding", 0)
    n, c, h, w = x.shape
    biases = numbers("biases", (filters,))
    norm = ([numbers(role, (filters,)) for role in ("scales", "means", "variances")]
            if _int(options, "batch_normalize", 0) else None)
    if _int(options, "flipped", 0):
        weights = numbers("weights", (c // groups * size * size, filters)).T.reshape(
            filters, c // groups, size, size)
    else:
        weights = numbers("weights", (filters, c // groups, size, size))
    margin = pad * dilation
    padded = np.pad(x, ((0, 0), (0, 0), (margin, margin), (margin, margin)))
    out_h, out_w = (h + 2 * pad - size) // stride_y + 1, (w + 2 * pad - size) // stride_x + 1
    y = np.zeros((n, filters, out_h, out_w))
    of_group = filters // groups
    for group in range(groups):
        inputs = padded[:, group * (c // groups):(group + 1) * (c // groups)]
        rows = slice(group * of_group, (group + 1) * of_group)
        for r in range(size):
            for s in range(size):
                window = inputs[:, :, r * dilation:, s * dilation:][
                    :, :, :(out_h - 1) * stride_y + 1:stride_y,
                    :(out_w - 1) * stride_x + 1:stride_x]
                y[:, rows] += np.einsum("fc,nchw->nfhw", weights[rows, :, r, s], window)
    return _activated(_with_biases(y, biases, norm), options.get("activation", "logistic"))


def _with_biases(y, biases, norm):
    shape = (1, -1) + (1,) * (y.ndim - 2)
    if norm:
        scales, means, variances = norm
        y = (y - means.reshape(shape)) / np.sqrt(variances.reshape(shape) + 1e-5)
        y = y * scales.reshape(shape)
    return y + biases.reshape(shape)


def _connected(x, options, layers, numbers):
    outputs = _int(options, "output", 1)
    x = x.reshape(len(x), -1)
    biases = numbers("biases", (outputs,))
    weights = numbers("weights", (outputs, x.shape[1]))
    norm = ([numbers(role, (outputs,)) for role in ("scales", "means", "variances")]
            if _int(options, "batch_normalize", 0) else None)
    y = _with_biases(x @ weights.T, biases, norm)
    return _activated(y, options.get("activation", "logistic"))[:, :, None, None]


def _windows(x, options, reduce):
    stride = _int(options, "stride", 1)
    stride_y, stride_x = _int(options, "stride_y", stride), _int(options, "stride_x", stride)
    size = _int(options, "size", stride)
    padding = _int(options, "padding", size - 1)
    n, c, h, w = x.shape
    out_h, out_w = (h + padding - size) // stride_y + 1, (w + padding - size) // stride_x + 1
    y = np.empty((n, c, out_h, out_w))
    for i in range(out_h):
        for j in range(out_w):
            top, left = i * stride_y - padding // 2, j * stride_x - padding // 2
            window = x[:, :, max(top, 0):top + size, max(left, 0):left + size]
            y[:, :, i, j] = reduce(window, axis=(2, 3))
    return y


def _reorg(x, options, layers, numbers):
    """Copies number by number, as reorg_cpu() does."""
    stride = _int(options, "stride", 1)
    n, c, h, w = x.shape
    out_c = c // (stride * stride)
    reverse = _int(options, "reverse", 0)
    source, target = x.reshape(n, -1), np.empty((n, x[0].size))
    for k in range(c):
        for j in range(h):
            for i in range(w):
                inside = i + w * (j + h * k)
                offset = k // out_c
                w2, h2 = i * stride + offset % stride, j * stride + offset // stride
                outside = w2 + w * stride * (h2 + h * stride * (k % out_c))
                if reverse:
                    target[:, outside] = source[:, inside]
                else:
                    target[:, inside] = source[:, outside]
    if reverse:
        return target.reshape(n, out_c, h * stride, w * stride)
    return target.reshape(n, c * stride * stride, h // stride, w // stride)


def _reorg3d(x, options, layers, numbers):
    stride = _int(options, "stride", 1)
    parts = [x[:, :, row::stride, column::stride]
             for row in range(stride) for column in range(stride)]
    return np.concatenate(parts, axis=1)


def _earlier(layers, text):
    return [layers[int(index)] for index in text.split(",")]


def _route(x, options, layers, numbers):
    groups, group = _int(options, "groups", 1), _int(options, "group_id", 0)
    return np.concatenate([np.split(layer, groups, axis=1)[group]
                           for layer in _earlier(layers, options["layers"])], axis=1)


def _shortcut(x, options, layers, numbers):
    """Adds number by number, as shortcut_cpu() does."""
    y = x.copy()
    for layer in _earlier(layers, options["from"]):
        stride = layer.shape[3] // x.shape[3]
        for k in range(min(layer.shape[1], x.shape[1])):
            for j in range(x.shape[2]):
                for i in range(x.shape[3]):
                    y[:, k, j, i] += layer[:, k, j * stride, i * stride]
    return _activated(y, options.get("activation", "linear"))


def _scaled(x, options, layers, numbers):
    (layer,) = _earlier(layers, options["from"])
    return _activated(layer * x, options.get("activation", "linear"))


def _upsample(x, options, layers, numbers):
    stride = _int(options, "stride", 2)
    y = x.repeat(stride, axis=2).repeat(stride, axis=3)
    return y * _number(options, "scale", 1)


def _softmax(x, options, layers, numbers):
    groups, temperature = _int(options, "groups", 1), _number(options, "temperature", 1)
    rows = x.reshape(len(x), groups, -1) / temperature
    powers = np.exp(rows - rows.max(axis=2, keepdims=True))
    return (powers / powers.sum(axis=2, keepdims=True)).reshape(len(x), -1, 1, 1)


def _crop(x, options, layers, numbers):
    height, width = _int(options, "crop_height", 1), _int(options, "crop_width", 1)
    top, left = (x.shape[2] - height) // 2, (x.shape[3] - width) // 2
    y = x[:, :, top:top + height, left:left + width]
    return y if _int(options, "noadjust", 0) else 2 * y - 1


def _batchnorm(x, options, layers, numbers):
    biases, *norm = [numbers(role, (x.shape[1],))
                     for role in ("biases of the fork", "scales", "means", "variances")]
    return _with_biases(x, biases, norm)


_LONG_NAMES = {"conv": "convolutional", "conn": "connected", "max": "maxpool", "avg": "avgpool",
               "local_avg": "local_avgpool", "soft": "softmax", "network": "net"}

_LAYERS = {
    "convolutional": _convolutional, "connected": _connected,
    "maxpool": lambda x, options, *_: _windows(x, options, np.max),
    "local_avgpool": lambda x, options, *_: _windows(x, options, np.mean),
    "avgpool": lambda x, *_: x.mean(axis=(2, 3), keepdims=True),
    "reorg": _reorg, "reorg3d": _reorg3d, "route": _route, "shortcut": _shortcut,
    "scale_channels": _scaled, "sam": _scaled, "upsample": _upsample, "softmax": _softmax,
    "crop": _crop, "batchnorm": _batchnorm,
    "activation": lambda x, options, *_: _activated(x, options.get("activation", "linear")),
    **{kind: lambda x, *_: x for kind in ("dropout", "cost", "empty", "silence")},
}
