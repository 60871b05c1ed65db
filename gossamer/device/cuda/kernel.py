"""CUDA kernels, checks of launch sizes, and launches that may begin early."""

from __future__ import annotations

import ctypes
import struct
import threading
import weakref
from collections.abc import Sequence

import numpy as np
from cuda.bindings import driver

from gossamer.device.base import Argument, Device, Kernel
from gossamer.device.cuda.driver import DriverDevice, check, quietly
from gossamer.device.cuda.memory import CudaBuffer
from gossamer.device.source import KernelSource
from gossamer.errors import DeviceError

_STATIC_SHARED_BYTES = 48 * 1024
"""Maximum shared memory of a kernel in bytes, unless the limit is raised."""
_MOST_PORTABLE = 8
"""Largest cluster size, in work-groups, that all devices with clusters support."""

_FORMATS: dict[type, str] = {
    type(None): "P", CudaBuffer: "P",
    bool: "i", int: "i", float: "f",
    np.bool_: "?", np.int8: "b", np.uint8: "B", np.int16: "h", np.uint16: "H",
    np.int32: "i", np.uint32: "I", np.int64: "q", np.uint64: "Q",
    np.float16: "e", np.float32: "f", np.float64: "d",
}
"""The `struct` format character of each argument type."""


class _Packer:
    """The memory block that holds the arguments of a kernel.

    Because a launch copies the block, a thread reuses the block for all launches with the same
    argument types.

    address: address of the array of pointers to the arguments, as cuLaunchKernel expects it.
    """

    def __init__(self, kernel: CudaKernel, types: tuple[type, ...]) -> None:
        formats = []
        for index, kind in enumerate(types):
            if kind not in _FORMATS:
                raise DeviceError(f"argument {index} of {kernel.name} has type {kind.__name__}, "
                                  "which kernels do not accept")
            formats.append(_FORMATS[kind])
        self._struct = struct.Struct("@" + "".join(formats))
        self._block = ctypes.create_string_buffer(max(self._struct.size, 1))
        base = ctypes.addressof(self._block)
        offsets = [struct.calcsize("@" + "".join(formats[:i + 1])) - struct.calcsize(f)
                   for i, f in enumerate(formats)]
        kernel.check_parameters([(offset, struct.calcsize(f))
                                 for offset, f in zip(offsets, formats, strict=True)])
        self._pointers = (ctypes.c_void_p * max(len(types), 1))(*[base + o for o in offsets])
        self.address = ctypes.addressof(self._pointers)

    def pack(self, arguments: Sequence[Argument]) -> None:
        self._struct.pack_into(self._block, 0, *[
            a.address if isinstance(a, CudaBuffer) else 0 if a is None else a for a in arguments])


