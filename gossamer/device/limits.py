"""The limits and the usability of devices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The capabilities of a device, used to select and size kernels.

    Attributes
    ----------
    compute_units : int
        Number of OpenCL compute units, CUDA multiprocessors or logical processors of the host.
    memory_bytes : int
        Bytes of the device's memory.
    shared_bytes : int
        Bytes of shared memory that a work-group can use.
    shared_bytes_opt_in : int
        Bytes of shared memory that a work-group can use if its kernel opts in to more than CUDA's
        default limit.
    work_group_size : int
        Maximum number of work-items in a work-group.
    subgroup_size : int
        Number of work-items that execute in lockstep (a warp); 1 if unknown.
    sure_work_group_size : int
        Number of work-items per work-group that the device allows for every kernel. For some
        kernels, an OpenCL device allows fewer than `work_group_size`, but reports this only after
        the kernel is built.
    cache_bytes : int
        Bytes of the cache shared by all compute units; 0 if unknown.
    graph : bool
        Whether `Device.capture` records graphs.
    mma : bool
        Whether the device supports CUDA's matrix multiply-accumulate instructions (mma, since
        sm_80).
    wgmma : bool
        Whether the device supports the instruction wgmma, with which four warps together multiply
        operands from shared memory. Only sm_90 supports it.
    cluster : int
        Maximum number of work-groups in a cluster; 1 if the device does not support clusters. The
        work-groups of a cluster can access one another's shared memory.
    float64 : bool
        Whether kernels can compute in double precision.
    """

    compute_units: int
    memory_bytes: int
    shared_bytes: int
    shared_bytes_opt_in: int
    work_group_size: int
    subgroup_size: int
    sure_work_group_size: int = 256
    cache_bytes: int = 0
    graph: bool = False
    mma: bool = False
    wgmma: bool = False
    cluster: int = 1
    float64: bool = True


@dataclass(frozen=True)
class DeviceInfo:
    """A device of this machine, and whether it is usable.

    Attributes
    ----------
    name : str
        Name that `find` accepts, such as cuda:0.
    description, driver : str
        Name of the hardware; name and version of the driver.
    compute_units : int
        Number of compute units; 0 if the device is unusable.
    memory_bytes : int
        Bytes of the device's memory; 0 if the device is unusable.
    problem : str or None
        Reason why the device is unusable, in one line; None if the device built and ran a test
        kernel.
    """

    name: str
    description: str
    driver: str
    compute_units: int
    memory_bytes: int
    problem: str | None
