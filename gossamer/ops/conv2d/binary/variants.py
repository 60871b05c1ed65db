"""Lists the variants of kernels that read packed words, with the formats of their tensors, and
estimates the times of these kernels on processors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.binary.layer import BinaryLayer, words_are_whole
from gossamer.ops.conv2d.binary.packing import words_of_a_group
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.tensor import Format, TensorSpec


def packed_variants(layer: BinaryLayer, inputs: Sequence[TensorSpec],
                    config: tuple[tuple[str, int | str], ...], word_bits: int) -> Iterator[Variant]:
    """Yields the variants of a config that reads words of `word_bits` bits. A layer with one result
    has variants that write floats and variants that write words. A layer with two results has
    variants that write both, the first result as floats and the second as words.

    inputs: the input of the layer, and the run-time operands of its epilogue.
    """
    problem, form = layer.convolution, layer.form
    x, *operands = inputs
    source = TensorSpec(x.shape, Format(f"packed{word_bits}", form.input))
    for layout in ("NHWC", "NCHW"):
        y = problem.outputs[0].with_format(layout=layout)
        read = (source, *[y] * len(operands))
        packed = () if form.output is None or not words_are_whole(problem, word_bits) else (
            TensorSpec(y.shape, Format(f"packed{word_bits}", form.output)),)
        if layer.has_two_results:
            yield Variant(config, read, (y, *packed))
            continue
        yield Variant(config, read, (y,))
        if packed and (operands or layout == "NHWC"):
            yield Variant(config, read, packed)


def processor_us(problem: Conv2dProblem, words_per_microsecond: float, device: Device) -> float:
    """Returns the estimated microseconds of a layer on processors. A processor compares
    `words_per_microsecond` words of 64 bits in a microsecond."""
    words = words_of_a_group(problem, 64) * problem.kernel[0] * problem.kernel[1]
    return words * problem.outputs[0].size / (
        words_per_microsecond * max(device.limits.compute_units, 1))
