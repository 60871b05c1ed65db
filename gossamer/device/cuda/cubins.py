"""Packing of several cubins into one entry of the kernel cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from gossamer.device.source import KernelSource


def joined(names: Sequence[str], cubins: Sequence[bytes]) -> bytes:
    """Return the cubins of named kernels as one cache entry.

    The entry is one line of JSON with names and sizes, followed by the bytes of the cubins.
    """
    heading = json.dumps([[name, len(cubin)] for name, cubin in zip(names, cubins, strict=True)])
    return b"".join([heading.encode(), b"\n", *cubins])


def source(name: str) -> KernelSource:
    """Return a placeholder source for a generated kernel without a file."""
    return KernelSource(Path(f"{name}.ptx"), name)


def separated(entry: bytes) -> list[tuple[str, bytes]]:
    """Return the names and cubins of an entry, in order."""
    heading, _, rest = entry.partition(b"\n")
    cubins = []
    start = 0
    for name, size in json.loads(heading):
        cubins.append((name, rest[start:start + size]))
        start += size
    return cubins
