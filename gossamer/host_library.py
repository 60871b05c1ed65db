"""Imports ONNX Runtime, the host's library for whole networks and for nodes that gossamer does not
compute."""

from __future__ import annotations

import functools
import os
from importlib.util import find_spec
from typing import Any

from gossamer.errors import installing

EXTRA = f"{installing('onnxruntime')}, so that ONNX Runtime computes it on the host"
"""The advice for a node that gossamer does not compute, where ONNX Runtime is not installed."""


def with_advice(text: str) -> str:
    """Return an error's message with the advice to install ONNX Runtime, once, where ONNX Runtime
    is not installed."""
    return text if EXTRA in text or is_installed() else f"{text}; {EXTRA}"


def is_installed() -> bool:
    """Return whether ONNX Runtime can be imported."""
    return find_spec("onnxruntime") is not None


@functools.cache
def onnxruntime() -> Any:
    """Return the module of ONNX Runtime with telemetry disabled. Where no other code has imported
    the module before, telemetry writes no file either. Raises ImportError where the module cannot
    be imported."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime as library

    if hasattr(library, "disable_telemetry_events"):
        library.disable_telemetry_events()
    return library
