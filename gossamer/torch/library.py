"""Checks of PyTorch's version, before a module imports it."""

from __future__ import annotations

from importlib.util import find_spec

from gossamer.errors import InputError, installing

OLDEST = (2, 6)
"""Oldest supported version of PyTorch: the first that converts an exported program to ONNX."""


def check_torch() -> None:
    """Raise InputError if PyTorch is missing or too old, or onnxscript is missing."""
    if find_spec("torch") is None:
        raise InputError(f"PyTorch is not installed; {installing('torch')}, or follow the "
                         "instructions for your GPU on pytorch.org")
    if find_spec("onnxscript") is None:
        raise InputError(f"onnxscript, which PyTorch exports by, is not installed; "
                         f"{installing('torch')}")
    if version() < OLDEST:
        raise InputError(f"PyTorch {'.'.join(map(str, version()))} is too old: expected "
                         f"{'.'.join(map(str, OLDEST))} or later; pip install --upgrade torch")


def version() -> tuple[int, int]:
    """Return the first two numbers of the version of PyTorch."""
    import torch

    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)
