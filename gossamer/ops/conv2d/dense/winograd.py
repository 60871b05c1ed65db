"""winograd: 3 x 3 convolution by Winograd's minimal filtering.

The method needs fewer multiplications than direct convolution. In return, it has to transform the
weights, the tiles of the input, and the tiles of the products.

Source: Andrew Lavin and Scott Gray, "Fast algorithms for convolutional neural networks", CVPR 2016.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.common import channels_in_memory
from gossamer.ops.conv2d.dense.im2col_gemm import Im2colGemm
from gossamer.ops.conv2d.dense.wide_gemm import WideGemm
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.peak_rates import rates_of_unit
from gossamer.ops.strided import WORK_GROUP_SIZE, cannot_compile, divisor, groups_for
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("winograd.cl")
_OUTPUT = 4
"""Number of rows, and of columns, of results in a tile."""
_POINTS = (0.0, 0.625, -0.625, 1.5, -1.5)
"""Points at which polynomials are evaluated. Infinity is an additional point. The kernels use the
same points. The points 0.625 and 1.5 cause smaller errors than the usual points 1 and 2. Source: B.
Barabasz, A. Anderson, K. Soodhalter and D. Gregg, "Error analysis and improving the accuracy of
Winograd convolution for deep neural networks", ACM TOMS 46 (4), 2020."""
_SHARE_OF_COPIES = {True: 0.75, False: 0.6}
"""Memory throughput of the transforms divided by the memory throughput of copies. The key is True
for CPUs and False for GPUs. These rules of thumb decide only how early winograd is tried among the
algorithms."""


@dataclass(frozen=True)
class _Ready:
    """The three prepared steps, and where the workspace holds the arrays between them.

    before: launch that transforms the input.
    product: state of the matrix product's algorithm.
    after: launch that transforms the products to results.
    first: offset and size in bytes of the transformed input.
    second: offset and size in bytes of the products.
    """

    before: Launch
    product: State
    after: Launch
    first: tuple[int, int]
    second: tuple[int, int]


class Winograd(Algorithm):
    """Convolution in three steps.

    The first step transforms the tiles of the input, the second multiplies channels at each point
    of a tile (a grouped 1 x 1 convolution), and the third transforms the products to results. A NaN
    or infinity in a tile of the input reaches all results of the tile.
    """

    op = "conv2d"
    name = "winograd"
    reads_parts = True
    writes_parts = True

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if (problem.kernel, problem.stride, problem.dilation, problem.groups) != (
                (3, 3), (1, 1), (1, 1), 1):
            return "needs a 3x3 window with stride 1, no dilation and one group"
        if problem.sums_integers:
            return "its transforms would round sums of integers, which must be exact"
        if problem.outputs[0].size == 0:
            return "the output is empty"
        product = _product(problem)
        if max(product.inputs[0].size, product.outputs[0].size) >= 2**31:
            return "the transformed input or its products have 2^31 elements or more"
        return _product_algorithm(device).supports(product, device)

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        inputs, outputs = (tuple(spec.with_format(layout="NHWC") for spec in specs)
                           for specs in (problem.inputs, problem.outputs))
        _, (offset, size) = _memory(problem, device)
        variants = [Variant(config, inputs, outputs, workspace=offset + size)
                    for config in _products(_product(problem), device)]
        return iter(sorted(variants, key=lambda v: self.expected_us(problem, v, device)))

    def expected_us(self, problem: Conv2dProblem, variant: Variant, device: Device) -> float:
        (_, first), (_, second) = _memory(problem, device)
        moved = 2 * (first + second) + problem.inputs[0].nbytes + problem.outputs[0].nbytes
        product, algorithm = _product(problem), _product_algorithm(device)
        product_us = algorithm.expected_us(product, _inner(problem, variant, device), device)
        assert product_us is not None
        copied = rates_of_unit(device).nbytes * max(device.limits.compute_units, 1)
        return product_us + moved / (_SHARE_OF_COPIES[device.on_processors] * copied)

    def launch_count(self, variant: Variant) -> int:
        return 3

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        first, second = _memory(problem, device)
        tiles = _tiles(problem)
        product = _product_algorithm(device).prepare(
            _Transformed(weights),  # type: ignore[arg-type]
            _product(problem), _inner(problem, variant, device), device)

        def launch(function: str, channels: int, macros: Mapping[str, object],
                   *arguments: Any) -> Launch:
            items = tiles[0] * tiles[1] * tiles[2] * channels
            kernel = device.compile(KernelSource.of(_SOURCE, function, macros))
            return Launch(kernel, groups_for(items), (WORK_GROUP_SIZE,), (
                input_buffer(0), output_buffer(0), items, *divisor(channels), *divisor(tiles[2]),
                *divisor(tiles[1]), *arguments))

        no_epilogue = {"EPILOGUE_PARAMETERS": "", "EPILOGUE(value, channel, index)": ""}
        x, y = variant.inputs[0], variant.outputs[0]
        before = launch("winograd_input", problem.channels, no_epilogue, problem.height,
                        problem.width, x.offset, channels_in_memory(x), *problem.pads[:2])
        after = launch("winograd_output", problem.out_channels, epilogue_macros(problem.epilogue),
                       problem.out_height, problem.out_width, y.offset, channels_in_memory(y),
                       *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels))
        return State(problem, variant, device,
                     data=_Ready(before, product, after, first, second))

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        ready: _Ready = state.data
        assert workspace is not None
        device = state.device
        transformed, products = (workspace.view(*part) for part in (ready.first, ready.second))
        ready.before.run(device, inputs, [transformed], None, stream)
        _product_algorithm(device).launch(ready.product, [transformed], [products], None, stream)
        ready.after.run(device, [products, *inputs[1:]], outputs, None, stream)


