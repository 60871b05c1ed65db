"""The host side of upper_layers.h: its layout of shared memory, and its macros."""

from __future__ import annotations

from gossamer.ops.backprop.common import activation_macros, padded, table
from gossamer.ops.backprop.problem import BackpropProblem


class SharedMemoryLayout:
    """Assigns offsets in shared memory, in floats, and defines the macros that name them.

    The layout has room for the arrays of upper_layers.h for `batch` samples at once, and for
    `partial` partial sums of the first layer; take() reserves more memory.
    """

    def __init__(self, problem: BackpropProblem, threads: int, batch: int, partial: int) -> None:
        sizes, layers = problem.sizes, len(problem.sizes) - 1
        width, outputs = sum(map(padded, sizes[1:])), padded(sizes[-1])
        copies = 2 if problem.velocity else 1
        self._end = 0
        self.macros: dict[str, object] = {
            "LAYERS": layers, "SIZES": table(sizes), "OUTPUTS": sizes[-1], "WIDTH": width,
            "BATCH": batch, "VELOCITY": int(problem.velocity), "THREADS": threads,
            "NARROW": int(max(sizes[1:]) <= 32),
            "UNIT_AT": table([sum(map(padded, sizes[1:layer])) for layer in
                              range(1, layers + 1)]),
            "PARAMETER_AT": table([sum(units * (before + 1) for units, before in
                                       problem.layer_shapes[:layer])
                                   for layer in range(layers + 1)]),
            "OUT_AT": self.take(batch * width), "ERROR_AT": self.take(batch * width),
            "TERM_AT": self.take(batch * outputs), "TARGET_AT": self.take(2 * outputs),
            "EXPONENTIAL_AT": self.take(outputs),
            "PARTIAL_AT": self.take(max(threads, partial)), "BIAS_AT": self.take(copies * width),
            **activation_macros(problem),
        }
        start = self._end
        weights = [self.take(padded(before) * (padded(units) + 1))
                   for units, before in problem.layer_shapes[1:]]
        self.macros["WEIGHT_AT"] = table([0, *weights])
        self.macros["UPPER_VELOCITY"] = self._end - start
        if problem.velocity:
            self.take(self._end - start)

    def take(self, floats: int) -> int:
        """Reserves memory for a number of floats, and returns its offset, a multiple of four."""
        start = self._end
        self._end += padded(floats)
        return start

    @property
    def floats(self) -> int:
        """Floats of shared memory that are reserved."""
        return self._end

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory that are reserved."""
        return 4 * self._end
