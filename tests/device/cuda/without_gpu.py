"""A device for which kernels are built where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from gossamer.device import kernel_cache
from gossamer.device.base import Argument, Buffer, Device, Kernel
from gossamer.device.checks import check_transfer, check_view
from gossamer.device.cuda import nvjitlink, nvrtc
from gossamer.device.cuda.ptx import PtxProgram
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource


@dataclass(frozen=True)
class BuildOnlyMaker:
    """The facts about a CUDA device. Calling the object makes a BuildOnlyDevice with them."""

    index: int
    description: str
    driver: str
    limits: Limits
    architecture: str
    chip: str

    def __call__(self) -> BuildOnlyDevice:
        return BuildOnlyDevice(self)


class BuildOnlyDevice(Device):
    """A device that only puts kernels into the disk cache, where CudaDevice finds them.

    Its memory has a size but no content, its launches do nothing, and calls that need the GPU
    raise AssertionError.
    """

    api = "cuda"

    def __init__(self, facts: BuildOnlyMaker) -> None:
        self._facts = facts
        self.index, self.description, self.driver = facts.index, facts.description, facts.driver
        self.limits, self.architecture = facts.limits, facts.architecture
        self._kernels: dict[KernelSource, BuiltKernel] = {}

    @property
    def chip(self) -> str:
        return self._facts.chip

    @property
    def builds_side_by_side(self) -> bool:
        return True

    @property
    def toolkit(self) -> str:
        return f"NVRTC {nvrtc.version()}"

    @property
    def assembles_ptx(self) -> bool:
        return True

    @property
    def runs_cuda_libraries(self) -> bool:
        return True

    def compile(self, source: KernelSource) -> BuiltKernel:
        if source not in self._kernels:
            architecture = source.built_for(self.architecture)
            cubin, from_cache = kernel_cache.cached(
                nvrtc.key(source, architecture),
                lambda: nvrtc.compile_cubin(source, architecture)[0])
            self._kernels[source] = BuiltKernel(source, len(cubin), from_cache)
        return self._kernels[source]

    def assemble(self, name: str, key: Sequence[str],
                 generate: Callable[[], PtxProgram]) -> BuiltKernel:
        cubin, from_cache = kernel_cache.cached(
            nvjitlink.key(key, self.architecture),
            lambda: nvjitlink.assembled(generate, self.architecture))
        return BuiltKernel(KernelSource(Path(f"{name}.ptx"), name), len(cubin), from_cache)

    def empty(self, nbytes: int, purpose: str, stream: Any = None) -> AbsentBuffer:
        return AbsentBuffer(self, nbytes)

    def upload(self, array: np.ndarray, purpose: str) -> AbsentBuffer:
        return AbsentBuffer(self, array.nbytes)

    def write(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        check_transfer(buffer, array)

    def copy(self, target: Buffer, source: Buffer, nbytes: int, stream: Any = None) -> None:
        pass

    def launch(self, kernel: Kernel, groups: Sequence[int], work_group_size: Sequence[int],
               arguments: Sequence[Argument], *, shared_bytes: int = 0,
               stream: Any = None) -> None:
        """Do nothing, since nobody can read the kernel's results."""

    def synchronize(self, stream: Any = None) -> None:
        pass

    def create_stream(self) -> None:
        return None

    def read(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        self._needs_device("reading memory")

    def time(self, work: Callable[[Any], None], stream: Any = None) -> float:
        self._needs_device("timing")

    def capture(self, work: Callable[[Any], None], stream: Any = None,
                repeats: int = 1) -> Callable[..., None]:
        self._needs_device("recording a graph")

    def stream_handle(self, stream: Any) -> int:
        self._needs_device("the handle of a stream")

    def current(self) -> AbstractContextManager[None]:
        self._needs_device("a context of CUDA")

    def wrap(self, address: int, nbytes: int, owner: object) -> Buffer:
        self._needs_device("memory of another library")

    def _needs_device(self, what: str) -> NoReturn:
        raise AssertionError(f"{what} needs {self.name} itself")


class AbsentBuffer(Buffer):
    """Memory that has a size but no content."""

    def __init__(self, device: BuildOnlyDevice, nbytes: int) -> None:
        self.device, self.nbytes = device, nbytes

    @property
    def address(self) -> int:
        raise AssertionError(f"memory of {self.device.name} has no address without it")

    def view(self, offset: int, nbytes: int) -> AbsentBuffer:
        check_view(self, offset, nbytes)
        return AbsentBuffer(self.device, nbytes)  # type: ignore[arg-type]


class BuiltKernel(Kernel):
    """A kernel that is in the disk cache, but not loaded."""

    def __init__(self, source: KernelSource, code_bytes: int, from_cache: bool) -> None:
        self.name, self.source, self.code_bytes = source.function, source, code_bytes
        self.from_cache = from_cache
