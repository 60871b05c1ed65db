"""The Open Inference Protocol, version 2, over HTTP: requests as arrays, and outputs as answers.

Tensors are numbers in JSON, or bytes behind the JSON (the binary tensor extension). This module
depends on no web framework: it takes the bytes of a request and returns the bytes of an answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gossamer.errors import InputError, first_line, quoted
from gossamer.io.text import bytes_text, shape_text
from gossamer.model.graph import ValueInfo

HEADER_LENGTH = "Inference-Header-Content-Length"
"""The header with the length, in bytes, of the JSON that precedes binary tensors."""
MOST_JSON_BYTES = 2**24
"""The most bytes of JSON that are parsed: parsed numbers take many times as much memory as their
text in JSON."""
_MOST_DIMENSIONS = 32
"""Most dimensions of a tensor in a request."""

DATATYPES = {"bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32",
             "uint64": "UINT64", "int8": "INT8", "int16": "INT16", "int32": "INT32",
             "int64": "INT64", "float16": "FP16", "float32": "FP32", "float64": "FP64"}
"""The protocol's names of NumPy's dtypes."""
_DTYPES = {datatype: np.dtype(dtype) for dtype, datatype in DATATYPES.items()}
_DATATYPES = {dtype: datatype for datatype, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class InferRequest:
    """A request for inference.

    arrays: the inputs by name.
    id: the client's name for the request; None where the client gives no name.
    outputs: for each wanted output, by name, whether it is binary; empty where all are wanted.
    binary: whether outputs are binary by default, where the request states nothing for an output.
    timeout_us: microseconds after which the answer is of no use; None without a limit.
    """

    arrays: Mapping[str, np.ndarray]
    id: str | None = None
    outputs: Mapping[str, bool] = field(default_factory=dict)
    binary: bool = False
    timeout_us: float | None = None


def parsed(text: bytes, binary: memoryview) -> InferRequest:
    """Returns the request that consists of JSON and of the binary tensors after it. Raises
    InputError where the two make no valid request."""
    if len(text) > MOST_JSON_BYTES:
        raise InputError(f"the JSON has {bytes_text(len(text))}, more than "
                         f"{bytes_text(MOST_JSON_BYTES)}; send the tensors in binary")
    try:
        request = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the request is no JSON: {first_line(error)}") from None
    request = _object(request, "the request")
    parameters = _object(request.get("parameters", {}), "parameters")
    arrays: dict[str, np.ndarray] = {}
    place = 0
    for tensor in _list(request.get("inputs"), "inputs"):
        name = _name(_object(tensor, "an input"), "an input")
        if name in arrays:
            raise InputError(f"input {quoted(name)} is given twice")
        arrays[name], place = _array(tensor, f"input {quoted(name)}", binary, place)
    if place != len(binary):
        raise InputError(f"{len(binary)} bytes of binary data, and the inputs take {place}")
    outputs: dict[str, bool] = {}
    wants_binary = _flag(parameters, "binary_data_output", False)
    for output in _list(request.get("outputs", []), "outputs"):
        name = _name(_object(output, "an output"), "an output")
        of_output = _object(output.get("parameters", {}), "parameters of an output")
        if "classification" in of_output:
            raise InputError(f"output {quoted(name)}: classification is not offered; take the "
                             "scores, and choose the largest")
        outputs[name] = _flag(of_output, "binary_data", wants_binary)
    return InferRequest(arrays, _id(request), outputs, wants_binary, _timeout(parameters))


def split(body: bytes, header_length: str | None) -> tuple[bytes, memoryview]:
    """Returns the JSON of a body, and the binary tensors after it.

    header_length: the value of the header HEADER_LENGTH; None where the request lacks the header.
    Raises InputError where the value does not fit the body.
    """
    if header_length is None:
        return body, memoryview(b"")
    if not header_length.isascii() or not header_length.isdigit() or len(header_length) > 18:
        raise InputError(f"{HEADER_LENGTH} is {quoted(header_length)}, expected a number of bytes")
    length = int(header_length)
    if length > len(body):
        raise InputError(f"{HEADER_LENGTH} is {length}, and the body has {len(body)} bytes")
    return body[:length], memoryview(body)[length:]


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{what} is {quoted(value)}, expected an object")
    return value


def _list(value: Any, what: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise InputError(f"{what} is {quoted(value)}, expected a list")
    return value


def _name(tensor: Mapping[str, Any], what: str) -> str:
    name = tensor.get("name")
    if not isinstance(name, str):
        raise InputError(f"the name of {what} is {quoted(name)}, expected a text")
    return name


def _id(request: Mapping[str, Any]) -> str | None:
    name = request.get("id")
    if name is not None and not isinstance(name, str):
        raise InputError(f"id is {quoted(name)}, expected a text")
    return name


def _flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InputError(f"{name} is {quoted(value)}, expected true or false")
    return value


def _timeout(parameters: Mapping[str, Any]) -> float | None:
    value = parameters.get("timeout")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
        raise InputError(f"timeout is {quoted(value)}, expected microseconds above 0")
    return float(value)


def _array(tensor: Mapping[str, Any], what: str, binary: memoryview,
           place: int) -> tuple[np.ndarray, int]:
    """Returns the array of a tensor, and the byte at which the next tensor's binary data begin."""
    shape = _shape(tensor.get("shape"), what)
    datatype = tensor.get("datatype")
    dtype = _DTYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        raise InputError(f"{what}: datatype {quoted(datatype)}, expected one of "
                         f"{', '.join(_DTYPES)}")
    size = _object(tensor.get("parameters", {}), f"{what}: parameters").get("binary_data_size")
    if size is None:
        return _from_json(tensor.get("data"), shape, dtype, what), place
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise InputError(f"{what}: binary_data_size is {quoted(size)}, expected a number of bytes")
    expected = math.prod(shape) * dtype.itemsize
    if size != expected:
        raise InputError(f"{what}: binary_data_size is {size}, and {shape_text(shape)} {datatype} "
                         f"takes {expected}")
    if place + size > len(binary):
        raise InputError(f"{what}: takes {size} bytes of binary data, and {len(binary) - place} "
                         "are left")
    data = np.frombuffer(binary[place:place + size], dtype.newbyteorder("<"))
    if dtype == np.bool_:
        data = data.view(np.uint8) != 0
    return data.astype(dtype, copy=False).reshape(shape), place + size


