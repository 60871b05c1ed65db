"""The arrays of callers: checks of inputs, copies of outputs, and arrays of other libraries."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.other_libraries import DeviceArray, library
from gossamer.errors import InputError, kind_of, quoted
from gossamer.model.graph import Graph, ValueInfo
from gossamer.plan.candidate import counted
from gossamer.tensor import AXES, BFLOAT16


def check_count(graph: Graph, inputs: Sequence[Any]) -> None:
    """Raise InputError unless there are as many inputs as the graph has."""
    expected = graph.network_inputs
    if len(inputs) != len(expected):
        names = ", ".join(repr(info.name) for info in expected)
        raise InputError(f"{graph.name} takes {counted(len(expected), 'input')} ({names}), got "
                         f"{len(inputs)}")


def in_order(graph: Graph, inputs: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the inputs in the graph's order. Callers give the inputs by position, by name, or as
    one mapping of names to arrays. Raises InputError for names of no input, and where an input is
    missing."""
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        named = {**inputs[0], **named}
        inputs = ()
    if not named:
        check_count(graph, inputs)
        return tuple(inputs)
    names = [info.name for info in graph.network_inputs]
    if inputs or set(named) != set(names):
        given = [f"{len(inputs)} without a name"] if inputs else []
        raise InputError(f"{graph.name} takes the inputs {', '.join(map(quoted, names))}, got "
                         f"{', '.join((*given, *map(quoted, named)))}; give all by position, or "
                         "all by name")
    return tuple(named[name] for name in names)


