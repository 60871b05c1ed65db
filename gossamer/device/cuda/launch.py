"""Launches of CUDA kernels: the check of a launch's size, and launches that may begin early."""

from __future__ import annotations

from collections.abc import Sequence

from cuda.bindings import driver

from gossamer.device.base import Device
from gossamer.device.cuda.kernel import CudaKernel
from gossamer.errors import DeviceError

_LARGEST_GRID = (2**31 - 1, 65535, 65535)
"""Most work-groups in each dimension of a launch, by the CUDA C++ Programming Guide."""


def check_fit(device: Device, kernel: CudaKernel, groups: Sequence[int], threads: int) -> None:
    """Raises DeviceError where a grid or a work-group is larger than the device can run."""
    if threads > kernel.work_group_size:
        raise DeviceError(f"{device.name} runs {kernel.name} with at most {kernel.work_group_size} "
                          f"work-items in a work-group, asked for {threads}")
    for dimension, (have, most) in enumerate(zip(groups, _LARGEST_GRID, strict=True)):
        if have > most:
            raise DeviceError(f"{device.name} runs at most {most} work-groups in dimension "
                              f"{dimension}, {kernel.name} asked for {have}")


def early_launch(groups: tuple[int, int, int], work_group_size: tuple[int, int, int],
                 shared_bytes: int, stream: int) -> driver.CUlaunchConfig:
    """Returns the configuration of a launch that may begin before the previous launch has ended."""
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
