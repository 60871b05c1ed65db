"""Reuse of memory by lifetimes: values that are never alive together share memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_SHORT_STEPS = 32
"""Steps up to which a value counts as alive for a short time, as nearly all are."""
_MOST_LONG = 1000
"""The most values that are alive for longer and share memory; each is compared with all others."""


@dataclass(frozen=True)
class Lifetime:
    """The size of a value in bytes, and the first and the last step at which it is alive."""

    nbytes: int
    first: int
    last: int


def place(values: Mapping[str, Lifetime], alignment: int) -> tuple[dict[str, int], int]:
    """Returns the byte offset of every value in one arena, and the arena's size in bytes.

    The largest value is placed first, of equal ones the one that is alive first. Each gets the
    lowest gap between the values that are already placed and are alive at the same time. Where very
    many values are alive for long, the last of them share no memory.
    """
    order = sorted(values, key=lambda name: (-values[name].nbytes, values[name].first, name))
    apart = [name for name in order if _is_long(values[name])][_MOST_LONG:]
    left_out = set(apart)
    offsets: dict[str, int] = {}
    neighbours = _Neighbours()
    total = 0
    for name in order:
        if name in left_out:
            continue
        value = values[name]
        offset = 0
        for start, end in sorted(neighbours.of(value)):
            if offset + value.nbytes <= start:
                break
            offset = max(offset, -(-end // alignment) * alignment)
        offsets[name] = offset
        neighbours.add(value, offset)
        total = max(total, offset + value.nbytes)
    for name in apart:
        offsets[name] = -(-total // alignment) * alignment
        total = offsets[name] + values[name].nbytes
    return offsets, total


class _Neighbours:
    """The values that are placed, found by the steps at which they are alive."""

    def __init__(self) -> None:
        self._all: list[tuple[Lifetime, int]] = []
        self._long: list[tuple[Lifetime, int]] = []
        self._short: dict[int, list[tuple[Lifetime, int]]] = {}

    def add(self, value: Lifetime, offset: int) -> None:
        self._all.append((value, offset))
        if _is_long(value):
            self._long.append((value, offset))
        else:
            for step in range(value.first, value.last + 1):
                self._short.setdefault(step, []).append((value, offset))

    def of(self, value: Lifetime) -> set[tuple[int, int]]:
        """Returns the first byte, and that after the last, of each value that is alive at the same
        time."""
        if _is_long(value):
            candidates = self._all
        else:
            candidates = [*self._long, *(entry for step in range(value.first, value.last + 1)
                                         for entry in self._short.get(step, ()))]
        return {(offset, offset + other.nbytes) for other, offset in candidates
                if other.first <= value.last and value.first <= other.last}


def _is_long(value: Lifetime) -> bool:
    return value.last - value.first > _SHORT_STEPS
