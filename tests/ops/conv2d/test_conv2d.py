from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.device.host import HostDevice
from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.ops.algorithm import Epilogue, Variant
from gossamer.ops.conv2d import OP
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import Weights
from tests.fixtures import is_slow
from tests.ops.harness import (
    check,
    one_layout_a_config,
    quick,
    random_inputs,
    random_weights,
    run_variant,
)

BIAS_CLIP = Epilogue(apply("add").then(apply("clip", 0.0, 6.0)), ("channel",))
BIAS_RESIDUAL_RELU = Epilogue(apply("add").then(apply("add")).then(apply("relu")),
                              ("channel", "tensor"))
RESIDUAL_FIRST = Epilogue(
    Expression(3, (ExpressionStep("leaky_relu", (0,), (0.1,)), ExpressionStep("mul", (3, 2)),
                   ExpressionStep("add", (4, 1)))),
    ("tensor", "channel"))
EPILOGUES = (Epilogue(), BIAS_CLIP, BIAS_RESIDUAL_RELU, RESIDUAL_FIRST)

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@st.composite
def small_problems(draw: st.DrawFn, *, batches: Sequence[int] = (0, 1, 2, 3),
                   groups: Sequence[int] = (1, 1, 2, 3), channels: Sequence[int] = (1, 3, 4),
                   out_channels: Sequence[int], epilogues: Sequence[Epilogue] = EPILOGUES
                   ) -> Conv2dProblem:
    """Draws a convolution of small images. channels, out_channels: those of each group."""
    count = draw(st.sampled_from(groups))
    return Conv2dProblem(
        draw(st.sampled_from(batches)), count * draw(st.sampled_from(channels)),
        draw(st.integers(5, 9)), draw(st.integers(5, 9)),
        count * draw(st.sampled_from(out_channels)), draw(pairs), draw(pairs),
        tuple(draw(st.integers(0, 2)) for _ in range(4)),
        draw(st.tuples(*[st.integers(1, 2)] * 2)), count, draw(st.sampled_from(epilogues)))


def problems(depthwise: bool) -> st.SearchStrategy[Conv2dProblem]:
    if depthwise:
        return small_problems(groups=[3, 4, 8], channels=[1], out_channels=[1, 1, 2])
    return small_problems(out_channels=[1, 4, 5, 12])


Selection = Callable[[list[Variant]], list[Variant]]


def check_some(problem: Conv2dProblem, device: Device, choices: Sequence[int],
               selected: Selection = list) -> None:
    """Checks some variants of each algorithm, quick ones where there are any: for each choice one,
    and none twice.

    selected: selects the variants that count; an algorithm without such variants is left out.
    """
    # Oclgrind needs seconds for a work-group of the published kernel, whose tile is large, and each
    # group of each image has one, which all are alike
    all_published = not is_slow(device) or problem.batch * problem.groups == 1

    def taken(variants: list[Variant]) -> list[Variant]:
        few = [v for v in quick(selected(variants)) if all_published or not is_published(v)]
        return [few[index] for index in sorted({choice % len(few) for choice in choices if few})]

    check(problem, device, taken=taken)


def is_published(variant: Variant) -> bool:
    """Returns whether it is a variant of the published algorithm, whose config is one number."""
    return [name for name, _ in variant.config] == ["tile_k"]


@given(problem=problems(depthwise=False), choice=st.integers(0, 47))
@settings(max_examples=30)
def test_any_geometry(device: Device, problem: Conv2dProblem, choice: int) -> None:
    check_some(problem, device, [choice])


