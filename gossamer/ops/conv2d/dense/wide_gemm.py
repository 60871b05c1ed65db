"""wide_gemm: convolution on CPUs through OpenCL, as a matrix product.

Each work-item accumulates a tile of the product in vector registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.common import channels_in_memory, panels, specs_of_layouts
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.peak_rates import rates_of_unit
from gossamer.ops.strided import KernelAlgorithm, too_large
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("wide_gemm.cl")
_TILES = ((12, 2), (6, 4), (6, 2), (12, 1))
"""Tile sizes of a work-item: output pixels, and vectors of 16 output channels."""
_SHARE = 0.9
"""Fraction of a core's peak rate of multiply-adds that the kernel reaches. This number and the two
numbers below were measured under PoCL on two cores with AVX-512; on other CPUs they only decide the
order in which configs are tried."""
_STORE = 30
"""Time of storing a result, as a multiple of the time of a multiply-add."""
_FIND = 0.002
"""Microseconds to compute the address of one tap of one pixel."""


class WideGemm(KernelAlgorithm):
    """Matrix product with one tile per work-item.

    A tile is a block of output pixels by output channels. The kernel is optimised for NHWC, where
    the channels of a pixel are adjacent; NCHW is supported for the first and the last layers of a
    network.
    """
    op = "conv2d"
    name = "wide_gemm"
    reads_parts = True
    writes_parts = True

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if not device.compiles:
            return f"{device.name} compiles no kernels"
        if not device.on_processors:
            return "runs on processors only: their vector registers hold a tile"
        return too_large(problem)

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        specs = specs_of_layouts(problem)
        for pixels, vectors in sorted(
                _TILES, key=lambda tile: _expected_us(problem, tile[0], tile[1], device)):
            config = (("pixels", pixels), ("vectors", vectors))
            variants = [Variant(config, inputs, outputs) for inputs, outputs in specs]
            yield from variants
            yield from (variant.as_fp16 for variant in variants)

    def expected_us(self, problem: Conv2dProblem, variant: Variant, device: Device) -> float:
        return _expected_us(problem, variant["pixels"], variant["vectors"], device)

    def kernel_sources(self, problem: Conv2dProblem, variant: Variant,
                       device: Device) -> tuple[KernelSource, ...]:
        return (_source(problem, variant),)

    def kernel_launches(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                        device: Device) -> list[Launch]:
        pixels, vectors = variant["pixels"], variant["vectors"]
        channels = problem.group_channels
        per_group = problem.group_out_channels
        kernel = device.compile(_source(problem, variant))
        lanes = 16 * vectors
        packed = weights.packed(f"panels of {lanes}", lambda arrays: panels(
            np.asarray(arrays["weight"], np.float32).reshape(
                problem.groups, per_group, channels, problem.taps), -(-per_group // lanes), lanes))
        zeros = weights.packed("zeros", lambda _: np.zeros(max(channels, 1), np.float32))
        x, y = variant.inputs[0], variant.outputs[0]
        groups = -(-problem.pixels // pixels) * -(-per_group // lanes)
        return [Launch(
            kernel, (groups, problem.groups), (1, 1),
            (input_buffer(0), packed, output_buffer(0), zeros, problem.pixels, channels, per_group,
             y.offset, channels_in_memory(y), problem.height, problem.width, problem.out_width,
             problem.image_pixels, *problem.kernel, *problem.stride,
             *problem.pads[:2], *problem.dilation, x.offset, *x.strides,
             *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels)))]


def _source(problem: Conv2dProblem, variant: Variant) -> KernelSource:
    x, y = variant.inputs[0], variant.outputs[0]
    out_nhwc = y.layout == "NHWC"
    return KernelSource.of(_SOURCE, "wide_gemm", {
        "PIXELS": variant["pixels"],
        "VECTORS": variant["vectors"],
        "HALVES": int(variant.precision == "fp16"),
        "IN_NHWC": int(x.layout == "NHWC"),
        "OUT_NHWC": int(out_nhwc),
        "OUT_VECTOR": 4 if out_nhwc and problem.group_out_channels % 4 == 0 else 1,
        **epilogue_macros(problem.epilogue, tensor_dtype=y.dtype),
    })


def _expected_us(problem: Conv2dProblem, pixels: int, vectors: int, device: Device) -> float:
    """Return the estimated time of a launch in microseconds.

    The estimate includes the multiply-adds and stores of all work-items, with padding, and the
    computation of each tap's address.
    """
    per_group = problem.group_out_channels
    tiles = -(-problem.pixels // pixels) * -(-per_group // (16 * vectors)) * problem.groups
    rounds = -(-tiles // max(device.limits.compute_units, 1))
    multiply_adds = _SHARE * rates_of_unit(device).multiply_adds
    results = pixels * 16 * vectors
    taps = problem.taps
    return rounds * (results * (problem.depth + _STORE) / multiply_adds + pixels * taps * _FIND)
