"""Compilation of kernels to cubins by NVRTC, without a driver or GPU."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass

from cuda.bindings import nvrtc
from cuda.core import Program, ProgramOptions

from gossamer.device.source import KernelSource
from gossamer.errors import CompileError

OPTIONS = "std=c++17 fma=true minimal=true"
"""The compiler options that are part of a cubin's key in the kernel cache."""


@dataclass(frozen=True)
class BuildInfo:
    """The assembler's report on a kernel.

    registers: registers per thread.
    spill_bytes: bytes of register spills per thread, as the sum of stores to and loads from local
    memory.
    log: the assembler's log, including warnings.
    """

    registers: int
    spill_bytes: int
    log: str

    @staticmethod
    def of(report: str, log: str) -> BuildInfo:
        """Parse the assembler's report on one kernel; missing numbers are 0."""
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
        registers = re.search(r"Used (\d+) registers", report)
        return BuildInfo(
            registers=int(registers[1]) if registers else 0,
            spill_bytes=int(spills[1]) + int(spills[2]) if spills else 0,
            log=log)


def version() -> str:
    """Return the version of NVRTC, for example "13.0"."""
    _, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}"


def key(source: KernelSource, architecture: str) -> tuple[str, ...]:
    """Return the kernel-cache key of a kernel's cubin."""
    return source.text(), source.function, OPTIONS, architecture, version()


def compile_cubin(source: KernelSource, architecture: str) -> tuple[bytes, BuildInfo]:
    """Compile a kernel to a cubin, and return it with the assembler's report.

    Division and square root are rounded according to IEEE 754, denormals are preserved, and a
    multiplication followed by an addition is contracted to an FMA instruction.

    architecture: for example sm_90.
    Raises CompileError with the compiler's log.
    """
    log = io.StringIO()
    options = ProgramOptions(
        name=source.path.name, arch=architecture, std="c++17",
        fma=True, ptxas_options=["-v"],
        # omitting the declarations of textures and of the runtime saves 4 ms of parsing
        minimal=True,
        # a cubin from cuda.core's own cache has no report, and kernel_cache stores cubins anyway
        no_cache=True)
    try:
        program = Program(source.text(), "c++", options)
        cubin = bytes(program.compile("cubin", logs=log).code)
    except Exception as error:  # cuda.core has no public class for compiler errors
        raise CompileError(f"NVRTC {version()} cannot build {source.function} of "
                           f"{source.path.name} for {architecture}: {error}") from None
    return cubin, _build_info(log.getvalue(), source.function)


def _build_info(log: str, function: str) -> BuildInfo:
    """Return the log's report on one function.

    Raises CompileError if the log does not contain the function.
    """
    _, heading, report = log.partition(f"Function properties for {function}\n")
    if not heading:
        raise CompileError(f"the build contains no kernel {function}; build log: {log}")
    return BuildInfo.of(report.split("Function properties for", 1)[0], log)
