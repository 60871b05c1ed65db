"""Arrays of other libraries as inputs and outputs of a plan: DLPack and the caller's stream."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from gossamer.device.array_library import library
from gossamer.errors import InputError


def is_foreign(array: Any) -> bool:
    """Whether an array is of a library other than NumPy that supports DLPack."""
    return not isinstance(array, np.ndarray) and (
        hasattr(array, "__dlpack__") or hasattr(array, "__cuda_array_interface__"))


def on_host(array: Any) -> np.ndarray:
    """Returns a foreign array in host memory as a NumPy array over the same memory.

    Raises InputError where the array does not lie in host memory, or is a tensor that requires a
    gradient.
    """
    if getattr(array, "requires_grad", False):
        raise InputError("an input is a tensor that requires a gradient, which a plan does not "
                         "compute; give x.detach()")
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"an input of type {type(array).__name__} is not in host memory "
                         f"({error}); move it there, or run on the device that holds it") from None


def is_lossless(source: str, target: str) -> bool:
    """Whether the dtype `target` can represent every number of the dtype `source`. source, target:
    the names of the dtypes."""
    if source == "bfloat16":
        return target in ("float32", "float64")
    try:
        return np.can_cast(np.dtype(source), np.dtype(target), "safe")
    except TypeError:
        return False


def as_taken(array: Any, dtype: str) -> Any:
    """Returns an array on a device in the dtype and order that a network accepts. Where the array
    has other strides, or a dtype that converts without loss, the array's library converts the array
    in one kernel. An array that cannot be accepted is returned as it is."""
    name = library(array)
    if name == "torch" and not array.requires_grad:
        wanted = getattr(sys.modules[name], dtype)
        if is_lossless(str(array.dtype).removeprefix("torch."), dtype):
            return array.to(wanted, memory_format=sys.modules[name].contiguous_format).contiguous()
    if name in ("cupy", "jax") and is_lossless(str(array.dtype), dtype):
        return sys.modules[name].numpy.asarray(array, dtype) if name == "jax" else (
            sys.modules[name].ascontiguousarray(array, dtype))
    return array


def callers_stream(array: Any) -> Any:
    """Returns the stream on which the array's library works now; None where the library has no
    streams."""
    name = library(array)
    if name == "torch":
        return sys.modules[name].cuda.current_stream(array.device)
    if name == "cupy":
        return sys.modules[name].cuda.get_current_stream()
    return None


def like_on_host(array: Any, result: np.ndarray) -> Any:
    """Returns a result as an array of the library of `array`, over the same memory if possible."""
    name = library(array)
    if name == "torch":
        return sys.modules[name].from_numpy(result)
    if name == "jax":
        return sys.modules[name].numpy.asarray(result)
    return result
