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
    alive: dict[int, list[str]] = {}
    total = 0
    for name in sorted(values, key=lambda name: (-values[name].nbytes, values[name].first, name)):
        value = values[name]
        steps = range(value.first, value.last + 1)
        together = {other for step in steps for other in alive.get(step, ())}
        neighbours = sorted((offsets[other], offsets[other] + values[other].nbytes)
                            for other in together)
        offset = 0
        for start, end in neighbours:
            if offset + value.nbytes <= start:
                break
            offset = max(offset, -(-end // alignment) * alignment)
        offsets[name] = offset
        for step in steps:
            alive.setdefault(step, []).append(name)
        total = max(total, offset + value.nbytes)
    return offsets, total
