"""Hashes of the sources that decide what a module of gossamer does."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
from importlib import metadata
from pathlib import Path

from gossamer.device.source import DIALECT, files_of

_PACKAGE = Path(__file__).resolve().parents[1]
_FOLLOWED = ("gossamer.ops", "gossamer.expression", "gossamer.device.cuda.ptx",
             "gossamer.device.cuda.nvjitlink")
"""Every module whose name begins with one of these texts counts as a source of the modules that
import it."""
_LIBRARIES = {
    "cudnn": ("nvidia-cudnn-frontend", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "nvmath": ("nvmath-python", "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cusparse",
               "nvidia-cusparse-cu12"),
    "scipy": ("scipy",),
}
"""Modules that algorithms call, and the packages that contain the code of each."""
# Python's parser would take ten times as long as these regular expressions
_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)"
                     r"|import[ \t]+([^\n]*))", re.M)
_STRING = re.compile(r"""["']([\w.]+)["']""")


def sources(module: str) -> tuple[list[Path], dict[str, str]]:
    """Returns the files that decide what a module's algorithms do, and the versions of the packages
    that these files call. The files are: the module; the modules of _FOLLOWED that the module
    imports, directly or through other modules; the kernels of all these modules, and the headers
    that the kernels include; the headers of the dialect."""
    files = set(files_of(DIALECT))
    versions: dict[str, str] = {}
    waiting = [Path(str(sys.modules[module].__file__))]
    while waiting:
        path = waiting.pop()
        if path in files:
            continue
        files.add(path)
        kernels, modules, packages = _named_in(path)
        files.update(kernels)
        waiting += modules
        versions.update(packages)
    return sorted(files), versions


@functools.cache
def source_hash(module: str) -> str:
    """Returns a hash of the files and versions that decide what a module does; see `sources`. The
    hash is computed once in a process."""
    files, versions = sources(module)
    digest = hashlib.sha256(json.dumps(versions, sort_keys=True).encode())
    for path in files:
        digest.update(f"\0{path.name}\0".encode() + _content(path))
    return digest.hexdigest()[:16]


@functools.cache
def _named_in(path: Path) -> tuple[list[Path], list[Path], dict[str, str]]:
    """Returns three things that a module names: kernels, with the headers that they include; the
    files of modules of _FOLLOWED; and the packages that it calls, with their versions."""
    kernels: list[Path] = []
    modules: list[Path] = []
    versions: dict[str, str] = {}
    for name in _names(path):
        kernel = path.parent / name
        if kernel.suffix in (".cl", ".cu") and kernel.is_file():
            kernels += files_of(kernel)
        elif name.startswith(_FOLLOWED):
            modules += _module_files(name)
        else:
            versions.update(_versions(name.partition(".")[0]))
    return kernels, modules, versions


def _names(path: Path) -> tuple[str, ...]:
    """Returns the names that a module imports, and its strings that could name a file or module."""
    text = path.read_text(encoding="utf-8")
    names: dict[str, None] = {}
    for module, imported, modules in _IMPORT.findall(text):
        names.update(dict.fromkeys(re.findall(r"[\w.]+", modules)))
        if module and not module.startswith("."):
            names[module] = None
            names.update({f"{module}.{name}": None for name in re.findall(r"\w+", imported)})
    names.update(dict.fromkeys(_STRING.findall(text)))
    return tuple(names)


@functools.cache
def _content(path: Path) -> bytes:
    return path.read_bytes()


@functools.cache
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
