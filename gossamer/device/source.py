"""The source of a kernel function: its file, the headers that it includes, and macros."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
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
        The oldest CUDA architecture that the kernel is for, and the newest for which tests build
        it; a device builds it for its own architecture. A name that ends in "a", such as sm_90a,
        means this architecture alone: the kernel uses instructions that no other architecture has.
    dynamic_shared : bool
        Whether the kernel has a DYNAMIC_SHARED array, which in OpenCL is its last parameter, a
        DYNAMIC_SHARED_PARAMETER.
    """

    path: Path
    function: str
    defines: tuple[tuple[str, str], ...] = ()
    architectures: tuple[str, str] = ("sm_75", "sm_100")
    dynamic_shared: bool = False

    @staticmethod
    def of(path: Path, function: str, defines: Mapping[str, object] | None = None,
           **options: Any) -> KernelSource:
        """Return a source whose macros are given as a mapping.

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

        True where the kernel's file includes ptx/griddepcontrol.h, by which the kernel itself waits
        for the end of the previous kernel. Devices begin such kernels early from sm_90 on.
        Generated PTX has no file, and does not begin early.
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
        `#line` directives, so that compilers and profilers name the file and the line of a kernel
        or a header. The file is named by its path from the folder that contains the package.

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
        return "\n".join([*lines, _put_together(self.path)[0]])


def files_of(path: Path) -> tuple[Path, ...]:
    """Return a kernel's file and the headers that it includes, directly or through other headers.

    Parameters
    ----------
    path : pathlib.Path
        A `.cl`, `.cu` or `.h` file.

    Returns
    -------
    tuple of pathlib.Path
        `path`, then the headers in the order in which their text begins.

    Raises
    ------
    CompileError
        A header does not exist, or is included between `#if` and `#endif`.
    """
    return _put_together(path)[1]


@cache
def _put_together(path: Path) -> tuple[str, tuple[Path, ...]]:
    """Return the text of a file with the headers that it includes, and the paths of these files.

    Hundreds of kernels may share a file, so the text is put together only once.
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
                # a header's text is put in only once: a condition round this text could hide the
                # text from files that include the header later
                raise CompileError(f"{shown}, line {number}: {include[1]} is included between #if "
                                   "and #endif; move the condition into the header")
            header = _header(include[1], path, number)
            if header in files:
                lines.append("")
            else:
                _add_file(header, lines, files)
                lines.append(f'#line {number + 1} "{shown}"')
        elif line.strip() == "#pragma once":
            # `#pragma once` is left out: each header's text is put in once anyway, and compilers
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
