"""Buffer reuse by lifetime: values that are never alive together share memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Lifetime:
    """Bytes of a value, and the first and last step (both inclusive) at which it is alive."""

    nbytes: int
    first: int
    last: int


def place(values: Mapping[str, Lifetime], alignment: int) -> tuple[dict[str, int], int]:
    """Byte offsets in one arena for every value, and the arena's size.

    The largest value goes first, of equals the earliest, each to the lowest gap between those
    already placed that are alive at the same time.
    """
    offsets: dict[str, int] = {}
    total = 0
    for name in sorted(values, key=lambda name: (-values[name].nbytes, values[name].first, name)):
        own = values[name]
        neighbours = sorted(
            (offsets[other], offsets[other] + values[other].nbytes) for other in offsets
            if values[other].first <= own.last and own.first <= values[other].last)
        offset = 0
        for start, end in neighbours:
            if offset + own.nbytes <= start:
                break
            offset = max(offset, -(-end // alignment) * alignment)
        offsets[name] = offset
        total = max(total, offset + own.nbytes)
    return offsets, total
