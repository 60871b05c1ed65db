from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.ops.batch_norm.problem import BatchNormProblem, reference
from gossamer.tensor import default_spec
from tests.fixtures import is_slow
from tests.ops.harness import check
from tests.tolerances import normalised_error


def _small_groups(variants: list[Variant]) -> list[Variant]:
    """Return the variants with the fewest work-items in a work-group."""
    return [v for v in variants if dict(v.config).get("work_group", 128) == 128]


@given(shape=st.lists(st.integers(1, 6), min_size=2, max_size=5),
       momentum=st.sampled_from([None, 0.0, 0.9, 1.0]))
@settings(max_examples=10)
def test_any_shape(device: Device, shape: list[int], momentum: float | None) -> None:
    check(BatchNormProblem(default_spec(tuple(shape)), 1e-3, momentum), device,
          taken=_small_groups)


def test_statistics_are_those_of_the_whole_batch(device: Device) -> None:
    sides = (5, 6) if is_slow(device) else (31, 33)
    check(BatchNormProblem(default_spec((3, 5, *sides)), 1e-5, 0.9), device)


def test_a_mean_far_from_zero_costs_no_digits(device: Device) -> None:
    shape = (2, 3, 5, 7) if is_slow(device) else (4, 3, 40, 50)
    noise = np.random.default_rng(0).standard_normal(shape, np.float32)
    scale, offset = (np.array(values, np.float32)[:, None, None]
                     for values in ([1, 1, 0.01], [1000, -10_000, 5]))
    check(BatchNormProblem(default_spec(shape), 1e-5, 0.9), device,
          inputs=[noise * scale + offset], taken=_small_groups)


def test_one_element_a_channel_gives_beta(device: Device) -> None:
    check(BatchNormProblem(default_spec((1, 4, 1, 1))), device, taken=_small_groups)


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (2, 0, 4, 4), (2, 3, 0, 4)])
def test_nothing_gives_nothing(device: Device, shape: tuple[int, ...]) -> None:
    check(BatchNormProblem(default_spec(shape)), device)


def test_the_reference_agrees_with_the_onnx_standard() -> None:
    onnx_reference = pytest.importorskip("onnx.reference")
    helper = pytest.importorskip("onnx").helper
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4, 5, 6))
    weights = {name: rng.random(4) for name in ("gamma", "beta", "stored_mean", "stored_variance")}
    problem = BatchNormProblem(default_spec(x.shape), 1e-3, 0.7)
    node = helper.make_node("BatchNormalization", ["x", *weights], ["y", "mean", "variance"],
                            training_mode=1, epsilon=1e-3, momentum=0.7)
    expected = onnx_reference.ReferenceEvaluator(node).run(None, {"x": x, **weights})
    for y, r in zip(reference(problem, [x], weights), expected, strict=True):
        assert normalised_error(y, r) < 1e-6


def test_inputs_that_have_no_statistics_are_refused() -> None:
    with pytest.raises(ValueError, match="rank 2 or more"):
        BatchNormProblem(default_spec((3,)))
    with pytest.raises(ValueError, match="float32"):
        BatchNormProblem(default_spec((3, 4), "int32"))
    with pytest.raises(ValueError, match="have no mean"):
        BatchNormProblem(default_spec((0, 4)), momentum=0.9)
