"""Binary matrix products, computed as 1x1 convolutions.

popcount and host_direct_popcount treat the rows as the pixels of one image; all other algorithms
treat each row as an image of one pixel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Problem, State, Variant
from gossamer.ops.conv2d.binary.host_direct import HostDirectPopcount, Work
from gossamer.ops.conv2d.binary.layer import BinaryLayer, binary_form
from gossamer.ops.conv2d.binary.popcount import (
    WORD_BITS,
    Tile,
    fitting,
    launches,
    reason_not_popcount,
)
from gossamer.ops.conv2d.binary.tensor_core.bit_tensor_core import BitTensorCore
from gossamer.ops.conv2d.binary.wide_popcount import WidePopcount
from gossamer.ops.conv2d.common import config_of
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.gemm.dense import ConvolutionGemm, pointwise
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.weights import Weights
from gossamer.tensor import Format, TensorSpec

TILES = (
    Tile(64, 1, 1, 1, 1),
    Tile(128, 1, 1, 1, 1),
    Tile(64, 1, 1, 1, 4),
    Tile(32, 1, 4, 1, 4),
    Tile(64, 1, 4, 1, 8),
)
"""Tiles for products with one row, with a few rows and with many rows. The rows of a product become
the columns of an image of height 1."""


class _BinaryGemm(ConvolutionGemm):
    """A product as a binary convolution whose images have one pixel."""

    exact = True
    _layout = "NCHW"


class HostDirectPopcountGemm(HostDirectPopcount):
    """Generated code for products of signs; the rows are the pixels of one image."""

    op = "gemm"
    by_image = False

    def layer_of(self, problem: GemmProblem) -> BinaryLayer:
        return BinaryLayer(pointwise(problem))

    def state_of(self, weights: Weights, layer: BinaryLayer, problem: Problem, variant: Variant,
                 device: Device) -> State:
        return State(problem, variant, device,
                     data=Work.of(weights, layer, variant, layer.convolution.batch))


class WidePopcountGemm(_BinaryGemm):
    """The binary kernel for CPUs, applied to images of one pixel."""

    name = "wide_popcount"
    _convolution = WidePopcount()


class BitTensorCoreGemm(_BinaryGemm):
    """The binary kernels on tensor cores, applied to images of one pixel."""

    name = "bit_tensor_core"
    _convolution = BitTensorCore()


class PopcountGemm(Algorithm):
    """The binary kernel popcount; the rows are the pixels of one image."""

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
            yield Variant(config_of(tile), (source, *operands), (y,))
            if form.output is not None:
                packed = TensorSpec(y.shape, Format(f"packed{word_bits}", form.output))
                yield Variant(config_of(tile), (source, *operands), (packed,))

    def prepare(self, weights: Weights, problem: GemmProblem, variant: Variant,
                device: Device) -> State:
        return State(problem, variant, device, launches(
            weights, BinaryLayer(_one_image(problem)), variant, device))


def _one_image(problem: GemmProblem) -> Conv2dProblem:
    """Return the product as a convolution of one image of height 1.

    The rows of the product become the columns of the image.
    """
    return replace(pointwise(problem), batch=1, width=problem.rows)
