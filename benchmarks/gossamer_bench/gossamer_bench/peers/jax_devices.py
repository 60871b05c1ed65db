"""The devices of JAX; needs jax."""

from __future__ import annotations

import os
from typing import Any

import jax

from gossamer.bench.work import AbsentError
from gossamer.device.base import Device

# by default JAX allocates three quarters of a GPU's memory when it first uses the GPU, but other
# contenders need this memory
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def processor() -> Any:
    """Returns JAX's object for the processor."""
    return jax.devices("cpu")[0]


def gpu(device: Device) -> Any:
    """Returns JAX's object for a CUDA device. Raises AbsentError where JAX does not find the
    device."""
    try:
        return jax.devices("cuda")[device.index]
    except (RuntimeError, IndexError):
        raise AbsentError("this jax sees no GPU: pip install 'jax[cuda13]'") from None
