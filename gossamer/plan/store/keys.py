"""Keys of problems and algorithms, which are the same in every process."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import sys
from dataclasses import fields, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.device.source import DIALECT
from gossamer.ops.algorithm import Algorithm, Problem

_PACKAGE = Path(__file__).resolve().parents[2]
_FOLLOWED = ("gossamer.ops", "gossamer.expression", "gossamer.device.cuda.ptx",
             "gossamer.device.cuda.nvjitlink")
_LIBRARIES = {
    "cudnn": ("nvidia-cudnn-frontend", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "nvmath": ("nvmath-python", "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cusparse",
               "nvidia-cusparse-cu12"),
    "scipy": ("scipy",),
}
"""Modules that algorithms call, and the packages that contain the code of each."""
# parsing the files as Python takes ten times as long
_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)"
                     r"|import[ \t]+([^\n]*))", re.M)
_STRING = re.compile(r"""["']([\w.]+)["']""")


def canonical(problem: Problem) -> dict[str, Any]:
    """Returns every field of a problem as JSON values, less value facts where none are known;
    equal problems give equal text."""
    return _plain(problem)


def problem_key(problem: Problem) -> str:
    """Returns 32 hexadecimal digits that identify a problem."""
    text = json.dumps(canonical(problem), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def source_hash(algorithm: Algorithm) -> str:
    """Returns a hash of an algorithm's Python files and kernels, and of the versions of the
    packages that they call."""
    return _source_hash(type(algorithm).__module__)


def libraries(algorithm: Algorithm, device: Device) -> dict[str, str]:
    """Returns the versions of the packages that an algorithm calls, by package, and of the vendor's
    library on the device, which may be another than the one in the package."""
    _, versions = sources(type(algorithm).__module__)
    vendor_version = algorithm.version(device)
    return {**versions, algorithm.vendor: vendor_version} if vendor_version else versions


def identity(algorithm: Algorithm, device: Device) -> str:
    """Returns a text that identifies all that an algorithm runs on a device: its source hash, and
    the version of the vendor's library."""
    source, vendor_version = source_hash(algorithm), algorithm.version(device)
    return f"{source} {algorithm.vendor} {vendor_version}" if vendor_version else source


def sources(module: str) -> tuple[list[Path], dict[str, str]]:
    """Returns the files that decide what a module's algorithms do: its own, those that it imports
    from gossamer.ops, their kernels and the dialect. Also returns the versions of the packages
    that these call."""
    files = set(DIALECT)
    versions: dict[str, str] = {}
    waiting = [Path(str(sys.modules[module].__file__))]
    while waiting:
        path = waiting.pop()
        if path in files:
            continue
        files.add(path)
        for name in _names(path):
            kernel = path.parent / name
            if kernel.suffix in (".cl", ".cu", ".h") and kernel.is_file():
                files.add(kernel)
            elif name.startswith(_FOLLOWED):
                waiting += _module_files(name)
            else:
                versions.update(_versions(name.partition(".")[0]))
    return sorted(files), versions


@functools.cache
def _source_hash(module: str) -> str:
    files, versions = sources(module)
    digest = hashlib.sha256(json.dumps(versions, sort_keys=True).encode())
    for path in files:
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def _names(path: Path) -> tuple[str, ...]:
    """Returns what a module imports, and its strings that could name a file or a module."""
    text = path.read_text(encoding="utf-8")
    names: dict[str, None] = {}
    for module, imported, modules in _IMPORT.findall(text):
        names.update(dict.fromkeys(re.findall(r"[\w.]+", modules)))
        if module and not module.startswith("."):
            names[module] = None
            names.update({f"{module}.{name}": None for name in re.findall(r"\w+", imported)})
    names.update(dict.fromkeys(_STRING.findall(text)))
    return tuple(names)


def _module_files(name: str) -> list[Path]:
    path = _PACKAGE.parent.joinpath(*name.split("."))
    return [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]


@functools.cache
def _versions(module: str) -> dict[str, str]:
    versions = {}
    for package in _LIBRARIES.get(module, ()):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _plain(value: Any) -> Any:
    """Returns a value of a problem as JSON values. Raises TypeError where it has no fixed text."""
    if is_dataclass(value):
        plain = {field.name: _plain(getattr(value, field.name)) for field in fields(value)
                 if field.name != "facts" or getattr(value, field.name) != field.default}
        return {"op": value.op, **plain} if isinstance(value, Problem) else plain
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"a problem holds {value!r}, which has no fixed text")
