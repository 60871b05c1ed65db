"""Saved plans: a zip file with the graph, its constants, and the choices by batch size.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import shlex
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.errors import InputError, quoted, similar_file
from gossamer.expression import Expression, ExpressionStep
from gossamer.io import npy
from gossamer.io.output_files import replacing
from gossamer.model.graph import RETURNED, Graph, Node, Tail, ValueInfo
from gossamer.model.input_format import InputFormat
from gossamer.model.metadata import ModelMetadata, metadata_of
from gossamer.ops.host_threads import ALL, Threads
from gossamer.plan.candidate import counted
from gossamer.version import PACKAGE_VERSION

SUFFIX = ".plan"
FORMAT = "gossamer plan"
VERSION = 13
_BAD = (ArithmeticError, AssertionError, AttributeError, EOFError, LookupError,
        NotImplementedError, RuntimeError, TypeError, ValueError, zipfile.BadZipFile, zlib.error)
"""Errors that may occur while reading a file that is damaged or that save() did not write."""
_CLASSES: dict[str, type[Any]] = {each.__name__: each for each in (
    Graph, Node, Tail, ValueInfo, InputFormat, Expression, ExpressionStep)}
"""The classes of a graph and its parts, by name."""


def again(path: Path, device: str = "") -> str:
    """Return text on how to replace an invalid plan.

    device: name of the device that the plan was made for, "" if it is not known.
    """
    words = ["gossamer", "compile", "MODEL", *(["--device", device] if device else []),
             "-o", str(path.with_suffix(SUFFIX))]
    return f"compile the network again (`{shlex.join(words)}`)"


def header(device: Device, strict: bool, algorithms: Mapping[str, Any],
           threads: Threads = ALL) -> dict[str, Any]:
    """Return the header of a saved plan.

    The header contains everything that must be unchanged when the plan is loaded, whether the plan
    is strict, and the threads of its layers on the host. There is no date, so that equal plans make
    equal files.

    algorithms: the algorithms that the plan uses, as used_algorithms() returns them.
    """
    return {
        "format": FORMAT, "version": VERSION,
        "device": {"api": device.api, "description": device.description,
                   "compute_units": device.limits.compute_units, "name": device.name},
        "made_by": {"driver": device.driver, "toolkit": device.toolkit,
                    "gossamer": PACKAGE_VERSION, "algorithms": algorithms},
        "strict": strict, "threads": threads,
    }


def write(path: Path, head: Mapping[str, Any], graph: Graph, choices: Mapping[str, Any]) -> None:
    """Write a file as a whole, or leave it unchanged.

    Raises InputError.
    """
    with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
        arrays = _Arrays(archive)
        plain = _encode(graph, arrays)
        for name, value in (("plan", head), ("graph", plain), ("choices", choices)):
            text = json.dumps(value, indent=1, allow_nan=False) + "\n"
            archive.writestr(_entry(f"{name}.json"), text)


def read(path: Path) -> tuple[dict[str, Any], Graph, dict[str, Any]]:
    """Return a file's header, graph and choices.

    Raises InputError if the file is not a valid plan, or if another version of gossamer wrote it.
    The error says what is wrong and what to do.
    """
    try:
        with open(path, "rb") as file, checked(path):
            if file.read(2) != b"PK":
                raise InputError(f"{path}: is not a plan saved by gossamer; {again(path)}")
            with zipfile.ZipFile(file) as archive:
                head = _header(path, archive)
                arrays = [_array(archive, index)
                          for index in range(sum(name.startswith("weights/")
                                                 for name in archive.namelist()))]
                graph = _decode(json.loads(_content(archive, "graph.json")), arrays)
                _check_graph(graph)
                graph.file = str(path)
                return head, graph, json.loads(_content(archive, "choices.json"))
    except OSError as error:
        raise InputError(f"{path}: the plan cannot be read: {error.strerror or error}"
                         f"{similar_file(path)}") from None


@contextmanager
def checked(path: Path) -> Iterator[None]:
    """Turn errors of a damaged file into InputErrors that name the file.
    """
    try:
        yield
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}; {again(path)}") from error
    except _BAD as error:
        raise InputError(f"{path}: is corrupt or cut short ({type(error).__name__}: {error}); "
                         f"{again(path)}") from error


def check_origin(path: Path, head: Mapping[str, Any], device: Device,
                 algorithms: Mapping[str, Any]) -> list[str]:
    """Raise InputError unless a plan was made as it would be made here.

    The plan must have been made for the same kind of device, with the same driver, toolkit and
    libraries. Its algorithms must be unchanged, because a config may mean something else in another
    version.

    Returns sentences on differences with which the plan stays valid. On the host, these are the
    number of processors and the toolkit, which may differ in a container, for example. NumPy
    computes the same results in spite of them.

    algorithms: the plan's algorithms in their current versions, as for header().
    """
    here = header(device, False, algorithms)
    planned, present = (_made_with(each, device, algorithms) for each in (head, here))
    for name in {**planned, **present}:
        if planned.get(name) != present.get(name):
            raise InputError(f"{path}: was made with {name} {planned.get(name) or 'none'}, but now "
                             f"it is {present.get(name) or 'none'}: its choices are not valid here;"
                             f" {again(path, device.name)}")
    for name, each in algorithms.items():
        if head["made_by"]["algorithms"][name]["source"] != each["source"]:
            raise InputError(f"{path}: was made before gossamer's {name} was changed; "
                             f"{again(path, device.name)}")
    texts = [f"{counted(each['device']['compute_units'], 'processor')}, "
             f"{each['made_by']['toolkit']}" for each in (head, here)]
    if device.compiles or texts[0] == texts[1]:
        return []
    return [f"{path}: was made with {texts[0]}, but the device here has {texts[1]}: its results "
            "are valid, but another choice may be faster here; to measure, "
            f"{again(path, device.name)}"]


def _made_with(head: Mapping[str, Any], device: Device, used: Iterable[str]) -> dict[str, Any]:
    """Return what must be unchanged when a plan is loaded, by name.

    used: names of the algorithms that the plan uses.
    """
    made_for, made_by = head["device"], head["made_by"]
    units = f", {made_for['compute_units']} compute units" if device.compiles else ""
    algorithms = {name: made_by["algorithms"][name] for name in used}
    return {"device": f"{made_for['description']} ({made_for['api']}{units})",
            "driver": made_by["driver"],
            **({"toolkit": made_by["toolkit"]} if device.compiles else {}),
            **{library: version for each in algorithms.values()
               for library, version in each["libraries"].items()}}


def _header(path: Path, archive: zipfile.ZipFile) -> dict[str, Any]:
    if "plan.json" not in archive.namelist():
        raise InputError(f"{path}: is not a plan saved by gossamer; {again(path)}")
    head = json.loads(_content(archive, "plan.json"))
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise InputError(f"{path}: is not a plan saved by gossamer; {again(path)}")
    if head["version"] != VERSION:
        age = "a newer" if head["version"] > VERSION else "an older"
        raise InputError(f"{path}: was written by {age} gossamer (plan format "
                         f"{head['version']}, this one reads {VERSION}); {again(path)}")
    if head["made_by"]["gossamer"] != PACKAGE_VERSION:
        raise InputError(f"{path}: was made by gossamer {head['made_by']['gossamer']}, this is "
                         f"{PACKAGE_VERSION}; {again(path)}")
    return head


def _entry(name: str) -> zipfile.ZipInfo:
    """Return a zip entry with a fixed date, so that equal plans make equal files.
    """
    return zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))


def _content(archive: zipfile.ZipFile, name: str) -> bytes:
    info = archive.getinfo(name)
    # save() never compresses entries; a small file with compressed entries might need much memory
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise ValueError(f"{name} is compressed or encrypted")
    return archive.read(info)


class _Arrays:
    """Writes arrays as entries of the file; equal arrays share an entry."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._indices: dict[bytes, int] = {}

    def index(self, array: np.ndarray) -> int:
        """Return the number of an array's entry; write the entry if it is new."""
        buffer = io.BytesIO()
        # the NPY format keeps the order of dimensions in memory, which may affect the rounding of
        # products
        np.lib.format.write_array(buffer, array, allow_pickle=False)
        data = buffer.getvalue()
        key = hashlib.sha256(data).digest()
        if key not in self._indices:
            self._indices[key] = len(self._indices)
            self._archive.writestr(_entry(f"weights/{self._indices[key]}.npy"), data)
        return self._indices[key]


