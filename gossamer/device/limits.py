"""The limits of a device, whether it can be used, and its peak rates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The capabilities of a device, by which kernels are selected and sized.

    Attributes
    ----------
    compute_units : int
        Number of OpenCL compute units, CUDA multiprocessors or host processors.
    memory_bytes : int
        Bytes of the device's memory.
    shared_bytes : int
        Bytes of shared memory that a work-group can use.
    shared_bytes_opt_in : int
        Bytes of shared memory that a work-group can use where its kernel asks for more than CUDA's
        default limit.
    work_group_size : int
        Largest number of work-items in a work-group.
    subgroup_size : int
        Number of work-items that execute in lockstep (a warp), 1 where unknown.
    sure_work_group_size : int
        Number of work-items in a work-group that the device allows for every kernel. For some
        kernels an OpenCL device allows fewer than `work_group_size`, which it tells only after
        the kernel was built.
    cache_bytes : int
        Bytes of the cache that all compute units share, 0 where unknown.
    graph : bool
        Whether `Device.capture` records graphs.
    mma : bool
        Whether CUDA's matrix multiply-accumulate instructions (mma, from sm_80 on) exist.
    wgmma : bool
        Whether the device has the instruction wgmma, by which four warps together multiply
        operands in shared memory. Only sm_90 has it.
    cluster : int
        Largest number of work-groups in a cluster, which can access one another's shared memory; 1
        where the device has no clusters.
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
    """One device of this machine, and whether it can be used.

    Attributes
    ----------
    name : str
        Name that `find` accepts, such as cuda:0.
    description, driver : str
        Name of the hardware; name and version of the driver.
    compute_units : int
        Number of compute units; 0 where the device cannot be used.
    memory_bytes : int
        Bytes of the device's memory; 0 where the device cannot be used.
    problem : str or None
        One line that says why the device cannot be used; None where the device built and ran a
        one-line kernel.
    """

    name: str
    description: str
    driver: str
    compute_units: int
    memory_bytes: int
    problem: str | None


@dataclass(frozen=True)
class PeakRates:
    """The peak rates of a device per microsecond, by which algorithms order their configs.

    Attributes
    ----------
    multiply_adds : float
        Multiply-adds in float32, on all compute units together.
    nbytes : float
        Bytes of a copy in the device's memory, read plus written.
    """

    multiply_adds: float
    nbytes: float
