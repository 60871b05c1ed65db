"""Finds out to which library an array belongs, without importing a library."""

from __future__ import annotations

from typing import Any


def library(array: Any) -> str:
    """Return the name of the package that defines an array: numpy, torch, cupy, jax..."""
    package = type(array).__module__.split(".")[0]
    return "jax" if package == "jaxlib" else package
