"""Reads the tensors of a file written by torch.save, without torch.

Both containers are read: the zip archive (torch 1.6 and later) and the older sequence of pickles
followed by raw storages. Every offset, size and stride is checked against the file before memory is
allocated.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.errors import ModelError
from gossamer.model.readers.torch.unpickle import MalformedPickle, Name, load

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001
"""The magic number and the protocol version: the first two pickles in a file of torch before 1.6.
"""
_MAX_DIMENSIONS = 32
"""Maximum number of dimensions of a tensor: the limit of NumPy 1."""
_MAX_EXPANSION = 8
"""Maximum ratio of the bytes of all tensors to the bytes of the file. The ratio may exceed 1,
because tensors may share a storage."""

_DTYPES = {
    "DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2", "BFloat16Storage": "<u2",
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "<i1",
    "ByteStorage": "<u1", "BoolStorage": "<u1",
}


@dataclass(frozen=True)
class _Storage:
    """A block of memory in the file.

    kind: torch's name of the storage's type.
    key: name of the storage in the file.
    size: number of elements.
    """

    kind: str
    key: str
    size: int

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(_DTYPES[self.kind])


@dataclass(frozen=True)
class _Tensor:
    """A view of a storage, with offset and strides in elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_tensors(path: str | Path) -> dict[str, np.ndarray]:
    """Return the named tensors of a state dict saved by torch.save, in the file's order.

    The state dict may also be the entry "state_dict" or "model" of a checkpoint. The arrays are
    contiguous copies; bfloat16 becomes float32. Other values of the dict (numbers, names) are
    skipped.

    Raises ModelError, which names the file and the reason, for a file that is not a state dict, is
    damaged, or holds objects other than tensors and plain data.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
    try:
        if data[:4] == b"PK\x03\x04":
            return _read_zip(data)
        return _read_legacy(data)
    except (MalformedPickle, zipfile.BadZipFile, zlib.error) as error:
        raise ModelError(f"{path}: not a readable torch checkpoint: it {error}") from None


def _read_zip(data: bytes) -> dict[str, np.ndarray]:
    """Return the tensors of a zip archive, the container that torch writes from 1.6 on."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        entries = {entry.filename: entry for entry in archive.infolist()}
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OverflowError) as error:
        raise MalformedPickle(f"is a damaged zip archive ({error})") from None

    def member(name: str) -> bytes:
        entry = entries[name]
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            raise MalformedPickle(f"stores {name!r} compressed or encrypted, as torch never does")
        if entry.file_size > len(data):
            raise MalformedPickle(f"is shorter than its entry {name!r}")
        try:
            return archive.read(entry)
        except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError,
                OverflowError) as error:
            raise MalformedPickle(f"has a damaged entry {name!r} ({error})") from None

    pickles = [name for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise MalformedPickle("is a zip archive without one 'data.pkl', so no torch checkpoint")
    folder = pickles[0].removesuffix("data.pkl")
    if folder + "byteorder" in entries and member(folder + "byteorder") != b"little":
        raise MalformedPickle("is not in little-endian byte order")
    content = load(io.BytesIO(member(pickles[0])), _call, _storage)

    def storage_bytes(storage: _Storage) -> bytes:
        name = f"{folder}data/{storage.key}"
        if name not in entries:
            raise MalformedPickle(f"lacks the storage {name!r}")
        return member(name)

    return _materialise(content, storage_bytes, len(data))


def _read_legacy(data: bytes) -> dict[str, np.ndarray]:
    """Return the tensors of a file of torch before 1.6: pickles, then the storages."""
    stream = io.BytesIO(data)
    storages: dict[str, _Storage] = {}

    def persistent(identity: Any) -> _Storage:
        storage = _storage(identity)
        if storages.setdefault(storage.key, storage) != storage:
            raise MalformedPickle(f"describes the storage {storage.key[:40]!r} in two ways")
        return storage

    def next_pickle() -> Any:
        return load(stream, _call, persistent)

    try:
        magic = next_pickle()
    except MalformedPickle:
        magic = None
    if type(magic) is not int or magic != _LEGACY_MAGIC:
        raise MalformedPickle("does not begin as a file of torch.save does")
    if next_pickle() != _LEGACY_PROTOCOL:
        raise MalformedPickle("has a protocol other than 1001")
    system = next_pickle()
    if type(system) is not dict or system.get("little_endian") is not True:
        raise MalformedPickle("is not in little-endian byte order")
    content = next_pickle()
    keys = next_pickle()
    if type(keys) is not list or any(type(key) is not str for key in keys):
        raise MalformedPickle("has no list of its storages")
    if len(set(keys)) != len(keys):
        raise MalformedPickle("lists a storage twice")

    byte_ranges = {}
    position = stream.tell()
    for key in keys:
        if key not in storages:
            raise MalformedPickle(f"lists the storage {key[:40]!r}, which no tensor uses")
        count = int.from_bytes(data[position : position + 8], "little", signed=True)
        end = position + 8 + storages[key].size * storages[key].dtype.itemsize
        if position + 8 > len(data) or end > len(data):
            raise MalformedPickle(f"ends within the storage {key[:40]!r}: it is truncated")
        if count != storages[key].size:
            raise MalformedPickle(f"gives the storage {key[:40]!r} two sizes, {count} and "
                                  f"{storages[key].size}")
        byte_ranges[key] = (position + 8, end)
        position = end

    def storage_bytes(storage: _Storage) -> bytes:
        if storage.key not in byte_ranges:
            raise MalformedPickle(f"lacks the storage {storage.key[:40]!r}")
        start, end = byte_ranges[storage.key]
        return data[start:end]

    return _materialise(content, storage_bytes, len(data))


def _call(name: Name, arguments: tuple) -> Any:
    """Return the result of a function that the pickle calls.

    Raises MalformedPickle for a function that builds no tensor or dict.
    """
    match str(name):
        case "collections.OrderedDict":
            if arguments == ():
                return {}
        case "torch._utils._rebuild_tensor_v2":
            if len(arguments) >= 4:
                return _tensor(*arguments[:4])
        case "torch._utils._rebuild_parameter":
            if arguments and type(arguments[0]) is _Tensor:
                return arguments[0]
        case _:
            raise MalformedPickle(f"asks for {str(name)!r}, which is no tensor; only tensors and "
                                  "plain data are read. Save model.state_dict() instead")
    raise MalformedPickle(f"calls {str(name)!r} with arguments that torch does not write")


def _storage(identity: Any) -> _Storage:
    """Return the storage that a persistent id of the pickle describes."""
    if type(identity) is not tuple or len(identity) not in (5, 6) or identity[0] != "storage":
        raise MalformedPickle("refers to something that is no storage")
    kind, key, size = identity[1], identity[2], identity[4]
    if type(kind) is not Name or kind.module != "torch" or kind.name not in _DTYPES:
        kind_name = str(kind) if type(kind) is Name else type(kind).__name__
        raise MalformedPickle(f"has a storage of type {kind_name!r}; known are "
                              f"{', '.join(_DTYPES)}")
    if type(key) is not str or type(size) is not int or not 0 <= size < 2**48:
        raise MalformedPickle("has a storage without a key or a sensible size")
    if len(identity) == 6 and identity[5] is not None:
        raise MalformedPickle("has storages that are views of others, as only torch before 0.4 "
                              "wrote")
    return _Storage(kind.name, key, size)


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any) -> _Tensor:
    """Return a view of a storage.

    Raises MalformedPickle if the view is malformed or exceeds the storage.
    """
    if type(storage) is not _Storage:
        raise MalformedPickle("has a tensor without a storage")
    if type(shape) is not tuple or type(strides) is not tuple or len(shape) != len(strides):
        raise MalformedPickle("has a tensor whose shape and strides do not match")
    if len(shape) > _MAX_DIMENSIONS:
        raise MalformedPickle(f"has a tensor of {len(shape)} dimensions")
    for number in (offset, *shape, *strides):
        if type(number) is not int or not 0 <= number < 2**48:
            raise MalformedPickle("has a tensor with a negative or absurd offset, size or stride")
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    elements = math.prod(shape)
    if math.prod(n for n in shape if n) >= 2**48:
        raise MalformedPickle(f"has a tensor of the absurd shape {shape}")
    if elements and (last >= storage.size or elements > storage.size):
        raise MalformedPickle(f"has a tensor of shape {shape} with strides {strides} that reaches "
                              f"outside its storage of {storage.size} elements")
    return _Tensor(storage, offset, shape, strides)


