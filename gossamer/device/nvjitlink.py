"""PTX to cubins by nvJitLink, in parallel processes; needs no driver and no GPU."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from cuda.bindings import nvjitlink

from gossamer.device.nvrtc import BuildInfo
from gossamer.device.ptx import PtxProgram
from gossamer.errors import CompileError

_LINES_A_PROCESS = 6_000
"""Lines of PTX for which a process pays: half a second's work, its start takes a fifth."""


def version() -> str:
    """The version of nvJitLink: "13.0"."""
    return "{}.{}".format(*nvjitlink.version())


def key(program: PtxProgram, architecture: str) -> tuple[str, ...]:
    """What names the program's cubin in the kernel cache."""
    return (program.name, program.entry, *program.parts, str(program.registers), architecture,
            f"nvJitLink {version()}")


def build(program: PtxProgram, architecture: str) -> tuple[bytes, BuildInfo]:
    """The program as a cubin for an architecture such as sm_90, and what the assembler says of it.
    Its parts are assembled in as many processes as there are processors, where they are long.

    Raises CompileError with the assembler's log.
    """
    options = [f"-arch={architecture}", "-verbose", "-Xptxas=-v"]
    header = _header(architecture)
    shares = _shares(program.parts)
    assemble = link if len(shares) < 2 else _link_in_a_process
    with ThreadPoolExecutor(max(len(shares), 1)) as pool:
        done = list(pool.map(lambda share: assemble(
            [header + "\n".join(share)],
            [*options, "-r", f"-maxrregcount={program.registers}"]), shares))
    cubin, log = link([*(code for code, _ in done), header + program.entry], options)
    text = "\n".join([*(log for _, log in done), log])
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
    registers = re.search(r"used (\d+) registers", log)
    return cubin, BuildInfo(int(registers[1]) if registers else 0,
                            sum(int(stored) + int(loaded) for stored, loaded in spills), text)


def link(inputs: Sequence[str | bytes], options: Sequence[str]) -> tuple[bytes, str]:
    """One object of PTX texts and objects, and the log. Raises CompileError."""
    handle = nvjitlink.create(len(options), list(options))
    try:
        try:
            for index, each in enumerate(inputs):
                kind = nvjitlink.InputType
                data = each.encode() + b"\0" if isinstance(each, str) else each
                nvjitlink.add_data(handle, kind.PTX if isinstance(each, str) else kind.CUBIN,
                                   data, len(data), f"input {index}")
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


def _header(architecture: str) -> str:
    number = int("".join(filter(str.isdigit, architecture)))
    return (f".version {'8.0' if number <= 90 else '9.0'}\n.target {architecture}\n"
            ".address_size 64\n")


def _shares(parts: Sequence[str]) -> list[list[str]]:
    """The parts in as many shares of like length as there are processors, fewer where a process
    would not pay."""
    lines = sum(part.count("\n") for part in parts)
    count = max(1, min(_processors(), len(parts), lines // _LINES_A_PROCESS))
    shares: list[list[str]] = [[] for _ in range(count)]
    lengths = [0] * count
    for part in sorted(parts, key=len, reverse=True):
        shortest = lengths.index(min(lengths))
        shares[shortest].append(part)
        lengths[shortest] += len(part)
    return [share for share in shares if share]


def _processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (
        os.cpu_count() or 1)


def _link_in_a_process(inputs: Sequence[str], options: Sequence[str]) -> tuple[bytes, str]:
    """As link: within a process nvJitLink works on one program at a time."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run([sys.executable, "-m", "gossamer.device.nvjitlink"], env=environment,
                         input=pickle.dumps((inputs, options)), capture_output=True)
    if run.returncode:
        raise CompileError("a process that assembles PTX failed: "
                           + run.stderr.decode(errors="replace").strip()[-2000:])
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
