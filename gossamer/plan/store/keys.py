"""Keys of problems and algorithms, equal in every process."""

from __future__ import annotations

import functools
import hashlib
import json

from gossamer.device.base import Device
from gossamer.device.source import source_hash as module_hash
from gossamer.device.source import sources
from gossamer.ops.algorithm import Algorithm, Problem
from gossamer.ops.canonical import canonical


@functools.lru_cache(maxsize=4096)
def problem_key(problem: Problem) -> str:
    """Return 32 hexadecimal digits that identify a problem."""
    text = json.dumps(canonical(problem), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def source_hash(algorithm: Algorithm) -> str:
    """Return a hash of an algorithm's source code.

    The hash covers the algorithm's Python files and kernels, and the versions of the packages that
    these files use.
    """
    return module_hash(type(algorithm).__module__)


def libraries(algorithm: Algorithm, device: Device) -> dict[str, str]:
    """Return the versions of an algorithm's packages, by package.

    For an algorithm of a vendor's library, the version of the library that the device uses is
    included, because it may differ from the version of the package.
    """
    _, versions = sources(type(algorithm).__module__)
    vendor_version = algorithm.version(device)
    return {**versions, algorithm.vendor: vendor_version} if vendor_version else versions


def identity(algorithm: Algorithm, device: Device) -> str:
    """Return text that identifies an algorithm's code on a device.

    The text consists of the algorithm's source hash and the version of the vendor's library.
    """
    source, vendor_version = source_hash(algorithm), algorithm.version(device)
    return f"{source} {algorithm.vendor} {vendor_version}" if vendor_version else source
