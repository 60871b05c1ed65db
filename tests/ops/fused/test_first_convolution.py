"""few_channels_mma for fusions: the first convolution of a network with what makes its image, on
the GPU where there is one; tests/emulation/test_convolutions.py runs the kernel anywhere."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from gossamer.device.base import Device
from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.first_convolution import FirstConvolutionMma
from gossamer.ops.fused.problem import ENTRY, FusionProblem, entry
from gossamer.tensor import Format
from tests.ops.conv2d.tensor_core.test_few_channels import GREY, LARGE_FILTER, ODD, STEM
from tests.ops.fused.blocks import given_as
from tests.ops.harness import check_variants
from tests.ops.recording import RecordingDevice, check_kernels_build

ALGORITHM = FirstConvolutionMma()
check = partial(check_variants, ALGORITHM)


def fusion(convolution: Conv2dProblem, format_: Format,
           expression: Expression | None = None) -> FusionProblem:
    """Return a convolution, and what makes its image of what callers give in a format."""
    others = tuple(map(entry, range(1, len(convolution.inputs))))
    return given_as(FusionProblem((convolution,), ((ENTRY, *others),), ((0, 0),)), format_,
                    expression)


PROBLEMS = {
    "bytes": fusion(STEM, Format("NHWC", "uint8")),
    "planes": fusion(LARGE_FILTER, Format("NCHW", "uint8"), apply("mul")),
    "halves": fusion(ODD, Format("NHWC", "float16"), Expression(1)),
    "bfloats": fusion(STEM, Format("NCHW", "bfloat16")),
    "floats": fusion(GREY, Format("NHWC"), apply("add"))}


@pytest.mark.sanitize
@pytest.mark.parametrize("name", PROBLEMS)
def test_it_computes_the_convolution_on_cuda(cuda: Device, name: str) -> None:
    problem = PROBLEMS[name]
    check(problem, cuda)


@pytest.mark.slow
def test_it_builds_without_spills() -> None:
    check_kernels_build(ALGORITHM, PROBLEMS.values())


def test_an_image_that_others_read_gives_a_reason() -> None:
    problem = PROBLEMS["bytes"]
    shared = FusionProblem(problem.parts, problem.sources, ((0, 0), (1, 0)))
    assert ALGORITHM.recognises(shared)
    assert "read elsewhere" in (ALGORITHM.supports(shared, RecordingDevice()) or "")


def test_other_sums_are_not_recognised() -> None:
    total = ElementwiseProblem((STEM.inputs[0],) * 2, apply("add"))
    assert not ALGORITHM.recognises(FusionProblem(
        (total, STEM), ((ENTRY, entry(1)), ((0, 0),)), ((1, 0),)))


def test_the_arithmetic_of_integers_is_not_recognised() -> None:
    image = replace(STEM.inputs[0], format=Format(dtype="uint8"))
    doubled = ElementwiseProblem((image,), Expression(1, (ExpressionStep("add", (0, 0)),)),
                                 ("float32",))
    assert doubled.arithmetic == "int32"
    assert not ALGORITHM.recognises(FusionProblem(
        (doubled, STEM), ((ENTRY,), ((0, 0),)), ((1, 0),)))
