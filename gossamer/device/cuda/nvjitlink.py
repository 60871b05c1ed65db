"""Assembly of PTX to cubins by nvJitLink, which needs no driver and no GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cuda.bindings import nvjitlink

from gossamer.device.cuda.nvrtc import BuildInfo
from gossamer.device.cuda.ptx import PtxProgram
from gossamer.errors import CompileError


def version() -> str:
    """Return the version of nvJitLink, such as "13.0"."""
    return "{}.{}".format(*nvjitlink.version())


def key(program: Sequence[str], architecture: str) -> tuple[str, ...]:
    """Return the kernel-cache key of a program's cubin.

    program: texts that identify the program; see `Device.assemble`.
    """
    return (*program, "\n".join([_heading(architecture), *_options(architecture)]),
            f"nvJitLink {version()}")


def build(program: PtxProgram, architecture: str) -> tuple[bytes, BuildInfo]:
    """Assemble a program, and return the cubin and the assembler's report.

    Within one process, nvJitLink assembles only one program at a time.

    architecture: for example sm_90.
    Raises CompileError with the assembler's log.
    """
    cubin, log = link(_heading(architecture) + program.text, _options(architecture))
    return cubin, BuildInfo.of(log, log)


def assembled(generate: Callable[[], PtxProgram], architecture: str) -> bytes:
    """Return the cubin of a generated program."""
    return build(generate(), architecture)[0]


def _heading(architecture: str) -> str:
    """Return the header lines of a PTX module."""
    number = int("".join(filter(str.isdigit, architecture)))
    version = "8.0" if number <= 90 else "9.0"
    return f".version {version}\n.target {architecture}\n.address_size 64\n"


def _options(architecture: str) -> list[str]:
    return [f"-arch={architecture}", "-verbose", "-Xptxas=-v"]


def link(text: str, options: Sequence[str]) -> tuple[bytes, str]:
    """Return the cubin of a PTX text, and the log. Raises CompileError with the error log."""
    handle = nvjitlink.create(len(options), list(options))
    try:
        try:
            data = text.encode() + b"\0"
            nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), "PTX")
            nvjitlink.complete(handle)
        except nvjitlink.nvJitLinkError as error:
            error_log = _log(handle, nvjitlink.get_error_log_size, nvjitlink.get_error_log)
            raise CompileError(f"nvJitLink {version()} cannot assemble PTX ({error}): "
                               f"{error_log}") from None
        code = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, code)
        return bytes(code), _log(handle, nvjitlink.get_info_log_size, nvjitlink.get_info_log)
    finally:
        nvjitlink.destroy(handle)


def _log(handle: int, size: Callable[[int], int], get: Callable[[int, bytearray], object]) -> str:
    text = bytearray(size(handle))
    get(handle, text)
    return text.decode(errors="replace").strip("\0 \n")
