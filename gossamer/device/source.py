"""Kernel sources, and the hash of all sources of an algorithm."""

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
"""The folders that are searched for included headers, after the folder of the including file.

compile_flags.txt lists the same folders for clangd.
"""
DIALECT = INCLUDE_ROOTS[0] / "dialect" / "common.h"
"""The header that makes a source valid both as OpenCL C and as CUDA C++."""
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
        The oldest and the newest CUDA architecture for which tests build the kernel. Devices build
        the kernel for their own architecture. Kernels with instructions specific to sm_90a must
        specify ("sm_90a", "sm_90a").
    dynamic_shared : bool
        Whether the kernel has a DYNAMIC_SHARED array. In OpenCL, DYNAMIC_SHARED_PARAMETER declares
        this array as the last parameter of the kernel.
    """

    path: Path
    function: str
    defines: tuple[tuple[str, str], ...] = ()
    architectures: tuple[str, str] = ("sm_75", "sm_100")
    dynamic_shared: bool = False

    @staticmethod
    def of(path: Path, function: str, defines: Mapping[str, object] | None = None,
           **options: Any) -> KernelSource:
        """Create a source with macros from a mapping.

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
        """Whether CUDA may begin the kernel before the previous kernel has ended.

        True if the kernel's file includes ptx/griddepcontrol.h: such a kernel waits for the
        previous kernel in the stream before it reads that kernel's results. Devices since sm_90
        support this. Generated PTX kernels have no file and do not begin early.
        """
        return self.path.suffix != ".ptx" and _EARLY_BEGIN in files_of(self.path)

    def built_for(self, architecture: str) -> str:
        """Return the target architecture of the kernel on a device.

        Parameters
        ----------
        architecture : str
            The device's architecture, such as sm_90.

        Returns
        -------
        str
            The device's architecture. Exception: sm_90a on sm_90, for a kernel with instructions
            specific to sm_90a.
        """
        alone = f"{architecture}a"
        return alone if alone in self.architectures else architecture

    def text(self) -> str:
        """Return the full translation unit: macros, headers and the kernel's file.

        The text of each header replaces the first `#include` of this header. `#line` directives
        make compilers and profilers report the original file and line. File names are relative to
        the folder that contains the package.

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
    """Return a kernel's file and the headers that it includes transitively.

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
    """Return the text of a file with its headers expanded, and all file paths.

    The result is cached, because hundreds of kernels may share a file.
    """
    lines: list[str] = []
    files: dict[Path, None] = {}
    _add_file(path, lines, files)
    return "\n".join([*lines, ""]), tuple(files)


def _add_file(path: Path, lines: list[str], files: dict[Path, None]) -> None:
    """Append the lines of a file, with headers that were not yet included."""
    files[path] = None
    shown = path.relative_to(_PACKAGE.parent) if path.is_relative_to(_PACKAGE.parent) else path.name
    lines.append(f'#line 1 "{shown}"')
    depth = 0
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if include := _INCLUDE.match(line):
            if depth:
                # a header is expanded only at its first #include; a condition around this #include
                # could hide the header from files that include it later
                raise CompileError(f"{shown}, line {number}: {include[1]} is included between #if "
                                   "and #endif; move the condition into the header")
            header = _header(include[1], path, number)
            if header in files:
                lines.append("")
            else:
                _add_file(header, lines, files)
                lines.append(f'#line {number + 1} "{shown}"')
        elif line.strip() == "#pragma once":
            # drop the pragma: each header is expanded only once anyway, and compilers warn about
            # the pragma in a main file
            lines.append("")
        else:
            if condition := _CONDITION.match(line):
                depth += 1 if condition[1] == "if" else -1
            lines.append(line)


def _header(name: str, includer: Path, number: int) -> Path:
    """Return the path of a header.

    Raises CompileError with the location of the `#include` if the header does not exist.
    """
    for folder in (includer.parent, *INCLUDE_ROOTS):
        if (header := folder / name).is_file():
            return header
    raise CompileError(f"{includer.name}, line {number}: header {name} not found in "
                       f"{', '.join(map(str, (includer.parent, *INCLUDE_ROOTS)))}")


def _one_line(text: str) -> str:
    return text.replace("\n", " \\\n")


_FOLLOWED = ("gossamer.ops", "gossamer.expression", "gossamer.device.cuda.ptx",
             "gossamer.device.cuda.nvjitlink", "gossamer.device.native")
"""Prefixes of module names.

Imported modules with these prefixes count as sources of the module that imports them.
"""
_LIBRARIES = {
    "cudnn": ("nvidia-cudnn-frontend", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "nvmath": ("nvmath-python", "nvidia-cublas", "nvidia-cublas-cu12"),
    "scipy": ("scipy",),
    "llvmlite": ("llvmlite",),
}
"""The modules of libraries that algorithms call, each with the packages that contain its code."""
# regular expressions find the imports, because Python's parser takes ten times as long
_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)"
                     r"|import[ \t]+([^\n]*))", re.M)
_STRING = re.compile(r"""["']([\w.]+)["']""")


def sources(module: str) -> tuple[list[Path], dict[str, str]]:
    """Return the files and package versions that determine a module's behaviour.

    The files are the module, its transitive imports among _FOLLOWED, the kernels that these modules
    name, the headers of these kernels, and the headers of the dialect. The packages are those
    that _LIBRARIES lists for the libraries named in these modules.
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
    """Return a hash of the sources of a module; see `sources`.

    The hash is computed once per process.
    """
    files, versions = sources(module)
    digest = hashlib.sha256(json.dumps(versions, sort_keys=True).encode())
    for path in files:
        digest.update(f"\0{path.name}\0".encode() + _content(path))
    return digest.hexdigest()[:16]


@functools.cache
def _named_in(path: Path) -> tuple[list[Path], list[Path], dict[str, str]]:
    """Return the kernels, modules and packages that a module names.

    The kernels include their headers, the modules are only those of _FOLLOWED, and the packages are
    returned with their versions.
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
    """Return a module's imports, and its strings that may name files or modules."""
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
