"""Learns how long candidates take to build: their kernels, which many share, and what other
processes do for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gossamer.device.source import KernelSource

_COMPILE_SECONDS = 0.5
"""Seconds that compiling a kernel is expected to take before any was compiled."""


class KernelCosts:
    """The kernels that are compiled, those that candidates wait for, and the time that compiling
    one takes on the device.

    builders: number of kernels that are compiled at the same time.
    """

    def __init__(self, builders: int = 1) -> None:
        self.builders = builders
        self._compiled: set[KernelSource] = set()
        self._unknown: set[KernelSource] = set()
        self._waiting: Counter[KernelSource] = Counter()
        self._seconds = 0.0
        self._count = 0
        self._elsewhere: dict[str, tuple[float, int]] = {}
        """The seconds that other processes took for candidates, and the number of these, by the
        names of their algorithms."""

    def expect(self, kernels: Iterable[KernelSource]) -> None:
        """Notes that a candidate needs these kernels."""
        self._waiting.update(kernels)

    def seconds(self, kernels: Iterable[KernelSource]) -> float:
        """Returns the seconds that a candidate's kernels take to compile. A kernel that is not
        compiled yet costs each candidate that waits for it the same share."""
        each = self._seconds / self._count if self._count else _COMPILE_SECONDS
        return sum(each / self.builders / max(1, self._waiting[kernel])
                   for kernel in kernels if kernel not in self._compiled)

    def has_new(self, kernels: Iterable[KernelSource]) -> bool:
        """Returns whether a candidate needs a kernel that was not begun."""
        return any(kernel not in self._compiled for kernel in kernels)

    def begin(self, kernels: Iterable[KernelSource]) -> list[KernelSource]:
        """Notes that a candidate's kernels are compiled now, and returns those that are new."""
        new = [kernel for kernel in kernels if kernel not in self._compiled]
        self._compiled.update(new)
        self._unknown.update(new)
        return new

    def learn(self, kernels: Iterable[KernelSource], seconds: float) -> None:
        """Remembers the seconds that building a candidate took, if any of its kernels was new."""
        new = self._unknown.intersection(kernels)
        if new:
            self._unknown -= new
            self._seconds += seconds
            self._count += len(new)

    def learn_elsewhere(self, algorithm: str, seconds: float) -> None:
        """Remembers the seconds that a candidate of an algorithm took in one of several processes
        that build for this one, divided by their number."""
        total, count = self._elsewhere.get(algorithm, (0.0, 0))
        self._elsewhere[algorithm] = total + seconds, count + 1

    def seconds_elsewhere(self, algorithm: str) -> float:
        """Returns the seconds on average that a candidate of an algorithm took in other processes,
        divided by their number; 0 where none of them built such a candidate."""
        total, count = self._elsewhere.get(algorithm, (0.0, 1))
        return total / count
