"""Sources of kernels, and the hash of all files that decide what an algorithm does."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from gossamer.errors import CompileError
from gossamer.hashed_once import HashedOnce

_PACKAGE = Path(__file__).parents[1]
INCLUDE_ROOTS = (Path(__file__).parent / "include", _PACKAGE)
"""The folders in which the name of an included header is looked up, after the folder of the file
that includes it. compile_flags.txt names the same folders for clangd."""
DIALECT = INCLUDE_ROOTS[0] / "dialect" / "common.h"
"""The header that makes one source valid OpenCL C and CUDA C++."""
_EARLY_BEGIN = INCLUDE_ROOTS[0] / "ptx" / "griddepcontrol.h"
_INCLUDE = re.compile(r'[ \t]*#[ \t]*include[ \t]+"([^"]+)"')
_CONDITION = re.compile(r"[ \t]*#[ \t]*(if|endif)")


@dataclass(frozen=True)
class KernelSource(HashedOnce):
    """One kernel function of one file, specialised by macros.

    Attributes
    ----------
    path : pathlib.Path
        The `.cl` or `.cu` file, with `#include` directives for the headers that it needs.
    function : str
        Name of the kernel function.
    defines : tuple of (str, str)
        Names and values of macros, in order; a value may be any C text.
    architectures : tuple of (str, str)
        The oldest and the newest CUDA architecture for which tests build the kernel; a device
        builds it for its own architecture. ("sm_90a", "sm_90a") is given for a kernel with
        instructions that only sm_90a has.
    dynamic_shared : bool
        Whether the kernel has a DYNAMIC_SHARED array. In OpenCL this array is the kernel's last
        parameter, which DYNAMIC_SHARED_PARAMETER declares.
    """

    path: Path
    function: str
    defines: tuple[tuple[str, str], ...] = ()
    architectures: tuple[str, str] = ("sm_75", "sm_100")
    dynamic_shared: bool = False

    @staticmethod
    def of(path: Path, function: str, defines: Mapping[str, object] | None = None,
           **options: Any) -> KernelSource:
        """Return a source, with its macros given as a mapping.

        Parameters
        ----------
        path : pathlib.Path
            The kernel's file.
        function : str
            Name of the kernel function.
        defines : mapping of str to object, optional
            Values of the macros; each is converted by `str`.
        **options : Any
            Further attributes of KernelSource.

        Returns
        -------
        KernelSource
            The source.
        """
        items = tuple((name, str(value)) for name, value in (defines or {}).items())
        return KernelSource(path, function, items, **options)

    @property
    def begins_early(self) -> bool:
        """Whether CUDA may begin the kernel before the previous kernel in the stream has ended.

        True where the kernel's file includes ptx/griddepcontrol.h: such a kernel itself waits for
        the previous kernel before it reads its results. Devices make use of it from sm_90 on.
        Kernels of generated PTX have no file, and do not begin early.
        """
        return self.path.suffix != ".ptx" and _EARLY_BEGIN in files_of(self.path)

    def built_for(self, architecture: str) -> str:
        """Return the architecture for which the kernel is built on a device.

        Parameters
        ----------
        architecture : str
            The device's architecture, such as sm_90.

        Returns
        -------
        str
            The device's architecture; sm_90a in place of sm_90 where the kernel has instructions
            that only sm_90a has.
        """
        alone = f"{architecture}a"
        return alone if alone in self.architectures else architecture

    def text(self) -> str:
        """Return the full translation unit: macros, headers and the kernel's file.

        The text of each header replaces the header's first `#include`. Lines are numbered by
        `#line` directives, so that compilers and profilers name the file and line of the original.
        Files are named by their paths from the folder that contains the package.

        Returns
        -------
        str
            The text, without `#include` directives.

        Raises
        ------
        CompileError
            A header does not exist, or is included between `#if` and `#endif`.
        """
        lines = [f'#line 1 "macros of {self.function}"', "#define CONFIGURED"]
        lines += [f"#define {name} {_one_line(value)}" for name, value in self.defines]
        return "\n".join([*lines, _with_headers(self.path)[0]])


def files_of(path: Path) -> tuple[Path, ...]:
    """Return a kernel's file and the headers that it includes, directly or through other headers.

    Parameters
    ----------
    path : pathlib.Path
        A `.cl`, `.cu` or `.h` file.

    Returns
    -------
    tuple of pathlib.Path
        `path`, then the headers in the order of their first `#include`.

    Raises
    ------
    CompileError
        A header does not exist, or is included between `#if` and `#endif`.
    """
    return _with_headers(path)[1]


@cache
def _with_headers(path: Path) -> tuple[str, tuple[Path, ...]]:
    """Return the text of a file with its headers in place, and the paths of all these files.

    The result is cached, since hundreds of kernels may share a file.
    """
    lines: list[str] = []
    files: dict[Path, None] = {}
    _add_file(path, lines, files)
    return "\n".join([*lines, ""]), tuple(files)


def _add_file(path: Path, lines: list[str], files: dict[Path, None]) -> None:
    """Append the lines of a file, and the lines of headers that were not included before."""
    files[path] = None
    shown = path.relative_to(_PACKAGE.parent) if path.is_relative_to(_PACKAGE.parent) else path.name
    lines.append(f'#line 1 "{shown}"')
    depth = 0
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if include := _INCLUDE.match(line):
            if depth:
                # a header's text stands only at its first #include; a condition there could hide
                # it from files that include the header later
                raise CompileError(f"{shown}, line {number}: {include[1]} is included between #if "
                                   "and #endif; move the condition into the header")
            header = _header(include[1], path, number)
            if header in files:
                lines.append("")
            else:
                _add_file(header, lines, files)
                lines.append(f'#line {number + 1} "{shown}"')
        elif line.strip() == "#pragma once":
            # the pragma is left out: each header's text stands here once anyway, and compilers
            # warn of the pragma in a main file
            lines.append("")
        else:
            if condition := _CONDITION.match(line):
                depth += 1 if condition[1] == "if" else -1
            lines.append(line)


def _header(name: str, includer: Path, number: int) -> Path:
    """Return the path of a header.

    Raises CompileError, with the place of the `#include`, where the header does not exist.
    """
    for folder in (includer.parent, *INCLUDE_ROOTS):
        if (header := folder / name).is_file():
            return header
    raise CompileError(f"{includer.name}, line {number}: there is no header {name} in "
                       f"{', '.join(map(str, (includer.parent, *INCLUDE_ROOTS)))}")


def _one_line(text: str) -> str:
    return text.replace("\n", " \\\n")


_FOLLOWED = ("gossamer.ops", "gossamer.expression", "gossamer.device.cuda.ptx",
             "gossamer.device.cuda.nvjitlink", "gossamer.device.native")
"""The beginnings of the names of modules that count as sources of the modules that import them."""
_LIBRARIES = {
    "cudnn": ("nvidia-cudnn-frontend", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "nvmath": ("nvmath-python", "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cusparse",
               "nvidia-cusparse-cu12"),
    "scipy": ("scipy",),
    "llvmlite": ("llvmlite",),
}
"""Modules that algorithms call, and the packages that contain the code of each."""
# Python's parser would take ten times as long as these regular expressions
_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)"
                     r"|import[ \t]+([^\n]*))", re.M)
_STRING = re.compile(r"""["']([\w.]+)["']""")


def sources(module: str) -> tuple[list[Path], dict[str, str]]:
    """Return the files, and the versions of packages, that decide what a module does.

    The files are the module itself, the modules of _FOLLOWED that it imports directly or through
    other modules, the kernels that all these modules name, and the headers of the kernels and of
    the dialect. The packages are those of _LIBRARIES that these modules name.
    """
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
    """Return a hash of the files and versions that decide what a module does; see `sources`.

    The hash is computed once in a process.
    """
    files, versions = sources(module)
    digest = hashlib.sha256(json.dumps(versions, sort_keys=True).encode())
    for path in files:
        digest.update(f"\0{path.name}\0".encode() + _content(path))
    return digest.hexdigest()[:16]


@functools.cache
def _named_in(path: Path) -> tuple[list[Path], list[Path], dict[str, str]]:
    """Return the kernels, modules and packages that a module names.

    The kernels come with their headers, the modules are those of _FOLLOWED, and the packages come
    with their versions.
    """
    kernels: list[Path] = []
    modules: list[Path] = []
    versions: dict[str, str] = {}
    for name in _names(path):
        kernel = path.parent / name
        if kernel.suffix in (".cl", ".cu", ".ll") and kernel.is_file():
            kernels += files_of(kernel)
        elif name.startswith(_FOLLOWED):
            modules += _module_files(name)
        else:
            versions.update(_versions(name.partition(".")[0]))
    return kernels, modules, versions


def _names(path: Path) -> tuple[str, ...]:
    """Return the names that a module imports, and its strings that could name a file or module."""
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
    path = _PACKAGE.resolve().parent.joinpath(*name.split("."))
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