def _shape(value: Any, what: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS or any(
            isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 2**31
            for size in value):
        raise InputError(f"{what}: shape {quoted(value)}, expected a list of sizes")
    return tuple(value)


def _from_json(data: Any, shape: tuple[int, ...], dtype: np.dtype, what: str) -> np.ndarray:
    """Returns the array of numbers in JSON, which are in one list or in nested lists."""
    if not isinstance(data, list):
        raise InputError(f"{what}: data is {quoted(data)}, expected a list of numbers")
    try:
        values = np.asarray(data)
    except (ValueError, OverflowError, RecursionError):
        values = np.empty(0, object)
    if values.size == 0 and values.dtype != object:
        values = values.astype(dtype)
    kinds = {"b": "b", "u": "bu", "i": "biu"}.get(dtype.kind, "biuf")
    # NumPy makes int64 of whole numbers, also where an unsigned dtype is wanted
    if values.dtype.kind not in kinds and not (values.dtype.kind == "i" and dtype.kind == "u"):
        raise InputError(f"{what}: data are not numbers of datatype {DATATYPES[dtype.name]}, in "
                         "one list or in nested ones")
    if values.size != math.prod(shape):
        raise InputError(f"{what}: {values.size} numbers, and shape {shape_text(shape)} takes "
                         f"{math.prod(shape)}")
    if dtype.kind in "ui" and values.size and not (
            np.iinfo(dtype).min <= values.min() and values.max() <= np.iinfo(dtype).max):
        raise InputError(f"{what}: data are not numbers of datatype {DATATYPES[dtype.name]}: they "
                         f"go from {values.min()} to {values.max()}")
    with np.errstate(over="ignore"):
        return values.astype(dtype).reshape(shape)


def answer(model: str, request: InferRequest,
           outputs: Mapping[str, np.ndarray]) -> tuple[bytes, int | None]:
    """Returns the body of the answer and, where tensors are binary, the length of its JSON.

    Raises InputError where the request wants an output that the network does not have.
    """
    wanted = request.outputs or dict.fromkeys(outputs, request.binary)
    tensors: list[dict[str, Any]] = []
    binary: list[bytes] = []
    for name, is_binary in wanted.items():
        if name not in outputs:
            raise InputError(f"there is no output {quoted(name)}; the outputs are "
                             f"{', '.join(map(quoted, outputs))}")
        array = outputs[name]
        tensor: dict[str, Any] = {"name": name, "datatype": _DATATYPES[array.dtype],
                                  "shape": list(array.shape)}
        if is_binary:
            data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
            tensor["parameters"] = {"binary_data_size": len(data)}
            binary.append(data)
        else:
            tensor["data"] = array.reshape(-1).tolist()
        tensors.append(tensor)
    head: dict[str, Any] = {"model_name": model, "outputs": tensors}
    if request.id is not None:
        head["id"] = request.id
    text = json.dumps(head).encode()
    return (b"".join([text, *binary]), len(text)) if binary else (text, None)


def described(info: ValueInfo) -> dict[str, Any]:
    """Returns an input or output as the protocol describes it; -1 stands for an open size."""
    return {"name": info.name, "datatype": DATATYPES.get(info.dtype, info.dtype.upper()),
            "shape": [-1 if size is None else size for size in info.shape]}
