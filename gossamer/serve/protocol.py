"""Requests and responses of the Open Inference Protocol, version 2.

A tensor's values are in the JSON, or follow it as bytes (the binary tensor extension). This module
needs no web framework: it converts the bytes of a request, and returns the bytes of a response.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gossamer.errors import InputError, first_line, quoted
from gossamer.io.text import bytes_text, shape_text
from gossamer.model.graph import ValueInfo

HEADER_LENGTH = "Inference-Header-Content-Length"
"""Header with the length, in bytes, of the JSON that precedes binary tensors."""
MOST_JSON_BYTES = 2**24
"""Largest number of bytes of JSON that are parsed: a parsed number needs many times the memory of
its text."""
_MOST_MARKS = 2**20
"""Largest number of opening brackets, opening braces and quotation marks in JSON. This limit bounds
the number of lists, objects and strings: a parsed empty list needs 30 times the memory of its
text."""
_MOST_TENSORS = 1024
"""Largest number of inputs, and of outputs, in a request."""
_MOST_ID = 1024
"""Largest number of characters in a request's id, which the response repeats."""
_MOST_DIMENSIONS = 32
"""Largest number of dimensions of a tensor in a request."""
_MOST_SIZE = 2**48
"""Largest product of a shape's nonzero sizes. If a size is 0, the number of values does not limit
the other sizes, and NumPy fails for huge sizes."""
_PIECE = 2**14
"""Number of values that are written as JSON at a time."""
_LEAST_CHARACTERS = 2
"""Smallest number of characters of a JSON number with its comma."""

DATATYPES = {"bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32",
             "uint64": "UINT64", "int8": "INT8", "int16": "INT16", "int32": "INT32",
             "int64": "INT64", "float16": "FP16", "float32": "FP32", "float64": "FP64"}
