"""Page-locked host memory, which some devices copy at the full rate of their bus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from gossamer.device.base import Buffer, Device


class PageLockedMemory:
    """The capability to lock host memory for copies, with the behaviour of a device that lacks it.

    A device that has the capability overrides all methods.
    """

    @property
    def locks_pages(self) -> bool:
        """True if copies from and to page-locked memory run beside the host's own work."""
        return False

    def page_locked(self, nbytes: int) -> np.ndarray:
        """Allocate host memory that is page-locked where `locks_pages` is true.

        Parameters
        ----------
        nbytes : int
            Size in bytes.

        Returns
        -------
        numpy.ndarray
            Uninitialised memory of dtype uint8, which is freed with the last array over it.

        Raises
        ------
        OutOfMemoryError
            The driver locks no more memory.
        """
        return np.empty(nbytes, np.uint8)

    def is_page_locked(self, array: np.ndarray) -> bool:
        """Return whether an array lies in page-locked memory, which any library may have allocated.

        Parameters
        ----------
        array : numpy.ndarray
            Any array.

        Returns
        -------
        bool
            False where `locks_pages` is false.
        """
        return False

    def queue_write(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        """Copy a page-locked array to the start of a buffer, in the stream's order.

        The array must not be changed, nor freed, before the stream has made the copy.

        Parameters
        ----------
        buffer : Buffer
            The target, of at least `array.nbytes` bytes.
        array : numpy.ndarray
            Contiguous array of any shape and dtype.
        stream : Any
            The stream that orders the copy.

        Raises
        ------
        ValueError
            The array is not contiguous or does not fit.
        DeviceError
            The driver failed.
        """
        cast("Device", self).write(buffer, array, stream)

    def queue_read(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        """Fill a page-locked array from the start of a buffer, in the stream's order.

        The array must not be read, nor freed, before the stream has made the copy.

        Parameters
        ----------
        buffer : Buffer
            The source, of at least `array.nbytes` bytes.
        array : numpy.ndarray
            Contiguous array of any shape and dtype, which is overwritten.
        stream : Any
            The stream that orders the copy.

        Raises
        ------
        ValueError
            The array is not contiguous or larger than the buffer.
        DeviceError
            The driver failed.
        """
        cast("Device", self).read(buffer, array, stream)
