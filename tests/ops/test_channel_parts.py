"""Inputs and outputs in NHWC that are parts of the channels of larger tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from gossamer.device.base import Device
from gossamer.expression import apply
from gossamer.ops.algorithm import Algorithm, Epilogue, Problem, Variant
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.copy.problem import convert, slice_
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.resize.problem import ResizeProblem
from gossamer.plan.channel_parts import may_be_part
from gossamer.tensor import Format, TensorSpec, default_spec
from tests.conftest import is_slow
from tests.ops.harness import check_variants, op_of, quick

BIAS = Epilogue(apply("add").then(apply("relu")), ("channel",))
SUM = Epilogue(apply("add"), ("tensor",))
IMAGES = default_spec((2, 8, 5, 6))
NHWC = TensorSpec(IMAGES.shape, Format("NHWC"))
PROBLEMS: dict[str, Problem] = {
    "convolution": Conv2dProblem(2, 8, 5, 6, 16, (3, 3), pads=(1, 1, 1, 1), epilogue=BIAS),
    "1x1 convolution": Conv2dProblem(2, 16, 3, 3, 8, (1, 1), epilogue=BIAS),
    "odd channels": Conv2dProblem(1, 9, 5, 4, 11, (3, 3), (2, 2), epilogue=BIAS),
    "groups": Conv2dProblem(2, 16, 3, 4, 16, (1, 1), groups=2),
    "depthwise": Conv2dProblem(2, 8, 5, 6, 8, (3, 3), pads=(1, 1, 1, 1), groups=8, epilogue=BIAS),
    "several channels for one": Conv2dProblem(2, 8, 5, 4, 16, (3, 3), groups=8, epilogue=BIAS),
    "residual sum": Conv2dProblem(2, 8, 3, 3, 8, (1, 1), epilogue=SUM),
    "long sum": Conv2dProblem(1, 264, 2, 2, 8, (3, 3), pads=(1, 1, 1, 1), epilogue=BIAS),
    "concatenation": ConcatProblem((IMAGES, default_spec((2, 3, 5, 6)), IMAGES), 1),
    "slice": slice_(NHWC, [2], [7], [1]),
    "conversion": convert(NHWC, IMAGES),
    "maximum": PoolProblem(IMAGES, "max", (3, 3), (2, 2), (1, 1, 1, 1)),
    "average": PoolProblem(default_spec((1, 6, 4, 5)), "average", (2, 2)),
    "nearest": ResizeProblem(IMAGES, (10, 12), (2.0, 2.0), "nearest"),
    "linear": ResizeProblem(IMAGES, (7, 9), (1.4, 1.5), "linear"),
    "maximum of one channel": PoolProblem(default_spec((2, 1, 6, 8)), "max", (2, 2), (2, 2)),
    "nearest of one channel": ResizeProblem(default_spec((2, 1, 3, 4)), (6, 8), (2.0, 2.0),
                                            "nearest"),
    "one number": ElementwiseProblem((default_spec((1, 1, 1, 1)),), apply("relu")),
    "repeated operand": ElementwiseProblem((IMAGES, default_spec((2, 8, 1, 1))), apply("mul")),
    "sum": ElementwiseProblem((IMAGES, IMAGES), apply("add")),
}
OTHERS = (8, 16)
"""Channels of other tensors before and after a part."""


def with_parts(algorithm: Algorithm, problem: Problem, variant: Variant) -> Iterator[Variant]:
    """Yields the variant with parts as inputs, as output and as both, where these are possible."""
    inputs = tuple(
        spec.with_format(other_channels=OTHERS)
        if may_be_part(algorithm, problem, variant, index, is_output=False) else spec
        for index, spec in enumerate(variant.inputs))
    outputs = tuple(
        spec.with_format(other_channels=OTHERS[::-1])
        if may_be_part(algorithm, problem, variant, index, is_output=True) else spec
        for index, spec in enumerate(variant.outputs))
    found = dict.fromkeys(replace(variant, inputs=taken, outputs=given) for taken, given in (
        (inputs, variant.outputs), (variant.inputs, outputs), (inputs, outputs)))
    yield from (placed for placed in found if placed != variant)


@pytest.mark.sanitize
@pytest.mark.parametrize("case", PROBLEMS)
def test_parts_of_larger_tensors(compiled_device: Device, case: str) -> None:
    problem, ran = PROBLEMS[case], []
    for algorithm in op_of(problem).algorithms:
        if algorithm.vendor or algorithm.supports(problem, compiled_device) is not None:
            continue
        variants = quick(list(algorithm.variants(problem, compiled_device)))
        if compiled_device.api == "opencl":
            # each takes seconds to build: one for each pair of formats, which differ in what they
            # do with parts
            variants = list({(variant.inputs, variant.outputs): variant
                             for variant in reversed(variants)}.values())
        placed = [part for variant in variants for part in with_parts(algorithm, problem, variant)]
        if is_slow(compiled_device):
            placed = placed[-1:]
        if placed:
            check_variants(algorithm, problem, compiled_device, placed)
            ran.append(algorithm.name)
    assert ran


def test_tensor_operands_lie_as_the_output_does(compiled_device: Device) -> None:
    problem = PROBLEMS["residual sum"]
    for algorithm in op_of(problem).algorithms:
        if algorithm.supports(problem, compiled_device) is None:
            for variant in algorithm.variants(problem, compiled_device):
                assert not may_be_part(algorithm, problem, variant, 1, is_output=False)
                assert not may_be_part(algorithm, problem, variant, 0, is_output=True)
