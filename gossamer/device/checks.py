"""Checks of copies, views and devices, and the out-of-memory error."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.source import KernelSource
from gossamer.errors import DeviceError, OutOfMemoryError


def check_view(buffer: Buffer, offset: int, nbytes: int) -> None:
    """Check that a view of a buffer is aligned and within bounds.

    Parameters
    ----------
    buffer : Buffer
        The viewed buffer.
    offset, nbytes : int
        First byte and size of the view.

    Raises
    ------
    ValueError
        The offset is not aligned, or the view exceeds the buffer.
    """
    if offset % buffer.device.alignment:
        raise ValueError(f"a view on {buffer.device.name} must start at a multiple of "
                         f"{buffer.device.alignment} bytes, got offset {offset}")
    if offset < 0 or nbytes < 0 or offset + nbytes > buffer.nbytes:
        raise ValueError(f"a view of {nbytes} bytes at offset {offset} exceeds a buffer of "
                         f"{buffer.nbytes} bytes")


def check_transfer(buffer: Buffer, array: np.ndarray) -> None:
    """Check that an array can be copied to or from a buffer.

    Parameters
    ----------
    buffer : Buffer
        The device memory.
    array : numpy.ndarray
        The host memory.

    Raises
    ------
    ValueError
        The array is not C-contiguous or larger than the buffer.
    """
    if not array.flags.c_contiguous:
        raise ValueError("only C-contiguous arrays can be copied to or from a device")
    if array.nbytes > buffer.nbytes:
        raise ValueError(f"an array of {array.nbytes} bytes does not fit into a buffer of "
                         f"{buffer.nbytes} bytes")


def check_copy(target: Buffer, source: Buffer, nbytes: int) -> None:
    """Check that two buffers are large enough for a copy.

    Parameters
    ----------
    target, source : Buffer
        Memory of one device.
    nbytes : int
        Number of bytes, from the start of both buffers.

    Raises
    ------
    ValueError
        One of the buffers is smaller than the copy.
    """
    least = min(target.nbytes, source.nbytes)
    if nbytes > least:
        raise ValueError(f"a copy of {nbytes} bytes exceeds a buffer of {least} bytes")


def out_of_memory(device: Device, nbytes: int, purpose: str,
                  free: int | None = None) -> OutOfMemoryError:
    """Return the error for a failed allocation.

    Parameters
    ----------
    device : Device
        The device with too little memory.
    nbytes : int
        Requested bytes.
    purpose : str
        Use of the memory.
    free : int, optional
        Free bytes, if the driver reports them.

    Returns
    -------
    OutOfMemoryError
        The error, which the caller raises.
    """
    have = (f"{free} bytes are free" if free is not None
            else f"it has {device.limits.memory_bytes} bytes in total")
    return OutOfMemoryError(f"{device.name} cannot allocate {nbytes} bytes ({purpose}): {have}; "
                            "use a smaller batch or another device")


def self_check(device: Device) -> None:
    """Build and run a one-line kernel and check its result.

    Parameters
    ----------
    device : Device
        A device that compiles kernels.

    Raises
    ------
    DeviceError
        The result is wrong, or the kernel could not be built or launched.
    """
    source = KernelSource.of(Path(__file__).with_name("self_check.cl"), "self_check")
    values = np.arange(1, 65, dtype=np.float32)
    buffer = device.upload(values, "the self-check")
    device.launch(device.compile(source), (1,), (64,), (buffer, 64))
    result = np.zeros_like(values)
    device.read(buffer, result)
    if not np.array_equal(result, values * 2 + 1):
        raise DeviceError(f"{device.name} built a one-line kernel but it computed wrong numbers")
