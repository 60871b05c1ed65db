"""Assembly of PTX to cubins by nvJitLink, which needs no driver and no GPU."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from cuda.bindings import nvjitlink

from gossamer.device.cuda import cubins
from gossamer.device.cuda.nvrtc import BuildInfo
from gossamer.device.cuda.ptx import PtxProgram
from gossamer.errors import CompileError


def version() -> str:
    """Return the version of nvJitLink, such as "13.0"."""
    return "{}.{}".format(*nvjitlink.version())


def key(programs: Sequence[str], architecture: str) -> tuple[str, ...]:
    """Return the kernel-cache key of the cubins of some programs.

    programs: texts that identify the programs; see `Device.assemble`.
    """
    return (*programs, "\n".join([_heading(architecture), *_options(architecture)]),
            f"nvJitLink {version()}")


def build(program: PtxProgram, architecture: str, *, apart: bool = False
          ) -> tuple[bytes, BuildInfo]:
    """Assemble a program, and return the cubin and the assembler's report.

    architecture: for example sm_90.
    apart: whether to assemble in a new process, which takes 0.2 seconds to start. Within one
    process, nvJitLink assembles only one program at a time.
    Raises CompileError with the assembler's log.
    """
    text = _heading(architecture) + program.text
    cubin, log = (_link_in_a_process if apart else link)(text, _options(architecture))
    return cubin, BuildInfo.of(log, log)


def build_all(programs: Sequence[PtxProgram], architecture: str, *, one_here: bool = False
              ) -> list[bytes]:
    """Assemble programs concurrently, each in a separate process, and return the cubins.

    one_here: whether to assemble the first program in this process instead.
    Raises CompileError with the assembler's log.
    """
    def assembled(index: int) -> bytes:
        return build(programs[index], architecture, apart=index > 0 or not one_here)[0]

    with ThreadPoolExecutor(max(len(programs), 1)) as pool:
        return list(pool.map(assembled, range(len(programs))))


def assembled(generate: Callable[[], Sequence[PtxProgram]], architecture: str,
              one_here: bool) -> bytes:
    """Return the cubins of generated programs as one entry of the kernel cache.

    one_here: see build_all().
    """
    programs = generate()
    return cubins.joined([program.name for program in programs],
                         build_all(programs, architecture, one_here=one_here))


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


def _link_in_a_process(text: str, options: Sequence[str]) -> tuple[bytes, str]:
    # the new process imports from the same folders as this one; -P keeps the working folder off its
    # sys.path
    folders = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    try:
        run = subprocess.run([sys.executable, "-P", "-m", "gossamer.device.cuda.nvjitlink"],
                             env={**os.environ, "PYTHONPATH": folders},
                             input=pickle.dumps((text, options)), capture_output=True)
    except OSError as error:
        raise CompileError(f"cannot start a process that assembles PTX: {error}") from None
    if run.returncode:
        error_lines = run.stderr.decode(errors="replace").strip().splitlines()
        outcome = (f"was ended by signal {-run.returncode}" if run.returncode < 0 else
                   f"failed with status {run.returncode}")
        raise CompileError(f"a process that assembles PTX {outcome}" + (
            f": {error_lines[-1]}" if error_lines else "; is there too little memory?"))
    result = pickle.loads(run.stdout)
    if isinstance(result, str):
        raise CompileError(result)
    return result


def _work() -> None:
    """Assemble pickled PTX from standard input and write the pickled result to standard output.

    The input is the PTX text and the options; the result is the cubin and the log, or the text of
    an error.
    """
    result: tuple[bytes, str] | str
    try:
        result = link(*pickle.load(sys.stdin.buffer))
    except CompileError as error:
        result = str(error)
    pickle.dump(result, sys.stdout.buffer)


if __name__ == "__main__":
    _work()
