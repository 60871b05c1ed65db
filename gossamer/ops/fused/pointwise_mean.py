"""A 1x1 convolution and the mean over each image (global average pooling) in one kernel.

Many networks have these layers near their end. The algorithm pointwise_mean, for NVIDIA GPUs,
writes only the means to device memory, never the convolution's results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import PRECISIONS, State, Variant
from gossamer.ops.conv2d.common import rounded_to_tf32
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.fused.algorithm import FusionAlgorithm
from gossamer.ops.fused.problem import ENTRY, FusionProblem, is_image_mean
from gossamer.ops.gpu import (
    COPIED,
    LaunchWork,
    groups_per_unit,
    product_cycles,
    without_tensor_cores,
)
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import layout_variants
from gossamer.ops.weights import Weights
from gossamer.tensor import rounded_up

_SOURCE = Path(__file__).with_name("pointwise_mean.cu")
_PARTS = (16, 8, 32, 64)
"""Candidate numbers of output channels per work-group: multiples of 8 that divide the largest
candidate."""
_MOST_SPLIT = 32
"""Maximum number of output channels per work-group in float32. There, operands are split into TF32
numbers, which need more registers."""
_WARPS = (4, 8)
_MULTIPLE = 8
"""The number of input channels must be a multiple of this number, so that no 16-byte word spans two
pixels."""
_MOST_IMAGES = 65535
"""Maximum number of work-groups of a grid along y."""
_MOST_WARPS = 16
"""Maximum number of warps per multiprocessor, limited by registers."""


class PointwiseMean(FusionAlgorithm):
    """A 1x1 convolution and the mean over each image.

    Each work-group computes a few channels of an image, and keeps the convolution's results in
    registers.
    """

    name = "pointwise_mean"
    patterns = (("conv2d", "reduce"), ("conv2d", "pool"))

    def recognises(self, problem: FusionProblem) -> bool:
        convolution, mean = problem.parts
        return (isinstance(convolution, Conv2dProblem) and convolution.kernel == (1, 1)
                and convolution.groups == 1 and is_image_mean(mean)
                and problem.sources[1] == ((0, 0),))

    def supports(self, problem: FusionProblem, device: Device) -> str | None:
        if (reason := without_tensor_cores(problem, device)) is not None:
            return reason
        if len(problem.parts) != 2 or not self.recognises(problem):
            return "needs a 1x1 convolution followed by the mean over its image"
        if problem.exits != ((1, 0),):
            return "the convolution's result is read elsewhere"
        convolution = _convolution(problem)
        if not convolution.is_pointwise:
            return (f"convolves with stride {convolution.stride} and pads {convolution.pads}; "
                    "needs stride 1 and no pads")
        if convolution.epilogue.tensor_count or problem.sources[0] != (ENTRY,):
            return "the convolution's epilogue reads a tensor"
        if convolution.channels % _MULTIPLE:
            return f"needs a multiple of {_MULTIPLE} channels, not {convolution.channels}"
        if convolution.batch > _MOST_IMAGES:
            return f"supports at most {_MOST_IMAGES} images"
        if min(_shared_bytes(convolution, min(_PARTS), min(_WARPS), precision)
               for precision in PRECISIONS) > device.limits.shared_bytes_opt_in:
            return f"{convolution.channels} channels do not fit the shared memory of a work-group"
        return None

    def variants(self, problem: FusionProblem, device: Device) -> Iterator[Variant]:
        return self.variants_in(problem, device, PRECISIONS)

    def variants_in(self, problem: FusionProblem, device: Device,
                    precisions: Sequence[str]) -> Iterator[Variant]:
        convolution, found = _convolution(problem), []
        for part in _PARTS:
            for warps in _WARPS:
                (plain,) = layout_variants(problem, ("NHWC",),
                                           (("channels", part), ("warps", warps)))
                for precision in precisions:
                    if (precision != "fp32" or part <= _MOST_SPLIT) and _shared_bytes(
                            convolution, part, warps, precision) <= (
                                device.limits.shared_bytes_opt_in):
                        found.append(plain.as_fp16 if precision == "fp16"
                                     else replace(plain, precision=precision))
        yield from sorted(found, key=lambda variant: self.expected_us(
            problem, replace(variant, precision=precisions[-1]), device))

    def expected_us(self, problem: FusionProblem, variant: Variant, device: Device) -> float:
        p, precision, limits = _convolution(problem), variant.precision, device.limits
        part, warps = variant["channels"], variant["warps"]
        pixels, lines = p.height * p.width, _lines(p, precision)
        rows = rounded_up(pixels, 16 * warps)
        # float32 needs three products, because each number is split into two TF32 numbers
        multiplied = product_cycles(rows * part, 64 * lines * (3 if precision == "fp32" else 1),
                                    wgmma=False)
        return LaunchWork(
            -(-p.out_channels // part) * p.batch,
            groups_per_unit(_shared_bytes(p, part, warps, precision), limits,
                            _MOST_WARPS // warps),
            busy=max(64 * lines * (part + pixels) / COPIED, multiplied),
            waited=0.0).expected_us(limits)

    def prepare(self, weights: Weights, problem: FusionProblem, variant: Variant,
                device: Device) -> State:
        if not problem.outputs[0].size:
            return State(problem, variant, device)
        p, precision = _convolution(problem), variant.precision
        part, warps = variant["channels"], variant["warps"]
        kernel = device.compile(KernelSource.of(_SOURCE, "pointwise_mean", {
            "HALVES": int(precision == "fp16"), "TF32": int(precision == "tf32"),
            "WIDTH": _width(precision), "CHANNELS": p.channels, "OUT_PART": part, "WARPS": warps,
            **epilogue_macros(p.epilogue),
        }, architectures=("sm_80", "sm_100"), dynamic_shared=True))
        packed = weights.packed(f"rows for mma, {precision}",
                                lambda arrays: _pack(arrays["0.weight"], p, precision))
        return State(problem, variant, device, [Launch(
            kernel, (-(-p.out_channels // part), p.batch), (32 * warps, 1, 1),
            (input_buffer(0), packed, output_buffer(0), p.out_channels, p.height * p.width,
             *epilogue_arguments(p.epilogue, weights, 1, p.out_channels, prefix="0.",
                                 multiple=max(_PARTS))),
            _shared_bytes(p, part, warps, precision))])


def _convolution(problem: FusionProblem) -> Conv2dProblem:
    convolution = problem.parts[0]
    assert isinstance(convolution, Conv2dProblem)
    return convolution


def _width(precision: str) -> int:
    """Return the number of channels in a 16-byte word."""
    return 8 if precision == "fp16" else 4


def _lines(problem: Conv2dProblem, precision: str) -> int:
    """Return the number of 64-byte lines per pixel."""
    return -(-problem.channels // (4 * _width(precision)))


def _shared_bytes(problem: Conv2dProblem, part: int, warps: int, precision: str) -> int:
    """Return the bytes of shared memory per work-group, for its weights and its warps' sums."""
    lines = _lines(problem, precision)
    return part * 64 * (lines + (lines + 1) % 2) + 4 * warps * part


def _pack(weight: np.ndarray, problem: Conv2dProblem, precision: str) -> np.ndarray:
    """Return weights as (output channels, input channels).

    The output channels are padded with zeros to a multiple of the largest of _PARTS, and the input
    channels to a multiple of 64 bytes.
    """
    rows = -(-problem.out_channels // max(_PARTS)) * max(_PARTS)
    packed = np.zeros((rows, _lines(problem, precision) * 4 * _width(precision)), np.float32)
    packed[:problem.out_channels, :problem.channels] = weight.reshape(problem.out_channels, -1)
    if precision == "fp16":
        with np.errstate(over="ignore"):
            return packed.astype(np.float16)
    return rounded_to_tf32(packed) if precision == "tf32" else packed
