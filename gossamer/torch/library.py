"""Checks that PyTorch is installed and new enough, before a module imports it."""

from __future__ import annotations

from importlib.util import find_spec

from gossamer.errors import InputError, installing

OLDEST = (2, 4)
"""The oldest version of PyTorch whose torch.export is sufficient."""
OLDEST_WITH_ONNX_PROGRAMS = (2, 6)
"""The oldest version that turns an exported program into ONNX."""


def check_torch() -> None:
    """Raise InputError where PyTorch is missing or too old."""
    if find_spec("torch") is None:
        raise InputError(f"PyTorch is not installed here; {installing('torch')}, or install torch "
                         "as its own site says for your GPU")
    if version() < OLDEST:
        raise InputError(f"PyTorch {'.'.join(map(str, version()))} is too old: expected "
                         f"{'.'.join(map(str, OLDEST))} or later; pip install --upgrade torch")


def exports_programs() -> bool:
    """Whether exported programs can be turned into ONNX, which needs the package onnxscript."""
    return version() >= OLDEST_WITH_ONNX_PROGRAMS and find_spec("onnxscript") is not None


def version() -> tuple[int, int]:
    """Return the first two numbers of the version of PyTorch."""
    import torch

    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)
