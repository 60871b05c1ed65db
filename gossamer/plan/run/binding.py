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
from gossamer.tensor import AXES, BFLOAT16, TensorSpec


def in_order(graph: Graph, inputs: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the inputs in the graph's order.

    Callers pass the inputs by position, by name, or as one mapping of names to arrays. Raises
    InputError for unknown names and missing inputs.
    """
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        named = {**inputs[0], **named}
        inputs = ()
    names = [info.name for info in graph.network_inputs]
    if not named:
        if len(inputs) != len(names):
            raise InputError(f"{graph.name} takes {counted(len(names), 'input')} "
                             f"({', '.join(map(repr, names))}), got {len(inputs)}")
        return tuple(inputs)
    if inputs or set(named) != set(names):
        given = [f"{len(inputs)} without a name"] if inputs else []
        raise InputError(f"{graph.name} takes the inputs {', '.join(map(quoted, names))}, got "
                         f"{', '.join((*given, *map(quoted, named)))}; give all by position, or "
                         "all by name")
    return tuple(named[name] for name in names)


def as_called_for(graph: Graph, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return views of inputs in the plan's layout and dtype.

    If the plan's input is in NHWC, images with the axes N, C, H, W become views in NHWC; examples
    are torch's tensors in channels_last. Arrays of bfloat16 become views of their bits. Raises
    InputError if an input of the plan is bfloat16 and the array has another dtype.
    """
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
    """Return a view of the bits of a bfloat16 array; an array of bits is unchanged."""
    dtype = _dtype_name(getattr(array, "dtype", type(array).__name__))
    if dtype == BFLOAT16:
        return array.view(sys.modules[library(array)].uint16
                          if library(array) == "torch" else np.uint16)
    if dtype != "uint16":
        raise InputError(f"input {quoted(name)} has dtype {dtype}, expected {BFLOAT16}, or uint16 "
                         "with its bits")
    return array


def _is_of(shape: Sequence[int], expected: Sequence[int | None]) -> bool:
    """Return whether a shape matches; None matches any size."""
    return len(shape) == len(expected) and all(
        size in (None, given) for size, given in zip(expected, shape, strict=True))


def batch_of(graph: Graph, inputs: Sequence[Any], given: Sequence[Any] = ()) -> int:
    """Return the batch size of the inputs.

    given: the caller's arrays, if `inputs` were made from them.

    Raises InputError if `inputs` do not fit the graph's inputs.
    """
    batch: int | None = None
    for info, array, own in zip(graph.inputs, inputs, given or inputs, strict=True):
        if not hasattr(array, "shape") or not hasattr(array, "dtype"):
            raise InputError(f"input {quoted(info.name)} is {kind_of(array)}, expected an "
                             f"array of shape {_shape_text(info.shape)} and dtype {info.dtype}")
        if not _is_of(array.shape, info.shape):
            raise InputError(f"input {quoted(info.name)} has shape {_shape_text(array.shape)}, "
                             f"expected {_shape_text(info.shape)}")
        # compare names of dtypes last: making a name takes longer than all other checks
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


def on_device(device: Device, graph: Graph, inputs: Sequence[Any],
              stream: Any) -> list[DeviceArray]:
    """Return a graph's inputs on a device as DeviceArrays.

    stream: the stream that reads the inputs.
    """
    return [device.incoming(array, stream, name=f"input {info.name!r}", dtype=info.dtype)
            for info, array in zip(graph.inputs, inputs, strict=True)]


def new_outputs(device: Device, graph: Graph, specs: Sequence[TensorSpec],
                stream: Any) -> list[DeviceArray]:
    """Return new arrays on a device for a graph's outputs.

    specs: the spec of each output.
    """
    return [device.empty_array(spec, f"output {info.name!r}", stream)
            for info, spec in zip(graph.outputs, specs, strict=True)]


def buffers_of(arrays: Sequence[DeviceArray]) -> list[Buffer]:
    """Return the buffers of arrays on a device."""
    return [array.buffer for array in arrays]


def several(out: Any) -> tuple[Any, ...]:
    """Return a caller's `out`, which may be a single array, as a tuple."""
    return tuple(out) if isinstance(out, (tuple, list)) else (out,)


def given_outputs(name: str, infos: Sequence[ValueInfo], out: Any,
                  expected: Sequence[tuple[Sequence[int], Any]]) -> tuple[Any, ...]:
    """Check and return the arrays that a caller passes for outputs.

    name: the network's name.
    expected: shape and dtype of each output.

    Raises InputError if the number of arrays, a shape or a dtype is wrong.
    """
    outputs = several(out)
    if len(outputs) != len(infos):
        raise InputError(f"out has {counted(len(outputs), 'array')}, {name} has "
                         f"{counted(len(infos), 'output')}")
    for info, array, (shape, dtype) in zip(infos, outputs, expected, strict=True):
        is_array = hasattr(array, "shape") and hasattr(array, "dtype")
        kind, wanted = _dtype_name(array.dtype) if is_array else kind_of(array), _dtype_name(dtype)
        if kind != wanted:
            raise InputError(f"out for {info.name!r} is {kind}, expected an array of {wanted}")
        if tuple(array.shape) != tuple(shape):
            raise InputError(f"out for {info.name!r} has shape {tuple(array.shape)}, expected "
                             f"{tuple(shape)}")
    return outputs


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def fill(name: str, infos: Sequence[ValueInfo], out: Any,
         results: Sequence[Any]) -> tuple[Any, ...]:
    """Copy a network's results into the caller's arrays.

    Raises InputError as given_outputs() does, and if an array is not writable.
    """
    outputs = given_outputs(name, infos, out, [(array.shape, array.dtype) for array in results])
    for info, array in zip(infos, outputs, strict=True):
        if library(array) == "jax" or not getattr(getattr(array, "flags", None), "writeable", True):
            raise InputError(f"out for {info.name!r} is {kind_of(array)} that is not writable; "
                             "give a writable one, or omit out")
    for array, result in zip(outputs, results, strict=True):
        array[...] = result
    return outputs


def is_foreign(array: Any) -> bool:
    """Return whether an array of another library supports DLPack or CUDA's array interface."""
    return not isinstance(array, np.ndarray) and (
        hasattr(array, "__dlpack__") or hasattr(array, "__cuda_array_interface__"))


def are_on(device: Device, inputs: Sequence[Any]) -> bool:
    """Return whether a call's first input is another library's array on a device."""
    return bool(inputs) and is_foreign(inputs[0]) and device.holds(inputs[0])


def on_host(array: Any) -> np.ndarray:
    """Return a NumPy array that shares memory with a host array of any library.

    Raises InputError if the array is not in host memory, or is a tensor that requires a gradient.
    """
    if not is_foreign(array):
        return array
    if getattr(array, "requires_grad", False):
        raise InputError("an input is a tensor that requires a gradient, which a plan does not "
                         "compute; pass x.detach()")
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"an input of type {type(array).__name__} is not in host memory "
                         f"({error}); move it there, or run on the device that holds it") from None