@given(problem=problems(depthwise=True), choice=st.integers(0, 47))
@settings(max_examples=20)
def test_any_depthwise(device: Device, problem: Conv2dProblem, choice: int) -> None:
    if not is_slow(device):
        check_some(problem, device, [choice])
        return
    check_some(problem, device, [choice], only_depthwise)
    # each group of each image takes other kernels a work-group, whose large tile is almost empty
    two_groups = replace(problem, batch=min(problem.batch, 1), channels=2, groups=2,
                         out_channels=2 * problem.out_channels // problem.channels)
    check_some(two_groups, device, [choice],
               lambda variants: [v for v in variants if v not in only_depthwise(variants)])


def test_images_and_groups_of_the_published_kernel(compiled_device: Device) -> None:
    problem = Conv2dProblem(2, 6, 4, 5, 4, (2, 2), groups=2, epilogue=BIAS_RESIDUAL_RELU)
    check(problem, compiled_device,
          taken=lambda variants: list(filter(is_published, variants)))


@pytest.mark.sanitize
@pytest.mark.parametrize("kernel", [1, 3])
def test_every_variant(compiled_device: Device, kernel: int) -> None:
    if is_slow(compiled_device):
        # one work-group of every config is enough: races show within it
        problem = Conv2dProblem(1, 4, 4, 4, 8, (kernel, kernel), pads=(1, 0, kernel // 2, 0),
                                epilogue=BIAS_CLIP)
    elif kernel == 1:
        problem = Conv2dProblem(3, 20, 5, 7, 36, (1, 1), epilogue=BIAS_RESIDUAL_RELU)
    else:
        problem = Conv2dProblem(2, 8, 9, 7, 20, (3, 3), (2, 2), (1, 0, 1, 2), epilogue=BIAS_CLIP)
    on_cuda = compiled_device.api == "cuda"
    ran = check(problem, compiled_device, taken=list if on_cuda else one_layout_a_config)
    assert len(ran) >= (40 if on_cuda else 10)


@pytest.mark.sanitize
def test_every_depthwise_variant(compiled_device: Device) -> None:
    def few(variants: list[Variant]) -> list[Variant]:
        """Returns small tiles: Oclgrind takes a minute for each large unrolled window."""
        return [v for v in variants if v["rows"] * v["columns"] <= 4]

    selection = few if is_slow(compiled_device) else (
        list if compiled_device.api == "cuda" else one_layout_a_config)
    check(Conv2dProblem(2, 8, 9, 7, 8, (3, 3), (1, 1), (1, 1, 1, 1), groups=8,
                        epilogue=BIAS_RESIDUAL_RELU), compiled_device,
          taken=lambda variants: selection(only_depthwise(variants)))
    check(Conv2dProblem(1, 6, 9, 7, 12, (5, 3), (2, 1), (2, 1, 0, 1), (1, 2), groups=6,
                        epilogue=BIAS_CLIP), compiled_device,
          taken=lambda variants: few(only_depthwise(variants)))


def only_depthwise(variants: list[Variant]) -> list[Variant]:
    return [v for v in variants if "rows" in dict(v.config)]


@pytest.mark.parametrize("pixels", [1, 3, 130])
@pytest.mark.parametrize("depth", [1, 17, 33])
def test_odd_sizes_against_tiles(device: Device, pixels: int, depth: int) -> None:
    if is_slow(device) and pixels > 100:
        pytest.skip("Oclgrind interprets: small shapes only")
    problem = Conv2dProblem(1, depth, 1, pixels, 7, (1, 1), epilogue=BIAS_CLIP)
    check_some(problem, device, (0, 13, 26))


def test_large_magnitudes_and_cancellation(device: Device) -> None:
    images, channels = (1, 4) if is_slow(device) else (2, 16)
    problem = Conv2dProblem(images, channels, 6, 6, 8, (3, 3), pads=(1, 1, 1, 1))
    # float16 has no numbers of this size
    check(problem, device, inputs=[array * np.float32(1e18) for array in random_inputs(problem)],
          taken=lambda variants: [v for v in variants if v.precision != "fp16"][:1])


def test_a_nan_stays_a_nan(device: Device) -> None:
    problem = Conv2dProblem(1, 4, 3, 3, 4, (1, 1), epilogue=BIAS_CLIP)
    inputs, constants = random_inputs(problem), random_weights(problem)
    inputs[0][0, 1, 1, 2] = np.nan
    for algorithm in OP.algorithms:
        if algorithm.supports(problem, device) is not None:
            continue
        for variant in itertools.islice(algorithm.variants(problem, device), 2):
            (actual,) = run_variant(algorithm, problem, variant, device,
                                    Weights(constants, device), inputs)
            assert np.isnan(actual[0, :, 1, 2]).all()
            assert np.isnan(actual).sum() == 4


def test_the_first_config_is_the_published_one_among_all(compiled_device: Device) -> None:
    problem = Conv2dProblem(1, 64, 56, 56, 64, (3, 3), pads=(1, 1, 1, 1))
    configs = {tuple(variant.config) for algorithm in OP.algorithms
               if algorithm.supports(problem, compiled_device) is None
               for variant in algorithm.variants(problem, compiled_device)}
    published = {"tile_p": 64, "tile_m": 64, "work_p": 8, "work_m": 4}
    assert any(published.items() <= dict(config).items() for config in configs)


def test_reasons_are_given(device: Device) -> None:
    problem = Conv2dProblem(1, 4, 5, 5, 4, (3, 3))
    reasons = {algorithm.name: algorithm.supports(problem, device) for algorithm in OP.algorithms}
    assert reasons["depthwise"] and reasons["host_depthwise"]
    assert None in reasons.values()


def test_the_reference_counts_its_work() -> None:
    problem = Conv2dProblem(2, 4, 6, 6, 8, (3, 3), epilogue=BIAS_CLIP)
    assert problem.flops == 2 * 8 * 4 * 4 * (2 * 36 + 3)
    assert problem.least_bytes == 4 * (2 * 4 * 36 + 8 * 4 * 9 + 8 + 2 * 8 * 16)
    assert problem.describe() == "3x3 4x6x6 -> 8x4x4"
    assert isinstance(Variant((), problem.inputs, problem.outputs).config_text, str)


@pytest.mark.parametrize("kernel", [1, 3])
def test_no_input_channels_on_the_host(kernel: int) -> None:
    """Results are those of the epilogue for zeros."""
    problem = Conv2dProblem(2, 0, 6, 5, 4, (kernel, kernel), (1, 1), (0, 1, 0, 1), (1, 1), 1,
                            BIAS_CLIP)
    check_some(problem, HostDevice(), (0,))
