"""Norms of several layers as one kernel, on the GPU where there is one;
tests/emulation/test_fusions.py runs the kernel as CUDA has it anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.fused.row_expression import RowExpressionFusion, row_expression_of
from gossamer.ops.rows.config import RowConfig
from gossamer.ops.rows.kernel import with_config
from tests.ops.fused import norms
from tests.ops.fused.layers import Layers, operand
from tests.ops.harness import check_variants, one_layout_a_config
from tests.ops.recording import check_kernels_build
from tests.simulated.device import HARDWARE, SimulatedDevice

ALGORITHM = RowExpressionFusion()
check = partial(check_variants, ALGORITHM)
PROBLEMS = {
    "RMS norm": norms.rms_norm((70, 40), (1,)),
    "RMS norm of images": norms.rms_norm_2d((2, 24, 5, 6)),
    "group norm": norms.group_norm((2, 12, 5, 4), 3, residual=True),
    "group norm of eights": norms.group_norm((2, 32, 4, 4), 4),
    "instance norm": norms.group_norm((2, 16, 3, 5), 16),
    "layer norm of whole images": norms.group_norm((3, 8, 4, 5), 1),
    "EvoNorm": norms.evo_norm((1, 32, 6, 6), 2),
    "EvoNorm in float16": norms.evo_norm((2, 24, 5, 5), 3, rounded=True),
    "softmax": norms.softmax((5, 33), 1),
    "softmax of images": norms.softmax((2, 7, 3, 4), 1),
    "length of channels": norms.length((2, 16, 5, 5), (2, 3)),
    "RMS norm of one row": norms.rms_norm((1, 70), (1,)),
    "length without axes": norms.length((2, 5, 9), (1,), keepdims=False),
    "scores": norms.scores((2, 3, 5, 9)),
    "logarithms of scores": norms.scores((2, 3, 5, 9), 1, log=True),
    "layer norm of a sum": norms.layer_norm((2, 4, 5, 12), (3,)),
    "keys over their lengths": norms.units_of_slices(2, 7, 3, 4, 2),
    "keys over lengths of tokens": norms.units_of_slices(2, 12, 2, 8, 3),
    "RMS norm of half the channels": norms.rms_norm_of_half(2, 12, 5, 4),
    "RMS norm of eight channels": norms.rms_norm_of_half(2, 8, 4, 4),
    "layer norm of windows": norms.norm_of_windows(1, 2, 3, 12),
    "RMS norm of a sum": norms.layer_norm((2, 4, 5, 6), (2, 3), centred=False),
}
LONG = {
    "group norm": norms.group_norm((1, 16, 17, 12), 2),
    "instance norm": norms.group_norm((1, 16, 31, 7), 16),
    "EvoNorm": norms.evo_norm((1, 32, 14, 8), 2),
    "softmax": norms.softmax((3, 901), 1),
    "length of channels": norms.length((2, 16, 20, 20), (2, 3)),
}


def with_configs(problem: FusionProblem, device: Device,
                 configs: Iterable[RowConfig]) -> list[Variant]:
    """Return the variants of the problem's layouts and precisions with other configs."""
    expression = row_expression_of(problem)
    assert expression is not None
    plain = {(variant.inputs, variant.precision): variant
             for variant in ALGORITHM.variants(problem, device)}
    return [with_config(expression, variant, config)
            for config in configs for variant in plain.values()]


@pytest.mark.parametrize("name", PROBLEMS)
def test_norms(compiled_device: Device, name: str) -> None:
    problem = PROBLEMS[name]
    # PoCL needs a second to build the kernel of a variant
    check(problem, compiled_device,
          one_layout_a_config(list(ALGORITHM.variants(problem, compiled_device))))


@pytest.mark.parametrize("name", LONG)
def test_several_work_groups_compute_a_row(compiled_device: Device, name: str) -> None:
    problem = LONG[name]
    check(problem, compiled_device,
          with_configs(problem, compiled_device, [RowConfig(32, 2, splits=3)])[::2])