def is_lossless(source: str, target: str) -> bool:
    """Return whether conversion from one dtype to another is lossless.

    source, target: the names of the dtypes.
    """
    if source == "bfloat16":
        return target in ("float32", "float64")
    try:
        return np.can_cast(np.dtype(source), np.dtype(target), "safe")
    except TypeError:
        return False


def as_taken(array: Any, dtype: str) -> Any:
    """Return a contiguous device array in the network's dtype.

    If the array has other strides, or a dtype that converts without loss, its library converts it
    in one kernel. An array that cannot be converted is returned unchanged.
    """
    name = library(array)
    if name == "torch" and not array.requires_grad:
        wanted = getattr(sys.modules[name], dtype)
        if is_lossless(_dtype_name(array.dtype), dtype):
            return array.to(wanted, memory_format=sys.modules[name].contiguous_format).contiguous()
    if name in ("cupy", "jax") and is_lossless(str(array.dtype), dtype):
        return sys.modules[name].numpy.asarray(array, dtype) if name == "jax" else (
            sys.modules[name].ascontiguousarray(array, dtype))
    return array


def callers_stream(array: Any) -> Any:
    """Return the current stream of an array's library; None for a library without streams."""
    name = library(array)
    if name == "torch":
        return sys.modules[name].cuda.current_stream(array.device)
    if name == "cupy":
        return sys.modules[name].cuda.get_current_stream()
    return None


def like_on_host(inputs: Sequence[Any], results: Sequence[np.ndarray]) -> Sequence[Any]:
    """Return results as arrays of the library that made the first input.

    A result is copied only if the library cannot share its memory.
    """
    name = library(inputs[0]) if inputs else None
    if name == "torch":
        return list(map(sys.modules[name].from_numpy, results))
    if name == "jax":
        return list(map(sys.modules[name].numpy.asarray, results))
    return results
