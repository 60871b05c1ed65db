"""PTX to cubins by nvJitLink; needs no driver and no GPU."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Sequence

from cuda.bindings import nvjitlink

from gossamer.device.cuda.nvrtc import BuildInfo
from gossamer.device.cuda.ptx import PtxProgram
from gossamer.errors import CompileError


def version() -> str:
    """The version of nvJitLink: "13.0"."""
    return "{}.{}".format(*nvjitlink.version())


def key(program: PtxProgram, architecture: str) -> tuple[str, ...]:
    """What names the program's cubin in the kernel cache."""
    return program.name, program.text, architecture, f"nvJitLink {version()}"


def build(program: PtxProgram, architecture: str, *, apart: bool = False
          ) -> tuple[bytes, BuildInfo]:
    """The program as a cubin for an architecture such as sm_90, and what the assembler says of
    it. apart: in a process of its own, since nvJitLink works on one program at a time within a
    process; that takes a fifth of a second to start.

    Raises CompileError with the assembler's log.
    """
    number = int("".join(filter(str.isdigit, architecture)))
    version = "8.0" if number <= 90 else "9.0"
    text = f".version {version}\n.target {architecture}\n.address_size 64\n{program.text}"
    options = [f"-arch={architecture}", "-verbose", "-Xptxas=-v"]
    cubin, log = (_link_in_a_process if apart else link)(text, options)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    registers = re.search(r"Used (\d+) registers", log)
    return cubin, BuildInfo(int(registers[1]) if registers else 0,
                            int(spills[1]) + int(spills[2]) if spills else 0, log)


def link(text: str, options: Sequence[str]) -> tuple[bytes, str]:
    """The cubin of a PTX text, and the log. Raises CompileError."""
    handle = nvjitlink.create(len(options), list(options))
    try:
        try:
            data = text.encode() + b"\0"
            nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), "PTX")
            nvjitlink.complete(handle)
        except nvjitlink.nvJitLinkError as error:
            said = _log(handle, nvjitlink.get_error_log_size, nvjitlink.get_error_log)
            raise CompileError(f"nvJitLink {version()} cannot assemble PTX ({error}): "
                               f"{said}") from None
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
    # what this process imports from, and (-P) not the folder that it happens to stand in
    folders = os.pathsep.join(each or os.getcwd() for each in sys.path)
    try:
        run = subprocess.run([sys.executable, "-P", "-m", "gossamer.device.cuda.nvjitlink"],
                             env={**os.environ, "PYTHONPATH": folders},
                             input=pickle.dumps((text, options)), capture_output=True)
    except OSError as error:
        raise CompileError(f"cannot start a process that assembles PTX: {error}") from None
    if run.returncode:
        said = run.stderr.decode(errors="replace").strip().splitlines()
        ended = (f"was ended by signal {-run.returncode}" if run.returncode < 0 else
                 f"failed with status {run.returncode}")
        raise CompileError(f"a process that assembles PTX {ended}" + (
            f": {said[-1]}" if said else "; is there too little memory?"))
    result = pickle.loads(run.stdout)
    if isinstance(result, str):
        raise CompileError(result)
    return result


def _work() -> None:
    """Links what comes in on standard input; the result, or the text of an error, goes out."""
    result: tuple[bytes, str] | str
    try:
        result = link(*pickle.load(sys.stdin.buffer))
    except CompileError as error:
        result = str(error)
    pickle.dump(result, sys.stdout.buffer)


if __name__ == "__main__":
    _work()
