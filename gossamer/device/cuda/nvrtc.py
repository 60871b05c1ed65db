"""Compiles kernels to cubins by NVRTC, which needs no driver and no GPU."""

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
    """What the assembler reports on a kernel.

    registers: registers of each thread.
    spill_bytes: bytes that each thread stores to and loads from thread-local memory because its
    registers do not suffice.
    log: the assembler's log, warnings included.
    """

    registers: int
    spill_bytes: int
    log: str

    @staticmethod
    def of(report: str, log: str) -> BuildInfo:
        """Return the numbers in the assembler's report on one kernel. A number that the report
        lacks is 0."""
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
        registers = re.search(r"Used (\d+) registers", report)
        return BuildInfo(
            registers=int(registers[1]) if registers else 0,
            spill_bytes=int(spills[1]) + int(spills[2]) if spills else 0,
            log=log)


def version() -> str:
    """Return the version of NVRTC, such as "13.0"."""
    _, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}"


def key(source: KernelSource, architecture: str) -> tuple[str, ...]:
    """Return the key of a kernel's cubin in the kernel cache."""
    return source.text(), source.function, OPTIONS, architecture, version()


def compile_cubin(source: KernelSource, architecture: str) -> tuple[bytes, BuildInfo]:
    """Return the cubin of a kernel for an architecture such as sm_90, and the assembler's report.

    Division and square root are rounded as IEEE 754 says, denormals are kept, and a multiplication
    followed by an addition is contracted to one FMA instruction.
    Raises CompileError with the compiler's log.
    """
    log = io.StringIO()
    options = ProgramOptions(
        name=source.path.name, arch=architecture, std="c++17",
        fma=True, ptxas_options=["-v"],
        # without the declarations of textures and of the runtime, parsing takes 4 ms less
        minimal=True,
        # a build from cuda.core's own cache has no report, and kernel_cache stores cubins anyway
        no_cache=True)
    try:
        program = Program(source.text(), "c++", options)
        cubin = bytes(program.compile("cubin", logs=log).code)
    except Exception as error:  # cuda.core has no public class for compiler errors
        raise CompileError(f"NVRTC {version()} cannot build {source.function} of "
                           f"{source.path.name} for {architecture}: {error}") from None
    return cubin, _build_info(log.getvalue(), source.function)


def _build_info(log: str, function: str) -> BuildInfo:
    """Return what the log reports on one function. Raises CompileError where it names none."""
    _, heading, report = log.partition(f"Function properties for {function}\n")
    if not heading:
        raise CompileError(f"the build has no kernel {function}; its log: {log}")
    return BuildInfo.of(report.split("Function properties for", 1)[0], log)