"""The protocol's name of each of NumPy's dtypes."""
_DTYPES = {datatype: np.dtype(dtype) for dtype, datatype in DATATYPES.items()}
_DATATYPES = {dtype: datatype for datatype, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class InferRequest:
    """A request for inference.

    arrays: the inputs by name.
    id: the client's name for the request, or None.
    outputs: for each output that the request names, whether it is sent in binary. An empty mapping
    requests all outputs.
    binary: whether all outputs are sent in binary if the request names none.
    timeout_us: microseconds after which the client no longer needs the response; None without a
    limit.
    """

    arrays: Mapping[str, np.ndarray]
    id: str | None = None
    outputs: Mapping[str, bool] = field(default_factory=dict)
    binary: bool = False
    timeout_us: float | None = None


@dataclass(frozen=True)
class BinaryTensor:
    """An input whose bytes follow the JSON.

    offset: position of the input's first byte, from the end of the JSON.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype

    def array(self, binary: memoryview) -> np.ndarray:
        """Return the input as an array.

        binary: all bytes after the JSON.
        """
        size = math.prod(self.shape) * self.dtype.itemsize
        data = np.frombuffer(binary[self.offset:self.offset + size], self.dtype.newbyteorder("<"))
        if self.dtype == np.bool_:
            data = data.view(np.uint8) != 0
        return data.astype(self.dtype, copy=False).reshape(self.shape)


@dataclass(frozen=True)
class OutputTensor:
    """A requested output.

    byte_count: size of the output in bytes.
    numbers: the output if it is written as JSON; None if its bytes follow the JSON.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    byte_count: int
    numbers: np.ndarray | None


def parsed(text: bytes, binary: memoryview) -> InferRequest:
    """Parse a request from JSON and binary tensors.

    Raises InputError if the request is not valid.
    """
    return with_binary(parsed_json(text, len(binary)), binary)


def with_binary(request: InferRequest, binary: memoryview) -> InferRequest:
    """Return a request of parsed_json() with its BinaryTensors replaced by arrays."""
    return replace(request, arrays={
        name: value.array(binary) if isinstance(value, BinaryTensor) else value
        for name, value in request.arrays.items()})


def parsed_json(text: bytes, binary_bytes: int) -> InferRequest:
    """Parse a request from JSON, with BinaryTensors for binary inputs.

    binary_bytes: number of bytes after the JSON.
    Raises InputError if the request is not valid.
    """
    _check_length(len(text))
    if sum(map(text.count, (b"[", b"{", b'"'))) > _MOST_MARKS:
        raise InputError(f"the JSON has more than {_MOST_MARKS} opening brackets, opening braces "
                         "and quotation marks; give the data of each input in one list of numbers")
    try:
        request = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = first_line(error)
        # bytes after the JSON may be binary tensors without the required header
        if isinstance(error, UnicodeDecodeError) or reason.startswith("Extra data"):
            reason = (f"other bytes follow it; if they are binary tensors, {HEADER_LENGTH} must "
                      "specify the length of the JSON")
        raise InputError(f"the request is not valid JSON: {reason}") from None
    request = _object(request, "the request")
    parameters = _object(request.get("parameters", {}), "parameters")
    arrays: dict[str, Any] = {}
    offset = 0
    for tensor in _tensors(request.get("inputs"), "inputs"):
        name = _name(_object(tensor, "an input"), "an input")
        if name in arrays:
            raise InputError(f"input {quoted(name)} is given twice")
        arrays[name], offset = _array(tensor, f"input {quoted(name)}", binary_bytes, offset)
    if offset != binary_bytes:
        raise InputError(f"the inputs need {offset} bytes of binary data, but the body has "
                         f"{binary_bytes}")
    outputs: dict[str, bool] = {}
    wants_binary = _flag(parameters, "binary_data_output", False)
    for output in _tensors(request.get("outputs", []), "outputs"):
        name = _name(_object(output, "an output"), "an output")
        of_output = _object(output.get("parameters", {}), "parameters of an output")
        if "classification" in of_output:
            raise InputError(f"output {quoted(name)}: classification is not supported; request the "
                             "scores, and choose the largest")
        outputs[name] = _flag(of_output, "binary_data", wants_binary)
    return InferRequest(arrays, _id(request), outputs, wants_binary, _timeout(parameters))


def split(body: bytes | bytearray, header_length: str | None) -> tuple[bytes, memoryview]:
    """Split a body into JSON and binary tensors.

    header_length: the value of the header HEADER_LENGTH; None if the request lacks the header.
    Raises InputError if the value does not fit the body, or if the JSON is too long.
    """
    length = len(body) if header_length is None else stated_length(header_length)
    if length > len(body):
        raise InputError(f"{HEADER_LENGTH} is {length}, but the body has {len(body)} bytes")
    _check_length(length)
    view = memoryview(body)
    return bytes(view[:length]), view[length:]


def stated_length(text: str) -> int:
    """Return the value of the header HEADER_LENGTH.

    Raises InputError if it is not a number.
    """
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InputError(f"{HEADER_LENGTH} is {quoted(text)}, expected a number of bytes")
    return int(text)


def _check_length(length: int) -> None:
    if length > MOST_JSON_BYTES:
        raise InputError(f"the JSON has {bytes_text(length)}, more than "
                         f"{bytes_text(MOST_JSON_BYTES)}; send the tensors in binary")


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{what} is {quoted(value)}, expected an object")
    return value


def _list(value: Any, what: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise InputError(f"{what} is {quoted(value)}, expected a list")
    return value


def _tensors(value: Any, what: str) -> Sequence[Any]:
    tensors = _list(value, what)
    if len(tensors) > _MOST_TENSORS:
        raise InputError(f"{what} has {len(tensors)} tensors, expected at most {_MOST_TENSORS}")
    return tensors


def _name(tensor: Mapping[str, Any], what: str) -> str:
    name = tensor.get("name")
    if not isinstance(name, str):
        raise InputError(f"the name of {what} is {quoted(name)}, expected a string")
    return name


def _id(request: Mapping[str, Any]) -> str | None:
    name = request.get("id")
    if name is not None and not isinstance(name, str):
        raise InputError(f"id is {quoted(name)}, expected a string")
    if name is not None and len(name) > _MOST_ID:
        raise InputError(f"id has {len(name)} characters, expected at most {_MOST_ID}")
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


def _array(tensor: Mapping[str, Any], what: str, binary_bytes: int,
           offset: int) -> tuple[np.ndarray | BinaryTensor, int]:
    """Return an input's array, and the offset of the next input's binary data.

    what: name of the input in messages.
    binary_bytes: number of bytes after the JSON.
    offset: offset of this input's binary data, if it has any.
    """
    shape = _shape(tensor.get("shape"), what)
    datatype = tensor.get("datatype")
    dtype = _DTYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        raise InputError(f"{what}: datatype is {quoted(datatype)}, expected one of "
                         f"{', '.join(_DTYPES)}")
    size = _object(tensor.get("parameters", {}), f"{what}: parameters").get("binary_data_size")
    if size is None:
        return _from_json(tensor.get("data"), shape, dtype, what), offset
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise InputError(f"{what}: binary_data_size is {quoted(size)}, expected a number of bytes")
    expected = math.prod(shape) * dtype.itemsize
    if size != expected:
        raise InputError(f"{what}: binary_data_size is {size}, but {shape_text(shape)} {datatype} "
                         f"needs {expected}")
    if offset + size > binary_bytes:
        raise InputError(f"{what}: needs {size} bytes of binary data, but only "
                         f"{binary_bytes - offset} are left")
    return BinaryTensor(offset, shape, dtype), offset + size


def _shape(value: Any, what: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS or any(
            isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 2**31
            for size in value):
        raise InputError(f"{what}: shape is {quoted(value)}, expected a list of sizes")
    if math.prod(size or 1 for size in value) > _MOST_SIZE:
        raise InputError(f"{what}: shape {quoted(value)} is too large: the product of its nonzero "
                         f"sizes must be at most {_MOST_SIZE}")
    return tuple(value)


def _from_json(data: Any, shape: tuple[int, ...], dtype: np.dtype, what: str) -> np.ndarray:
    """Return an input's JSON data as an array."""
    if not isinstance(data, list):
        raise InputError(f"{what}: data is {quoted(data)}, expected a list of numbers")
    try:
        values = np.asarray(data)
    except (ValueError, OverflowError, RecursionError):
        values = np.empty(0, object)
    if values.size == 0 and values.dtype != object:
        values = values.astype(dtype)
    kinds = {"b": "b", "u": "bu", "i": "biu"}.get(dtype.kind, "biuf")
    # NumPy reads integers as int64, which is also accepted for unsigned dtypes
    if values.dtype.kind not in kinds and not (values.dtype.kind == "i" and dtype.kind == "u"):
        raise InputError(f"{what}: expected data of datatype {DATATYPES[dtype.name]} in one list, "
                         "or in nested lists of equal lengths")
    if values.size != math.prod(shape):
        raise InputError(f"{what}: data has {values.size} numbers, but shape {shape_text(shape)} "
                         f"needs {math.prod(shape)}")
    if dtype.kind in "ui" and values.size and not (
            np.iinfo(dtype).min <= values.min() and values.max() <= np.iinfo(dtype).max):
        raise InputError(f"{what}: data has numbers from {values.min()} to {values.max()}, outside "
                         f"the range of datatype {DATATYPES[dtype.name]}")
    with np.errstate(over="ignore"):
        return values.astype(dtype).reshape(shape)


def wanted_outputs(request: InferRequest,
                   outputs: Mapping[str, np.ndarray]) -> list[OutputTensor]:
    """Return the requested outputs. Raises InputError for an unknown output."""
    wanted = request.outputs or dict.fromkeys(outputs, request.binary)
    tensors = []
    for name, is_binary in wanted.items():
        if name not in outputs:
            raise InputError(f"there is no output {quoted(name)}; the outputs are "
                             f"{', '.join(map(quoted, outputs))}")
        array = outputs[name]
        tensors.append(OutputTensor(name, _DATATYPES[array.dtype], array.shape, array.nbytes,
                                    None if is_binary else array))
    return tensors


def written(model: str, request_id: str | None, tensors: Sequence[OutputTensor],
            most: int) -> bytes:
    """Return the JSON of a response. Raises InputError if it exceeds `most` bytes."""
    parts: list[str] = []
    size = 0

    def add(text: str) -> None:
        nonlocal size
        parts.append(text)
        size += len(text)
        _check_json_bytes(size, most)

    head: dict[str, Any] = {"model_name": model}
    if request_id is not None:
        head["id"] = request_id
    add(_compact(head)[:-1] + ',"outputs":[')
    for index, tensor in enumerate(tensors):
        described: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype,
                                     "shape": tensor.shape}
        if tensor.numbers is None:
            described["parameters"] = {"binary_data_size": tensor.byte_count}
        add("," * (index > 0) + _compact(described)[:-1])
        if tensor.numbers is not None:
            add(',"data":[')
            flat = tensor.numbers.reshape(-1)
            # in chunks, to bound the memory of the numbers' Python objects
            for start in range(0, flat.size, _PIECE):
                add("," * (start > 0) + _compact(flat[start:start + _PIECE].tolist())[1:-1])
            add("]")
        add("}")
    add("]}")
    # json writes characters that are not ASCII as \u...
    return "".join(parts).encode("ascii")


def check_json(numbers: int, most: int) -> None:
    """Raise InputError if the JSON of so many numbers certainly exceeds `most` bytes.

    This saves the time and memory of written(), which checks the actual length.
    """
    _check_json_bytes(_LEAST_CHARACTERS * numbers, most)


def _check_json_bytes(count: int, most: int) -> None:
    if count > most:
        raise InputError(f"the outputs are larger than {bytes_text(most)} as JSON; request them in "
                         'binary, with "parameters": {"binary_data_output": true}')


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def binary_data(array: np.ndarray) -> memoryview:
    """Return the bytes of an output in binary form.

    The bytes are in C order and little-endian. An array that is already stored like this is not
    copied.
    """
    flat = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1)
    return flat.view(np.uint8).data


def described(info: ValueInfo) -> dict[str, Any]:
    """Return the protocol's description of an input or output; -1 stands for a dynamic size."""
    return {"name": info.name, "datatype": DATATYPES.get(info.dtype, info.dtype.upper()),
            "shape": [-1 if size is None else size for size in info.shape]}
