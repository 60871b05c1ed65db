"""The rungs of the ladder, in the order in which they were published."""

from __future__ import annotations

from enum import IntEnum

SUITE = "ladder"
"""Name of the suite that measures the rungs."""


class Rung(IntEnum):
    """A program of the ladder. A rung has the improvements of all rungs before it, and one more.

    label: the improvement in words.
    contender: name of the rung among the contenders.
    """

    PIXELS = 1
    VALUES = 2
    BORDERS = 3
    MEMORY = 4
    BLOCKS = 5
    POINTWISE = 6

    @property
    def label(self) -> str:
        return _LABELS[self]

    @property
    def contender(self) -> str:
        return f"ladder:{self.value}-{self.name.lower()}"


_LABELS = {
    Rung.PIXELS: "one thread a pixel",
    Rung.VALUES: "one thread a value",
    Rung.BORDERS: "no separate padding",
    Rung.MEMORY: "memory allocated once",
    Rung.BLOCKS: "block size tuned",
    Rung.POINTWISE: "a kernel for 1x1",
}