def as_called_for(graph: Graph, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the inputs of a call as views in the layout and dtype that the plan accepts. For an
    input in NHWC, images with axes N, C, H, W, such as torch's tensors in channels_last, become
    views in NHWC. Arrays of bfloat16 become views of their bits. Raises InputError where an input
    of the plan is bfloat16 and the array has another dtype."""
    def viewed(info: ValueInfo, array: Any) -> Any:
        if info.given is not None and info.given.dtype == BFLOAT16:
            array = _bits(info.name, array)
        shape = getattr(array, "shape", ())
        if info.given is None or len(shape) != 4 or _is_of(shape, info.called.shape) or (
                not _is_of(shape, info.shape)):
            return array
        order = AXES[info.given.layout]
        return array.permute(order) if hasattr(array, "permute") else array.transpose(order)

    return tuple(viewed(info, array) for info, array in zip(graph.inputs, inputs, strict=True))


def _bits(name: str, array: Any) -> Any:
    """Return a view of the bits of an array of bfloat16; an array of bits is returned as it is."""
    dtype = str(getattr(array, "dtype", type(array).__name__)).removeprefix("torch.")
    if dtype == BFLOAT16:
        return array.view(sys.modules[library(array)].uint16
                          if library(array) == "torch" else np.uint16)
    if dtype != "uint16":
        raise InputError(f"input {quoted(name)} has dtype {dtype}, expected {BFLOAT16}, or uint16 "
                         "that holds its bits")
    return array


def _is_of(shape: Sequence[int], expected: Sequence[int | None]) -> bool:
    """Return whether a shape is as expected, where None stands for any size."""
    return len(shape) == len(expected) and all(
        size in (None, given) for size, given in zip(expected, shape, strict=True))


def batch_of(graph: Graph, inputs: Sequence[Any], given: Sequence[Any] = ()) -> int:
    """Return the batch size of the inputs. Raises InputError where they do not fit the graph's
    inputs. given: the caller's arrays, where the inputs were made of them."""
    check_count(graph, inputs)
    batch: int | None = None
    for info, array, own in zip(graph.inputs, inputs, given or inputs, strict=True):
        if not hasattr(array, "shape") or not hasattr(array, "dtype"):
            raise InputError(f"input {quoted(info.name)} is {kind_of(array)}, expected an "
                             f"array of shape {_shape_text(info.shape)} and dtype {info.dtype}")
        if not _is_of(array.shape, info.shape):
            raise InputError(f"input {quoted(info.name)} has shape {_shape_text(array.shape)}, "
                             f"expected {_shape_text(info.shape)}")
        # the dtype's name is used last, since making the name takes longer than all other checks
        if array.dtype != info.dtype and not is_lossless(str(array.dtype), info.dtype):
            convert = (f".to(torch.{info.dtype})" if library(own) == "torch" else
                       f".astype({info.dtype!r})")
            raise InputError(f"input {quoted(info.name)} has dtype {array.dtype}, expected "
                             f"{info.dtype}, or one that converts to it without loss; convert it "
                             f"with {convert}")
        if info.shape and info.shape[0] is None:
            if batch not in (None, array.shape[0]):
                raise InputError(f"input {quoted(info.name)} has batch {array.shape[0]}, another "
                                 f"input has {batch}")
            batch = array.shape[0]
    return 1 if batch is None else batch


def _shape_text(shape: Sequence[int | None]) -> str:
    return "x".join("N" if size is None else str(size) for size in shape) or "scalar"


def by_name(graph: Graph, arrays: Sequence[Any]) -> dict[str, np.ndarray]:
    """Return contiguous arrays of the graph's dtypes, by the names of the graph's inputs. arrays:
    inputs that batch_of() has checked."""
    return {info.name: np.asarray(array, info.dtype, order="C")
            for info, array in zip(graph.inputs, arrays, strict=True)}


def buffers_of(infos: Sequence[ValueInfo], arrays: Sequence[DeviceArray]) -> dict[str, Buffer]:
    """Return the memory of arrays on a device, by the names of the values that they hold."""
    return {info.name: array.buffer for info, array in zip(infos, arrays, strict=True)}


def several(out: Any) -> tuple[Any, ...]:
    """Return the arrays that a caller gives for outputs, of which one may be given alone."""
    return tuple(out) if isinstance(out, (tuple, list)) else (out,)


def fill(out: Any, results: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copy the results into the caller's arrays and return the arrays. Raises InputError where
    the arrays do not fit."""
    targets = several(out)
    if len(targets) != len(results):
        raise InputError(f"out has {len(targets)} arrays, the network {len(results)} outputs")
    for target, result in zip(targets, results, strict=True):
        expected = f"the output {tuple(result.shape)} and {result.dtype}"
        if not hasattr(target, "shape") or not hasattr(target, "dtype"):
            raise InputError(f"out holds {kind_of(target)}, {expected}")
        if tuple(target.shape) != tuple(result.shape) or target.dtype != result.dtype:
            raise InputError(f"out has shape {tuple(target.shape)} and dtype {target.dtype}, "
                             f"{expected}")
        if library(target) == "jax" or not getattr(
                getattr(target, "flags", None), "writeable", True):
            raise InputError(f"out holds {kind_of(target)} that cannot be written; give "
                             "one that can, or leave out away")
    for target, result in zip(targets, results, strict=True):
        target[...] = result
    return targets


def is_foreign(array: Any) -> bool:
    """Whether an array is of a library other than NumPy that supports DLPack."""
    return not isinstance(array, np.ndarray) and (
        hasattr(array, "__dlpack__") or hasattr(array, "__cuda_array_interface__"))


def are_on(device: Device, inputs: Sequence[Any]) -> bool:
    """Whether the inputs of a call are arrays of another library on a device, as the first is."""
    return bool(inputs) and is_foreign(inputs[0]) and device.holds(inputs[0])


def on_host(array: Any) -> np.ndarray:
    """Return an array in host memory as a NumPy array over the same memory.

    Raises InputError where the array does not lie in host memory, or is a tensor that requires a
    gradient.
    """
    if not is_foreign(array):
        return array
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
    """Return an array on a device in the dtype and order that a network accepts. Where the array
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
    """Return the stream on which the array's library works now; None where the library has no
    streams."""
    name = library(array)
    if name == "torch":
        return sys.modules[name].cuda.current_stream(array.device)
    if name == "cupy":
        return sys.modules[name].cuda.get_current_stream()
    return None


def like_on_host(array: Any, result: np.ndarray) -> Any:
    """Return a result as an array of the library of `array`, over the same memory if possible."""
    if not is_foreign(array):
        return result
    name = library(array)
    if name == "torch":
        return sys.modules[name].from_numpy(result)
    if name == "jax":
        return sys.modules[name].numpy.asarray(result)
    return result