@given(data=st.data(), shape=st.lists(st.integers(1, 9), min_size=2, max_size=5))
@settings(max_examples=10)
def test_any_axes(quick_compiled: Device, data: st.DataObject, shape: list[int]) -> None:
    axes = sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    make = data.draw(st.sampled_from([norms.rms_norm, norms.length, norms.sums_of_two]))
    problem = make(tuple(shape), axes)
    if row_expression_of(problem) is None:  # no axis is kept, or none is reduced
        assert 1 in (problem.parts[0].outputs[0].size // problem.outputs[0].size, *(
            size for axis, size in enumerate(shape) if axis not in axes), *(
            size for axis, size in enumerate(shape) if axis in axes)) or len(axes) == len(shape)
        return
    lanes = data.draw(st.sampled_from([1, 2, 8, 32]))
    config = RowConfig(lanes, 64 // lanes, splits=data.draw(st.integers(1, 3)))
    check(problem, quick_compiled, with_configs(problem, quick_compiled, [config])[:2])


def test_a_mean_far_from_zero_costs_few_digits(compiled_device: Device) -> None:
    problem = norms.group_norm((2, 8, 4, 4), 2)
    x = np.random.default_rng(0).standard_normal((2, 8, 4, 4), np.float32) + 20
    variants = [variant for variant in ALGORITHM.variants(problem, compiled_device)
                if variant.precision == "fp32"]
    check_variants(ALGORITHM, problem, compiled_device, variants, inputs=[x])


@pytest.mark.sanitize
@pytest.mark.parametrize("name", PROBLEMS)
def test_norms_on_cuda(cuda: Device, name: str) -> None:
    check(PROBLEMS[name], cuda)


@pytest.mark.sanitize
@pytest.mark.parametrize("name", LONG)
def test_several_work_groups_on_cuda(cuda: Device, name: str) -> None:
    configs = [RowConfig(64, 1, splits=3)]
    if cuda.limits.cluster > 1:
        configs += [RowConfig(64, 1, cluster=4), RowConfig(32, 4, cluster=2)]
    check(LONG[name], cuda, with_configs(LONG[name], cuda, configs))


@pytest.mark.slow
def test_kernels_build_without_spills() -> None:
    check_kernels_build(ALGORITHM, [
        norms.rms_norm_2d((64, 64, 56, 56)), norms.evo_norm((64, 96, 32, 32), 6),
        norms.evo_norm((1, 96, 112, 112), 6), norms.group_norm((64, 256, 56, 56), 32),
        norms.group_norm((1, 64, 56, 56), 64), norms.length((1, 160, 56, 56), (2, 3))])


def test_the_expected_time_is_that_of_the_slices_that_are_read() -> None:
    device = SimulatedDevice(HARDWARE["h200"])

    def expected(problem: FusionProblem) -> float:
        (variant, *_) = ALGORITHM.variants(problem, device)
        return ALGORITHM.expected_us(problem, variant, device)

    def norm_of_last(rows: int) -> FusionProblem:
        layers = Layers()
        x = layers.slice(layers.input((64, rows, 4096)), 1, rows - 1, rows)
        centred, variance = norms.standardised(layers, x, (2,))
        return layers.fusion(layers.compute(operand("x") / "v", x=centred, v=variance))

    assert expected(norm_of_last(200)) == expected(norm_of_last(2)) > 0


def test_other_layers_are_no_row_expressions() -> None:
    layers = Layers()
    x = layers.input((2, 6, 4, 4))
    other = layers.compute(operand("x") - "m", x=x, m=layers.reduce("mean", x, (2, 3)))
    between = layers.reduce("mean", other, (1,))
    assert not ALGORITHM.recognises(layers.fusion(between))  # reduces other axes
    assert not ALGORITHM.recognises(layers.fusion(other, between))  # two results
    steps = Layers()
    x = steps.input((4, 8))
    sign = steps.compute((operand("x") - "m").apply("sign"), x=x,
                         m=steps.reduce("mean", x, (1,)))
    assert not ALGORITHM.recognises(steps.fusion(sign))
    square = Layers()
    x = square.input((4, 4))
    mean = square.reduce("mean", x, (1,), keepdims=False)
    crossed = square.compute(operand("x") - "m", x=x, m=mean)
    assert not ALGORITHM.recognises(square.fusion(crossed))  # the mean of row i is for column i