def _state_dict(content: Any) -> dict[str, _Tensor]:
    """Return the named tensors of the pickled object, or of the state dict inside it."""
    for candidate in (content, *(content.get(key) for key in ("state_dict", "model")
                                 if type(content) is dict)):
        if type(candidate) is dict:
            tensors = {str(key): value for key, value in candidate.items()
                       if type(value) is _Tensor}
            if tensors:
                return tensors
    raise MalformedPickle("holds no named tensors; save model.state_dict()")


def _materialise(content: Any, storage_bytes: Callable[[_Storage], bytes],
                 file_size: int) -> dict[str, np.ndarray]:
    """Return the tensors of the pickled object as arrays."""
    tensors = _state_dict(content)
    total = sum(math.prod(t.shape) * t.storage.dtype.itemsize for t in tensors.values())
    if total > _MAX_EXPANSION * file_size:
        raise MalformedPickle(f"claims {total} bytes of tensors in a file of {file_size} bytes")
    arrays = {}
    for name, tensor in tensors.items():
        arrays[name] = _array(name, tensor, storage_bytes)
    return arrays


def _array(name: str, tensor: _Tensor, storage_bytes: Callable[[_Storage], bytes]) -> np.ndarray:
    storage = tensor.storage
    if math.prod(tensor.shape) == 0:
        array = np.zeros(tensor.shape, storage.dtype)
    else:
        raw = storage_bytes(storage)
        if len(raw) != storage.size * storage.dtype.itemsize:
            raise MalformedPickle(f"has a storage of {len(raw)} bytes where {name[:80]!r} needs "
                                  f"{storage.size * storage.dtype.itemsize}")
        flat = np.frombuffer(raw, storage.dtype)[tensor.offset :]
        steps = [step * storage.dtype.itemsize for step in tensor.strides]
        view = np.lib.stride_tricks.as_strided(flat, tensor.shape, steps, writeable=False)
        array = view.copy()
    if storage.kind == "BFloat16Storage":
        return np.asarray(array.astype(np.uint32) << 16, np.uint32).view(np.float32)
    if storage.kind == "BoolStorage":
        return array != 0
    return array.astype(array.dtype.newbyteorder("="), copy=False)
