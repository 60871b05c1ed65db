"""Kernels to cubins by NVRTC; needs no driver and no GPU."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass

from cuda.bindings import nvrtc
from cuda.core import Program, ProgramOptions

from gossamer.device.base import KernelSource
from gossamer.errors import CompileError

OPTIONS = "std=c++17 fma=true"
"""What distinguishes our builds from others', for cache keys."""


@dataclass(frozen=True)
class BuildInfo:
    """What the assembler tells of a kernel: registers a thread, bytes a thread spilled to
    off-chip memory (stores and loads together), and its log, warnings included."""

    registers: int
    spill_bytes: int
    log: str


def version() -> str:
    """The version of NVRTC: "13.0"."""
    _, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}"


def compile_cubin(source: KernelSource, architecture: str) -> tuple[bytes, BuildInfo]:
    """A kernel built for an architecture such as sm_90.

    Strict arithmetic: IEEE division and square root, denormals kept, multiply-adds contracted.
    Raises CompileError with the compiler's log.
    """
    log = io.StringIO()
    options = ProgramOptions(
        name=source.path.name, arch=architecture, std="c++17", fma=True, ptxas_options=["-v"],
        # a cached build comes without the report; kernel_cache keeps our own
        no_cache=True)
    try:
        program = Program(source.text(), "c++", options)
        cubin = bytes(program.compile("cubin", logs=log).code)
    except Exception as error:  # cuda.core has no public class for compiler errors
        raise CompileError(f"NVRTC {version()} cannot build {source.function} of "
                           f"{source.path.name} for {architecture}: {error}") from None
    return cubin, _build_info(log.getvalue(), source.function)


def _build_info(log: str, function: str) -> BuildInfo:
    """Reads the assembler's report on one function."""
    _, found, report = log.partition(f"Function properties for {function}\n")
    if not found:
        raise CompileError(f"the build has no kernel {function}; its log: {log}")
    report = report.split("Function properties for", 1)[0]
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
    registers = re.search(r"Used (\d+) registers", report)
    return BuildInfo(
        registers=int(registers[1]) if registers else 0,
        spill_bytes=int(spills[1]) + int(spills[2]) if spills else 0,
        log=log,
    )
