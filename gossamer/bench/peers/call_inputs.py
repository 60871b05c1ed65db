"""The kinds of inputs that calls are given."""

from __future__ import annotations

import numpy as np

TENSORS, ARRAYS, BYTES = "tensors", "arrays", "bytes"
"""The kinds of inputs of calls: float tensors of torch on the GPU, float32 NumPy arrays, or NumPy
arrays of uint8. The arrays of uint8 are decoded pictures in NHWC, which a call divides by 255.
Results are returned on the GPU for tensors, and on the host for arrays."""
BYTE_SCALE = 1 / 255
KINDS = (TENSORS, ARRAYS, BYTES)


def normalised(x: np.ndarray) -> np.ndarray:
    """Returns arrays of uint8 as the network reads them: divided by 255, in float32 and NCHW."""
    values = x.transpose(0, 3, 1, 2) if x.ndim == 4 else x
    return np.ascontiguousarray(values) * np.float32(BYTE_SCALE)
