"""Products with few rows on CPUs, by code generated through LLVM.

The product is a 1x1 convolution of one image, whose pixels are the rows. Panels of columns are
computed with the accumulators of all rows in registers, as in K. Goto and R. van de Geijn, "Anatomy
of High-Performance Matrix Multiplication" (ACM TOMS 34(3), 2008).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gossamer.device.base import Device
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.conv2d.host_direct.algorithm import widths_of
from gossamer.ops.conv2d.host_direct.indirect import HostIndirect, in_nhwc
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.host_threads import thread_configs
from gossamer.ops.weights import Weights

_MOST_ROWS = 8


class HostDirectRows(HostIndirect):
    """A product with up to 8 rows; small products run on the caller's thread."""

    op = "gemm"
    name = "host_direct_dense"
    between_thin = False
    by_image = False

    def refused(self, problem: GemmProblem) -> str | None:  # type: ignore[override]
        if not 0 < problem.rows <= _MOST_ROWS or not problem.depth:
            return f"needs 1 to {_MOST_ROWS} rows of at least one element"
        return super().refused(_image(problem))

    def variants(self, problem: GemmProblem, device: Device  # type: ignore[override]
                 ) -> Iterator[Variant]:
        for lanes in widths_of(problem.columns):
            for threads in thread_configs(_MOST_ROWS * problem.columns * problem.depth):
                yield Variant((("lanes", lanes), *threads), problem.inputs, problem.outputs)

    def prepare(self, weights: Weights, problem: GemmProblem,  # type: ignore[override]
                variant: Variant, device: Device) -> State:
        image = _image(problem)
        return super().prepare(weights, image, replace(
            variant, inputs=in_nhwc(image.inputs), outputs=in_nhwc(image.outputs)), device)


def _image(problem: GemmProblem) -> Conv2dProblem:
    """Return the product as a convolution of one image, whose columns are the rows."""
    return Conv2dProblem(1, problem.depth, 1, problem.rows, problem.columns, (1, 1),
                         epilogue=problem.epilogue)
