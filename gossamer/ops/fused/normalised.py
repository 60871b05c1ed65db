"""A layer norm and the product of its rows in one kernel.

With the norm's scale s and bias b, and a row x of mean m and deviation d, a result for weights w is

    sum(((x - m) / d * s + b) * w) = (sum(x * s * w) - m * sum(s * w)) / d + sum(b * w).

The algorithm normalised_mma, for NVIDIA GPUs, therefore multiplies the rows as they are, computes
their means and deviations on the way, and changes each sum afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.conv2d.common import rounded, sizes_of, specs_in
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.tensor_core.implicit_gemm import PointwiseMma
from gossamer.ops.conv2d.tensor_core.tiling import MmaTile, vector_of
from gossamer.ops.fused.algorithm import FusionAlgorithm, RenamedWeights
from gossamer.ops.fused.problem import FusionProblem, entry
from gossamer.ops.gemm.dense import pointwise
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.gpu import without_tensor_cores
from gossamer.ops.layer_norm.problem import LayerNormProblem
from gossamer.ops.strided import layout_variants
from gossamer.ops.weights import Pack, Weights

_PRODUCT = PointwiseMma()
_MULTIPLE = vector_of("fp16")
"""The number of values of a row must be a multiple of this number, so that all are copied."""
_MOST_CHANNELS = 256
"""Largest number of output channels of a tile."""
_MOST_ROWS = 16
"""Largest number of rows of a warp."""
_MOMENTS = 1.4
"""Time of a product with means and deviations on an H200, relative to the product alone."""


class NormalisedMma(FusionAlgorithm):
    """A layer norm or RMS norm and the product of its rows, in float16.

    The deviation is computed from the mean square of a row, in float32. This would lose digits if
    the mean were much larger than the deviation, but so does the rounding of the row to float16.
    """

    name = "normalised_mma"
    patterns = (("layer_norm", "gemm"), ("layer_norm", "reshape", "gemm"), ("layer_norm", "conv2d"))

    def recognises(self, problem: FusionProblem) -> bool:
        norm, product = problem.parts[0], problem.parts[-1]
        if not isinstance(norm, LayerNormProblem) or (
                not isinstance(product, Conv2dProblem | GemmProblem)) or any(
                part.op != "reshape" for part in problem.parts[1:-1]):
            return False
        axis = 1 if isinstance(product, Conv2dProblem) else len(norm.input.shape) - 1
        return (norm.axes == (axis,) and _product(problem).is_pointwise
                and norm.count == _product(problem).channels
                and all(sources[0] == (index, 0)
                        for index, sources in enumerate(problem.sources[1:])))

    def supports(self, problem: FusionProblem, device: Device) -> str | None:
        if (reason := without_tensor_cores(problem, device)) is not None:
            return reason
        if not self.recognises(problem):
            return "needs a layer norm and the product of its rows"
        if problem.exits != ((len(problem.parts) - 1, 0),):
            return "the norm's result is read elsewhere"
        operands = problem.sources[-1][1:]
        if operands != tuple(entry(1 + number) for number in range(len(operands))):
            return "the product's epilogue reads the rows, or a tensor twice"
        product = _product(problem)
        if product.channels % _MULTIPLE:
            return f"needs a multiple of {_MULTIPLE} values, not {product.channels}"
        return _PRODUCT.supports(product, device)

    def variants(self, problem: FusionProblem, device: Device) -> Iterator[Variant]:
        # rows are contiguous: pixels in NHWC, and the last dimension of tensors in their own order
        layout = "NHWC" if isinstance(problem.parts[-1], Conv2dProblem) else "NCHW"
        for variant in _PRODUCT.variants_in(_product(problem), device, ("fp16",)):
            tile = sizes_of(MmaTile, variant)
            # a warp has whole rows, and registers for its parts of them
            if tile.cluster * tile.warps_k == 1 and tile.tile_p // tile.warps_p <= _MOST_ROWS:
                for plain in layout_variants(problem, (layout,), variant.config):
                    yield plain.as_fp16

    def expected_us(self, problem: FusionProblem, variant: Variant, device: Device) -> float:
        return _MOMENTS * _PRODUCT.expected_us(_product(problem), _of_product(problem, variant),
                                               device)

    def prepare(self, weights: Weights, problem: FusionProblem, variant: Variant,
                device: Device) -> State:
        norm, last = problem.parts[0], len(problem.parts) - 1
        assert isinstance(norm, LayerNormProblem)
        names = {**{name: f"{last}.{name}" for name in problem.parts[last].weight_shapes},
                 "scale": "0.scale", "bias": "0.bias"}
        arguments = (RenamedWeights(weights, names).packed("sums and shifts", _sums_and_shifts),
                     1 / norm.count if norm.centred else 0.0, norm.epsilon)
        return State(problem, variant, device, _PRODUCT.launches(
            _ScaledWeights(weights, names), _product(problem), _of_product(problem, variant),
            device, {"NORMALISED": 1}, arguments))


class _ScaledWeights(RenamedWeights):
    """The constants of a product, with its weights scaled by the norm before it."""

    def packed(self, key: str, pack: Pack) -> Buffer:
        return super().packed(key, lambda arrays: pack(
            {**arrays, "weight": _matrix(arrays) * arrays["scale"]}))


def _matrix(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the weights in the shape (output channels, values of a row)."""
    return arrays["weight"].reshape(len(arrays["weight"]), -1)


def _sums_and_shifts(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the sum of the rounded weights and the shift of each output channel.

    Zeros follow, as the last tile may have channels that do not exist.
    """
    weight = _matrix(arrays)
    packed = np.zeros((len(weight) + _MOST_CHANNELS, 2), np.float32)
    packed[:len(weight), 0] = rounded(weight * arrays["scale"]).sum(1, dtype=np.float64)
    packed[:len(weight), 1] = weight.astype(np.float64) @ arrays["bias"]
    return packed


def _product(problem: FusionProblem) -> Conv2dProblem:
    """Return the product as a convolution."""
    product = problem.parts[-1]
    if isinstance(product, GemmProblem):
        return pointwise(product)
    assert isinstance(product, Conv2dProblem)
    return product


def _of_product(problem: FusionProblem, variant: Variant) -> Variant:
    """Return a variant of the fusion as a variant of the convolution."""
    inputs, outputs = specs_in(_product(problem), "NHWC", "NHWC")
    return replace(variant, inputs=inputs, outputs=outputs).as_fp16
