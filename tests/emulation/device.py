"""A device that runs the CUDA branch of kernels on the processor, to find their faults."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import struct
import subprocess
import tempfile
import time
import weakref
import zlib
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.device.base import Argument, Buffer, Device, Kernel
from gossamer.device.checks import check_transfer, check_view, self_check
from gossamer.device.kernel_cache import cached
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.errors import CompileError, DeviceError
from tests.emulation.translation import translated

HERE = Path(__file__).parent
MODES = {
    "plain": ("-O1",),
    "races": ("-O1", "-fsanitize=thread"),
    "bounds": ("-fsanitize=address,undefined", "-fsanitize-sections=shared_memory",
               "-fno-sanitize-recover=undefined"),
}
"""Options of g++ by mode. All modes find deadlocks. "races" also finds data races, and "bounds"
finds accesses out of bounds or not aligned and undefined arithmetic."""

_OPTIONS = ("-std=c++17", "-g1", "-w", f"-I{HERE}")
_HEADER = "tensor_cores.h"
"""The header that kernels begin with, which is precompiled. It includes shim.h."""
_ENVIRONMENT = {
    "TSAN_OPTIONS": "exitcode=66 halt_on_error=1 history_size=7 report_thread_leaks=0",
    "ASAN_OPTIONS": "exitcode=66 detect_leaks=0 detect_stack_use_after_return=0",
    "UBSAN_OPTIONS": "exitcode=66 print_stacktrace=1",
}
_SECONDS = 120
"""Seconds after which a launch is taken to be an endless loop."""


class KernelFault(DeviceError):
    """A fault of a kernel.

    The message is the report of the tool that found it.
    """

    def __init__(self, report: str) -> None:
        # the report has many lines, each of which may matter
        Exception.__init__(self, report)


class _Memory(Buffer):
    def __init__(self, device: EmulatedDevice, data: np.ndarray) -> None:
        self.device, self.bytes, self.nbytes = device, data, data.nbytes

    def view(self, offset: int, nbytes: int) -> Buffer:
        check_view(self, offset, nbytes)
        return _Memory(self.device, self.bytes[offset : offset + nbytes])

    @property
    def start(self) -> int:
        return int(self.bytes.ctypes.data)

    @property
    def end(self) -> int:
        return self.start + self.nbytes


class EmulatedKernel(Kernel):
    """A kernel as a program that executes one launch."""

    def __init__(self, source: KernelSource, program: Path) -> None:
        self.name, self.source, self.program = source.function, source, program


class EmulatedDevice(Device):
    """A device with the limits of an H200, whose launches are complete on return.

    mode: one of MODES. schedule: the rule that selects the next work-item where several could
    continue: 0 selects the first, 1 the last, and any other number is the seed of a random choice.
    start: words that precede each program on its command line.
    planted: code of kernels and the faulty code that replaces it.
    """

    api = "emulated"
    is_simulator = True

    def __init__(self, mode: str = "plain", schedule: int = 0) -> None:
        self.index, self.mode, self.schedule = 0, mode, schedule
        self.description, self.driver = f"CUDA's dialect on the processor ({mode})", _gxx_version()
        self.limits = Limits(
            compute_units=132, memory_bytes=2**37, shared_bytes=48 * 1024,
            shared_bytes_opt_in=227 * 1024,
            work_group_size=1024, subgroup_size=32, sure_work_group_size=1024,
            cache_bytes=60 << 20, mma=True, cluster=8)
        self.start: tuple[str, ...] = ()
        self.planted = ("", "")
        self._inputs = [self.driver, platform.machine(), *_OPTIONS, *MODES[mode],
                        *(path.read_text() for path in (*sorted(HERE.glob("*.h")),
                                                        HERE / "runtime.cpp"))]
        self._folder = Path(tempfile.mkdtemp(prefix="gossamer-emulation-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._kernels: dict[str, EmulatedKernel] = {}

    @cached_property
    def _runtime(self) -> Path:
        """The runtime as an object file, and beside it the precompiled header of kernels."""
        self._run_gxx("-x", "c++-header", str(HERE / _HEADER), *MODES[self.mode],
                      "-o", f"{_HEADER}.gch")
        return self._run_gxx(str(HERE / "runtime.cpp"), "-O1", "-c", "-o", "runtime.o")

    def compile(self, source: KernelSource) -> EmulatedKernel:
        text = translated(source)
        code, fault = self.planted
        if code:
            if text.count(code) != 1:
                raise ValueError(f"{source.path.name} has {code!r} {text.count(code)} times")
            text = text.replace(code, fault)
        if text not in self._kernels:
            name = f"{source.function}-{len(self._kernels)}"
            program = self._folder / name
            program.write_bytes(zlib.decompress(
                cached((text, *self._inputs), lambda: self._build(name, text))[0]))
            program.chmod(0o700)
            self._kernels[text] = EmulatedKernel(source, program)
        return self._kernels[text]

    def _build(self, name: str, text: str) -> bytes:
        """Return the program of a translation unit, compressed for the cache on disk."""
        unit = self._folder / f"{name}.cpp"
        unit.write_text(text)
        program = self._run_gxx(unit.name, *MODES[self.mode], str(self._runtime), "-o", name)
        return zlib.compress(program.read_bytes(), 1)

    def _run_gxx(self, *arguments: str) -> Path:
        """Run g++, whose last argument is the name of the file that it writes."""
        run = subprocess.run(["g++", *_OPTIONS, *arguments], cwd=self._folder,
                             capture_output=True, text=True)
        if run.returncode:
            raise CompileError(f"g++ cannot build {arguments[-1]}: {run.stderr}")
        return self._folder / arguments[-1]

    def another(self) -> EmulatedDevice:
        """Return a device with the same kernels, whose limits and schedule may change alone."""
        device = object.__new__(EmulatedDevice)
        vars(device).update(vars(self))
        return device

    def launch(self, kernel: Kernel, groups: Sequence[int], work_group_size: Sequence[int],
               arguments: Sequence[Argument], *, shared_bytes: int = 0,
               stream: Any = None) -> None:
        assert isinstance(kernel, EmulatedKernel)
        if 0 in groups:
            return
        self._check_fit(kernel, groups, work_group_size, shared_bytes)
        blocks = _blocks(arguments)
        run = subprocess.run(
            [*self.start, kernel.program], capture_output=True, timeout=_SECONDS,
            env={**os.environ, **_ENVIRONMENT},
            input=b"".join([
                struct.pack("@11i", *(*groups, 1, 1)[:3], *(*work_group_size, 1, 1)[:3],
                            shared_bytes, self.schedule, _cluster(kernel.source), len(blocks),
                            len(arguments)),
                struct.pack(f"@{len(blocks)}q", *(block.end - block.start for block in blocks)),
                *(_packed(argument, blocks) for argument in arguments),
                *(block.bytes.tobytes() for block in blocks)]))
        if run.returncode:
            raise KernelFault(f"{kernel.name} of {kernel.source.path.name} with "
                              f"{dict(kernel.source.defines)}, {tuple(groups)} groups of "
                              f"{tuple(work_group_size)}:\n{run.stderr.decode(errors='replace')}"
                              f"(exit status {run.returncode})")
        start = 0
        for block in blocks:
            size = block.end - block.start
            block.bytes[:] = np.frombuffer(run.stdout, np.uint8, size, start)
            start += size

    def _check_fit(self, kernel: EmulatedKernel, groups: Sequence[int],
                   work_group_size: Sequence[int], shared_bytes: int) -> None:
        if np.prod(work_group_size) > self.limits.work_group_size:
            raise DeviceError(f"{kernel.name}: {work_group_size} work-items in a work-group")
        if max(groups[1:], default=0) > 65535:
            raise DeviceError(f"{kernel.name}: {groups} groups")
        if shared_bytes > self.limits.shared_bytes_opt_in:
            raise DeviceError(f"{kernel.name}: {shared_bytes} bytes of shared memory")
        if bool(shared_bytes) > kernel.source.dynamic_shared:
            raise DeviceError(f"{kernel.name} takes no dynamic shared memory")

    def empty(self, nbytes: int, purpose: str, stream: Any = None) -> Buffer:
        return _Memory(self, np.full(nbytes, 0xFF, np.uint8))

    def upload(self, array: np.ndarray, purpose: str) -> Buffer:
        return _Memory(self, np.frombuffer(array.tobytes(), np.uint8).copy())

    def write(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        check_transfer(buffer, array)
        _bytes(buffer)[: array.nbytes] = array.reshape(-1).view(np.uint8)

    def read(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        check_transfer(buffer, array)
        array.reshape(-1).view(np.uint8)[...] = _bytes(buffer)[: array.nbytes]

    def copy(self, target: Buffer, source: Buffer, nbytes: int, stream: Any = None) -> None:
        _bytes(target)[:nbytes] = _bytes(source)[:nbytes]

    def synchronize(self, stream: Any = None) -> None:
        pass

    def create_stream(self) -> None:
        return None

    def time(self, work: Callable[[Any], None], stream: Any = None) -> float:
        start = time.perf_counter()
        work(stream)
        return (time.perf_counter() - start) * 1e6


def _bytes(buffer: Buffer) -> np.ndarray:
    assert isinstance(buffer, _Memory)
    return buffer.bytes


def _cluster(source: KernelSource) -> int:
    """Return the number of work-groups of a cluster, which kernels define as the macro CLUSTER."""
    return int(dict(source.defines).get("CLUSTER", 1))


class _Block:
    """Contiguous memory of a launch.

    Buffers that overlap share a block; every other buffer has its own block, so that its bounds are
    checked.
    """

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end

    @property
    def bytes(self) -> np.ndarray:
        return np.ctypeslib.as_array((ctypes.c_uint8 * (self.end - self.start)).from_address(
            self.start))


def _blocks(arguments: Sequence[Argument]) -> list[_Block]:
    blocks: list[_Block] = []
    for memory in sorted((a for a in arguments if isinstance(a, _Memory)),
                         key=lambda memory: (memory.start, -memory.end)):
        if blocks and memory.start < blocks[-1].end:
            blocks[-1].end = max(blocks[-1].end, memory.end)
        else:
            blocks.append(_Block(memory.start, memory.end))
    return blocks


def _packed(argument: Argument, blocks: Sequence[_Block]) -> bytes:
    if argument is None:
        return struct.pack("@iiq", 8, -2, 0)
    if isinstance(argument, _Memory):
        number = max(n for n, block in enumerate(blocks) if block.start <= argument.start)
        return struct.pack("@iiq", 8, number, argument.start - blocks[number].start)
    kind = {bool: np.int32, int: np.int32, float: np.float32}.get(type(argument), type(argument))
    value = np.array(argument, kind).tobytes()
    return struct.pack("@ii8s", len(value), -1, value)


Emulate = Callable[..., EmulatedDevice]
"""The fixture `emulate`: a function of a mode and a schedule, and of limits that differ."""


@cache
def emulated(mode: str = "plain", schedule: int = 0) -> EmulatedDevice:
    """Return the device of a mode and a schedule.

    Raises DeviceError that says why there is none.
    """
    if shutil.which("g++") is None:
        raise DeviceError("no g++ to build emulated kernels with; on Debian: apt-get install g++")
    if schedule:
        device = emulated(mode).another()
        device.schedule = schedule
        return device
    device = EmulatedDevice(mode)
    try:
        self_check(device)
    except KernelFault:
        # older sanitizers do not start with strong randomisation of addresses
        device.start = ("setarch", "-R")
        self_check(device)
    return device


def _gxx_version() -> str:
    return subprocess.run(["g++", "--version"], capture_output=True, text=True,
                          check=True).stdout.splitlines()[0]
