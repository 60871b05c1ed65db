"""The OpenCL devices and drivers of this machine, and the properties that they report."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyopencl as cl

from gossamer.device.limits import Limits

_SURE_WORK_GROUP_SIZE = 256
"""Number of work-items in a work-group that OpenCL drivers allow for every kernel of gossamer."""

_NVIDIA_CALLS = threading.RLock()
"""The lock round calls of NVIDIA's driver, which crashes where several threads of a process call it
at a time, on one device or on several."""


def handles() -> list[cl.Device]:
    """Returns every OpenCL device of this machine: GPUs first, then other hardware, Oclgrind
    last."""
    def rank(device: cl.Device) -> int:
        if is_simulator(device):
            return 2
        return 0 if is_gpu(device) else 1

    try:
        devices = [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error:
        return []
    return sorted(devices, key=rank)


def drivers() -> list[str]:
    """Returns the names of all installed OpenCL drivers, including those without a device."""
    try:
        return [platform.name.strip() for platform in cl.get_platforms()]
    except cl.Error:
        return []


def lock_of(handle: cl.Device) -> AbstractContextManager[Any]:
    """Returns the lock to be held round all calls of a device's driver. The lock does nothing where
    several threads may call the driver at the same time."""
    return _NVIDIA_CALLS if "NVIDIA" in handle.platform.name else nullcontext()


def is_simulator(handle: cl.Device) -> bool:
    """Returns whether a device is Oclgrind, which interprets kernels to find their faults."""
    return handle.platform.name.strip() == "Oclgrind"


def is_gpu(handle: cl.Device) -> bool:
    """Returns whether a device is a GPU; no other OpenCL device is selected by default."""
    return bool(handle.type & cl.device_type.GPU) and not is_simulator(handle)


def describe(handle: cl.Device) -> str:
    """Returns the name of a device and of its driver."""
    return f"{handle.name.strip()} ({handle.platform.name.strip()})"


def limits_of(handle: cl.Device) -> Limits:
    """Returns the limits of a device by which kernels are selected."""
    extensions = handle.extensions.split()
    subgroup = 1
    if "cl_nv_device_attribute_query" in extensions:
        subgroup = handle.warp_size_nv
    elif "cl_amd_device_attribute_query" in extensions:
        subgroup = handle.wavefront_width_amd
    return Limits(
        compute_units=handle.max_compute_units,
        memory_bytes=handle.global_mem_size,
        shared_bytes=handle.local_mem_size,
        shared_bytes_opt_in=handle.local_mem_size,
        work_group_size=handle.max_work_group_size,
        subgroup_size=subgroup,
        sure_work_group_size=min(_SURE_WORK_GROUP_SIZE, handle.max_work_group_size),
        cache_bytes=handle.global_mem_cache_size,
        graph=True,
        float64=bool(handle.double_fp_config),
    )
