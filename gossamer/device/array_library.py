"""Which library an array is of; imports none of them."""

from __future__ import annotations

from typing import Any


def library(array: Any) -> str:
    """The package an array is of: numpy, torch, cupy, jax..."""
    package = type(array).__module__.split(".")[0]
    return "jax" if package == "jaxlib" else package
