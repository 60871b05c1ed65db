"""What the memory of a device holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device


def read(device: Device, buffer: Buffer, shape: Any, dtype: Any = np.float32,
         stream: Any = None) -> np.ndarray:
    """Returns a copy of the start of a buffer as an array."""
    result = np.empty(shape, dtype)
    device.read(buffer, result, stream)
    return result
