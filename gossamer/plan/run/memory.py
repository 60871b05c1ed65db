"""Reuse of memory by lifetimes: values that are never alive together share memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Lifetime:
    """The size of a value in bytes, and the first and the last step at which it is alive."""

    nbytes: int
    first: int
    last: int


def place(values: Mapping[str, Lifetime], alignment: int) -> tuple[dict[str, int], int]:
    """Returns the byte offset of every value in one arena, and the arena's size in bytes.

    The largest value is placed first, of equal ones the one that is alive first. Each gets the
    lowest gap between the values that are already placed and are alive at the same time.
    """
    offsets: dict[str, int] = {}
    total = 0
    for name in sorted(values, key=lambda name: (-values[name].nbytes, values[name].first, name)):
        value = values[name]
        neighbours = sorted(
            (offsets[other], offsets[other] + values[other].nbytes) for other in offsets
            if values[other].first <= value.last and value.first <= values[other].last)
        offset = 0
        for start, end in neighbours:
            if offset + value.nbytes <= start:
                break
            offset = max(offset, -(-end // alignment) * alignment)
        offsets[name] = offset
        total = max(total, offset + value.nbytes)
    return offsets, total
