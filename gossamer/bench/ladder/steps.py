"""The steps of the ladder, in the order in which they were published."""

from __future__ import annotations

from enum import IntEnum

SUITE = "ladder"
"""Name of the suite that measures the steps."""


class Step(IntEnum):
    """A program of the ladder; it has the improvements of all steps up to its own.

    label: the improvement in words. contender: name of the step among the contenders.
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
    Step.PIXELS: "one thread a pixel",
    Step.VALUES: "one thread a value",
    Step.BORDERS: "no separate padding",
    Step.MEMORY: "memory allocated once",
    Step.BLOCKS: "block size tuned",
    Step.POINTWISE: "a kernel for 1x1",
}
