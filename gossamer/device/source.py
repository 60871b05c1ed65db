"""The source of a kernel function: its file, headers and macros."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gossamer.hashed_once import HashedOnce

DIALECT = tuple(Path(__file__).parent / "dialect" / f"{name}.h"
                for name in ("opencl", "cuda", "common"))
"""The headers that make one source valid OpenCL C and CUDA C++, in the order in which they
precede a kernel."""


@dataclass(frozen=True)
class KernelSource(HashedOnce):
    """One kernel function of one file, specialised by macros.

    Attributes
    ----------
    path : pathlib.Path
        The `.cl` or `.cu` file; the headers of DIALECT precede the text of a `.cl` file.
    function : str
        Name of the kernel function.
    defines : tuple of (str, str)
        Names and values of macros, in order; a value may be any C text.
    architectures : tuple of (str, str)
        The oldest and the newest CUDA architecture for which the kernel is built. A name that ends
        in "a", such as sm_90a, stands for that architecture alone, with the instructions that only
        it has.
    dynamic_shared : bool
        Whether the kernel takes a DYNAMIC_SHARED_PARAMETER as its last parameter.
    headers : tuple of pathlib.Path
        Files that several kernels share; they precede the kernel's own file.
    begins_early : bool
        Whether CUDA may begin the kernel before the one before it in the stream has ended, from
        sm_90 on. The kernel then waits for that itself (griddepcontrol.wait) before it reads or
        writes memory that others write.
    """

    path: Path
    function: str
    defines: tuple[tuple[str, str], ...] = ()
    architectures: tuple[str, str] = ("sm_75", "sm_100")
    dynamic_shared: bool = False
    headers: tuple[Path, ...] = ()
    begins_early: bool = False

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

    def built_for(self, architecture: str) -> str:
        """Return the architecture for which the kernel is built on a device.

        Parameters
        ----------
        architecture : str
            The device's architecture, such as sm_90.

        Returns
        -------
        str
            The same, or such as sm_90a where the kernel has instructions of it alone.
        """
        alone = f"{architecture}a"
        return alone if alone in self.architectures else architecture

    def text(self) -> str:
        """Return the full translation unit: macros, headers and the kernel's file."""
        lines = [f"#define {name} {_one_line(value)}" for name, value in self.defines]
        if self.path.suffix == ".cl":
            lines += map(_text, DIALECT)
        lines += map(_text, (*self.headers, self.path))
        return "\n".join(lines)


@cache
def _text(path: Path) -> str:
    """Return the text of a file, which hundreds of kernels may share."""
    return path.read_text()


def _one_line(text: str) -> str:
    return text.replace("\n", " \\\n")
