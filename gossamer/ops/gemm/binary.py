"""Matrix products of signs, computed as convolutions. The algorithm popcount treats the rows as the
pixels of one image; all other algorithms treat each row as an image of one pixel."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from gossamer.device.base import Buffer, Device
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.binary.form import binary_form
from gossamer.ops.conv2d.binary.host import HostPopcount
from gossamer.ops.conv2d.binary.layer import BinaryLayer
from gossamer.ops.conv2d.binary.popcount import (
    WORD_BITS,
    Tile,
    fitting,
    launches,
    reason_not_popcount,
)
from gossamer.ops.conv2d.binary.tensor_core.bit_tensor_core import BitTensorCore
from gossamer.ops.conv2d.binary.wide_popcount import WidePopcount
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.gemm.dense import pointwise
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.weights import Weights
from gossamer.tensor import ROW_MAJOR, Format, TensorSpec

TILES = (
    Tile(64, 1, 1, 1, 1),
    Tile(128, 1, 1, 1, 1),
    Tile(64, 1, 1, 1, 4),
    Tile(32, 1, 4, 1, 4),
    Tile(64, 1, 4, 1, 8),
)
"""Tiles for products of one row, of a few rows and of many rows. The rows of a product are the
columns of an image of height 1."""


class _ImagesOfOnePixel(Algorithm):
    """A convolution of signs, applied to images of one pixel."""

    op = "gemm"
    exact = True
    _convolution: Algorithm

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        return self._convolution.supports(pointwise(problem), device)

    def variants(self, problem: GemmProblem, device: Device) -> Iterator[Variant]:
        found = map(_of_matrices, self._convolution.variants(pointwise(problem), device))
        # NHWC and NCHW are the same layout of a matrix
        return iter(dict.fromkeys(found))

    def expected_us(self, problem: GemmProblem, variant: Variant, device: Device) -> float | None:
        return self._convolution.expected_us(pointwise(problem), _of_images(variant), device)

    def prepare(self, weights: Weights, problem: GemmProblem, variant: Variant,
                device: Device) -> State:
        state = self._convolution.prepare(
            weights, pointwise(problem), _of_images(variant), device)
        return State(problem, variant, device, state.launches, data=state)

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        self._convolution.launch(state.data, inputs, outputs, workspace, stream)


class HostPopcountGemm(_ImagesOfOnePixel):
    """The convolution of signs on the host, applied to images of one pixel."""

    name = "host_popcount"
    _convolution = HostPopcount()


class WidePopcountGemm(_ImagesOfOnePixel):
    """The kernel of convolutions of signs for processors, applied to images of one pixel."""

    name = "wide_popcount"
    _convolution = WidePopcount()


class BitTensorCoreGemm(_ImagesOfOnePixel):
    """The kernels of convolutions of signs on tensor cores, applied to images of one pixel."""

    name = "bit_tensor_core"
    _convolution = BitTensorCore()


class PopcountGemm(Algorithm):
    """The kernel of convolutions of signs, applied to one image whose pixels are the rows."""

    op = "gemm"
    name = "popcount"
    exact = True

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        return reason_not_popcount(BinaryLayer(_one_image(problem)), device, TILES)

    def variants(self, problem: GemmProblem, device: Device) -> Iterator[Variant]:
        convolution = _one_image(problem)
        form = binary_form(convolution)
        x, *operands = problem.inputs
        (y,) = problem.outputs
        for tile, word_bits in itertools.product(fitting(convolution, device, TILES), WORD_BITS):
            source = TensorSpec(x.shape, Format(f"packed{word_bits}", form.input))
            yield Variant(tile.config, (source, *operands), (y,))
            if form.output is not None:
                packed = TensorSpec(y.shape, Format(f"packed{word_bits}", form.output))
                yield Variant(tile.config, (source, *operands), (packed,))

    def prepare(self, weights: Weights, problem: GemmProblem, variant: Variant,
                device: Device) -> State:
        return State(problem, variant, device, launches(
            weights, BinaryLayer(_one_image(problem)), variant, device))


def _one_image(problem: GemmProblem) -> Conv2dProblem:
    """Returns the product as a convolution of one image, whose columns are the product's rows."""
    return replace(pointwise(problem), batch=1, width=problem.rows)


def _of_images(variant: Variant) -> Variant:
    """Returns a variant with each matrix as images of one pixel."""
    def as_images(spec: TensorSpec) -> TensorSpec:
        layout = spec.layout if spec.format.is_packed else "NCHW"
        return TensorSpec((*spec.shape, 1, 1), replace(spec.format, layout=layout))

    return replace(variant, inputs=tuple(map(as_images, variant.inputs)),
                   outputs=tuple(map(as_images, variant.outputs)))


def _of_matrices(variant: Variant) -> Variant:
    """Returns a variant with images of one pixel as matrices."""
    def as_matrix(spec: TensorSpec) -> TensorSpec:
        layout = spec.layout if spec.format.is_packed else ROW_MAJOR
        return TensorSpec(spec.shape[:2], replace(spec.format, layout=layout))

    return replace(variant, inputs=tuple(map(as_matrix, variant.inputs)),
                   outputs=tuple(map(as_matrix, variant.outputs)))
