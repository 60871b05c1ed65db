"""The algorithm convolution_pool_mma computes a network's first convolution and the maximum over
windows behind it as one kernel for NVIDIA GPUs, so that the convolution's result, the largest
tensor of many networks, is never written to memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.expression import apply
from gossamer.ops.algorithm import Epilogue, State, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.fused.algorithm import FusionAlgorithm
from gossamer.ops.fused.convolution_pool.layers import (
    ConvolutionPool,
    convolution_pool_of,
    reason_apart,
)
from gossamer.ops.fused.convolution_pool.tiling import (
    TAPS,
    WORK_GROUP_SIZE,
    PoolTile,
    PoolTiling,
    tilings,
)
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.image import given_arguments, image_macros
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import cannot_compile
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("convolution_pool_mma.cu")
_LARGEST_HALF = 65504
_BIAS = Epilogue(apply("add"), ("channel",))
_BIAS_RELU = Epilogue(apply("add").then(apply("relu")), ("channel",))


class ConvolutionPoolMma(FusionAlgorithm):
    """Computes both layers in float16 with float32 sums. The kernel reads the network's input, such
    as float32 in NCHW or bytes in NHWC, and writes float16 in NHWC."""

    name = "convolution_pool_mma"
    patterns = (("conv2d", "pool"), ("elementwise", "conv2d", "pool"))

    def recognises(self, problem: FusionProblem) -> bool:
        return convolution_pool_of(problem) is not None

    def supports(self, problem: FusionProblem, device: Device) -> str | None:
        if not device.limits.mma:
            return f"{device.name} has no tensor cores for float16 (sm_80 or newer)"
        layers = convolution_pool_of(problem)
        if layers is None:
            return "the layers are no first convolution and a maximum over windows"
        if (reason := cannot_compile(problem, device) or reason_apart(layers)) is not None:
            return reason
        if not tilings(layers.convolution, layers.pool, device.limits):
            return "the rows under a row of results do not fit the shared memory or the registers"
        return None

    def variants(self, problem: FusionProblem, device: Device) -> Iterator[Variant]:
        layers = _layers(problem)
        x = problem.inputs[0]
        if layers.given is None:
            x = x.with_format(layout="NCHW")
        y = problem.outputs[0].with_format(layout="NHWC", dtype="float16")
        for tiling in tilings(layers.convolution, layers.pool, device.limits):
            yield Variant(tuple(asdict(tiling.tile).items()), (x,), (y,), "fp16")

    def expected_us(self, problem: FusionProblem, variant: Variant, device: Device) -> float:
        return _tiling(problem, variant).microseconds(device.limits)

    def prepare(self, weights: Weights, problem: FusionProblem, variant: Variant,
                device: Device) -> State:
        if not problem.outputs[0].size:
            return State(problem, variant, device)
        layers, tiling = _layers(problem), _tiling(problem, variant)
        convolution, pool, tile = layers.convolution, layers.pool, tiling.tile
        own = f"{len(problem.parts) - 2}."
        folded = _is_folded(convolution, weights.arrays.get(f"{own}operand0"))
        epilogue = Epilogue() if folded else convolution.epilogue
        kernel = device.compile(KernelSource.of(
            _SOURCE, "convolution_pool_mma",
            {**_macros(tiling, layers, variant, folded), **epilogue_macros(epilogue)},
            architectures=("sm_90a", "sm_90a") if tile.wgmma else ("sm_80", "sm_100"),
            dynamic_shared=True))
        packed = weights.packed(
            f"{tile.channels} channels for convolution_pool_mma, {folded}",
            lambda arrays: _pack(arrays[f"{own}weight"], tiling,
                                 arrays[f"{own}operand0"] if folded else None))
        arguments = (
            input_buffer(0), packed, output_buffer(0), convolution.out_channels,
            convolution.height, convolution.width, convolution.out_height, convolution.out_width,
            pool.out_height, pool.out_width, *convolution.pads[:2], *pool.pads[:2], tiling.tiles_x,
            tiling.tile_width, tile.height, *given_arguments(weights, layers.given),
            *epilogue_arguments(epilogue, weights, 1, convolution.out_channels, prefix=own))
        return State(problem, variant, device, [Launch(
            kernel, tiling.grid, (WORK_GROUP_SIZE, 1, 1), arguments, tiling.shared_bytes)])


def _layers(problem: FusionProblem) -> ConvolutionPool:
    layers = convolution_pool_of(problem)
    assert layers is not None
    return layers


def _tiling(problem: FusionProblem, variant: Variant) -> PoolTiling:
    layers = _layers(problem)
    return PoolTiling(layers.convolution, layers.pool,
                      PoolTile(**{key: int(value) for key, value in variant.config}))


def _is_folded(convolution: Conv2dProblem, bias: np.ndarray | None) -> bool:
    """Returns whether the tensor cores can compute the epilogue, which is then a bias for each
    channel, with or without ReLU behind it. The tensor cores add the bias as a sum of two float16
    numbers. These two numbers are weights. Their inputs are ones, which stand behind the window's
    numbers in the first two lines."""
    return (convolution.epilogue in (_BIAS, _BIAS_RELU) and bias is not None
            and convolution.kernel[1] < TAPS and convolution.channels * convolution.kernel[0] > 1
            and bool((np.abs(bias) <= _LARGEST_HALF).all()))


def _macros(tiling: PoolTiling, layers: ConvolutionPool, variant: Variant,
            folded: bool) -> dict[str, object]:
    """Returns the macros that sizes.h and ops/image.h describe."""
    convolution, pool = tiling.convolution, tiling.pool
    is_positive = folded and convolution.epilogue == _BIAS_RELU
    return {
        "HALVES": 1, "WGMMA": tiling.tile.wgmma, "CHANNELS": convolution.channels,
        "KERNEL_H": convolution.kernel[0], "KERNEL_W": convolution.kernel[1],
        "STRIDE_Y": convolution.stride[0], "STRIDE_X": convolution.stride[1],
        "POOL_H": pool.kernel[0], "POOL_W": pool.kernel[1], "POOL_Y": pool.stride[0],
        "POOL_X": pool.stride[1], "ROWS": tiling.rows, "SHARED_ROWS": tiling.shared_rows,
        "ROWS_HELD": tiling.rows_held, "OUT_PART": tiling.tile.channels,
        "FOLDED": int(folded), "LEAST": "0u" if is_positive else "0xfc00fc00u",
        "MAKES_IMAGE": int(layers.given is not None),
        **image_macros(variant.inputs[0], layers.given)}


def _pack(weight: np.ndarray, tiling: PoolTiling, bias: np.ndarray | None) -> np.ndarray:
    """Returns the weights as (parts of the output channels, lines of a window, output channels of a
    part, 8 numbers of a line). A part belongs to a work-group. Lines are in the order of rows and
    then of channels. Zeros fill the last numbers of a line, and make up a last line where the
    number of lines is odd. bias: the bias of each output channel, which the tensor cores add; None
    where they add none."""
    out_channels, channels, rows, columns = weight.shape
    packed = np.zeros((tiling.lines, out_channels, TAPS), np.float16)
    with np.errstate(over="ignore"):
        packed[:channels * rows, :, :columns] = weight.transpose(2, 1, 0, 3).reshape(
            channels * rows, out_channels, columns).astype(np.float16)
    if bias is not None:
        packed[0, :, -1] = bias
        packed[1, :, -1] = bias - packed[0, :, -1].astype(np.float32)
    parts = packed.reshape(tiling.lines, -1, tiling.tile.channels, TAPS)
    return np.ascontiguousarray(parts.transpose(1, 0, 2, 3))
