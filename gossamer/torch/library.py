"""Checks of PyTorch's version, before a module imports it."""

from __future__ import annotations

from importlib.util import find_spec

from gossamer.errors import InputError, installing

OLDEST = (2, 4)
"""Oldest supported version of PyTorch."""
OLDEST_WITH_ONNX_PROGRAMS = (2, 6)
"""Oldest version that converts an exported program to ONNX."""


def check_torch() -> None:
    """Raise InputError if PyTorch is missing or too old."""
    if find_spec("torch") is None:
        raise InputError(f"PyTorch is not installed; {installing('torch')}, or follow the "
                         "instructions for your GPU on pytorch.org")
    if version() < OLDEST:
        raise InputError(f"PyTorch {'.'.join(map(str, version()))} is too old: expected "
                         f"{'.'.join(map(str, OLDEST))} or later; pip install --upgrade torch")


def exports_programs() -> bool:
    """Return whether torch and onnxscript can export programs to ONNX."""
    return version() >= OLDEST_WITH_ONNX_PROGRAMS and find_spec("onnxscript") is not None


def version() -> tuple[int, int]:
    """Return the first two numbers of the version of PyTorch."""
    import torch

    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)
