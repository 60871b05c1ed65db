"""Inputs and outputs in NHWC that are parts of the channels of larger tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.expression import apply
from gossamer.ops.algorithm import Algorithm, Epilogue, Problem, Variant
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.copy.problem import convert, slice_
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.gather.problem import GatherProblem
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.resize.problem import ResizeProblem
from gossamer.plan.in_place import aligned_channels, first_channels, may_be_part
from gossamer.tensor import Format, TensorSpec, default_spec
from tests.fixtures import is_slow
from tests.ops.harness import candidates, check_variants, op_of, quick, random_weights

BIAS = Epilogue(apply("add").then(apply("relu")), ("channel",))
SUM = Epilogue(apply("add"), ("tensor",))
IMAGES = default_spec((2, 8, 5, 6))
NHWC = TensorSpec(IMAGES.shape, Format("NHWC"))
PROBLEMS: dict[str, Problem] = {
    "convolution": Conv2dProblem(2, 8, 5, 6, 16, (3, 3), pads=(1, 1, 1, 1), epilogue=BIAS),
    "1x1 convolution": Conv2dProblem(2, 16, 3, 3, 8, (1, 1), epilogue=BIAS),
    "1x1 of fours": Conv2dProblem(1, 12, 3, 3, 20, (1, 1), epilogue=BIAS),
    "1x1 of pairs": Conv2dProblem(1, 58, 3, 3, 10, (1, 1), epilogue=BIAS),
    "odd channels": Conv2dProblem(1, 9, 5, 4, 11, (3, 3), (2, 2), epilogue=BIAS),
    "patches": Conv2dProblem(1, 3, 8, 16, 12, (4, 4), (4, 4), epilogue=BIAS),
    "groups": Conv2dProblem(2, 16, 3, 4, 16, (1, 1), groups=2),
    "depthwise": Conv2dProblem(2, 8, 5, 6, 8, (3, 3), pads=(1, 1, 1, 1), groups=8, epilogue=BIAS),
    "depthwise of fours": Conv2dProblem(2, 12, 5, 6, 12, (3, 3), (2, 2), groups=12),
    "depthwise of pairs": Conv2dProblem(1, 6, 4, 4, 6, (5, 5), pads=(2, 2, 2, 2), groups=6),
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
    "order of channels": GatherProblem(IMAGES, default_spec((6,), "int32"), 1, (1,)),
    "odd number of channels": GatherProblem(IMAGES, default_spec((5,), "int32"), 1, (1,)),
    "order of columns": GatherProblem(IMAGES, default_spec((4,), "int32"), 3, (1,)),
    "sum": ElementwiseProblem((IMAGES, IMAGES), apply("add")),
}


def _weights(problem: Problem) -> dict[str, np.ndarray]:
    if isinstance(problem, GatherProblem):
        taken = np.random.default_rng(1).permutation(problem.data.shape[problem.axis])
        return {"operand1": taken[:problem.indices.size].astype(problem.indices.dtype)}
    return random_weights(problem)


def as_part(spec: TensorSpec, before: int, after: int) -> TensorSpec:
    """Return the spec as a part of a larger tensor.

    before, after: channels of other tensors before and after the part in each pixel, as multiples
    of the fewest channels that keep it aligned.
    """
    fewest = aligned_channels(spec)
    return spec.with_format(other_channels=(before * fewest, after * fewest))


def with_parts(algorithm: Algorithm, problem: Problem, variant: Variant) -> Iterator[Variant]:
    """Yield the variant with parts where these are possible.

    The parts are inputs, the output, or both.
    """
    inputs = tuple(
        as_part(spec, 1, 2)
        if may_be_part(algorithm, problem, variant, index, is_output=False) else spec
        for index, spec in enumerate(variant.inputs))
    outputs = tuple(
        as_part(spec, 3, 1)
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
            check_variants(algorithm, problem, compiled_device, placed, _weights(problem))
            ran.append(algorithm.name)
    assert ran


def test_tensor_operands_lie_as_the_output_does(compiled_device: Device) -> None:
    problem = PROBLEMS["residual sum"]
    for algorithm, variant in candidates(problem, compiled_device):
        if algorithm.operand_parts:
            continue
        assert not may_be_part(algorithm, problem, variant, 1, is_output=False)
        assert not may_be_part(algorithm, problem, variant, 0, is_output=True)


@pytest.mark.parametrize(("channels", "dtype", "firsts"), [
    ((8, 8), "float16", [0, 8]), ((12, 12), "float16", [0, 12]), ((58, 58), "float16", [0, 58]),
    ((4, 12), "float16", [0, 4]), ((8, 12), "float16", None), ((8, 12), "float32", [0, 8]),
    ((12, 8), "float16", None), ((3, 5, 1), "float16", [0, 3, 8]), ((5, 6), "float32", None),
    ((64, 64), "trits", None)])
def test_a_part_is_as_aligned_as_a_tensor_of_its_own(
        channels: tuple[int, ...], dtype: str, firsts: list[int] | None) -> None:
    problem = ConcatProblem(tuple(default_spec((2, count, 3, 3)) for count in channels), 1)
    layout = "packed32" if dtype == "trits" else "NHWC"
    inputs, outputs = (tuple(spec.with_format(layout=layout, dtype=dtype) for spec in specs)
                       for specs in (problem.inputs, problem.outputs))
    assert first_channels(problem, Variant((), inputs, outputs)) == firsts