class _Transformed:
    """A layer's constants with transformed weights, as the matrix product reads them."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def packed(self, key: str, pack: Callable[[Mapping[str, np.ndarray]], Any]) -> Buffer:
        return self._weights.packed(f"winograd, {key}", lambda arrays: pack(
            {"weight": _transformed(arrays["weight"])}))


def _transformed(weight: np.ndarray) -> np.ndarray:
    """Return the weights of the product: (points * output channels, channels, 1, 1).

    weight: the layer's weights, of shape (output channels, channels, 3, 3).
    """
    transform = _weight_transform(_POINTS)
    points = np.einsum("ir,mcrs,js->ijmc", transform, weight.astype(np.float64), transform,
                       optimize=True)
    return points.reshape(-1, weight.shape[1], 1, 1).astype(np.float32)


def _weight_transform(points: Sequence[float]) -> np.ndarray:
    """Return the matrix that transforms a row of three weights.

    The matrix has one row for each point, and a last row for infinity. The weights are the
    coefficients of a polynomial. For each point, the transformed weight is the value of the
    polynomial at this point, divided by the product of the differences between this point and the
    others. For infinity, the transformed weight is the last coefficient.
    """
    rows = [np.array([1, point, point**2]) / math.prod(point - other for other in points
                                                       if other != point) for point in points]
    return np.array([*rows, (0, 0, 1)])


def _product_algorithm(device: Device) -> Algorithm:
    return WideGemm() if device.on_processors else Im2colGemm()


def _tiles(problem: Conv2dProblem) -> tuple[int, int, int]:
    """Return the number of images, and the rows and columns of tiles in each image."""
    return (problem.batch, -(-problem.out_height // _OUTPUT), -(-problem.out_width // _OUTPUT))


def _product(problem: Conv2dProblem) -> Conv2dProblem:
    """Return the multiplications at all points as a grouped 1 x 1 convolution.

    Each point is a group, and each tile is a pixel.
    """
    images, rows, columns = _tiles(problem)
    points = (_OUTPUT + 2) ** 2
    return Conv2dProblem(images, points * problem.channels, rows, columns,
                         points * problem.out_channels, (1, 1), groups=points)


@functools.lru_cache(maxsize=512)
def _products(product: Conv2dProblem,
              device: Device) -> dict[tuple[tuple[str, int | str], ...], Variant]:
    """Return, by config, the product's variants in NHWC and float32 that need no workspace."""
    return {variant.config: variant
            for variant in _product_algorithm(device).variants(product, device)
            if variant.precision == "fp32" and not variant.workspace and {
                spec.layout for spec in (*variant.inputs, *variant.outputs)} == {"NHWC"}}


def _inner(problem: Conv2dProblem, variant: Variant, device: Device) -> Variant:
    """Return the variant of the product that a variant of the convolution uses."""
    return _products(_product(problem), device)[variant.config]


def _memory(problem: Conv2dProblem,
            device: Device) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the places of the transformed input and of the products in the workspace.

    Each place is (offset, size) in bytes.
    """
    product = _product(problem)
    first = product.inputs[0].nbytes
    offset = -(-first // device.alignment) * device.alignment
    return (0, first), (offset, product.outputs[0].nbytes)