def _array(archive: zipfile.ZipFile, index: int) -> np.ndarray:
    data = _content(archive, f"weights/{index}.npy")
    return npy.read_array(io.BytesIO(data), len(data))


def _encode(value: Any, arrays: _Arrays) -> Any:
    """Return a graph, or a part of one, as JSON values.

    A type that JSON lacks becomes a dict with one key, the name of the type.
    """
    kind = type(value).__name__
    if kind in _CLASSES:
        return {kind: {name: _encode(getattr(value, name), arrays) for name in _names(kind)}}
    if isinstance(value, ModelMetadata):
        return {"metadata": asdict(value)}
    if isinstance(value, dict):
        return {"dict": [[key, _encode(item, arrays)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_encode(item, arrays) for item in value]}
    if isinstance(value, list):
        return [_encode(item, arrays) for item in value]
    if isinstance(value, np.generic):
        return {"scalar": arrays.index(np.asarray(value))}
    if isinstance(value, np.ndarray):
        return {"array": arrays.index(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"an attribute is {quoted(value)}, which a saved plan cannot represent")


def _decode(value: Any, arrays: list[np.ndarray], *, names_only: bool = False) -> Any:
    """Return the value that _encode() turned into JSON values.

    names_only: whether every string must be an identifier, so that no other text can become part of
    a kernel's code.
    """
    def decoded(item: Any, field: str = "") -> Any:
        return _decode(item, arrays, names_only=names_only or field == "attributes")

    if names_only and isinstance(value, str) and not (value.isascii() and value.isidentifier()):
        raise ValueError(f"an attribute is the text {quoted(value)}")
    if isinstance(value, list):
        return list(map(decoded, value))
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind in _CLASSES:
        if [*content] != _names(kind):
            raise ValueError(f"a {kind} has the fields {quoted(', '.join(content))}")
        return _CLASSES[kind](**{name: decoded(item, name) for name, item in content.items()})
    if kind == "metadata":
        return metadata_of(content)
    if kind == "dict":
        return {key: decoded(item) for key, item in content}
    if kind == "tuple":
        return tuple(map(decoded, content))
    if kind == "scalar":
        return arrays[content][()]
    if kind == "array":
        return arrays[content]
    if kind == "float":
        return float(content)
    raise ValueError(f"an attribute of the kind {quoted(kind)}")


def _names(kind: str) -> list[str]:
    """Return the names of a class's fields that are stored."""
    return [field.name for field in fields(_CLASSES[kind]) if field.name != "file"]


def _check_graph(graph: Graph) -> None:
    """Raise ValueError, or another error of _BAD, for invalid values.
    """
    for info in (*graph.inputs, *graph.outputs, *graph.network_inputs, *graph.network_outputs):
        if not all(size is None or (type(size) is int and size >= 0) for size in info.shape) or (
                not isinstance(info.name, str) or not isinstance(info.dtype, str)):
            raise ValueError(f"an input or output is {quoted(info)}")
        if info.given is not None:
            info.given.check(info.name, info.shape, info.dtype)
        if info.returned_dtype and (info.dtype, info.returned_dtype) not in RETURNED:
            raise ValueError(f"an output is returned as {quoted(info.returned_dtype)}")
    for info in (*graph.inputs, *graph.outputs):
        if np.dtype(info.dtype).kind not in "biuf":
            raise ValueError(f"an input or output is {quoted(info)}")
    for infos in (graph.inputs, graph.network_inputs):
        if len({info.name for info in infos}) < len(infos):
            raise ValueError("two inputs have the same name")
    for key in ("warnings", "notes"):
        texts = getattr(graph, key)
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"its {key} are {quoted(texts)}")
