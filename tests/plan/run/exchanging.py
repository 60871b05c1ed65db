"""The host as a device with streams, in whose memory another library has arrays: what only CUDA
does otherwise runs on every machine."""

from __future__ import annotations

from typing import Any

import numpy as np

from gossamer.device.host import HostBuffer, HostDevice
from gossamer.errors import InputError
from gossamer.tensor import TensorSpec
from tests.device.helpers import ForeignArray


class Foreign(ForeignArray):
    """An array of another library, in host memory or on an ExchangingHost."""

    def __init__(self, array: np.ndarray, on_device: bool) -> None:
        super().__init__(array)
        self.on_device = on_device

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype


class _Buffer(HostBuffer):
    """Host memory that has an address, as that of a GPU."""

    @property
    def address(self) -> int:
        return self.bytes.ctypes.data


class DeviceArray:
    """An array in the memory of an ExchangingHost."""

    def __init__(self, device: HostDevice, array: np.ndarray) -> None:
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype
        self.buffer = _Buffer(device, array.reshape(-1).view(np.uint8))


class ExchangingHost(HostDevice):
    """The host with streams, which are names, and arrays of another library.

    log: what was asked of the device, in order.
    closed: the streams that are closed. busy: the streams that have work.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self.closed: set[str | None] = set()
        self.busy: set[str | None] = set()
        self._made = 0

    def create_stream(self) -> Any:
        self._made += 1
        return f"own {self._made}"

    def stream_handle(self, stream: Any) -> Any:
        assert stream not in self.closed, "a stream that is closed has no handle"
        return stream

    def is_closed(self, stream: Any) -> bool:
        return stream in self.closed

    def is_idle(self, stream: Any) -> bool:
        return stream not in self.busy

    def check_stream(self, stream: Any) -> None:
        if stream in self.closed:
            raise InputError(f"stream {stream} was closed")

    def wait(self, waiting: Any, awaited: Any) -> None:
        self.log.append(f"{waiting} waits for {awaited}")

    def synchronize(self, stream: Any = None) -> None:
        self.log.append(f"synchronised {stream}")

    def holds(self, array: Any) -> bool:
        return array.on_device

    def incoming(self, array: Any, stream: Any = None, *, name: str = "the input",
                 dtype: Any = None) -> DeviceArray:
        self.log.append(f"{name} on {stream}")
        if not isinstance(array, Foreign) or array.array.dtype != np.dtype(dtype):
            raise InputError(f"{name} is not an array of {dtype}")
        return DeviceArray(self, array.array)

    def empty_array(self, spec: TensorSpec, purpose: str, stream: Any = None) -> DeviceArray:
        self.log.append(f"{purpose} on {stream}")
        return DeviceArray(self, np.zeros(spec.stored_shape, spec.stored_dtype))

    def like(self, array: Any, result: Any) -> Foreign:
        return Foreign(result.array, True)
