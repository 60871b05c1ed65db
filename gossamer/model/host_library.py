"""Whether ONNX Runtime is installed, the host's library for what gossamer does not compute."""

from __future__ import annotations

from importlib.util import find_spec

EXTRA = "pip install 'gossamer[onnxruntime]', so that ONNX Runtime computes it on the host"
"""The advice for a node that gossamer does not compute, where ONNX Runtime is not installed."""


def is_installed() -> bool:
    """Returns whether ONNX Runtime can be imported."""
    return find_spec("onnxruntime") is not None
