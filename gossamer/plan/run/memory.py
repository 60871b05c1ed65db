"""Places values in memory by their lifetimes: values that are never alive together share memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Lifetime:
    """The size of a value in bytes, and the first and the last step at which it is alive."""

    nbytes: int
    first: int
    last: int


def place(values: Mapping[str, Lifetime], alignment: int) -> tuple[dict[str, int], int]:
    """Returns the byte offset of every value in one arena, and the arena's size in bytes.

    Values are placed one by one, the largest first; of values of the same size, the value whose
    life begins first comes first. Each value is placed in the lowest gap that is large enough. Gaps
    are left by the values that are already placed and are alive at the same time as this value.
    """
    order = sorted(values, key=lambda name: (-values[name].nbytes, values[name].first, name))
    # first step, last step, start and end of each placed value, in the order of the starts; float64
    # is exact up to 2**53 bytes, which no device has
    placed = np.zeros((4, 0))
    offsets: dict[str, int] = {}
    total = 0
    for name in order:
        value = values[name]
        firsts, lasts, starts, ends = placed
        beside = (firsts <= value.last) & (lasts >= value.first)
        gaps = np.append(0, np.maximum.accumulate(ends[beside]))
        fits = gaps[:-1] + value.nbytes <= starts[beside]
        offset = offsets[name] = int(gaps[np.argmax(fits) if fits.any() else -1])
        end = offset + value.nbytes
        total = max(total, end)
        placed = np.insert(placed, np.searchsorted(starts, offset), (
            value.first, value.last, offset, -(-end // alignment) * alignment), axis=1)
    return offsets, total