class CudaKernel(Kernel):
    """One kernel function of a loaded cubin."""

    def __init__(self, source: KernelSource, cubin: bytes, device: DriverDevice) -> None:
        self.name = source.function
        self.source = source
        self.begins_early = source.begins_early
        self.code_bytes = len(cubin)
        self._device = device
        image = np.frombuffer(cubin, np.uint8)
        with device.current():
            self._module = check(driver.cuModuleLoadData(image.ctypes.data))
            weakref.finalize(self, quietly, device, driver.cuModuleUnload, self._module)
            self.function = check(
                driver.cuModuleGetFunction(self._module, self.name.encode()))
        attribute = driver.CUfunction_attribute
        self.registers = self._attribute(attribute.CU_FUNC_ATTRIBUTE_NUM_REGS)
        self.spill_bytes = self._attribute(attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)
        self.shared_bytes = self._attribute(attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
        self.work_group_size = self._attribute(
            attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
        if self._attribute(attribute.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH) > _MOST_PORTABLE:
            check(driver.cuFuncSetAttribute(
                self.function,
                attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1))
        self._dynamic_bytes = max(_STATIC_SHARED_BYTES - self.shared_bytes, 0)
        with device.current():
            self._parameters = self._known_parameters()
        self._per_thread = threading.local()

    def _attribute(self, attribute: driver.CUfunction_attribute) -> int:
        return int(check(driver.cuFuncGetAttribute(attribute, self.function)))

    def _known_parameters(self) -> list[tuple[int, int]]:
        """Return the offset and the size of each parameter.

        The driver does not report the number of parameters: it returns an error for the first
        invalid index. compute-sanitizer reports this error, too, unless run with
        `--report-api-errors no`.
        """
        parameters: list[tuple[int, int]] = []
        while True:
            status, offset, size = driver.cuFuncGetParamInfo(self.function, len(parameters))
            if status != driver.CUresult.CUDA_SUCCESS:
                return parameters
            parameters.append((int(offset), int(size)))

    def check_parameters(self, arguments: Sequence[tuple[int, int]]) -> None:
        """Raise DeviceError if the offsets or sizes of arguments differ from the parameters'."""
        parameters = self._parameters
        if len(parameters) != len(arguments):
            raise DeviceError(f"{self.name} expects {len(parameters)} arguments, "
                              f"got {len(arguments)}")
        for index, (parameter, argument) in enumerate(
                zip(parameters, arguments, strict=True)):
            if parameter != argument:
                raise DeviceError(f"argument {index} of {self.name} must have {parameter[1]} "
                                  f"bytes, got {argument[1]}")

    def packed(self, arguments: Sequence[Argument]) -> int:
        """Return the address of the packed arguments for a launch by this thread."""
        types = tuple(map(type, arguments))
        packers: dict[tuple[type, ...], _Packer] | None = getattr(self._per_thread, "packers", None)
        if packers is None:
            packers = self._per_thread.packers = {}
        packer = packers.get(types)
        if packer is None:
            packer = packers[types] = _Packer(self, types)
        packer.pack(arguments)
        return packer.address

    def allow_dynamic(self, nbytes: int) -> None:
        """Raise the kernel's limit of dynamic shared memory to at least `nbytes`.

        Raises DeviceError if the device has less shared memory.
        """
        if nbytes <= self._dynamic_bytes:
            return
        limit = self._device.limits.shared_bytes_opt_in
        if nbytes + self.shared_bytes > limit:
            raise DeviceError(f"{self.name} needs {nbytes + self.shared_bytes} bytes of shared "
                              f"memory, but {self._device.name} has {limit}")
        check(driver.cuFuncSetAttribute(
            self.function,
            driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, nbytes))
        self._dynamic_bytes = nbytes


_LARGEST_GRID = (2**31 - 1, 65535, 65535)
"""Maximum work-groups in each dimension of a launch (CUDA C++ Programming Guide)."""


def check_fit(device: Device, kernel: CudaKernel, groups: Sequence[int], threads: int) -> None:
    """Raise DeviceError if a grid or a work-group is too large for the device."""
    if threads > kernel.work_group_size:
        raise DeviceError(f"{device.name} runs {kernel.name} with at most {kernel.work_group_size} "
                          f"work-items per work-group, got {threads}")
    for dimension, (have, most) in enumerate(zip(groups, _LARGEST_GRID, strict=True)):
        if have > most:
            raise DeviceError(f"{device.name} runs at most {most} work-groups in dimension "
                              f"{dimension}, but {kernel.name} needs {have}")


def early_launch(groups: tuple[int, int, int], work_group_size: tuple[int, int, int],
                 shared_bytes: int, stream: int) -> driver.CUlaunchConfig:
    """Return the configuration of a launch that may begin before the previous one has ended."""
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = groups
    config.blockDimX, config.blockDimY, config.blockDimZ = work_group_size
    config.sharedMemBytes = shared_bytes
    config.hStream = driver.CUstream(stream)
    config.attrs, config.numAttrs = [attribute], 1
    return config
