"""Replacements of torch's quantisation for exports and for references.

Exports need operators that torch's exporter writes correctly; references need float64 arithmetic.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_TENSOR = ("x", "scale", "zero_point", "low", "high")
_CHANNEL = ("x", "scale", "zero_point", "axis", "low", "high")
_QUANTIZE = {"quantize_per_tensor": _TENSOR, "quantize_per_channel": _CHANNEL}
_DEQUANTIZE = {"dequantize_per_tensor": _TENSOR, "dequantize_per_channel": _CHANNEL}
_FAKE_QUANTIZE = {"fake_quantize_per_tensor_affine": _TENSOR,
                  "fake_quantize_per_channel_affine": _CHANNEL}
"""For each of torch's functions, this module's names for the function's first arguments. In a call,
a dtype may follow these arguments."""
_NAMES = {"input": "x", "scales": "scale", "zero_points": "zero_point", "quant_min": "low",
          "quant_max": "high"}
"""Names of arguments in this module, by torch's names, if they differ."""
_OPERATORS = "torch.ao.quantization.fx._decomposed"
"""torch's module that defines quantize_per_tensor and similar operators."""


class WithPlainQuantisation(TorchFunctionMode):
    """A mode for the export of quantised modules.

    If the quantised range, such as 0 to 127, is narrower than the dtype's range, numbers are
    clamped before quantisation, because the exporter always writes the dtype's range. Fake
    quantisation becomes quantisation and dequantisation, because torch exports its operator of fake
    quantisation for only one batch size.
    """

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        name = _name(func)
        names = (_QUANTIZE | _FAKE_QUANTIZE).get(name)
        given = None if names is None else _given(names, args, kwargs)
        if names is None or given is None:
            return func(*args, **(kwargs or {}))
        others = [given[each] for each in names[1:]]
        if name in _QUANTIZE:
            return func(_limited(given, given["dtype"]), *others, given["dtype"])
        dtype = _dtype(given["low"], given["high"])
        has_constant_scale = "axis" in given or not isinstance(given["scale"], torch.Tensor)
        if dtype is not None and has_constant_scale and _has_operators():
            operators = torch.ops.quantized_decomposed
            kind = "channel" if "axis" in given else "tensor"
            integers = getattr(operators, f"quantize_per_{kind}")(
                _limited(given, dtype), *others, dtype)
            return getattr(operators, f"dequantize_per_{kind}")(integers, *others, dtype)
        return func(*args, **(kwargs or {}))


class QuantisedInFloat64(TorchFunctionMode):
    """A mode in which quantisation accepts and returns float64.

    torch's functions do not support float64. In float64, sums of integers are exact, so the
    quantisation of a sum rounds it to the right integer.
    """

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        names = (_QUANTIZE | _DEQUANTIZE | _FAKE_QUANTIZE).get(_name(func))
        given = None if names is None else _given(names, args, kwargs)
        if given is None:
            return func(*args, **(kwargs or {}))
        # the weights of modules may be integers already
        x = given["x"].double()
        scale, zero_point = _along_axis(given, given["scale"], given["zero_point"])
        if _name(func) in _DEQUANTIZE:
            return (x - zero_point) * scale
        integers = torch.clamp(torch.round(x / scale) + zero_point, given["low"], given["high"])
        return integers if _name(func) in _QUANTIZE else (integers - zero_point) * scale


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", "")).split(".")[0]


def _given(names: Sequence[str], args: Sequence[Any],
           kwargs: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a call's arguments as a mapping whose keys are this module's names.

    Returns None for another function of the same name, such as torch.quantize_per_tensor, which has
    no limits.
    """
    given = dict(zip((*names, "dtype"), args, strict=False))
    given.update((_NAMES.get(name, name), value) for name, value in (kwargs or {}).items())
    return given if isinstance(given.get("low"), int) and "high" in given else None


def _limited(given: Mapping[str, Any], dtype: torch.dtype) -> Any:
    """Return a quantisation's input, clamped to the range of its integers."""
    limits = torch.iinfo(dtype)
    if (given["low"], given["high"]) == (limits.min, limits.max):
        return given["x"]
    scale, zero_point = _along_axis(given, given["scale"], given["zero_point"])
    low, high = ((limit - zero_point) * scale for limit in (given["low"], given["high"]))
    if isinstance(low, torch.Tensor):
        low, high = low.to(given["x"].dtype), high.to(given["x"].dtype)
    return torch.clamp(given["x"], low, high)


def _along_axis(given: Mapping[str, Any], *values: Any) -> Sequence[Any]:
    """Return per-channel values in a shape that broadcasts to the input.

    Other values are returned unchanged.
    """
    if "axis" not in given:
        return values
    rank = given["x"].dim()
    shape = [-1 if axis == given["axis"] % rank else 1 for axis in range(rank)]
    return [value.reshape(shape) for value in values]


def _dtype(low: int, high: int) -> torch.dtype | None:
    """Return the 8-bit dtype that contains both integers; None if there is none."""
    return next((dtype for dtype in (torch.int8, torch.uint8)
                 if torch.iinfo(dtype).min <= low and high <= torch.iinfo(dtype).max), None)


def _has_operators() -> bool:
    try:
        importlib.import_module(_OPERATORS)
    except ImportError:
        return False
    return True
